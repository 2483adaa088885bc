"""Changes a file system in every way a worker may, and finds each change again.

Works in its working directory, where ``lower`` was made before it (zoo.prepare): in a sandbox that is the lower layer
of the overlay, so that deleting leaves whiteouts and making a directory anew leaves an opaque one.  Tests call
``differences`` too, to look at the same files from outside.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from pathlib import Path

ODD_NAMES = (
    b"with space",
    b"line\nbreak",
    "größe-名".encode(),
    b"not utf-8 \xff\xfe",
    b"-dash",
    b".hidden",
    b"n" * 250,
)
MTIME_NS = 1234567890_123456789
TMPFS = ("/tmp", "/dev/shm")
_NAME = "hotstart-zoo-rootfs"


def lower_text(name: str) -> str:
    """What zoo.prepare wrote."""
    return f"lower {name}\n" * 100


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.write_text(text)
    path.chmod(mode)


def change_lower(lower: Path) -> None:
    """Change what was there before."""
    files = lower / "files"
    _write(files / "change", "changed\n")
    with (files / "append").open("a") as file:
        file.write("appended\n")
    (files / "delete").unlink()
    (files / "rename").rename(files / "renamed")
    (files / "linked").hardlink_to(files / "link")
    (files / "chmod").chmod(0o600)
    os.setxattr(files / "xattr", "user.zoo", b"value \x00 with zero")
    (files / "replace").unlink()
    (files / "replace").mkdir()
    _write(files / "replace" / "inside", "inside\n")
    (files / "symlink").unlink()
    (files / "symlink").symlink_to("change")
    shutil.rmtree(lower / "remove")
    shutil.rmtree(lower / "recreate")
    (lower / "recreate").mkdir()
    _write(lower / "recreate" / "only", "only this\n")
    try:
        (lower / "move").rename(lower / "moved")
    except OSError as error:
        if error.errno != errno.EXDEV:  # overlayfs does not rename directories of its lower layer
            raise
        shutil.move(lower / "move", lower / "moved")


def make_new(new: Path) -> None:
    """Make what was not there before."""
    new.mkdir(mode=0o751)
    new.chmod(0o751)
    os.setxattr(new, "user.directory", b"of the directory")
    _write(new / "file", "file\n" * 1000, 0o640)
    (new / "second-name").hardlink_to(new / "file")
    (new / "empty").touch()
    (new / "empty-directory").mkdir()
    (new / "sticky").mkdir()
    (new / "sticky").chmod(0o1777)
    _write(new / "setuid", "x", 0o755)
    (new / "setuid").chmod(0o4755)
    (new / "dangling").symlink_to("/nowhere/at all")
    (new / "relative").symlink_to("../new/file")
    os.mkfifo(new / "fifo", 0o620)
    (new / "fifo").chmod(0o620)
    deep = new
    for level in range(20):
        deep = deep / f"level-{level}"
        deep.mkdir()
    _write(deep / "bottom", "bottom\n")
    (new / "odd").mkdir()
    for name in ODD_NAMES:
        with open(os.fsencode(new / "odd") + b"/" + name, "wb") as file:
            file.write(name)
    with (new / "sparse").open("wb") as file:
        file.seek(100 << 20)
        file.write(b"at the end")
    _write(new / "old", "old\n")
    os.utime(new / "old", ns=(MTIME_NS, MTIME_NS))
    if os.geteuid() == 0:
        os.chown(new / "file", 1234, 4321)
        os.lchown(new / "dangling", 77, 88)
    (new / "gone").touch()
    (new / "gone").unlink()


def make_tmpfs(directory: Path) -> None:
    """Make files on a tmpfs."""
    directory.mkdir(mode=0o700)
    _write(directory / "file", "on tmpfs\n" * 500, 0o604)
    (directory / "twin").hardlink_to(directory / "file")
    (directory / "way").symlink_to("file")
    (directory / "sub").mkdir(mode=0o711)
    with (directory / "sub" / "large").open("wb") as file:
        file.write(bytes(range(256)) * 16384)
    with (directory / "sparse").open("wb") as file:
        file.truncate(200 << 20)
        file.seek(150 << 20)
        file.write(b"middle")


class _Look:
    """Collects what is not as it should be."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.found: list[str] = []

    def check(self, right: bool, what: str) -> None:
        if not right:
            self.found.append(f"{self.root}: {what}")

    def text(self, name: str, text: str) -> None:
        try:
            found = (self.root / name).read_text()
        except OSError as error:
            self.found.append(f"{self.root / name}: {error.strerror}")
            return
        self.check(found == text, f"{name} holds {found[:40]!r}")

    def absent(self, name: str) -> None:
        self.check(not os.path.lexists(self.root / name), f"{name} is back")

    def entries(self, name: str, names: set[str]) -> None:
        try:
            found = set(os.listdir(self.root / name))
        except OSError as error:
            self.found.append(f"{self.root / name}: {error.strerror}")
            return
        self.check(found == names, f"{name} has {sorted(found ^ names)} too much or too little")

    def stat(self, name: str) -> os.stat_result:
        try:
            return os.lstat(self.root / name)
        except OSError as error:
            self.found.append(f"{self.root / name}: {error.strerror}")
            return os.stat_result((0,) * 10)

    def mode(self, name: str, mode: int) -> None:
        found = stat.S_IMODE(self.stat(name).st_mode)
        self.check(found == mode, f"{name} has mode {found:o} instead of {mode:o}")

    def one_file(self, first: str, second: str) -> None:
        a, b = self.stat(first), self.stat(second)
        self.check((a.st_ino, a.st_dev) == (b.st_ino, b.st_dev), f"{first} and {second} are two files")
        self.check(a.st_nlink == 2, f"{first} has {a.st_nlink} names")

    def link(self, name: str, target: str) -> None:
        try:
            found = os.readlink(self.root / name)
        except OSError as error:
            self.found.append(f"{self.root / name}: {error.strerror}")
            return
        self.check(found == target, f"{name} leads to {found}")

    def xattr(self, name: str, key: str, value: bytes) -> None:
        try:
            found = os.getxattr(self.root / name, key)
        except OSError as error:
            self.found.append(f"{self.root / name}: {key}: {error.strerror}")
            return
        self.check(found == value, f"{name}: {key} is {found!r}")


