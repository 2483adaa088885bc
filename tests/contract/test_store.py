"""What every snapshot store must do (catalog.store.Store); a new store adds a fixture parameter and passes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hotstart.errors import HotstartError
from hotstart.snapshot_agent.catalog.directory import DirectoryStore
from hotstart.snapshot_agent.catalog.manifest import MANIFEST_FILE, EngineEntry
from hotstart.snapshot_agent.catalog.store import Store
from tests.unit.catalog.samples import FILES, entries, fill, manifest

MakeStore = Callable[[], Store]


def directory_store(home: Path) -> Store:
    return DirectoryStore(home)


@pytest.fixture(params=[directory_store])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    """Opens the store; each call stands for another process that uses it."""
    return lambda: request.param(tmp_path / "home")  # type: ignore[no-any-return]


@pytest.fixture
def store(make: MakeStore) -> Store:
    return make()


def publish(store: Store, name: str = "chat") -> None:
    staging = store.begin(name)
    fill(staging.path)
    store.publish(staging, manifest(name))


def reason(call: Callable[[], object]) -> str:
    with pytest.raises(HotstartError) as caught:
        call()
    return caught.value.reason.code


def in_another_process(body: Callable[[], None]) -> Callable[[], None]:
    """Run ``body`` in a child that then sleeps; returns what kills it without warning."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            body()
            os.write(write, b"1")
            signal.pause()
        finally:
            os._exit(1)
    os.close(write)
    try:
        assert os.read(read, 1) == b"1"
    finally:
        os.close(read)

    def kill() -> None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    return kill


@pytest.fixture
def children() -> Iterator[list[Callable[[], None]]]:
    """Kills of processes that a test has not killed itself."""
    started: list[Callable[[], None]] = []
    yield started
    for kill in started:
        kill()


def test_an_empty_store(store: Store) -> None:
    assert store.names() == []
    assert store.sweep() == []
    assert store.free_bytes() > 0
    assert reason(lambda: store.open("chat")) == "no-such-snapshot"
    assert reason(lambda: store.remove("chat")) == "no-such-snapshot"


def test_what_is_published_is_there(store: Store, make: MakeStore) -> None:
    publish(store)
    other = make()
    assert other.names() == ["chat"]
    with other.open("chat") as handle:
        assert handle.manifest == manifest("chat")
        for name, content in FILES.items():
            assert (handle.path / name).read_bytes() == content


def test_files_are_private(store: Store) -> None:
    old = os.umask(0)
    try:
        publish(store)
    finally:
        os.umask(old)
    with store.open("chat") as handle:
        for directory, _directories, files in os.walk(handle.path):
            assert Path(directory).stat().st_mode & 0o7777 == 0o700
            assert all((Path(directory) / file).stat().st_mode & 0o7777 == 0o600 for file in files)


def test_nothing_shows_before_it_is_published(store: Store, make: MakeStore) -> None:
    staging = store.begin("chat")
    fill(staging.path)
    assert make().names() == []
    assert reason(lambda: make().open("chat")) == "no-such-snapshot"
    store.publish(staging, manifest("chat"))
    assert make().names() == ["chat"]


def test_discard_leaves_nothing(store: Store) -> None:
    staging = store.begin("chat")
    fill(staging.path)
    store.discard(staging)
    store.discard(staging)
    assert not staging.path.exists()
    assert store.names() == []
    publish(store)


def test_discard_after_publish_is_harmless(store: Store) -> None:
    staging = store.begin("chat")
    fill(staging.path)
    store.publish(staging, manifest("chat"))
    store.discard(staging)
    assert store.names() == ["chat"]


def test_a_name_is_taken(store: Store) -> None:
    publish(store)
    assert reason(lambda: store.begin("chat")) == "snapshot-exists"


def test_two_publishers_of_one_name(store: Store, make: MakeStore) -> None:
    """The first wins; the second is told, and what the first published stays whole."""
    other = make()
    one, two = store.begin("chat"), other.begin("chat")
    fill(one.path)
    fill(two.path, {**FILES, "extra": b"two"})
    store.publish(one, manifest("chat"))
    late = manifest("chat", files=entries({**FILES, "extra": b"two"}))
    assert reason(lambda: other.publish(two, late)) == "snapshot-exists"
    other.discard(two)
    with store.open("chat") as handle:
        assert handle.manifest == manifest("chat")
        assert not (handle.path / "extra").exists()
    assert store.names() == ["chat"]


def test_many_publishers_at_once(make: MakeStore) -> None:
    outcomes: list[str] = []

    def one() -> None:
        store = make()
        staging = store.begin("chat")
        fill(staging.path)
        start.wait()
        try:
            store.publish(staging, manifest("chat"))
            outcomes.append("published")
        except HotstartError as error:
            outcomes.append(error.reason.code)
            store.discard(staging)

    start = threading.Barrier(8)
    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["published"] + ["snapshot-exists"] * 7
    assert make().names() == ["chat"]


@pytest.mark.parametrize("name", ["", "..", ".staging.x", "a/b", "A", "x" * 64])
def test_bad_names(store: Store, name: str) -> None:
    for call in (store.begin, store.open, store.remove):
        assert reason(lambda call=call: call(name)) == "bad-name"  # type: ignore[misc]


