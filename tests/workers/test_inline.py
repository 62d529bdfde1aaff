"""The inline lane: what may run on the thread of the caller, and what it costs its loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from nnasync._core.clock import now_ns
from nnasync._core.workers import Given, StopFlag
from nnasync._core.workers import inline as inline_lane
from nnasync._core.workers.admission import NEXT_TURN, RUN, SPREAD, WORKER, Company
from nnasync._core.workers.inline import InlineLane
from nnasync._core.workers.turns import Turn
from nnasync.errors import (
    DeviceError,
    GeneralFailure,
    InvalidArgument,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    NNError,
)
from nnasync.scheduler import NEVER_NS, Estimate
from tests.workers.steering import (
    HIGH,
    LOW,
    MEDIUM,
    MS,
    PATIENCE_S,
    Rig,
    Steps,
    until,
)

pytestmark = pytest.mark.usefixtures("no_leaks")


# -- the inline lane


def inline(rig: Rig, estimate: Estimate, call: Any, deadline_ns: int = NEVER_NS) -> int:
    lane = rig.workers.inline
    return lane.run(call, estimate, deadline_ns, "it", lane.turns.here)


def known(duration_ns: float) -> Estimate:
    estimate = Estimate()
    estimate.observe(int(duration_ns))
    return estimate


def may(lane: InlineLane, *question: Any) -> bool:
    """Whether an execution may run on this thread, now or later."""
    return lane.admission(*question) is not WORKER


def test_only_what_is_known_to_be_cheap_may_run_inline(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    lane = rig.workers.inline
    assert not may(lane, HIGH, Estimate(), NEVER_NS)
    assert may(lane, HIGH, known(MS), NEVER_NS)
    assert not may(lane, HIGH, known(MS + 1), NEVER_NS)
    assert not may(lane, HIGH, known(MS // 2), MS // 4)
    unlucky = known(MS // 2)
    unlucky.observe(50 * MS)
    assert may(lane, HIGH, unlucky, NEVER_NS)  # The operating system's doing, perhaps.
    for _ in range(10):
        unlucky.observe(50 * MS)
    assert not may(lane, HIGH, unlucky, NEVER_NS)
    for _ in range(200):
        unlucky.observe(MS // 2)
    assert may(lane, HIGH, unlucky, NEVER_NS)
    rig.workers.close()
    assert not may(lane, HIGH, known(MS), NEVER_NS)


def test_high_goes_inline_for_longer_where_all_cores_are_taken(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    lane = rig.workers.inline
    longer = known(2 * MS)
    assert not may(lane, HIGH, longer, NEVER_NS)
    running = Steps()
    rig.submit(running, LOW)
    running.reached()
    assert may(lane, HIGH, longer, NEVER_NS)
    assert lane.admission(HIGH, longer, NEVER_NS) is RUN
    assert not may(lane, HIGH, longer, MS)
    assert not may(lane, MEDIUM, longer, NEVER_NS)
    assert not may(lane, HIGH, known(2 * MS + 1), NEVER_NS)
    running.permit()
    until(lambda: not rig.workers.statistics().running)
    assert not may(lane, HIGH, longer, NEVER_NS)


def test_inline_gives_way_to_queued_work_of_higher_priority(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    running, queued = Steps(), Steps()
    rig.submit(running, HIGH)
    running.reached()
    rig.submit(queued, MEDIUM)
    assert not may(rig.workers.inline, LOW, known(1), NEVER_NS)
    assert may(rig.workers.inline, MEDIUM, known(1), NEVER_NS)


class Takes:
    """A call that takes so many nanoseconds on a clock that does nothing by itself."""

    def __init__(self, now: list[int], duration_ns: int) -> None:
        self.now = now
        self.duration_ns = duration_ns

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        self.now[0] += self.duration_ns
        return True

    def rewind(self) -> None:
        """Nothing to forget."""


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time that the inline lane sees, in a list."""
    now = [0]
    monkeypatch.setattr(inline_lane, "now_ns", lambda: now[0])
    return now


