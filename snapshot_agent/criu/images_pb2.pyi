from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Vma(_message.Message):
    __slots__ = ("start", "end", "pgoff", "shmid", "prot", "flags", "status", "fd", "madv", "fdflags")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PGOFF_FIELD_NUMBER: _ClassVar[int]
    SHMID_FIELD_NUMBER: _ClassVar[int]
    PROT_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    FD_FIELD_NUMBER: _ClassVar[int]
    MADV_FIELD_NUMBER: _ClassVar[int]
    FDFLAGS_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    pgoff: int
    shmid: int
    prot: int
    flags: int
    status: int
    fd: int
    madv: int
    fdflags: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., pgoff: _Optional[int] = ..., shmid: _Optional[int] = ..., prot: _Optional[int] = ..., flags: _Optional[int] = ..., status: _Optional[int] = ..., fd: _Optional[int] = ..., madv: _Optional[int] = ..., fdflags: _Optional[int] = ...) -> None: ...

class Mm(_message.Message):
    __slots__ = ("exe_file_id", "vmas")
    EXE_FILE_ID_FIELD_NUMBER: _ClassVar[int]
    VMAS_FIELD_NUMBER: _ClassVar[int]
    exe_file_id: int
    vmas: _containers.RepeatedCompositeFieldContainer[Vma]
    def __init__(self, exe_file_id: _Optional[int] = ..., vmas: _Optional[_Iterable[_Union[Vma, _Mapping]]] = ...) -> None: ...

class PagemapHead(_message.Message):
    __slots__ = ("pages_id",)
    PAGES_ID_FIELD_NUMBER: _ClassVar[int]
    pages_id: int
    def __init__(self, pages_id: _Optional[int] = ...) -> None: ...

class PagemapEntry(_message.Message):
    __slots__ = ("vaddr", "compat_nr_pages", "in_parent", "flags", "nr_pages")
    VADDR_FIELD_NUMBER: _ClassVar[int]
    COMPAT_NR_PAGES_FIELD_NUMBER: _ClassVar[int]
    IN_PARENT_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    NR_PAGES_FIELD_NUMBER: _ClassVar[int]
    vaddr: int
    compat_nr_pages: int
    in_parent: bool
    flags: int
    nr_pages: int
    def __init__(self, vaddr: _Optional[int] = ..., compat_nr_pages: _Optional[int] = ..., in_parent: _Optional[bool] = ..., flags: _Optional[int] = ..., nr_pages: _Optional[int] = ...) -> None: ...

class Fown(_message.Message):
    __slots__ = ("uid", "euid", "signum", "pid_type", "pid")
    UID_FIELD_NUMBER: _ClassVar[int]
    EUID_FIELD_NUMBER: _ClassVar[int]
    SIGNUM_FIELD_NUMBER: _ClassVar[int]
    PID_TYPE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    uid: int
    euid: int
    signum: int
    pid_type: int
    pid: int
    def __init__(self, uid: _Optional[int] = ..., euid: _Optional[int] = ..., signum: _Optional[int] = ..., pid_type: _Optional[int] = ..., pid: _Optional[int] = ...) -> None: ...

class RegFile(_message.Message):
    __slots__ = ("id", "flags", "pos", "fown", "name", "mnt_id", "size", "ext", "mode")
    ID_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    POS_FIELD_NUMBER: _ClassVar[int]
    FOWN_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MNT_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    EXT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    id: int
    flags: int
    pos: int
    fown: Fown
    name: str
    mnt_id: int
    size: int
    ext: bool
    mode: int
    def __init__(self, id: _Optional[int] = ..., flags: _Optional[int] = ..., pos: _Optional[int] = ..., fown: _Optional[_Union[Fown, _Mapping]] = ..., name: _Optional[str] = ..., mnt_id: _Optional[int] = ..., size: _Optional[int] = ..., ext: _Optional[bool] = ..., mode: _Optional[int] = ...) -> None: ...

class MemfdFile(_message.Message):
    __slots__ = ("id", "inode_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    INODE_ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    inode_id: int
    def __init__(self, id: _Optional[int] = ..., inode_id: _Optional[int] = ...) -> None: ...

class MemfdInode(_message.Message):
    __slots__ = ("name", "size", "shmid", "seals", "inode_id", "hugetlb_flag")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHMID_FIELD_NUMBER: _ClassVar[int]
    SEALS_FIELD_NUMBER: _ClassVar[int]
    INODE_ID_FIELD_NUMBER: _ClassVar[int]
    HUGETLB_FLAG_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    shmid: int
    seals: int
    inode_id: int
    hugetlb_flag: int
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., shmid: _Optional[int] = ..., seals: _Optional[int] = ..., inode_id: _Optional[int] = ..., hugetlb_flag: _Optional[int] = ...) -> None: ...

