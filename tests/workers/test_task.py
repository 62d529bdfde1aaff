"""The stop flag: raised for good by an abort, which interrupts a run that is armed."""

from __future__ import annotations

from nnasync.workers import StopFlag
from nnasync.workers.task import ABORT


def test_abort_interrupts_an_armed_run_once() -> None:
    flag, calls = StopFlag(), list[str]()
    assert flag.arm(lambda: calls.append("interrupted"))
    flag.abort()
    flag.abort()
    assert flag.raised == ABORT
    assert calls == ["interrupted"]


def test_disarmed_run_is_left_alone() -> None:
    flag, calls = StopFlag(), list[str]()
    flag.arm(lambda: calls.append("interrupted"))
    flag.disarm()
    flag.abort()
    assert calls == []


def test_arming_after_the_abort_says_so() -> None:
    flag = StopFlag()
    flag.abort()
    assert not flag.arm(lambda: None)


def test_interrupt_that_fails_harms_nobody() -> None:
    flag = StopFlag()

    def broken() -> None:
        raise RuntimeError("cannot")

    flag.arm(broken)
    flag.abort()
    assert flag.raised == ABORT
