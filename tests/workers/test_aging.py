"""LOW work gets a thread for its age, beside the others, and MEDIUM the next of its set."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from nnasync._core.clock import Alarm, Watchdog, now_ns
from nnasync._core.workers import GO, YIELD, Workers, attempt, threads
from nnasync.tracing import Tracer
from tests.rigs import GUARD_S, ManualWatchdog
from tests.workers.steering import HIGH, LOW, MEDIUM, MS, Rig, Steps, until, wait

pytestmark = pytest.mark.usefixtures("no_leaks")

HOUR_NS = 3600 * 10**9


class Clock:
    """Time as the workers see it, moved on by a test."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def __call__(self) -> int:
        return now_ns() + self.ahead_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (threads, attempt):
        monkeypatch.setattr(module, "now_ns", clock)
    return clock


class AgingRig(Rig):
    """Workers whose aging takes an hour, which a test lets pass."""

    def __init__(self, cores: int, clock: Clock, watchdog: Watchdog) -> None:
        super().__init__(cores, 1000, watchdog)
        self.clock = clock
        self.workers = Workers(
            cores=cores,
            inline_budget_ns=MS,
            stall_budget_ns=2 * MS,
            queue_limit=1000,
            watchdog=watchdog,
            tracer=Tracer(),
            aging_ns=HOUR_NS,
        )

    def age(self, by_ns: int = HOUR_NS) -> None:
        """Let time pass, and the alarm go off."""
        self.clock.ahead_ns += by_ns + 1
        alarm = self.alarm()
        callback = alarm._callback
        assert alarm.at_ns <= self.clock()
        assert callback is not None
        self.watchdog._kill(alarm)
        callback()

    def alarm(self) -> Alarm:
        """The one alarm of aging that is armed."""
        assert isinstance(self.watchdog, ManualWatchdog)
        (alarm,) = (
            each
            for each in self.watchdog.alarms
            if each._callback is not None and each._callback == self.workers._age
        )
        return alarm


@pytest.fixture
def aging(clock: Clock) -> Iterator[Callable[[int], AgingRig]]:
    made: list[AgingRig] = []

    def make(cores: int) -> AgingRig:
        made.append(AgingRig(cores, clock, ManualWatchdog()))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


def test_low_that_is_due_starts_though_no_core_is_free(aging: Callable[[int], AgingRig]) -> None:
    rig = aging(1)
    urgent, low, other = Steps(), Steps(), Steps()
    urgent_task = rig.submit(urgent, HIGH)
    urgent.reached()
    tasks = [rig.submit(low, LOW), rig.submit(other, LOW)]
    assert rig.workers.statistics().running == 1
    rig.age()
    low.reached()
    assert low.threads[0].startswith("nnasync-low")
    assert other.runs == 0  # one at a time
    low.permit()
    wait(tasks[0])
    assert rig.workers.statistics().scheduler.aged == 1
    assert other.runs == 0  # and one in each bound
    rig.age()
    other.reached()
    other.permit()
    wait(tasks[1])
    urgent.permit()
    wait(urgent_task)


def test_high_neither_waits_for_it_nor_stops_it_at_once(
    aging: Callable[[int], AgingRig],
) -> None:
    rig = aging(2)
    first, second, low = Steps(), Steps(2), Steps(2)
    tasks = [rig.submit(first, HIGH), rig.submit(second, MEDIUM)]
    first.reached()
    second.reached()
    tasks.append(rig.submit(low, LOW))
    rig.age()
    low.reached()
    first.permit()
    wait(tasks[0])
    next_ = Steps()
    tasks.append(rig.submit(next_, HIGH))
    next_.reached()
    assert low.stop is not None
    assert second.stop is not None
    assert low.stop.raised == second.stop.raised == GO  # the core that is missing is nobody's
    rig.age(HOUR_NS // 20)  # its shield is gone, and no core is free
    assert low.stop.raised == YIELD
    assert second.stop.raised == GO
    low.permit()
    until(lambda: rig.workers.statistics().preemptions == 1)
    assert low.at == 1
    for call in (next_, second):
        call.permit(2)
    low.permit()
    for task in tasks:
        wait(task)
    assert low.results == [2]


def test_medium_that_is_due_takes_the_next_thread_and_keeps_it(
    aging: Callable[[int], AgingRig],
) -> None:
    rig = aging(1)
    first, second, medium = Steps(), Steps(), Steps(2)
    tasks = [rig.submit(first, HIGH)]
    first.reached()
    tasks += [rig.submit(medium, MEDIUM), rig.submit(second, HIGH)]
    rig.clock.ahead_ns += HOUR_NS + 1
    first.permit()
    medium.reached()
    assert second.runs == 0
    assert medium.stop is not None
    assert medium.stop.raised == GO
    rig.age(HOUR_NS // 20)
    assert medium.stop.raised == YIELD
    medium.permit()
    second.reached()
    second.permit()
    medium.permit()
    for task in tasks:
        wait(task)


def test_no_alarm_stays_when_nothing_waits(aging: Callable[[int], AgingRig]) -> None:
    rig = aging(1)
    wait(rig.submit(Steps(permits=1), LOW))
    until(lambda: rig.workers.statistics().running == 0)
    rig.age()
    assert not rig.workers._aging.is_armed
    assert rig.workers.statistics().scheduler.aged == 0


def test_low_is_not_starved_in_real_time() -> None:
    """With a short bound and the real watchdog, in a flood of HIGH that never ends by itself."""
    watchdog = Watchdog()
    workers = Workers(
        cores=1,
        inline_budget_ns=0,
        stall_budget_ns=0,
        queue_limit=1000,
        watchdog=watchdog,
        tracer=Tracer(),
        aging_ns=5 * MS,
    )
    rig = Rig(1, 1000, watchdog)
    rig.workers = workers
    urgent, low = Steps(), Steps(permits=1)
    urgent_task = rig.submit(urgent, HIGH)
    urgent.reached()
    wait(rig.submit(low, LOW))
    assert urgent.results == []
    urgent.permit()
    wait(urgent_task)
    rig.close()


def test_a_thread_that_is_on_its_way_to_the_work_is_enough(
    aging: Callable[[int], AgingRig],
) -> None:
    """A thread of the idle class may take long to begin, and is not to get company for that."""
    rig = aging(2)
    begins = threading.Event()
    rig.workers._on_start = lambda worker: begins.wait(GUARD_S)
    low = Steps()
    task = rig.submit(low, LOW)
    rig.age()
    assert rig.workers.statistics().threads == 1
    begins.set()
    low.reached()
    low.permit()
    wait(task)
