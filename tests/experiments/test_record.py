"""The record of a run: outcomes, the window, the queue."""

from __future__ import annotations

import itertools
import math

import msgspec
import pytest

from nnasync.errors import ExperimentError
from nnasync.experiments import (
    Constant,
    Outcome,
    Periodic,
    Poisson,
    Recorder,
    Recording,
    RequestRow,
    RunResult,
    Span,
    Stream,
    Workload,
    simulate,
)

WORK = Workload(
    (
        Stream(name="a", arrivals=Poisson(1.0), cost=Constant(1.0), deadline_ms=5.0),
        Stream(name="b", arrivals=Poisson(1.0), cost=Constant(1.0), priority="high"),
    )
)
LOST = (Outcome.EXPIRED, Outcome.REFUSED, Outcome.DISPLACED, Outcome.CANCELLED)


def result(recorder: Recorder, duration_ns: int = 10**9) -> RunResult:
    return recorder.result(
        "simulated",
        seed=1,
        cores=2,
        policy="default",
        duration_ns=duration_ns,
        busy_ns=5,
        preemptions=0,
    )


def test_outcomes_add_up() -> None:
    recorder = Recorder(WORK, Recording())
    for outcome in (Outcome.MET, Outcome.MET, Outcome.LATE, *LOST):
        recorder.ended(0, recorder.submitted(0, 10), 10, 30, outcome)
    recorder.submitted(0, 50)
    mine, other = result(recorder).streams
    assert (mine.submitted, mine.completed, mine.missed, mine.pending) == (8, 3, 2, 1)
    assert (mine.refused, mine.displaced, mine.cancelled) == (1, 1, 1)
    assert mine.attainment == pytest.approx(2 / 6)
    assert mine.latency.count == 3
    assert (mine.deadline_ns, other.deadline_ns) == (5_000_000, None)
    assert other.submitted == 0
    assert math.isnan(other.attainment)
    assert result(recorder).goodput_hz == 2.0


def test_what_was_due_and_has_no_answer_has_missed_its_deadline() -> None:
    recorder = Recorder(WORK, Recording())
    recorder.until(20_000_000)
    recorder.ended(0, recorder.submitted(0, 1), 1, 2_000_001, Outcome.MET)
    for planned_ns in (2, 14_999_999, 15_000_000, 19_000_000):
        recorder.submitted(0, planned_ns)
    recorder.submitted(1, 2)
    mine, other = result(recorder, 20_000_000).streams
    assert (mine.submitted, mine.pending, mine.overdue, mine.missed) == (5, 4, 2, 2)
    assert mine.attainment == pytest.approx(1 / 3)
    assert (other.pending, other.overdue) == (1, 0)


def test_a_run_that_is_cut_off_tells_what_was_overdue() -> None:
    """One core, a request of 10 ms each 5 ms: ever more are late, and the last have no answer."""
    stream = Stream(
        name="a", arrivals=Periodic(5.0), cost=Constant(10.0), deadline_ms=20.0, late="finish"
    )
    (found,) = simulate(Workload((stream,)), duration_ns=200_000_000).streams
    # Planned at 0, 5 ... 200; the k-th of them ends at 10 (k + 1), and is due at 5 k + 20.
    assert (found.submitted, found.completed, found.met) == (41, 20, 3)
    assert (found.pending, found.overdue) == (21, 16)
    assert found.attainment == pytest.approx(3 / 36)


def test_memory_does_not_grow_with_requests() -> None:
    recorder = Recorder(WORK, Recording(timeline_requests=3))
    account = recorder.accounts[0]
    for number in range(100_000):
        recorder.ended(0, recorder.submitted(0, number), number, number + 7, Outcome.MET)
        assert len(account.latencies_ns) < 20_000
    found = result(recorder)
    assert found.streams[0].latency.count == 100_000
    assert len(found.requests) == 3


def test_what_is_planned_while_the_run_warms_up_is_not_counted() -> None:
    recorder = Recorder(WORK, Recording(warm_up_ms=1.0, timeline_requests=1))
    early = recorder.submitted(0, 999_999)
    recorder.ran(0, 0, early, 0, 5)
    recorder.ended(0, early, 999_999, 2_000_000, Outcome.MET)
    counted = recorder.submitted(0, 1_000_000)
    recorder.ran(1, 0, counted, 1_000_000, 1_500_000)
    recorder.ended(0, counted, 1_000_000, 1_500_000, Outcome.MET)
    found = result(recorder)
    assert (early, counted) == (-1, 0)
    assert found.streams[0].submitted == found.streams[0].met == 1
    assert found.requests == (RequestRow(0, 0, 1_000_000, 1_500_000, Outcome.MET),)
    assert found.spans == (Span(1, 0, 0, 1_000_000, 1_500_000),)


def test_requests_without_an_answer_end_with_the_run() -> None:
    recorder = Recorder(WORK, Recording(timeline_requests=1))
    recorder.submitted(1, 5)
    assert result(recorder, 99).requests == (RequestRow(1, 0, 5, 99, Outcome.PENDING),)


@pytest.mark.parametrize("duration_ns", [5_000_000, 10**9, 10**12])
def test_the_queue_is_sampled_some_hundred_times_however_long_the_run(duration_ns: int) -> None:
    recorder = Recorder(WORK, Recording())
    queue = recorder.queue
    while queue.next_ns < duration_ns:
        queue.sample(queue.next_ns // 1_000_000)
    samples = result(recorder).queue
    assert min(400, duration_ns // 1_000_000) <= len(samples) <= 801
    assert all(length == at_ns // 1_000_000 for at_ns, length in samples)
    gaps = {later[0] - at[0] for at, later in itertools.pairwise(samples)}
    assert len(gaps) == 1


def test_a_record_is_data() -> None:
    recorder = Recorder(WORK, Recording(timeline_requests=2))
    recorder.ended(0, recorder.submitted(0, 10), 10, 30, Outcome.EXPIRED)
    recorder.queue.sample(3)
    found = result(recorder)
    assert msgspec.json.decode(msgspec.json.encode(found), type=RunResult) == found


def test_recordings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ExperimentError, match="warm_up_ms is -1"):
        Recording(warm_up_ms=-1.0)
    with pytest.raises(ExperimentError, match="timeline_requests is -1"):
        Recording(timeline_requests=-1)
