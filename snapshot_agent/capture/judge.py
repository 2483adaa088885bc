"""From a process's images to the facts that the mapping rules judge (memory/safety.py)."""

from __future__ import annotations

from hotstart.snapshot_agent.capture import skeleton
from hotstart.snapshot_agent.capture.process import Process
from hotstart.snapshot_agent.criu import images_pb2 as pb
from hotstart.snapshot_agent.memory import safety
from hotstart.snapshot_agent.memory.safety import ProcessFacts, RangeFacts

_INSTRUCTION_BYTES = 8
_X86_64, _AARCH64 = 1, 3


def judge(process: Process, seccomp: pb.Seccomp, *, noexec: bool, force_copy: bool) -> None:
    """Decide how every range of ``process`` comes back; the result is written into it."""
    verdict = safety.judge_process(_facts(process, seccomp, noexec=noexec, force_copy=force_copy))
    process.mode, process.reason = verdict
    for vma, pages in zip(process.vmas, process.pages, strict=True):
        facts = RangeFacts(vma.start, vma.end, vma.prot, vma.flags, vma.status, vma.madv, pages)
        guarded = any(start < vma.end and vma.start < end for start, end in process.guards)
        mode, reason = safety.judge_range(facts, verdict, guarded=guarded)
        process.modes.append(mode)
        process.reasons.append(reason)


def _facts(process: Process, seccomp: pb.Seccomp, *, noexec: bool, force_copy: bool) -> ProcessFacts:
    cores = [core for _magic, core in process.cores.values()]
    longest = max((skeleton.filter_chain(seccomp, core) for core in cores), key=len)
    return ProcessFacts(
        bits64=cores[0].mtype in (_X86_64, _AARCH64),
        seccomp_mode=max(core.thread_core.seccomp_mode for core in cores),
        filters=len(longest),
        filter_instructions=sum(len(program) // _INSTRUCTION_BYTES for program in longest),
        memory_noexec=noexec,
        force_copy=force_copy,
    )
