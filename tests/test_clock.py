"""Deadlines, clocks and the watchdog that fires alarms."""

from __future__ import annotations

import logging
import math
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync import errors
from nnasync._core import clock
from nnasync.hal import NEVER_NS

MS = 1_000_000
HOUR = 3600 * 1_000_000_000


@pytest.fixture
def watchdog(no_leaks: None) -> Iterator[clock.Watchdog]:
    dog = clock.Watchdog()
    yield dog
    dog.close()


class Firings:
    """Collects when callbacks fire, and waits for a number of them."""

    def __init__(self) -> None:
        self.at_ns: list[int] = []
        self.names: list[str] = []
        self._changed = threading.Condition()

    def callback(self, name: str = "") -> None:
        with self._changed:
            self.at_ns.append(clock.now_ns())
            self.names.append(name)
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.at_ns) >= count, timeout=30)


@contextmanager
def held(watchdog: clock.Watchdog) -> Iterator[None]:
    """Keep a watchdog in a callback, so that no alarm fires before all is said."""
    entered, go = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        go.wait(30)

    watchdog.arm(0, hold)
    assert entered.wait(30)
    try:
        yield
    finally:
        go.set()


@pytest.mark.parametrize(
    ("arguments", "delta_ns"),
    [
        ({"s": 2}, 2_000 * MS),
        ({"ms": 20}, 20 * MS),
        ({"us": 250}, 250_000),
        ({"s": 1, "ms": 0.5, "us": -1}, 1_000_499_000),
        ({"ms": np.float32(3)}, 3 * MS),
        ({"ms": -5}, -5 * MS),
        ({}, 0),
    ],
)
def test_within_counts_from_now(arguments: dict[str, float], delta_ns: int) -> None:
    before = clock.now_ns()
    deadline = clock.within(**arguments)
    assert before <= deadline.at_ns - delta_ns <= clock.now_ns()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, "20", None, [1], 1j])
def test_within_refuses_what_is_not_a_finite_number(bad: object) -> None:
    with pytest.raises(errors.InvalidArgument, match="within"):
        clock.within(ms=bad)  # type: ignore[call-overload]  # It is bad.


@pytest.mark.parametrize(
    ("arguments", "named", "told"),
    [((20,), {}, "within(20)"), ((), {"seconds": 1}, "within(seconds=1)")],
)
def test_within_says_how_to_state_a_unit(
    arguments: tuple[int, ...], named: dict[str, int], told: str
) -> None:
    within: Callable[..., object] = clock.within
    with pytest.raises(TypeError, match=re.escape(f"{told} does not say the unit") + ".*ms=20"):
        within(*arguments, **named)


@given(st.floats(allow_nan=False, allow_infinity=False, max_value=1e290, min_value=-1e290))
def test_within_keeps_absurd_times_inside_64_bits(s: float) -> None:
    at_ns = clock.within(s=s).at_ns
    assert -(2**63) <= at_ns < 2**63
    assert (at_ns > clock.now_ns()) == (s > 0) or abs(s) < 60


def test_a_deadline_passes_at_its_time_and_not_before() -> None:
    deadline = clock.Deadline(100)
    assert not deadline.passed_at(99)
    assert deadline.passed_at(100)
    assert deadline.remaining_ns(60) == 40
    assert deadline.remaining_ns(160) == -60
    assert clock.Deadline(1) < clock.Deadline(2)
    with pytest.raises(AttributeError):
        deadline.at_ns = 3  # type: ignore[misc]


def test_a_deadline_tells_whether_it_has_passed() -> None:
    """As a truth value, which a method would be, too, but a wrong one."""
    before, after = clock.within(s=-1), clock.within(s=60)
    assert before.passed is True
    assert after.passed is False
    assert before.remaining_ns() < 0 < after.remaining_ns() <= 60 * 10**9