def lower_differences(lower: Path) -> list[str]:
    """What is not as ``change_lower`` left it."""
    look = _Look(lower)
    look.entries(".", {"files", "recreate", "moved"})
    look.entries("files", set("keep change append renamed link linked chmod xattr replace symlink".split()))
    for name in ("keep", "link", "linked", "chmod", "xattr"):
        look.text(f"files/{name}", lower_text({"linked": "link"}.get(name, name)))
    look.text("files/change", "changed\n")
    look.text("files/symlink", "changed\n")
    look.link("files/symlink", "change")
    look.text("files/append", lower_text("append") + "appended\n")
    look.text("files/renamed", lower_text("rename"))
    look.one_file("files/link", "files/linked")
    look.mode("files/chmod", 0o600)
    look.xattr("files/xattr", "user.zoo", b"value \x00 with zero")
    look.entries("files/replace", {"inside"})
    look.text("files/replace/inside", "inside\n")
    look.entries("recreate", {"only"})
    look.text("recreate/only", "only this\n")
    look.entries("moved", {"file", "inner"})
    look.text("moved/file", "lower move file\n")
    look.text("moved/inner/deep", "lower move deep\n")
    return look.found


def new_differences(new: Path) -> list[str]:
    """What is not as ``make_new`` left it."""
    look = _Look(new)
    names = "file second-name empty empty-directory sticky setuid dangling relative fifo level-0 odd sparse old".split()
    look.entries(".", set(names))
    look.mode(".", 0o751)
    look.xattr(".", "user.directory", b"of the directory")
    look.text("file", "file\n" * 1000)
    look.mode("file", 0o640)
    look.one_file("file", "second-name")
    look.text("empty", "")
    look.entries("empty-directory", set())
    look.mode("sticky", 0o1777)
    look.mode("setuid", 0o4755)
    look.link("dangling", "/nowhere/at all")
    look.link("relative", "../new/file")
    look.mode("fifo", 0o620)
    look.check(stat.S_ISFIFO(look.stat("fifo").st_mode), "fifo is none")
    look.text("/".join(f"level-{level}" for level in range(20)) + "/bottom", "bottom\n")
    found = set(os.listdir(os.fsencode(new / "odd")))
    look.check(found == set(ODD_NAMES), f"odd names: {found ^ set(ODD_NAMES)}")
    for name in found & set(ODD_NAMES):
        with open(os.fsencode(new / "odd") + b"/" + name, "rb") as file:
            look.check(file.read() == name, f"content of {name!r}")
    sparse = look.stat("sparse")
    look.check(sparse.st_size == (100 << 20) + 10, f"sparse has {sparse.st_size} bytes")
    look.check(sparse.st_blocks * 512 < 1 << 20, f"sparse fills {sparse.st_blocks} blocks")
    look.text("old", "old\n")
    look.check(look.stat("old").st_mtime_ns == MTIME_NS, f"old was changed at {look.stat('old').st_mtime_ns}")
    if look.stat(".").st_uid == 0:
        owner = look.stat("file")
        look.check((owner.st_uid, owner.st_gid) == (1234, 4321), f"file belongs to {owner.st_uid}:{owner.st_gid}")
        owner = look.stat("dangling")
        look.check((owner.st_uid, owner.st_gid) == (77, 88), f"dangling belongs to {owner.st_uid}:{owner.st_gid}")
    return look.found