class InetSocket(_message.Message):
    __slots__ = ("id", "ino", "family", "type", "proto", "state", "src_port", "dst_port", "src_addr", "dst_addr")
    ID_FIELD_NUMBER: _ClassVar[int]
    INO_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    PROTO_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SRC_PORT_FIELD_NUMBER: _ClassVar[int]
    DST_PORT_FIELD_NUMBER: _ClassVar[int]
    SRC_ADDR_FIELD_NUMBER: _ClassVar[int]
    DST_ADDR_FIELD_NUMBER: _ClassVar[int]
    id: int
    ino: int
    family: int
    type: int
    proto: int
    state: int
    src_port: int
    dst_port: int
    src_addr: _containers.RepeatedScalarFieldContainer[int]
    dst_addr: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[int] = ..., ino: _Optional[int] = ..., family: _Optional[int] = ..., type: _Optional[int] = ..., proto: _Optional[int] = ..., state: _Optional[int] = ..., src_port: _Optional[int] = ..., dst_port: _Optional[int] = ..., src_addr: _Optional[_Iterable[int]] = ..., dst_addr: _Optional[_Iterable[int]] = ...) -> None: ...

class Timerfd(_message.Message):
    __slots__ = ("ticks", "vsec", "vnsec", "isec", "insec")
    TICKS_FIELD_NUMBER: _ClassVar[int]
    VSEC_FIELD_NUMBER: _ClassVar[int]
    VNSEC_FIELD_NUMBER: _ClassVar[int]
    ISEC_FIELD_NUMBER: _ClassVar[int]
    INSEC_FIELD_NUMBER: _ClassVar[int]
    ticks: int
    vsec: int
    vnsec: int
    isec: int
    insec: int
    def __init__(self, ticks: _Optional[int] = ..., vsec: _Optional[int] = ..., vnsec: _Optional[int] = ..., isec: _Optional[int] = ..., insec: _Optional[int] = ...) -> None: ...

class FileEntry(_message.Message):
    __slots__ = ("type", "id", "reg", "isk", "tfd", "memfd")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    REG_FIELD_NUMBER: _ClassVar[int]
    ISK_FIELD_NUMBER: _ClassVar[int]
    TFD_FIELD_NUMBER: _ClassVar[int]
    MEMFD_FIELD_NUMBER: _ClassVar[int]
    type: int
    id: int
    reg: RegFile
    isk: InetSocket
    tfd: Timerfd
    memfd: MemfdFile
    def __init__(self, type: _Optional[int] = ..., id: _Optional[int] = ..., reg: _Optional[_Union[RegFile, _Mapping]] = ..., isk: _Optional[_Union[InetSocket, _Mapping]] = ..., tfd: _Optional[_Union[Timerfd, _Mapping]] = ..., memfd: _Optional[_Union[MemfdFile, _Mapping]] = ...) -> None: ...

class FdinfoEntry(_message.Message):
    __slots__ = ("id", "flags", "type", "fd")
    ID_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    FD_FIELD_NUMBER: _ClassVar[int]
    id: int
    flags: int
    type: int
    fd: int
    def __init__(self, id: _Optional[int] = ..., flags: _Optional[int] = ..., type: _Optional[int] = ..., fd: _Optional[int] = ...) -> None: ...

class PstreeEntry(_message.Message):
    __slots__ = ("pid", "ppid", "pgid", "sid", "threads")
    PID_FIELD_NUMBER: _ClassVar[int]
    PPID_FIELD_NUMBER: _ClassVar[int]
    PGID_FIELD_NUMBER: _ClassVar[int]
    SID_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    pid: int
    ppid: int
    pgid: int
    sid: int
    threads: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, pid: _Optional[int] = ..., ppid: _Optional[int] = ..., pgid: _Optional[int] = ..., sid: _Optional[int] = ..., threads: _Optional[_Iterable[int]] = ...) -> None: ...

class TaskIds(_message.Message):
    __slots__ = ("vm_id", "files_id")
    VM_ID_FIELD_NUMBER: _ClassVar[int]
    FILES_ID_FIELD_NUMBER: _ClassVar[int]
    vm_id: int
    files_id: int
    def __init__(self, vm_id: _Optional[int] = ..., files_id: _Optional[int] = ...) -> None: ...

class ThreadSas(_message.Message):
    __slots__ = ("ss_size", "ss_flags")
    SS_SIZE_FIELD_NUMBER: _ClassVar[int]
    SS_FLAGS_FIELD_NUMBER: _ClassVar[int]
    ss_size: int
    ss_flags: int
    def __init__(self, ss_size: _Optional[int] = ..., ss_flags: _Optional[int] = ...) -> None: ...

