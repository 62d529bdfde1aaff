"""A loop that is late is let go first by threads that are about to compute, but not for long."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import nnasync as nn
from nnasync._core import due_turn
from nnasync._core.clock import Watchdog
from nnasync._core.due_turn import LATE_NS, LONG_NS, DueTurn
from nnasync._core.wakeup import Wakeup, yield_now
from nnasync._core.workers import Workers
from nnasync.hal import Priority
from tests.rigs import GUARD_S, until
from tests.workers.steering import Rig, Steps
from tests.workers.steering import until as seen

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


class Clock:
    """The time that due turns see, and how much of it the loop has run."""

    def __init__(self) -> None:
        self.now_ns = 10 * LATE_NS
        self.ran_ns = 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that a test moves, and patience for as long as a test may take."""
    made = Clock()
    monkeypatch.setattr(due_turn, "now_ns", lambda: made.now_ns)
    monkeypatch.setattr(due_turn, "_PATIENCE_S", GUARD_S)
    monkeypatch.setattr(DueTurn, "_processor_ns", lambda _: made.ran_ns)
    return made


class Waiting:
    """A thread that lets a turn go first."""

    def __init__(self, turn: DueTurn) -> None:
        self.done = False
        self.thread = threading.Thread(target=self._wait, args=(turn,))
        self.thread.start()

    def _wait(self, turn: DueTurn) -> None:
        turn.wait_if_late()
        self.done = True

    def join(self) -> None:
        self.thread.join(GUARD_S)
        assert self.done


@pytest.mark.parametrize("late_ns", [None, 0, LATE_NS - 1])
def test_nobody_waits_for_a_turn_that_is_not_late(clock: Clock, late_ns: int | None) -> None:
    turn = DueTurn()
    if late_ns is not None:
        turn.asked_ns = clock.now_ns - late_ns
    turn.wait_if_late()
    assert not turn._waiting


def test_all_that_wait_go_on_when_the_turn_was_had(clock: Clock) -> None:
    turn = DueTurn()
    turn.asked_ns = asked_ns = clock.now_ns - LATE_NS
    threads = [Waiting(turn) for _ in range(3)]
    seen(lambda: len(turn._waiting) == 3)
    assert turn.begin() == asked_ns
    assert not any(each.done for each in threads)
    turn.end()
    for each in threads:
        each.join()
    turn.wait_if_late()  # It was had.


@pytest.mark.parametrize("ran", [0.85, 1.0])
def test_nobody_waits_for_a_loop_that_is_busy(clock: Clock, ran: float) -> None:
    turn = DueTurn()
    turn.ask(clock.now_ns)
    clock.now_ns += 4 * LATE_NS
    clock.ran_ns += int(4 * LATE_NS * ran)
    turn.wait_if_late()
    assert not turn._waiting


def test_a_loop_that_has_run_a_little_may_still_wait_for_its_core(clock: Clock) -> None:
    turn = DueTurn()
    turn.ask(clock.now_ns)
    clock.now_ns += 4 * LATE_NS
    clock.ran_ns += LATE_NS
    waiting = Waiting(turn)
    seen(lambda: len(turn._waiting) > 0)
    turn.begin()
    turn.end()
    waiting.join()


def test_the_processor_time_is_that_of_the_thread_that_made_it() -> None:
    turn = DueTurn()
    before_ns = turn._processor_ns()
    seen(lambda: turn._processor_ns() > before_ns)


def test_where_the_thread_has_ended_no_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_clock: int) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr("nnasync._core.due_turn.time.clock_gettime_ns", refuse)
    turn = DueTurn()
    assert turn._processor_ns() == 0
    monkeypatch.setattr(turn, "_clock", None)
    assert turn._processor_ns() == 0


def test_nobody_waits_for_long(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_turn, "_PATIENCE_S", 0.001)
    turn = DueTurn()
    turn.asked_ns = 1
    turn.wait_if_late()
    assert not turn._waiting, "who has gone on is forgotten"
    turn.begin()
    turn.end()


async def test_a_loop_that_was_woken_has_its_turn() -> None:
    wakeup, seen = Wakeup.current(), list[int]()
    turn = wakeup.due_turn
    thread = threading.Thread(target=wakeup.post, args=(lambda: seen.append(turn.asked_ns),))
    thread.start()
    thread.join(GUARD_S)
    assert turn.asked_ns > 0
    while not seen:
        await yield_now()
    assert seen == [0], "while it has its turn, none is due"
    assert turn.asked_ns == 0


async def test_a_thread_waits_until_the_loop_has_called_what_was_posted(clock: Clock) -> None:
    wakeup, order = Wakeup.current(), list[str]()
    threading.Thread(target=wakeup.post, args=(lambda: order.append("posted"),)).start()
    seen(lambda: wakeup.due_turn.asked_ns > 0)
    clock.now_ns = wakeup.due_turn.asked_ns + LATE_NS
    waiting = Waiting(wakeup.due_turn)
    seen(lambda: len(wakeup.due_turn._waiting) > 0)
    while not order:
        assert not waiting.done
        await yield_now()
    await until(lambda: waiting.done)
    waiting.join()


class Noted(DueTurn):
    """Counts who asks whether to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def wait_if_late(self) -> None:
        self.asked += 1


@pytest.mark.parametrize(
    ("priority", "length_ns", "asks"),
    [
        (Priority.LOW, 2 * LONG_NS, True),
        (Priority.MEDIUM, 2 * LONG_NS, True),
        (Priority.MEDIUM, LONG_NS // 2, False),
        (Priority.HIGH, 2 * LONG_NS, False),
    ],
)
def test_long_executions_that_are_not_urgent_let_the_loop_go_first(
    priority: Priority, length_ns: int, *, asks: bool
) -> None:
    rig = Rig(1, 16, Watchdog())
    turn = rig.workers.due_turn = Noted()
    try:
        steps = Steps(permits=1)
        task: Any = rig.task(steps, priority)
        task.estimate.observe(length_ns)
        rig.workers.submit(task)
        task.fence.wait_blocking(GUARD_S)
    finally:
        rig.close()
    assert turn.asked == asks


async def test_workers_of_a_runtime_know_the_turn_of_its_loop() -> None:
    async with nn.open_runtime() as rt:
        workers = rt._workers
        assert isinstance(workers, Workers)
        assert workers.due_turn is Wakeup.current().due_turn
