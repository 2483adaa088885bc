"""Many programs of the zoo in one tree, each in a directory of its own: a worker that holds everything at once.

The argument is JSON: a list of {"name", "command", "env"}.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import speech


def main() -> None:
    """The workload."""
    members = json.loads(sys.argv[1])
    outputs = {}
    running = {}
    for member in members:
        directory = Path(member["name"])
        directory.mkdir(exist_ok=True)
        outputs[member["name"]] = output = directory / "output"
        with output.open("wb") as out:
            running[member["name"]] = subprocess.Popen(
                member["command"], cwd=directory, env=member["env"], stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
    waiting = set(running)
    while waiting:
        for name in sorted(waiting):
            said = outputs[name].read_text(errors="replace").splitlines()
            if "ready" in said:
                waiting.discard(name)
            elif running[name].poll() is not None:
                speech.give_up(f"{name}: {said}")
        time.sleep(0.02)
    speech.ready()
    for name in running:
        Path(name, "go").touch()
    for name, process in running.items():
        code = process.wait()
        said = outputs[name].read_text(errors="replace").splitlines()
        told = [line for line in said[said.index("ready") + 1 :] if not line.startswith("note:")]
        if code or told != ["OK"]:
            speech.bad(f"{name} ended with {code}: {told}")
    speech.done()


if __name__ == "__main__":
    main()
