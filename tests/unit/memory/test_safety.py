"""The rules of mapping: one test a hazard, and nothing that is not a plain range is ever touched."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotstart import reasons
from hotstart.snapshot_agent.memory.safety import (
    MAP_DROPPABLE,
    MAP_GROWSDOWN,
    MAP_HUGETLB,
    MAP_LOCKED,
    SECCOMP_FILTER,
    SECCOMP_STRICT,
    Mode,
    ProcessFacts,
    RangeFacts,
    Status,
    judge_process,
    judge_range,
)

ANONYMOUS = Status.REGULAR | Status.ANON_PRIVATE
MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE = 0x02, 0x20, 0x4000
MAPPED = (Mode.MAPPED, None)
MADV_DONTFORK, MADV_MERGEABLE, MADV_HUGEPAGE, MADV_DONTDUMP, MADV_WIPEONFORK = 10, 12, 14, 16, 18


def facts(**other: int) -> RangeFacts:
    plain = {
        "start": 0x7F0000000000,
        "end": 0x7F0000100000,
        "prot": 3,
        "flags": MAP_PRIVATE | MAP_ANONYMOUS,
        "status": int(ANONYMOUS),
        "pages": 256,
    }
    return RangeFacts(**(plain | other))


@pytest.mark.parametrize(
    "plain",
    [
        facts(),
        facts(status=int(ANONYMOUS | Status.HEAP)),
        facts(prot=0),
        facts(prot=7),
        facts(pages=1),
        facts(flags=MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE),
        facts(madv=1 << MADV_DONTFORK | 1 << MADV_MERGEABLE | 1 << MADV_HUGEPAGE | 1 << MADV_DONTDUMP),
    ],
)
def test_plain_memory_follows_its_process(plain: RangeFacts) -> None:
    assert judge_range(plain, MAPPED) == MAPPED
    copied = (Mode.COPIED, reasons.COPIED_FILTER)
    assert judge_range(plain, copied) == copied


@pytest.mark.parametrize(
    ("hazard", "reason"),
    [
        (facts(madv=1 << MADV_WIPEONFORK), reasons.COPIED_WIPEONFORK),
        (facts(flags=MAP_DROPPABLE | MAP_ANONYMOUS), reasons.COPIED_WIPEONFORK),
        (facts(flags=MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED), reasons.COPIED_LOCKED),
        (facts(flags=MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN), reasons.COPIED_GROWSDOWN),
        (facts(status=int(ANONYMOUS | Status.STACK)), reasons.COPIED_GROWSDOWN),
        (facts(flags=MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB), reasons.COPIED_HUGETLB),
    ],
)
def test_a_range_that_a_file_cannot_stand_for_is_copied(hazard: RangeFacts, reason: reasons.Reason) -> None:
    assert judge_range(hazard, MAPPED) == (Mode.COPIED, reason)
    assert judge_range(hazard, (Mode.COPIED, reasons.COPIED_BY_CHOICE)) == (Mode.COPIED, reason)


def test_guard_pages_are_kept_out_of_mappings() -> None:
    assert judge_range(facts(), MAPPED, guarded=True) == (Mode.COPIED, reasons.COPIED_GUARD)


@pytest.mark.parametrize(
    "content", [facts(pages=0), facts(pages=7, zero_pages=7), facts(pages=0, flags=MAP_HUGETLB | 2)]
)
def test_a_range_without_content_stays_as_it_is(content: RangeFacts) -> None:
    assert judge_range(content, MAPPED) == (Mode.EMPTY, None)


def test_a_single_page_that_is_not_zero_is_content() -> None:
    assert judge_range(facts(pages=8, zero_pages=7), MAPPED) == MAPPED


@given(st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 20) - 1), st.integers(0, 1 << 30))
def test_only_plain_private_anonymous_memory_is_ever_mapped(status: int, flags: int, madv: int) -> None:
    mode, reason = judge_range(facts(status=status, flags=flags, madv=madv), MAPPED)
    plain = status & ~int(Status.HEAP) == int(ANONYMOUS)
    hazard = flags & (MAP_GROWSDOWN | MAP_LOCKED | MAP_HUGETLB) or flags & 15 == MAP_DROPPABLE or madv >> 18 & 1
    assert (mode is Mode.MAPPED) == (plain and not hazard)
    assert (reason is not None) == (mode is Mode.COPIED)


@pytest.mark.parametrize("status", [*Status, 1 << 4, 1 << 27, 1 << 31])
def test_what_is_special_to_criu_is_kept(status: int) -> None:
    mode, _reason = judge_range(facts(status=int(ANONYMOUS) | status), MAPPED)
    plain = status in (Status.REGULAR, Status.ANON_PRIVATE, Status.HEAP, Status.STACK)
    assert (mode is Mode.KEPT) == (not plain)
    assert judge_range(facts(status=status), MAPPED) == (Mode.KEPT, None), "one bit alone is no plain range"


@pytest.mark.parametrize(
    ("process", "reason"),
    [
        (ProcessFacts(force_copy=True), reasons.COPIED_BY_CHOICE),
        (ProcessFacts(can_install=False), reasons.COPIED_FILTER),
        (ProcessFacts(bits64=False), reasons.COPIED_FILTER),
        (ProcessFacts(seccomp_mode=SECCOMP_STRICT), reasons.COPIED_FILTER),
        (ProcessFacts(seccomp_mode=SECCOMP_FILTER, filters=7, filter_instructions=28641), reasons.COPIED_FILTER),
        (ProcessFacts(userfaultfd=True), reasons.COPIED_USERFAULTFD),
        (ProcessFacts(memory_noexec=True), reasons.COPIED_NOEXEC),
    ],
)
def test_a_process_that_cannot_live_with_mappings_is_copied(process: ProcessFacts, reason: reasons.Reason) -> None:
    assert judge_process(process) == (Mode.COPIED, reason)


@pytest.mark.parametrize(
    "process",
    [
        ProcessFacts(),
        ProcessFacts(seccomp_mode=SECCOMP_FILTER, filters=2, filter_instructions=700),
        ProcessFacts(seccomp_mode=SECCOMP_FILTER, filters=7, filter_instructions=28640),
    ],
)
def test_an_ordinary_process_is_mapped(process: ProcessFacts) -> None:
    assert judge_process(process) == MAPPED
