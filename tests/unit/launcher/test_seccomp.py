"""The launcher's filter, run on a machine for such programs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotstart.hooks.launcher import seccomp
from tests.unit.memory.bpf import ALLOW, ERRNO, Call, constant_allow, simulate

ENOSYS = 38
PROGRAM = seccomp.program()
X86_64, AARCH64 = 0xC000003E, 0xC00000B7


@pytest.mark.parametrize("architecture", seccomp.ARCHITECTURES)
@pytest.mark.parametrize("number", [425, 426, 427])
@pytest.mark.parametrize("variant", [0, 0x40000000])
def test_io_uring_does_not_exist(architecture: int, number: int, variant: int) -> None:
    assert simulate(PROGRAM, Call(architecture, number | variant)).action == ERRNO | ENOSYS


@given(st.sampled_from([*seccomp.ARCHITECTURES, 0x1234]), st.integers(0, 0xFFFFFFFF))
def test_all_else_is_allowed(architecture: int, number: int) -> None:
    if number & ~0x40000000 in seccomp.IO_URING and architecture != 0x1234:
        return
    assert simulate(PROGRAM, Call(architecture, number)).action == ALLOW


@pytest.mark.parametrize("architecture", [X86_64, AARCH64])
def test_the_kernel_can_skip_the_program_for_every_other_call(architecture: int) -> None:
    """Linux keeps a bitmap of calls that a filter always allows: they cost nothing."""
    slow = [number for number in range(470) if not constant_allow(PROGRAM, architecture, number)]
    assert slow == [425, 426, 427]
