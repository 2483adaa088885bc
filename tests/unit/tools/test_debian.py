"""Which of a machine's apt sources is Debian's own archive."""

from tools.debian import parse_targets

LISTED = """\
http://mirror.example/cloud/|cloud-sdk-bookworm||main
http://mirror.example/node/|nodistro||main
http://mirror.example/debian-security/|bookworm-security|bookworm-security|main
http://mirror.example/debian/|bookworm-updates|bookworm-updates|main
http://mirror.example/debian/|bookworm|bookworm|contrib
http://mirror.example/debian/|bookworm|bookworm|main
"""


def test_the_release_itself_is_taken() -> None:
    assert parse_targets(LISTED, "bookworm") == "http://mirror.example/debian/"


def test_a_source_that_names_the_suite_is_known_by_its_codename() -> None:
    assert parse_targets("http://m/d/|stable|trixie|main\n", "trixie") == "http://m/d/"


def test_another_distribution_has_none() -> None:
    assert parse_targets(LISTED, "noble") is None
    assert parse_targets("", "bookworm") is None
