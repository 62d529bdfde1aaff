"""The stop flag: raised for good by an abort, which interrupts a run that is armed."""

from __future__ import annotations

import threading

import pytest

from nnasync._core.workers import StopFlag
from nnasync._core.workers.task import ABORT


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


def test_interrupt_that_fails_harms_nobody_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    flag = StopFlag()

    def broken() -> None:
        raise RuntimeError("cannot")

    flag.arm(broken)
    flag.abort()
    assert flag.raised == ABORT
    assert "RuntimeError: cannot" in caplog.text


def test_an_engine_that_hangs_in_its_interrupt_holds_nobody_up() -> None:
    flag, begun, let_go = StopFlag(), threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        let_go.wait()

    flag.arm(hang)
    flag.abort_apart()
    assert begun.wait(60)
    flag.abort_apart()
    assert flag.raised == ABORT
    let_go.set()
    flag.disarm()
    assert not flag.arm(hang)


def test_interrupt_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    flag, calls = StopFlag(), list[str]()
    monkeypatch.setattr(threading.Thread, "start", start)
    flag.abort_apart()
    other = StopFlag()
    other.arm(lambda: calls.append("interrupted"))
    other.abort_apart()
    assert calls == ["interrupted"]