class ThreadCore(_message.Message):
    __slots__ = ("sas", "seccomp_mode", "seccomp_filter")
    SAS_FIELD_NUMBER: _ClassVar[int]
    SECCOMP_MODE_FIELD_NUMBER: _ClassVar[int]
    SECCOMP_FILTER_FIELD_NUMBER: _ClassVar[int]
    sas: ThreadSas
    seccomp_mode: int
    seccomp_filter: int
    def __init__(self, sas: _Optional[_Union[ThreadSas, _Mapping]] = ..., seccomp_mode: _Optional[int] = ..., seccomp_filter: _Optional[int] = ...) -> None: ...

class TaskCore(_message.Message):
    __slots__ = ("comm", "old_seccomp_mode")
    COMM_FIELD_NUMBER: _ClassVar[int]
    OLD_SECCOMP_MODE_FIELD_NUMBER: _ClassVar[int]
    comm: str
    old_seccomp_mode: int
    def __init__(self, comm: _Optional[str] = ..., old_seccomp_mode: _Optional[int] = ...) -> None: ...

class Core(_message.Message):
    __slots__ = ("mtype", "tc", "ids", "thread_core")
    MTYPE_FIELD_NUMBER: _ClassVar[int]
    TC_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    THREAD_CORE_FIELD_NUMBER: _ClassVar[int]
    mtype: int
    tc: TaskCore
    ids: TaskIds
    thread_core: ThreadCore
    def __init__(self, mtype: _Optional[int] = ..., tc: _Optional[_Union[TaskCore, _Mapping]] = ..., ids: _Optional[_Union[TaskIds, _Mapping]] = ..., thread_core: _Optional[_Union[ThreadCore, _Mapping]] = ...) -> None: ...

class SeccompFilter(_message.Message):
    __slots__ = ("filter", "prev", "flags")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    PREV_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    filter: bytes
    prev: int
    flags: int
    def __init__(self, filter: _Optional[bytes] = ..., prev: _Optional[int] = ..., flags: _Optional[int] = ...) -> None: ...

class Seccomp(_message.Message):
    __slots__ = ("seccomp_filters",)
    SECCOMP_FILTERS_FIELD_NUMBER: _ClassVar[int]
    seccomp_filters: _containers.RepeatedCompositeFieldContainer[SeccompFilter]
    def __init__(self, seccomp_filters: _Optional[_Iterable[_Union[SeccompFilter, _Mapping]]] = ...) -> None: ...

class InheritFd(_message.Message):
    __slots__ = ("key", "fd")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FD_FIELD_NUMBER: _ClassVar[int]
    key: str
    fd: int
    def __init__(self, key: _Optional[str] = ..., fd: _Optional[int] = ...) -> None: ...

class Options(_message.Message):
    __slots__ = ("images_dir_fd", "pid", "leave_running", "tcp_established", "shell_job", "file_locks", "log_level", "log_file", "notify_scripts", "work_dir_fd", "link_remap", "inherit_fd", "manage_cgroups_mode", "ghost_limit", "external", "freeze_cgroup", "timeout", "tcp_skip_in_flight", "network_lock", "skip_file_rwx_check")
    IMAGES_DIR_FD_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    LEAVE_RUNNING_FIELD_NUMBER: _ClassVar[int]
    TCP_ESTABLISHED_FIELD_NUMBER: _ClassVar[int]
    SHELL_JOB_FIELD_NUMBER: _ClassVar[int]
    FILE_LOCKS_FIELD_NUMBER: _ClassVar[int]
    LOG_LEVEL_FIELD_NUMBER: _ClassVar[int]
    LOG_FILE_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_SCRIPTS_FIELD_NUMBER: _ClassVar[int]
    WORK_DIR_FD_FIELD_NUMBER: _ClassVar[int]
    LINK_REMAP_FIELD_NUMBER: _ClassVar[int]
    INHERIT_FD_FIELD_NUMBER: _ClassVar[int]
    MANAGE_CGROUPS_MODE_FIELD_NUMBER: _ClassVar[int]
    GHOST_LIMIT_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_FIELD_NUMBER: _ClassVar[int]
    FREEZE_CGROUP_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    TCP_SKIP_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    NETWORK_LOCK_FIELD_NUMBER: _ClassVar[int]
    SKIP_FILE_RWX_CHECK_FIELD_NUMBER: _ClassVar[int]
    images_dir_fd: int
    pid: int
    leave_running: bool
    tcp_established: bool
    shell_job: bool
    file_locks: bool
    log_level: int
    log_file: str
    notify_scripts: bool
    work_dir_fd: int
    link_remap: bool
    inherit_fd: _containers.RepeatedCompositeFieldContainer[InheritFd]
    manage_cgroups_mode: int
    ghost_limit: int
    external: _containers.RepeatedScalarFieldContainer[str]
    freeze_cgroup: str
    timeout: int
    tcp_skip_in_flight: bool
    network_lock: int
    skip_file_rwx_check: bool
    def __init__(self, images_dir_fd: _Optional[int] = ..., pid: _Optional[int] = ..., leave_running: _Optional[bool] = ..., tcp_established: _Optional[bool] = ..., shell_job: _Optional[bool] = ..., file_locks: _Optional[bool] = ..., log_level: _Optional[int] = ..., log_file: _Optional[str] = ..., notify_scripts: _Optional[bool] = ..., work_dir_fd: _Optional[int] = ..., link_remap: _Optional[bool] = ..., inherit_fd: _Optional[_Iterable[_Union[InheritFd, _Mapping]]] = ..., manage_cgroups_mode: _Optional[int] = ..., ghost_limit: _Optional[int] = ..., external: _Optional[_Iterable[str]] = ..., freeze_cgroup: _Optional[str] = ..., timeout: _Optional[int] = ..., tcp_skip_in_flight: _Optional[bool] = ..., network_lock: _Optional[int] = ..., skip_file_rwx_check: _Optional[bool] = ...) -> None: ...

