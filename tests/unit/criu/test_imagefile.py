"""CRIU image files: the grammar is enforced, noise is refused."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotstart import reasons
from hotstart.errors import HotstartError
from hotstart.snapshot_agent.criu import diagnose, imagefile
from hotstart.snapshot_agent.criu import images_pb2 as pb

MAGIC = b"12345678"


def test_round_trip(tmp_path: Path) -> None:
    entries = [pb.PstreeEntry(pid=100, ppid=0, pgid=100, sid=100, threads=[100, 103]), pb.PstreeEntry(pid=101)]
    path = tmp_path / "pstree.img"
    path.write_bytes(imagefile.encode(MAGIC, entries))
    assert imagefile.read(path, pb.PstreeEntry) == (MAGIC, entries)
    assert imagefile.threads_of(entries) == [100, 103]


@pytest.mark.parametrize("data", [b"", b"1234567", MAGIC + b"\1\0", MAGIC + struct.pack("<I", 9) + b"short"])
def test_cut_files_are_refused(data: bytes) -> None:
    with pytest.raises(HotstartError) as caught:
        imagefile.records(data, "x.img")
    assert caught.value.reason is reasons.IMAGE_UNEXPECTED


@given(st.binary(max_size=200))
def test_noise_never_crashes(noise: bytes) -> None:
    try:
        for record in imagefile.records(noise, "x")[1]:
            imagefile.parse(pb.Mm, record, "x")
    except HotstartError as error:
        assert error.reason is reasons.IMAGE_UNEXPECTED


def test_ids_come_from_file_names(tmp_path: Path) -> None:
    for name in ("mm-100.img", "mm-7.img", "mm-x.img", "pagemap-shmem-3.img", "pagemap-9.img"):
        (tmp_path / name).write_bytes(MAGIC)
    assert imagefile.pid_images(tmp_path, "mm") == [7, 100]
    assert imagefile.pid_images(tmp_path, "pagemap") == [9]


def test_the_first_error_of_a_log_names_the_reason() -> None:
    log = (
        "(00.1) Warn  (criu/x.c:1): odd\n"
        "(00.101593) Error (criu/files-ext.c:96): Can't dump file 12 of that type [20000] (anon_inode:[io_uring])\n"
        "(00.2) Error (criu/cr-dump.c:2110): Dumping FAILED.\n"
    )
    reason, line = diagnose.explain(log, reasons.CRIU_DUMP)
    assert reason is reasons.IO_URING
    assert line.startswith("Can't dump file 12")
    assert diagnose.explain("", reasons.CRIU_DUMP)[0] is reasons.CRIU_DUMP


def test_a_log_without_stamps_is_read_too() -> None:
    """As CRIU writes it at our log level; the first line does no harm and is no cause."""
    log = (
        "Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\n"
        "   101: Error (criu/files-reg.c:2353): Can't open file opt/model on restore: No such file or directory\n"
        "   100: Error (criu/cr-restore.c:1265): 101 exited, status=1\n"
        "Error (criu/cr-restore.c:2331): Restoring FAILED.\n"
    )
    reason, line = diagnose.explain(log, reasons.CRIU_RESTORE)
    assert reason is reasons.INCOMPATIBLE_ROOTFS
    assert line.startswith("Can't open file opt/model")
    assert diagnose.errors(log)[1:] == ["101 exited, status=1", "Restoring FAILED."]
    harmless = log.splitlines()[0]
    assert diagnose.explain(harmless, reasons.CRIU_RESTORE) == (
        reasons.CRIU_RESTORE,
        f"CRIU left no error in its log, which ends with: {harmless}",
    )
    assert diagnose.explain("", reasons.CRIU_DUMP) == (reasons.CRIU_DUMP, "CRIU left nothing in its log")