def test_a_manifest_must_describe_the_files(store: Store) -> None:
    for wrong in (
        manifest("other"),
        manifest("chat", root_pid=7),
        manifest("chat", engine=EngineEntry(name="vllm", facts={"load": float("nan")})),
        manifest("chat", files=[file for file in entries() if file.path != "rootfs.tar"]),
        manifest("chat", files=entries({**FILES, "missing": b""})),
        manifest("chat", files=entries({**FILES, "rootfs.tar": b"longer"})),
    ):
        staging = store.begin("chat")
        fill(staging.path)
        assert reason(lambda s=staging, w=wrong: store.publish(s, w)) == "manifest-invalid"  # type: ignore[misc]
        assert store.names() == []
        store.discard(staging)


def test_only_plain_files_are_published(store: Store) -> None:
    for make_odd in (
        lambda path: os.symlink("/etc/passwd", path),
        os.mkfifo,
        os.mkdir,
    ):
        staging = store.begin("chat")
        fill(staging.path)
        make_odd(staging.path / "odd")
        listed = manifest("chat", files=entries({**FILES, "odd": b""}))
        for described in (manifest("chat"), listed):
            assert reason(lambda s=staging, d=described: store.publish(s, d)) == "manifest-invalid"  # type: ignore[misc]
        store.discard(staging)
    assert Path("/etc/passwd").stat().st_mode & 0o044


def test_remove(store: Store) -> None:
    publish(store)
    publish(store, "other")
    assert store.remove("chat") > 0
    assert store.names() == ["other"]
    assert reason(lambda: store.open("chat")) == "no-such-snapshot"
    publish(store)


def test_a_leased_snapshot_stays(store: Store, make: MakeStore) -> None:
    publish(store)
    with make().open("chat") as one, make().open("chat"):
        assert reason(lambda: store.remove("chat")) == "snapshot-busy"
        one.close()
        assert reason(lambda: store.remove("chat")) == "snapshot-busy"
        assert store.names() == ["chat"]
    store.remove("chat")


def test_a_lease_dies_with_its_process(store: Store, make: MakeStore, children: list[Callable[[], None]]) -> None:
    publish(store)
    held: list[object] = []
    children.append(in_another_process(lambda: held.append(make().open("chat"))))
    assert reason(lambda: store.remove("chat")) == "snapshot-busy"
    children.pop()()
    store.remove("chat")
    assert store.names() == []


def test_removal_and_opening_race(make: MakeStore) -> None:
    """A reader gets the whole snapshot or none, and what it got is not removed under it."""
    for _ in range(20):
        publish(make())
        found: list[str] = []

        def read(found: list[str] = found) -> None:
            try:
                with make().open("chat") as handle:
                    for name, content in FILES.items():
                        assert (handle.path / name).read_bytes() == content
                    found.append("read")
            except HotstartError as error:
                found.append(error.reason.code)

        def remove(found: list[str] = found) -> None:
            try:
                make().remove("chat")
                found.append("removed")
            except HotstartError as error:
                found.append(error.reason.code)

        threads = [threading.Thread(target=body) for body in (read, remove, read, remove)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 4
        assert found.count("removed") <= 1
        assert set(found) <= {"read", "removed", "no-such-snapshot", "snapshot-busy"}
        if "removed" not in found:
            make().remove("chat")
        assert make().names() == []


def test_crashed_captures_are_swept(store: Store, make: MakeStore, children: list[Callable[[], None]]) -> None:
    def capture() -> None:
        staging = make().begin("chat")
        fill(staging.path)
        kept.append(staging)

    kept: list[object] = []
    children.append(in_another_process(capture))
    assert store.sweep() == []  # it lives
    children.pop()()
    assert store.sweep() == ["chat"]
    assert store.sweep() == []
    publish(store)


def test_every_operation_sweeps(store: Store, make: MakeStore, tmp_path: Path) -> None:
    def crash() -> None:
        def body() -> None:
            staging = make().begin("crashed")
            fill(staging.path)
            kept.append(staging)

        kept: list[object] = []
        in_another_process(body)()

    def used() -> int:
        return sum(len(files) for _path, _dirs, files in os.walk(tmp_path))

    publish(store)
    before = used()
    for operation in (store.names, lambda: store.discard(store.begin("new"))):
        crash()
        assert used() > before
        operation()
        assert used() == before
    crash()
    store.remove("chat")
    assert used() == 0


def test_a_live_capture_is_not_swept(store: Store, make: MakeStore) -> None:
    staging = store.begin("chat")
    fill(staging.path)
    assert make().sweep() == []
    make().names()
    publish(make(), "other")
    store.publish(staging, manifest("chat"))
    assert store.names() == ["chat", "other"]


def test_an_unreadable_manifest(store: Store) -> None:
    publish(store)
    with store.open("chat") as handle:
        (handle.path / MANIFEST_FILE).write_text("{")
    assert store.names() == ["chat"]
    with store.open("chat") as handle:
        assert reason(lambda: handle.manifest) == "manifest-invalid"
    with store.open("chat") as handle:
        (handle.path / MANIFEST_FILE).unlink()
        assert reason(lambda: handle.manifest) == "manifest-invalid"
    assert store.remove("chat") > 0