class RestoreAnswer(_message.Message):
    __slots__ = ("pid",)
    PID_FIELD_NUMBER: _ClassVar[int]
    pid: int
    def __init__(self, pid: _Optional[int] = ...) -> None: ...

class Notify(_message.Message):
    __slots__ = ("script", "pid")
    SCRIPT_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    script: str
    pid: int
    def __init__(self, script: _Optional[str] = ..., pid: _Optional[int] = ...) -> None: ...

class Version(_message.Message):
    __slots__ = ("major_number", "minor_number", "sublevel")
    MAJOR_NUMBER_FIELD_NUMBER: _ClassVar[int]
    MINOR_NUMBER_FIELD_NUMBER: _ClassVar[int]
    SUBLEVEL_FIELD_NUMBER: _ClassVar[int]
    major_number: int
    minor_number: int
    sublevel: int
    def __init__(self, major_number: _Optional[int] = ..., minor_number: _Optional[int] = ..., sublevel: _Optional[int] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("type", "opts", "notify_success", "keep_open")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    OPTS_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_SUCCESS_FIELD_NUMBER: _ClassVar[int]
    KEEP_OPEN_FIELD_NUMBER: _ClassVar[int]
    type: int
    opts: Options
    notify_success: bool
    keep_open: bool
    def __init__(self, type: _Optional[int] = ..., opts: _Optional[_Union[Options, _Mapping]] = ..., notify_success: _Optional[bool] = ..., keep_open: _Optional[bool] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("type", "success", "restore", "notify", "cr_errno", "cr_errmsg", "version")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_FIELD_NUMBER: _ClassVar[int]
    CR_ERRNO_FIELD_NUMBER: _ClassVar[int]
    CR_ERRMSG_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    type: int
    success: bool
    restore: RestoreAnswer
    notify: Notify
    cr_errno: int
    cr_errmsg: str
    version: Version
    def __init__(self, type: _Optional[int] = ..., success: _Optional[bool] = ..., restore: _Optional[_Union[RestoreAnswer, _Mapping]] = ..., notify: _Optional[_Union[Notify, _Mapping]] = ..., cr_errno: _Optional[int] = ..., cr_errmsg: _Optional[str] = ..., version: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class DumpStats(_message.Message):
    __slots__ = ("freezing_time", "frozen_time", "memdump_time", "memwrite_time")
    FREEZING_TIME_FIELD_NUMBER: _ClassVar[int]
    FROZEN_TIME_FIELD_NUMBER: _ClassVar[int]
    MEMDUMP_TIME_FIELD_NUMBER: _ClassVar[int]
    MEMWRITE_TIME_FIELD_NUMBER: _ClassVar[int]
    freezing_time: int
    frozen_time: int
    memdump_time: int
    memwrite_time: int
    def __init__(self, freezing_time: _Optional[int] = ..., frozen_time: _Optional[int] = ..., memdump_time: _Optional[int] = ..., memwrite_time: _Optional[int] = ...) -> None: ...

class RestoreStats(_message.Message):
    __slots__ = ("forking_time", "restore_time")
    FORKING_TIME_FIELD_NUMBER: _ClassVar[int]
    RESTORE_TIME_FIELD_NUMBER: _ClassVar[int]
    forking_time: int
    restore_time: int
    def __init__(self, forking_time: _Optional[int] = ..., restore_time: _Optional[int] = ...) -> None: ...

class Stats(_message.Message):
    __slots__ = ("dump", "restore")
    DUMP_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    dump: DumpStats
    restore: RestoreStats
    def __init__(self, dump: _Optional[_Union[DumpStats, _Mapping]] = ..., restore: _Optional[_Union[RestoreStats, _Mapping]] = ...) -> None: ...