def test_alarms_never_fire_before_their_time(watchdog: clock.Watchdog) -> None:
    firings = Firings()
    start = clock.now_ns()
    due = [start + offset for offset in (3 * MS, 200_000, 1, 5 * MS, -MS, 0, 200_001)]
    for at_ns in due:
        watchdog.arm(at_ns, firings.callback)
    firings.wait_for(len(due))
    late = [fired - at for fired, at in zip(firings.at_ns, sorted(due), strict=True)]
    assert min(late) >= 0


def test_alarms_fire_in_order_of_their_time(watchdog: clock.Watchdog) -> None:
    firings = Firings()
    with held(watchdog):
        for name, at_ns in (("c", 30), ("a", 10), ("b", 20), ("a2", 10)):
            watchdog.arm(at_ns, lambda name=name: firings.callback(name))  # type: ignore[misc]
    firings.wait_for(4)
    assert firings.names == ["a", "a2", "b", "c"]


def test_an_earlier_alarm_wakes_a_sleeping_watchdog(watchdog: clock.Watchdog) -> None:
    firings = Firings()
    watchdog.arm(clock.now_ns() + HOUR, firings.callback)
    watchdog.arm(clock.now_ns() + HOUR // 2, firings.callback)
    watchdog.arm(clock.now_ns() + 2 * MS, firings.callback)
    firings.wait_for(1)
    assert watchdog.pending() == 2


def test_a_parked_watchdog_is_woken_by_any_alarm(watchdog: clock.Watchdog) -> None:
    firings = Firings()
    for count in range(1, 20):
        watchdog.arm(clock.now_ns(), firings.callback)
        firings.wait_for(count)


def test_a_disarmed_alarm_does_not_fire(watchdog: clock.Watchdog) -> None:
    firings = Firings()
    with held(watchdog):
        alarm = watchdog.arm(1, lambda: firings.callback("disarmed"))
        watchdog.arm(2, lambda: firings.callback("kept"))
        assert alarm.disarm()
        assert not alarm.disarm()
    firings.wait_for(1)
    assert firings.names == ["kept"]


def test_disarming_a_fired_alarm_says_so(watchdog: clock.Watchdog) -> None:
    firings = Firings()
    alarm = watchdog.arm(0, firings.callback)
    firings.wait_for(1)
    assert not alarm.disarm()
    assert watchdog.pending() == 0


def test_disarmed_alarms_do_not_pile_up(watchdog: clock.Watchdog) -> None:
    firings = Firings()
    keep = [watchdog.arm(clock.now_ns() + HOUR, firings.callback) for _ in range(10)]
    for _ in range(5000):
        watchdog.arm(clock.now_ns() + HOUR, firings.callback).disarm()
    assert watchdog.pending() == 10
    assert len(watchdog._heap) <= 2 * 64
    assert all(alarm.disarm() for alarm in keep)
    assert watchdog.pending() == 0


def test_a_raising_callback_is_logged_and_the_next_one_fires(
    watchdog: clock.Watchdog, caplog: pytest.LogCaptureFixture
) -> None:
    firings = Firings()

    def broken() -> None:
        raise ValueError("broken callback")

    with caplog.at_level(logging.ERROR, logger="nnasync._core.clock"):
        watchdog.arm(0, broken)
        watchdog.arm(1, firings.callback)
        firings.wait_for(1)
    assert "broken callback" in caplog.text


def test_who_rings_calls_what_is_due_and_nothing_else(
    watchdog: clock.Watchdog, caplog: pytest.LogCaptureFixture
) -> None:
    rang: list[str] = []

    def broken() -> None:
        raise ValueError("broken callback")

    watchdog.ring_due()
    with held(watchdog):
        watchdog.arm(0, broken)
        watchdog.arm(1, lambda: rang.append(threading.current_thread().name))
        gone = watchdog.arm(2, lambda: rang.append("disarmed"))
        later = watchdog.arm(clock.now_ns() + HOUR, lambda: rang.append("later"))
        assert gone.disarm()
        watchdog.ring_due()
        assert rang == [threading.current_thread().name]
        assert "broken callback" in caplog.text
        watchdog.ring_due()
        assert watchdog.pending() == 1
    assert later.disarm()
    assert len(rang) == 1


def test_who_rings_does_not_wait_for_the_watchdog(watchdog: clock.Watchdog) -> None:
    firings, locked, go = Firings(), threading.Event(), threading.Event()

    def lock() -> None:
        with watchdog._lock:
            locked.set()
            go.wait(30)

    with held(watchdog):
        watchdog.arm(0, firings.callback)
        thread = threading.Thread(target=lock)
        thread.start()
        assert locked.wait(30)
        watchdog.ring_due()
        assert not firings.names
        go.set()
        thread.join()
    firings.wait_for(1)


def test_callbacks_may_arm_and_disarm(watchdog: clock.Watchdog) -> None:
    firings = Firings()
    other = watchdog.arm(clock.now_ns() + HOUR, lambda: firings.callback("other"))

    def rearm() -> None:
        other.disarm()
        watchdog.arm(clock.now_ns(), lambda: firings.callback("second"))
        firings.callback("first")

    watchdog.arm(0, rearm)
    firings.wait_for(2)
    assert firings.names == ["first", "second"]
    assert watchdog.pending() == 0


def test_a_closed_watchdog_takes_no_alarms_and_drops_the_old_ones() -> None:
    dog = clock.Watchdog()
    firings = Firings()
    alarm = dog.arm(clock.now_ns() + HOUR, firings.callback)
    thread = dog._thread
    assert thread is not None
    dog.close()
    dog.close()
    assert not thread.is_alive()
    assert firings.at_ns == []
    assert dog.pending() == 0
    alarm.disarm()
    assert dog.pending() == 0
    with pytest.raises(errors.BadState):
        dog.arm(0, firings.callback)


def test_an_unused_watchdog_starts_no_thread() -> None:
    dog = clock.Watchdog()
    assert dog._thread is None
    dog.close()


def test_a_watchdog_without_a_thread_tries_again(
    watchdog: clock.Watchdog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    firings = Firings()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            watchdog.arm(0, firings.callback)
    assert watchdog.pending() == 0
    watchdog.arm(0, firings.callback)
    firings.wait_for(1)


def test_a_callback_may_close_its_watchdog(no_leaks: None) -> None:
    dog = clock.Watchdog()
    done = threading.Event()

    def close() -> None:
        dog.close()
        done.set()

    dog.arm(0, close)
    assert done.wait(30)


def test_alarms_from_many_threads_all_fire(watchdog: clock.Watchdog) -> None:
    firings = Firings()
    early: list[int] = []

    def arm_some(seed: int) -> None:
        for i in range(100):
            at_ns = clock.now_ns() + (seed * 7919 + i * 104729) % (2 * MS)

            def fire(at_ns: int = at_ns) -> None:
                if clock.now_ns() < at_ns:
                    early.append(at_ns)
                firings.callback()

            alarm = watchdog.arm(at_ns, fire)
            if i % 4 == 3 and alarm.disarm():
                firings.callback()

    threads = [threading.Thread(target=arm_some, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    firings.wait_for(800)
    assert early == []
    assert watchdog.pending() == 0


def test_the_earliest_of_several_alarms_is_kept(watchdog: clock.Watchdog) -> None:
    firings = Firings()
    alarm = clock.EarliestAlarm(watchdog, firings.callback)
    alarm.arm(NEVER_NS)
    assert alarm._alarm is None
    alarm.arm(clock.now_ns() + 2 * HOUR)
    alarm.arm(clock.now_ns() + HOUR)
    kept = alarm._alarm
    alarm.arm(clock.now_ns() + 3 * HOUR)
    assert alarm._alarm is kept
    alarm.arm(clock.now_ns())
    firings.wait_for(1)
    alarm.rang()
    alarm.arm(clock.now_ns() + HOUR)
    found = [alarm.is_armed]
    alarm.disarm()
    watchdog.close()
    alarm.arm(clock.now_ns() + HOUR)
    assert [*found, alarm.is_armed] == [True, False]
