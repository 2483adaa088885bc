"""Debian's archive as this machine's own apt knows it; no host name is written down anywhere."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools.steps import CommandFailed, Log

_KEYRINGS = ("/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/debian-archive-keyring.pgp")
_FIELDS = "$(REPO_URI)|$(RELEASE)|$(CODENAME)|$(COMPONENT)"


def archive() -> str:
    """The mirror from which this machine installs its own release; raises CommandFailed if there is none."""
    release = _os_release().get("VERSION_CODENAME", "")
    try:
        listed = subprocess.run(
            ["apt-get", "indextargets", "--format", _FIELDS, "Created-By: Packages"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise CommandFailed(f"apt-get indextargets: {error}") from None
    found = parse_targets(listed, release)
    if found is None:
        raise CommandFailed(f"apt has no source for Debian {release or '(which release is this?)'} main")
    return found


def parse_targets(listed: str, release: str) -> str | None:
    """The archive among the lines of ``apt-get indextargets`` that carries ``release`` itself (pure)."""
    for line in listed.splitlines():
        uri, suite, codename, component = line.split("|")
        if release in (suite, codename) and component == "main":
            return uri
    return None


def unpack(package: str, suite: str, tree: Path, log: Log) -> None:
    """Unpack a package of ``suite`` and everything it depends on into ``tree``; nothing is installed.

    apt solves against an empty list of installed packages, so that libc comes along.  Raises CommandFailed.
    """
    mirror = archive()
    keyring = next((path for path in _KEYRINGS if Path(path).exists()), None)
    if keyring is None:
        raise CommandFailed("Debian's archive keys are missing: install debian-archive-keyring")
    state = tree.with_name(f".{tree.name}.apt")
    for name in ("lists/partial", "archives/partial", "var"):
        (state / name).mkdir(parents=True)
    (state / "status").touch()
    (state / "sources.list").write_text(f"deb [signed-by={keyring}] {mirror} {suite} main\n")
    settings = {
        "Dir::Etc::sourcelist": state / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State": state / "var",
        "Dir::State::lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::Cache": state,
        "Dir::Cache::archives": state / "archives",
        "APT::Install-Recommends": "0",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        # The machine's mirror may be a dated one.  Signatures count all the same, and the caller looks at the version.
        "Acquire::Check-Valid-Until": "false",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled": "false",
    }
    apt = ["apt-get", "-q", "-y", *(word for key, value in settings.items() for word in ("-o", f"{key}={value}"))]
    log.run([*apt, "update"])
    log.run([*apt, "install", "--download-only", package])
    for file in sorted((state / "archives").glob("*.deb")):
        log.run(["dpkg-deb", "-x", file, tree])


def _os_release() -> dict[str, str]:
    fields = {}
    try:
        for line in Path("/etc/os-release").read_text().splitlines():
            key, _, value = line.partition("=")
            fields[key] = value.strip('"')
    except OSError:
        pass
    return fields
