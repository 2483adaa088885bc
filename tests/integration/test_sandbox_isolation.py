"""What a sandbox sees and what it cannot touch: files, devices, users, system calls, modules."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hotstart
from hotstart.errors import HotstartError
from hotstart.hooks.control.start import SITE_PATH
from hotstart.linux import procfs
from hotstart.names import CONTROL_PATH
from hotstart.reasons import SANDBOX_START
from hotstart.snapshot_agent.sandbox import local, view
from hotstart.snapshot_agent.sandbox.contract import Volume
from tests.conftest import ENV, Sandboxes, eventually

pytestmark = pytest.mark.root
NAMESPACES = ("mnt", "pid", "ipc", "uts", "net", "cgroup")
IO_URING_SETUP = 425


def _python(sandboxes: Sandboxes, code: str, **more: object) -> str:
    box = sandboxes.run(sys.executable, "-c", code, **more)
    sandboxes.wait(box)
    return sandboxes.log(box)


def test_every_namespace_is_its_own_and_the_user_namespace_is_not(sandboxes: Sandboxes) -> None:
    box = sandboxes.run("sleep", "1000")
    worker = sandboxes.started(box, 2)[1].pid
    for kind in NAMESPACES:
        assert procfs.namespace(worker, kind) != procfs.namespace("self", kind)
        assert procfs.namespace(worker, kind) == procfs.namespace(box.init_pid, kind)
    assert procfs.namespace(worker, "user") == procfs.namespace("self", "user")


def test_the_upper_directory_holds_the_difference_and_nothing_else(sandboxes: Sandboxes) -> None:
    idle = sandboxes.run("sleep", "1000")
    sandboxes.started(idle, 2)
    assert list((idle.directory / "upper").rglob("*")) == []
    box = sandboxes.shell("echo new >/etc/hotstart-test; rm /etc/debian_version; exec sleep 1000")
    eventually(lambda: os.path.lexists(box.directory / "upper/etc/debian_version"))
    upper = view.upperdir(box.init_pid)
    assert upper == box.directory / "upper"
    assert sorted(str(path.relative_to(upper)) for path in upper.rglob("*")) == [
        "etc",
        "etc/debian_version",
        "etc/hotstart-test",
    ]
    assert Path("/etc/debian_version").is_file()
    assert not Path("/etc/hotstart-test").exists()


def test_the_home_is_invisible(sandboxes: Sandboxes) -> None:
    other = sandboxes.run("sleep", "1000")
    out = sandboxes.output(
        f"ls -la {sandboxes.home} | wc -l; cat {other.directory}/sandbox.json; touch {sandboxes.home}/x"
    )
    assert out.splitlines()[0] == "3"  # total, . and ..
    assert "No such file" in out
    assert "Read-only file system" in out


def test_mounts_do_not_reach_the_host(sandboxes: Sandboxes) -> None:
    box = sandboxes.run("sleep", "1000")
    assert str(sandboxes.home) in Path(f"/proc/{box.init_pid}/mountinfo").read_text()
    assert str(sandboxes.home) not in Path("/proc/self/mountinfo").read_text()
    assert all(
        "shared" not in line.split(" - ")[0]
        for line in Path(f"/proc/{box.init_pid}/mountinfo").read_text().splitlines()
    )


def test_devices_and_special_file_systems(sandboxes: Sandboxes) -> None:
    out = sandboxes.output(
        "echo x >/dev/null; head -c 3 /dev/zero | wc -c; head -c 3 /dev/urandom | wc -c; test -c /dev/tty && echo tty; "
        "echo to-stdout >/dev/stdout; ls /dev; mktemp -p /dev/shm >/dev/null && echo shm; "
        "mktemp -p /run >/dev/null && echo run; readlink /dev/fd; stat -c %a /dev/shm /dev/null /tmp; ls /dev/pts; "
        "cat /proc/self/cgroup"
    )
    lines = out.splitlines()
    assert lines[:2] == ["3", "3"]
    for expected in ("tty", "to-stdout", "shm", "run", "/proc/self/fd", "1777", "666", "ptmx"):
        assert expected in lines
    assert "vda" not in lines
    assert "kmsg" not in lines
    groups = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    assert {path for _number, controllers, path in groups if controllers in ("", "freezer", "memory")} == {"/"}


def test_tmpfs_and_volumes(sandboxes: Sandboxes, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "model").write_text("weights")
    (tmp_path / "file").write_text("one file")
    volumes = (
        Volume(str(data), "/models/deep/down"),
        Volume(str(data), "/out", read_only=False),
        Volume(str(tmp_path / "file"), "/etc/one-file"),
    )
    box = sandboxes.shell(
        "cat /models/deep/down/model /etc/one-file; echo x >/models/deep/down/no; echo y >/out/yes; "
        "stat -f -c %T /scratch; echo ready; exec sleep 1000",
        tmpfs=("/scratch",),
        volumes=volumes,
    )
    eventually(lambda: "ready" in sandboxes.log(box))
    log = sandboxes.log(box)
    assert "weightsone file" in log
    assert "Read-only" in log
    assert "tmpfs" in log
    assert (data / "yes").read_text() == "y\n"
    assert not (data / "no").exists()
    assert view.tmpfs_mounts(box.init_pid) == ["/dev/shm", "/run", "/scratch"]


def test_a_tmpfs_of_the_host_is_not_the_sandboxes_own(sandboxes: Sandboxes) -> None:
    box = sandboxes.run("sleep", "1000", volumes=(Volume("/dev/shm", "/hostshm", read_only=False),))
    assert "/hostshm" in {mount.point for mount in procfs.mountinfo(box.init_pid)}
    assert view.tmpfs_mounts(box.init_pid) == ["/dev/shm", "/run"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"rootfs": "/no/such"}, "/no/such is not a directory"),
        ({"volumes": (Volume("/no/such", "/x"),)}, "/no/such: No such file"),
    ],
)
def test_what_is_missing_is_named_and_nothing_is_left(
    sandboxes: Sandboxes, change: dict[str, object], word: str
) -> None:
    with pytest.raises(HotstartError) as caught:
        sandboxes.run("true", **change)
    assert caught.value.reason is SANDBOX_START
    assert word in caught.value.detail
    assert local.list_all(sandboxes.home) == []


def test_a_foreign_root_file_system(sandboxes: Sandboxes, tmp_path: Path) -> None:
    """Without the interpreter the supervisor cannot start; the error says so.  Its symlinks lead nowhere outside."""
    rootfs = tmp_path / "rootfs"
    (rootfs / "etc").mkdir(parents=True)
    victim = tmp_path / "victim"
    victim.mkdir()
    for name in ("run", "dev", "sys"):
        (rootfs / name).symlink_to(victim)
    with pytest.raises(HotstartError) as caught:
        sandboxes.run("true", rootfs=str(rootfs))
    assert caught.value.reason is SANDBOX_START
    assert list(victim.iterdir()) == []
    for name in ("run", "dev", "sys"):
        (rootfs / name).unlink()
    with pytest.raises(HotstartError) as caught:
        sandboxes.run("true", rootfs=str(rootfs))
    assert f"which must exist in {rootfs}" in caught.value.detail
    assert sorted(path.name for path in rootfs.iterdir()) == ["etc"]


def test_a_user_without_rights(sandboxes: Sandboxes) -> None:
    box = sandboxes.shell(
        f"id -u; id -g; id -G; grep -E 'CapEff|CapPrm' /proc/self/status; echo x >{CONTROL_PATH}/worker/mine && "
        f"echo mine; echo x >{CONTROL_PATH}/agent/theirs; cat /run/hotstart/start; ls {SITE_PATH}; "
        "kill -0 1 && echo killed; exit 3",
        uid=1234,
        gid=2345,
        groups=(2345, 3456),
    )
    assert sandboxes.wait(box) == 3
    log = sandboxes.log(box)
    assert log.splitlines()[:3] == ["1234", "2345", "2345 3456"]
    assert log.count("0000000000000000") == 2
    assert "mine" in log.splitlines()
    assert log.count("Permission denied") + log.count("cannot") >= 2
    assert "killed" not in log
    assert (box.control.path / "worker" / "mine").stat().st_uid == 1234


def test_a_launcher_without_rights_passes_signals_on(sandboxes: Sandboxes) -> None:
    box = sandboxes.shell("trap 'exit 42' TERM; echo waiting; while :; do sleep 0.01; done", uid=1234, gid=1234)
    eventually(lambda: "waiting" in sandboxes.log(box))
    launcher = view.root_task(box.init_pid).pid
    assert procfs.status(launcher).uids == (1234,) * 4
    assert procfs.status(launcher).capabilities == 0
    assert local.destroy(sandboxes.home, box.name) == 42


def test_root_cannot_reach_out(sandboxes: Sandboxes) -> None:
    out = sandboxes.output(
        "mknod /tmp/vda b 254 0 || echo no-devices; mount -t tmpfs x /mnt || echo no-mounts; "
        "echo 1 >/proc/sys/vm/drop_caches || echo no-sysctl; echo x >/proc/sysrq-trigger || echo no-sysrq; "
        "umount /proc/sys || echo no-umount; "
        "/usr/sbin/chroot / true && chown 12:12 /etc/hostname && echo but-usual-things"
    )
    for expected in ("no-devices", "no-mounts", "no-sysctl", "no-sysrq", "no-umount", "but-usual-things"):
        assert expected in out.splitlines()


def test_io_uring_is_answered_with_enosys_in_every_process(sandboxes: Sandboxes) -> None:
    code = (
        "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True); os.fork() and os.wait(); "
        f"buffer = ctypes.create_string_buffer(120); r = libc.syscall({IO_URING_SETUP}, 4, buffer); "
        "print(r, ctypes.get_errno(), flush=True)"
    )
    assert _python(sandboxes, code).split() == ["-1", "38", "-1", "38"]
    assert ctypes.CDLL(None, use_errno=True).syscall(IO_URING_SETUP, 0, None) == -1
    assert "Seccomp:\t2" in _python(sandboxes, "print(open('/proc/self/status').read(), flush=True)", engine="none")


def test_the_name_of_the_host_leads_to_the_address(sandboxes: Sandboxes) -> None:
    box = sandboxes.run(
        sys.executable, "-c", "import socket; n = socket.gethostname(); print(n, socket.gethostbyname(n), flush=True)"
    )
    sandboxes.wait(box)
    assert sandboxes.log(box).split() == [box.name, box.address]


def test_modules_of_the_worker_win_and_hotstart_is_there(sandboxes: Sandboxes, tmp_path: Path) -> None:
    """A working directory may hold hooks.py, gms.py and more; what Hotstart brings is called hotstart, all of it."""
    for name in ("hooks", "gms", "serving", "snapshot_agent"):
        (tmp_path / f"{name}.py").write_text(f"WHOSE = 'mine: {name}'\n")
    code = (
        "import sys; sys.path.insert(0, ''); import hooks, gms, serving, snapshot_agent\n"
        "print([m.WHOSE for m in (hooks, gms, serving, snapshot_agent)])\n"
        "import hotstart.hooks.control.protocol as p; print(p.__file__)\n"
        "from importlib.metadata import entry_points\n"
        "print(sorted({e.value for e in entry_points(group='vllm.general_plugins') if e.name == 'hotstart'}))\n"
        "import os; print(sorted(os.listdir('/run/hotstart/site')), flush=True)\n"
    )
    log = _python(sandboxes, code, cwd=str(tmp_path), env={**ENV, "PYTHONPATH": "/opt/mine"})
    assert log.splitlines() == [
        "['mine: hooks', 'mine: gms', 'mine: serving', 'mine: snapshot_agent']",
        f"{SITE_PATH}/hotstart/hooks/control/protocol.py",
        "['hotstart.hooks.engines.vllm.plugin:register']",
        f"['hotstart', 'hotstart_inject-{hotstart.__version__}.dist-info']",
    ]


def test_a_hostile_working_directory_does_not_touch_supervisor_and_launcher(
    sandboxes: Sandboxes, tmp_path: Path
) -> None:
    for name in ("signal", "os", "ctypes", "struct", "hotstart", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("import sys; sys.exit('shadowed')\n")
    env = {**ENV, "PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": str(tmp_path / "os.py"), "LD_PRELOAD": "/no/such.so"}
    box = sandboxes.run("/bin/sh", "-c", "echo started", cwd=str(tmp_path), env=env)
    assert sandboxes.wait(box) == 0
    assert "started" in sandboxes.log(box)
    assert "shadowed" not in sandboxes.log(box)


def test_the_environment_of_a_worker(sandboxes: Sandboxes) -> None:
    code = "import json, os; print(json.dumps(dict(os.environ)), flush=True)"
    box = sandboxes.run("/usr/bin/env", "-u", "LC_CTYPE", sys.executable, "-c", code, env={"VLLM_HOST_IP": "1.2.3.4"})
    sandboxes.wait(box)
    env = json.loads(sandboxes.log(box))
    assert env["VLLM_HOST_IP"] == "1.2.3.4"
    assert env["VLLM_NO_USAGE_STATS"] == "1"
    assert env["HOTSTART_CONTROL"] == CONTROL_PATH
    assert env["PYTHONPATH"] == SITE_PATH
    plain = sandboxes.run("/usr/bin/env", env={"A": "b"}, engine="none")
    sandboxes.wait(plain)
    assert sorted(sandboxes.log(plain).split()) == [
        "A=b",
        "HOTSTART_ENGINE=none",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ]


def test_the_sandboxes_cgroups_hold_its_processes_alone(sandboxes: Sandboxes) -> None:
    box = sandboxes.run("sleep", "1000")
    sandboxes.started(box, 2)
    freezer = view.freezer_dir(box.init_pid)
    assert sorted(int(word) for word in (freezer / "cgroup.procs").read_text().split()) == sorted(
        view.members(box.init_pid)
    )
    assert freezer in view.cgroup_dirs(box.init_pid)
    own = [path for path in view.cgroup_dirs(box.init_pid) if box.name in path.name]
    for path in own:
        assert str(box.init_pid) in (path / "cgroup.procs").read_text().split()


def test_private_memory_counts_shared_pages_once(sandboxes: Sandboxes) -> None:
    code = (
        "import mmap, os, time; a = bytearray(os.urandom(1 << 20) * 32); m = mmap.mmap(-1, 16 << 20); "
        "m.write(b'x' * (16 << 20)); os.fork(); m[0]; sum(m[::4096]); print('filled', flush=True); time.sleep(1000)"
    )
    box = sandboxes.run(sys.executable, "-c", code)
    eventually(lambda: sandboxes.log(box).count("filled") == 2)
    assert 48 << 20 <= view.private_bytes(box.init_pid) <= 100 << 20


def test_nsenter_style_tools_find_the_same_world(sandboxes: Sandboxes) -> None:
    box = sandboxes.run("sleep", "1000")
    out = subprocess.run(
        ["nsenter", "-t", str(box.init_pid), "-a", "hostname"], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == box.name