def tmpfs_differences(directory: Path) -> list[str]:
    """What is not as ``make_tmpfs`` left it."""
    look = _Look(directory)
    look.entries(".", {"file", "twin", "way", "sub", "sparse"})
    look.mode(".", 0o700)
    look.text("file", "on tmpfs\n" * 500)
    look.mode("file", 0o604)
    look.one_file("file", "twin")
    look.link("way", "file")
    look.mode("sub", 0o711)
    large = directory / "sub" / "large"
    look.check(large.exists() and large.read_bytes() == bytes(range(256)) * 16384, "sub/large has other bytes")
    state = look.stat("sparse")
    look.check(state.st_size == 200 << 20, f"sparse has {state.st_size} bytes")
    look.check(state.st_blocks * 512 <= 64 << 10, f"sparse fills {state.st_blocks} blocks")
    if state.st_size:
        with (directory / "sparse").open("rb") as file:
            file.seek(150 << 20)
            look.check(file.read(6) == b"middle", "sparse has other bytes")
    return look.found


def differences(directory: Path, root: Path = Path("/")) -> list[str]:
    """Everything that is not as the program left it in ``directory``; ``root`` is where the sandbox's ``/`` is seen."""
    found = lower_differences(directory / "lower") + new_differences(directory / "new")
    for place in TMPFS:
        found += tmpfs_differences(root / place.lstrip("/") / _NAME)
    return found


def main() -> None:
    """The workload."""
    sys.path.insert(0, str(Path(__file__).parent))
    import speech

    here = Path.cwd()
    os.umask(0o022)
    made = [Path(place, _NAME) for place in TMPFS]
    for directory in made:
        shutil.rmtree(directory, ignore_errors=True)
    change_lower(here / "lower")
    make_new(here / "new")
    for directory in made:
        make_tmpfs(directory)
    if found := differences(here):
        speech.give_up("; ".join(found))
    speech.ready()
    for difference in differences(here):
        speech.bad(difference)
    _write(here / "lower" / "files" / "change", "changed again\n")
    (here / "lower" / "files" / "keep").unlink()
    if (here / "lower" / "files" / "keep").exists():
        speech.bad("a lower file cannot be deleted any more")
    for directory in made:
        shutil.rmtree(directory, ignore_errors=True)
    speech.done()


if __name__ == "__main__":
    main()