def test_of_runs_that_are_trifles_one_in_eight_is_weighed(
    rigs: Callable[..., Rig], now: list[int]
) -> None:
    """How much shorter they are decides nothing; one that is longer is heard of at once."""
    lane_rig = rigs(1)
    trifle_ns = int(lane_rig.workers.inline.short_ns / 4)

    def weighed(estimate: Estimate, duration_ns: int, times: int) -> int:
        count = 0
        for _ in range(times):
            before = estimate.ns, estimate.high_ns
            inline(lane_rig, estimate, Takes(now, duration_ns))
            count += (estimate.ns, estimate.high_ns) != before
        return count

    short = known(trifle_ns // 2)
    assert weighed(short, trifle_ns // 4, 144) == 18
    assert short.samples == 145, "all of them were runs"
    assert weighed(short, trifle_ns * 3, 2) == 2
    longer = known(2 * trifle_ns)
    assert weighed(longer, trifle_ns // 2, 3) == 3


@pytest.mark.parametrize("turns", range(2, 9))
@pytest.mark.parametrize("share", [1.0, 1 / 8], ids=["well known", "trifle"])
def test_of_runs_that_take_turns_the_longest_is_heard_of(
    rigs: Callable[..., Rig], now: list[int], turns: int, share: float
) -> None:
    """As where several streams call one network, and one of them has more to do than the others."""
    lane_rig = rigs(1)
    usual_ns = int(lane_rig.workers.inline.short_ns * share)
    for slow in range(turns):
        estimate, told = known(usual_ns), [0.0]
        for number in range(120 * turns):
            duration_ns = usual_ns * (1.8 if number % turns == slow else 1)
            inline(lane_rig, estimate, Takes(now, int(duration_ns)))
            if number > 80 * turns:
                told.append(estimate.high_ns)
        assert max(told) > 1.5 * usual_ns


def test_inline_work_is_accounted_to_the_turn(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    workers = rig.workers

    class Lasting:
        def run(self, stop: StopFlag, given: Given = None) -> bool:
            begun_ns = now_ns()
            until(lambda: now_ns() - begun_ns > 3 * MS)
            return True

        def rewind(self) -> None:
            raise AssertionError("it ended")

    assert workers.turns.here.has_room(10 * MS)  # something must run in each turn
    assert not workers.turns.here.is_half_spent()
    duration_ns = inline(rig, Estimate(), Lasting())
    assert duration_ns > 3 * MS
    assert not workers.turns.here.has_room(1)
    assert workers.turns.here.is_half_spent()
    number = workers.turns.here.number
    seen_elsewhere: list[bool] = []
    thread = threading.Thread(
        target=lambda: seen_elsewhere.append(workers.turns.here.is_half_spent())
    )
    thread.start()
    thread.join(PATIENCE_S)
    assert seen_elsewhere == [False]
    workers.turns.here.turned(number)
    assert workers.turns.here.has_room(1)
    inline(rig, Estimate(), Lasting())
    statistics = workers.statistics()
    assert statistics.inline_runs == 2
    assert statistics.inline_ns > 6 * MS


def test_inline_run_teaches_the_estimate(rigs: Callable[..., Rig]) -> None:
    estimate = Estimate()
    call = Steps(2, permits=2)
    duration_ns = inline(rigs(1), estimate, call)
    assert call.results == [2]
    assert call.threads == [threading.current_thread().name]
    assert estimate.samples == 1
    assert estimate.ns == duration_ns


def test_inline_run_is_refused_when_the_deadline_is_too_near(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    call = Steps(permits=1)
    estimate = known(3600 * 10**9)
    with pytest.raises(MissedDeadlinePersistent):
        inline(rig, estimate, call, now_ns() + 60 * 10**9)
    assert call.runs == 0
    assert estimate.floor_ns < 3600 * 10**9
    with pytest.raises(MissedDeadlinePersistent):
        inline(rig, Estimate(), call, now_ns() - 1)


def test_inline_run_is_judged_at_its_end(
    rigs: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    deadline_ns = now_ns() + 3600 * 10**9

    class Late:
        def run(self, stop: StopFlag, given: Given = None) -> bool:
            monkeypatch.setattr(inline_lane, "now_ns", lambda: deadline_ns + 1)
            return True

        def rewind(self) -> None:
            raise AssertionError("it ended")

    with pytest.raises(MissedDeadlineTransient):
        inline(rigs(1), Estimate(), Late(), deadline_ns)


@pytest.mark.parametrize("error", [KeyError("layer"), StopIteration(), InvalidArgument("index")])
def test_inline_run_that_raises(rigs: Callable[..., Rig], error: Exception) -> None:
    rig = rigs(1)
    call = Steps(permits=1)
    call.error = error
    expected = type(error) if isinstance(error, NNError) else GeneralFailure
    with pytest.raises(expected):
        inline(rig, Estimate(), call)
    assert call.rewinds == 1
    assert rig.workers.statistics().inline_runs == 0


def test_inline_run_that_stops_unasked(rigs: Callable[..., Rig]) -> None:
    call = Steps(permits=1)
    call.lies = True
    with pytest.raises(GeneralFailure, match="without having been asked"):
        inline(rigs(1), Estimate(), call)
    assert call.rewinds == 1


class Broken(Steps):
    """A call that takes its time, and fails."""

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        raise DeviceError("the device is broken")


@pytest.mark.parametrize("deadline_ns", [NEVER_NS, 1])
def test_calls_that_fail_or_are_refused_have_their_share_of_the_turn(
    rigs: Callable[..., Rig], deadline_ns: int
) -> None:
    """Whoever makes them again and again would never let the loop turn."""
    lane = rigs(2).workers.inline
    here, estimate = lane.turns.here, known(MS / 1000)
    calls = 0
    while lane.admission(MEDIUM, estimate, NEVER_NS, deadline_ns=deadline_ns) is RUN:
        with pytest.raises(NNError):
            lane.run(Broken(), estimate, deadline_ns, "it", here)
        calls += 1
        assert calls < 1000
    assert here.spent_ns > 0.9 * here.budget_ns


def test_workers_are_busy_with_what_others_run(rigs: Callable[..., Rig]) -> None:
    rig = rigs(2)
    seen = [rig.workers.is_busy()]

    class Looking(Steps):
        def run(self, stop: StopFlag, given: Given = None) -> bool:
            seen.append(rig.workers.is_busy())
            return super().run(stop)

    alone = Looking()
    rig.submit(alone, MEDIUM)
    alone.reached()
    seen.append(rig.workers.is_busy())
    beside = Looking()
    rig.submit(beside, MEDIUM)
    beside.reached()
    assert seen == [False, False, True, True]


def test_what_does_not_fit_into_the_turn_goes_into_a_later_one(rigs: Callable[..., Rig]) -> None:
    lane = rigs(1).workers.inline
    lane.turns.here.spend(lane.turns.here.budget_ns)
    assert lane.admission(MEDIUM, known(MS), NEVER_NS) is NEXT_TURN
    assert lane.admission(MEDIUM, known(MS + 1), NEVER_NS) is WORKER
    lane.turns.here.turned(lane.turns.here.number)
    assert lane.admission(MEDIUM, known(MS), NEVER_NS) is RUN


def test_a_call_that_is_refused_for_the_lag_of_the_loop_is_tried_here_again(
    rigs: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = rigs(2).workers.inline
    estimate = known(MS // 2)
    estimate.high_ns = 50.0 * MS
    lag_ns = [0.0]
    monkeypatch.setattr(inline_lane, "_until", lambda deadline_ns: (3.0 * MS, lag_ns[0], None))
    for _ in range(100):
        assert not may(lane, MEDIUM, estimate, NEVER_NS, 0, 1)
    lag_ns[0] = 4.0 * MS
    asked = 0
    while not may(lane, MEDIUM, estimate, NEVER_NS, 0, 1):
        asked += 1
        assert asked < 100


class Noting(Company):
    """Company that tells what it has heard."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[bool] = []

    def note(self, *, has_others: bool, others: int = 1) -> None:
        self.noted.append(has_others)


def test_a_call_that_asks_twice_arrives_once() -> None:
    turn = Turn(MS)

    turn.company = company = Noting()
    noted = company.noted
    first, second = object(), object()
    turn.arrive(id(first), others_run=False)
    turn.arrive(id(first), others_run=False)
    assert noted == [False]
    turn.spend(1)
    turn.arrive(id(first), others_run=False)
    turn.arrive(id(second), others_run=False)
    turn.arrive(id(second), others_run=False)
    assert noted == [False, False, True]
    turn.leave()
    turn.arrive(id(second), others_run=False)
    assert noted == [False, False, True, True]


def test_questions_before_a_call_are_no_arrivals(rigs: Callable[..., Rig]) -> None:
    lane = rigs(2).workers.inline
    lane.turns.here.company = company = Noting()
    assert lane.admission(MEDIUM, known(MS // 2), NEVER_NS, arrives=False) is RUN
    assert company.noted == []
    assert lane.admission(MEDIUM, known(MS // 2), NEVER_NS) is RUN
    assert company.noted == [False]


@pytest.mark.parametrize(("run_ns", "is_company"), [(MS // 2, True), (50 * MS, False), (0, False)])
def test_only_what_might_run_on_a_loop_is_company(
    rigs: Callable[..., Rig], run_ns: int, is_company: bool
) -> None:
    rig = rigs(2)
    call = Steps()
    task = rig.task(call)
    if run_ns:
        task.estimate.observe(run_ns)
    rig.workers.submit(task)
    call.reached()
    assert rig.workers._load(MEDIUM).is_company is is_company


def test_a_call_that_asks_twice_hears_the_same(rigs: Callable[..., Rig]) -> None:
    lane = rigs(2).workers.inline
    here, estimate = lane.turns.here, known(MS // 2)
    for _ in range(20):
        here.company.note(has_others=True)
    assert lane.admission(MEDIUM, estimate, NEVER_NS) is SPREAD
    here.company = Company()
    assert lane.admission(MEDIUM, estimate, NEVER_NS) is SPREAD
    # Another one, one with a deadline, and one after something has run, are asked anew.
    assert lane.admission(MEDIUM, known(MS // 2), NEVER_NS) is RUN
    assert lane.admission(MEDIUM, estimate, NEVER_NS, 0, now_ns() + 10**12) is RUN
    here.spend(1)
    assert lane.admission(MEDIUM, estimate, NEVER_NS, arrives=True) is not SPREAD


def test_an_answer_holds_for_the_call_that_asked_alone(rigs: Callable[..., Rig]) -> None:
    lane = rigs(2).workers.inline
    here, estimate = lane.turns.here, known(MS // 2)
    assert lane.admission(MEDIUM, estimate, NEVER_NS) is RUN
    here.spend(here.budget_ns)
    assert lane.runs_now(MEDIUM, estimate, here)  # The quick way asks that, and does not run it.
    assert lane.admission(MEDIUM, estimate, NEVER_NS) is NEXT_TURN


def test_where_runs_are_better_one_after_the_other_plans_take_all_cores(
    rigs: Callable[..., Rig],
) -> None:
    rig = rigs(2)
    lane, here = rig.workers.inline, rig.workers.turns.here
    estimate = known(MS // 2)
    estimate.alone_ns, estimate.beside_ns = MS / 2, MS / 1.5
    for _ in range(20):
        here.company.note(has_others=True)
        rig.workers._company.note(has_others=True)
    assert lane.admission(MEDIUM, estimate, NEVER_NS) is SPREAD
    assert rig.workers.is_busy()
    estimate.worker_ns = estimate.beside_ns = MS * 2.0
    here.leave()
    assert lane.admission(MEDIUM, estimate, NEVER_NS) is RUN
    seen = [(rig.workers.is_busy(), estimate.is_beside)]
    estimate.alone_ns = MS * 4.0
    here.leave()
    lane.admission(MEDIUM, estimate, NEVER_NS)
    seen.append((rig.workers.is_busy(), estimate.is_beside))
    assert seen == [(False, False), (True, True)]
