"""The injection directory: complete, importable alone, one per version of the sources."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import hotstart
from hotstart.snapshot_agent.sandbox import inject


def test_it_holds_hotstart_and_nothing_else(tmp_path: Path) -> None:
    site = inject.site(tmp_path)
    assert sorted(path.name for path in site.iterdir()) == [
        "hotstart",
        f"hotstart_inject-{hotstart.__version__}.dist-info",
    ]
    names = {str(path.relative_to(site / "hotstart")) for path in site.rglob("*.py")}
    assert {"hooks/launcher/main.py", "hooks/supervisor/main.py", "hooks/engines/vllm/plugin.py", "reasons.py"} <= names
    assert not [path for path in site.rglob("*") if path.is_symlink() or path.name == "snapshot_agent"]
    assert len(list(site.rglob("*.pyc"))) == len(names)


def test_supervisor_and_launcher_load_from_it_alone_without_compiling(tmp_path: Path) -> None:
    site = inject.site(tmp_path)
    code = (
        f"import sys; sys.path.append({str(site)!r}); from hotstart.hooks.supervisor import main as a; "
        "from hotstart.hooks.launcher import main as b; print(a.__file__, b.__cached__)"
    )
    for path in site.rglob("*.py"):
        path.write_text("raise SystemExit('the bytecode was not used')")
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count(str(site)) == 2


def test_what_pid_1_loads_is_small(tmp_path: Path) -> None:
    """Each of these modules would cost milliseconds and memory in every sandbox and every snapshot."""
    site = inject.site(tmp_path)
    heavy = {"dataclasses", "typing", "json", "re", "pathlib", "inspect", "socket", "subprocess", "contextlib"}
    for role in ("supervisor", "launcher"):
        code = f"import sys; sys.path.append({str(site)!r}); import hotstart.hooks.{role}.main; print(*sys.modules)"
        done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
        assert heavy & set(done.stdout.split()) == set()


def test_the_shim_loads_little(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.append({str(Path(inject.__file__).resolve().parents[2])!r}); "
        "import hotstart.snapshot_agent.sandbox.shim; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    heavy = {"dataclasses", "typing", "json", "re", "pathlib", "enum", "signal", "socket", "contextlib", "collections"}
    assert heavy & set(done.stdout.split()) == set()


def test_it_is_made_once_also_when_several_want_it(tmp_path: Path) -> None:
    sites: list[Path] = []
    threads = [threading.Thread(target=lambda: sites.append(inject.site(tmp_path))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(sites)) == 1
    assert [path.name for path in (tmp_path / "inject").iterdir()] == [sites[0].name]
