"""The simulator's mechanisms: what becomes of requests, step by step, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import ExperimentError, InvalidArgument
from nnasync.experiments import (
    ClosedLoop,
    Constant,
    Exponential,
    Network,
    Outcome,
    Overheads,
    Periodic,
    Poisson,
    Recorded,
    Recording,
    RequestRow,
    RunResult,
    Span,
    Steps,
    Stream,
    Trace,
    Workload,
    simulate,
)
from nnasync.hal import NEVER_NS
from nnasync.scheduler import Job, Ordered, PolicyError

ALL = Recording(timeline_requests=1_000)
MS = 1_000_000
HEARD_NS = 150_000
HEAVY = Overheads(hop_ns=200_000, cold_hop_ns=500_000, call_ns=100_000)
INLINE = msgspec.structs.replace(HEAVY, inline_budget_ns=2 * MS)


def stream(name: str = "a", **changes: Any) -> Stream:
    given: dict[str, Any] = {"arrivals": Periodic(10.0), "cost": Constant(2.0)}
    return Stream(name=name, **(given | changes))


def at(time_ms: float) -> Periodic:
    """One request at that time, in runs of less than an hour."""
    return Periodic(3.6e6, phase_ms=time_ms)


def run(*streams: Stream, duration_ms: float = 100.0, **options: Any) -> RunResult:
    return simulate(Workload(streams), duration_ns=round(duration_ms * MS), record=ALL, **options)


def spans(found: RunResult) -> list[tuple[int, int, float, float]]:
    return [(s.core, s.stream, s.began_ns / MS, s.ended_ns / MS) for s in found.spans]


def ends(found: RunResult) -> list[tuple[int, float, str]]:
    return [(row.stream, row.ended_ns / MS, row.outcome.value) for row in found.requests]


def test_requests_are_run_one_after_the_other() -> None:
    found = run(stream(arrivals=Periodic(1.0)), duration_ms=5.0)
    assert spans(found) == [(0, 0, 0.0, 2.0), (0, 0, 2.0, 4.0), (0, 0, 4.0, 5.0)]
    assert ends(found)[:3] == [(0, 2.0, "met"), (0, 4.0, "met"), (0, 5.0, "pending")]
    (mine,) = found.streams
    assert (mine.submitted, mine.completed, mine.pending) == (6, 2, 4)
    assert found.busy_ns == found.duration_ns == 5 * MS
    assert mine.latency.mean_ns == 2.5 * MS
    assert found.queue[:6] == ((0, 0), (MS, 1), (2 * MS, 1), (3 * MS, 2), (4 * MS, 2), (5 * MS, 3))


def test_cores_are_used_side_by_side() -> None:
    found = run(stream(arrivals=Periodic(1.0)), duration_ms=3.5, cores=2)
    assert spans(found)[:2] == [(0, 0, 0.0, 2.0), (1, 0, 1.0, 3.0)]
    assert found.busy_ns == (3.5 + 2.5) * MS


def test_urgent_requests_stop_others_at_the_end_of_a_step() -> None:
    low = stream("low", cost=Steps((2.0, 3.0, 5.0)), priority="low")
    high = stream("high", arrivals=at(2.5), cost=Constant(1.0), priority="high")
    found = run(low, high, duration_ms=9.9)
    assert spans(found) == [(0, 0, 0.0, 5.0), (0, 1, 5.0, 6.0), (0, 0, 6.0, 9.9)]
    assert found.preemptions == 1


@pytest.mark.parametrize(
    ("step_ms", "began_ms"), [(None, 10.0), (4.0, 4.0), (2.5, 2.5), (2.0, 4.0), (0.0, 2.5)]
)
def test_where_a_run_may_be_stopped(step_ms: float | None, began_ms: float) -> None:
    low = stream("low", arrivals=at(0.0), cost=Constant(10.0), priority="low", step_ms=step_ms)
    high = stream("high", arrivals=at(2.5), cost=Constant(1.0), priority="high")
    found = run(low, high)
    assert next(span for span in found.spans if span.stream == 1).began_ns == began_ms * MS
    assert found.requests[0].ended_ns in (10 * MS, 11 * MS)


def test_as_many_give_way_as_wait() -> None:
    low = [
        stream(f"low{i}", arrivals=at(0.0), cost=Constant(10.0), priority="low", step_ms=1.0)
        for i in range(3)
    ]
    high = [stream(f"high{i}", arrivals=at(2.5), priority="high") for i in range(2)]
    found = run(*low, *high, cores=3)
    assert found.preemptions == 2
    assert sorted(span.began_ns for span in found.spans if span.stream > 2) == [3 * MS, 3 * MS]


def test_what_is_too_late_in_the_queue_is_given_up_at_its_deadline() -> None:
    long = stream("long", arrivals=at(0.0), cost=Constant(9.0))
    short = stream("short", arrivals=at(1.0), deadline_ms=5.0)
    found = run(long, short)
    assert ends(found) == [(0, 9.0, "met"), (1, 6.0, "expired")]
    assert found.streams[1].missed == found.streams[1].expired == 1


def test_a_run_that_is_too_late_stops_at_its_next_border() -> None:
    slow = stream(arrivals=at(0.0), cost=Steps((4.0, 4.0, 4.0)), deadline_ms=20.0)
    ahead = stream("ahead", arrivals=at(0.0), cost=Constant(13.0), priority="high")
    after = stream("after", arrivals=at(1.0), cost=Constant(1.0), priority="low")
    found = run(ahead, slow, after)
    assert spans(found) == [(0, 0, 0.0, 13.0), (0, 1, 13.0, 21.0), (0, 2, 21.0, 22.0)]
    assert ends(found)[1] == (1, 20.0, "expired")


def test_late_requests_may_be_finished_and_count_as_late() -> None:
    ahead = stream("ahead", arrivals=at(0.0), cost=Constant(13.0), priority="high")
    found = run(ahead, stream(arrivals=at(0.0), deadline_ms=5.0, late="finish"))
    assert ends(found)[1] == (1, 15.0, "late")
    assert (found.streams[1].late, found.streams[1].met) == (1, 0)


def test_what_ends_at_its_deadline_has_met_it() -> None:
    found = run(stream(arrivals=at(1.0), deadline_ms=2.0))
    assert ends(found) == [(0, 3.0, "met")]


def test_what_cannot_be_done_by_its_deadline_is_refused() -> None:
    found = run(stream(arrivals=at(1.0), deadline_ms=1.0))
    assert ends(found) == [(0, 1.0, "refused")]
    assert found.busy_ns == 0


def test_full_queues_refuse_and_displace() -> None:
    low = stream("low", arrivals=Periodic(1.0), cost=Constant(50.0), priority="low")
    high = stream("high", arrivals=at(2.5), priority="high")
    found = run(low, high, duration_ms=4.5, queue_limit=1)
    assert [outcome for _, _, outcome in ends(found)] == [
        "pending",
        "displaced",
        "refused",
        "pending",
        "refused",
        "refused",
    ]


def test_who_waits_may_cancel() -> None:
    long = stream("long", arrivals=at(0.0), cost=Steps((4.0, 4.0)), cancel_after_ms=3.0)
    short = stream("short", arrivals=at(1.0), cancel_after_ms=1.0)
    last = stream("last", arrivals=at(1.0), cancel_after_ms=30.0)
    found = run(long, short, last)
    assert ends(found) == [(0, 3.0, "cancelled"), (1, 2.0, "cancelled"), (2, 6.0, "met")]
    assert spans(found) == [(0, 0, 0.0, 4.0), (0, 2, 4.0, 6.0)]


def test_callers_of_a_closed_loop_wait_for_their_answers() -> None:
    loop = stream(arrivals=ClosedLoop(2, 3.0, think="constant"))
    found = run(loop, duration_ms=14.9)
    assert [(row.arrived_ns / MS, row.ended_ns / MS) for row in found.requests] == [
        (3.0, 5.0),
        (3.0, 7.0),
        (8.0, 10.0),
        (10.0, 12.0),
        (13.0, 14.9),
    ]


def test_the_default_rule_shares_between_clients_and_ages() -> None:
    greedy = stream("greedy", client="x", arrivals=Periodic(1.0), priority="high")
    modest = stream("modest", client="y", arrivals=Periodic(1.0), priority="low")
    found = run(greedy, modest, duration_ms=1000.0)
    mine, yours = (each.completed for each in found.streams)
    assert abs(mine - yours) <= 2
    alone = run(
        msgspec.structs.replace(greedy, client=""), msgspec.structs.replace(modest, client=""),
        duration_ms=1000.0,
        aging_ns=50 * MS,
    )  # fmt: skip
    assert 15 <= alone.streams[1].completed <= 21


def test_other_policies_are_asked_by_name_or_as_objects() -> None:
    first = stream("first", arrivals=at(0.0), cost=Constant(5.0))
    late = stream("late", arrivals=at(1.0), deadline_ms=50.0)
    soon = stream("soon", arrivals=at(2.0), deadline_ms=20.0, priority="low")
    assert [row[1] for row in spans(run(first, late, soon, policy="edf-non-preemptive"))] == [
        0,
        2,
        1,
    ]
    assert [row[1] for row in spans(run(first, late, soon, policy="fifo"))] == [0, 1, 2]
    assert run(first, policy="fifo").policy == "fifo"
    assert run(first).policy == "default"
    with pytest.raises(InvalidArgument, match="there is no policy 'ferro'"):
        run(first, policy="ferro")


WORK = Workload(
    (
        stream(
            "a", arrivals=Poisson(150.0), cost=Exponential(3.0), priority="high", deadline_ms=9.0
        ),
        stream("b", arrivals=Poisson(150.0), cost=Steps((1.0, 2.0), cv=0.5), priority="low"),
        stream("c", arrivals=ClosedLoop(3, 5.0), cost=Exponential(2.0), client="c", step_ms=0.5),
        stream("d", arrivals=Periodic(9.0, jitter_ms=4.0), cancel_after_ms=12.0),
    )
)


@pytest.mark.parametrize(
    "policy", [None, "fifo", "edf", "least-laxity", "shortest-job-preemptive", "predicted-finish"]
)
def test_two_runs_of_a_seed_are_the_same_to_the_byte(policy: str | None) -> None:
    def encoded(seed: int) -> bytes:
        found = simulate(WORK, cores=2, policy=policy, seed=seed, duration_ns=10**9, record=ALL)
        return msgspec.json.encode(found)

    assert encoded(4) == encoded(4)
    assert encoded(4) != encoded(5)


def busy_ns(of: Sequence[Span]) -> int:
    return sum(span.ended_ns - span.began_ns for span in of)


@given(
    seed=st.integers(0, 2**32),
    cores=st.integers(1, 4),
    policy=st.sampled_from([None, "fifo", "edf", "fixed-priority-preemptive", "predicted-finish"]),
    queue_limit=st.sampled_from([1, 5, NEVER_NS]),
    overheads=st.sampled_from([None, HEAVY, INLINE]),
)
def test_accounts_add_up_and_no_core_does_two_things(
    seed: int,
    cores: int,
    policy: str | None,
    queue_limit: int,
    overheads: Overheads | None,
) -> None:
    found = simulate(
        WORK, cores=cores, policy=policy, seed=seed, duration_ns=10**8,
        queue_limit=queue_limit, overheads=overheads, record=ALL,
    )  # fmt: skip
    for result in found.streams:
        ended = result.completed + result.missed - result.late + result.refused
        assert ended + result.displaced + result.cancelled + result.pending == result.submitted
        assert result.pending >= 0
    assert len(found.requests) == sum(result.submitted for result in found.streams)
    for core in {span.core for span in found.spans}:
        mine = [span for span in found.spans if span.core == core]
        assert all(a.ended_ns <= b.began_ns for a, b in itertools.pairwise(mine))
    assert busy_ns(found.spans) == found.busy_ns
    for row in found.requests:
        mine = [span for span in found.spans if span.request == row.request]
        assert all(row.arrived_ns <= span.began_ns <= span.ended_ns for span in mine)
        if row.outcome is Outcome.MET:
            assert mine
            heard_ns = row.ended_ns - max(span.ended_ns for span in mine)
            is_here = mine[0].core == cores and overheads is INLINE
            assert heard_ns >= (50_000 if is_here else HEARD_NS) if overheads else heard_ns == 0


def test_a_run_ends_after_so_many_requests_when_all_are_answered() -> None:
    found = simulate(Workload((stream(arrivals=Periodic(1.0)), stream("b"))), requests=10)
    assert [each.submitted for each in found.streams] == [9, 1]
    assert [each.pending for each in found.streams] == [0, 0]
    assert found.duration_ns == 20 * MS


def test_a_run_ends_with_its_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time,cost\n5,1\n5.001,2\n5.009,0\n", encoding="utf-8")
    trace = stream(arrivals=Trace(str(path)), cost=Recorded())
    found = simulate(Workload((trace,)), record=ALL)
    assert [(row.arrived_ns, row.ended_ns) for row in found.requests] == [
        (0, MS),
        (MS, 3 * MS),
        (9 * MS, 9 * MS + 1),
    ]
    path.write_text("time,cost\n5,1\n4,2\n", encoding="utf-8")
    with pytest.raises(ExperimentError, match=r"trace\.csv, row 2, time"):
        simulate(Workload((trace,)))


class Broken(Ordered):
    """An order by arrival that does wrong what a test says."""

    name = "broken"

    def __init__(self, wrong: str) -> None:
        self.wrong = wrong
        self.handed_out: list[Job] = []
        super().__init__()

    def key(self, job: Job, now_ns: int) -> float:
        if self.wrong == "raises":
            raise ZeroDivisionError("of no use")
        return 0.0

    def next(self, now_ns: int) -> Job | None:
        if self.wrong == "starves":
            return None
        if self.wrong == "repeats" and self.handed_out:
            return self.handed_out[0]
        job = super().next(now_ns)
        if job is not None:
            self.handed_out.append(job)
        return job


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ("raises", "'broken', push: it raised ZeroDivisionError: of no use"),
        ("starves", "'broken', next: it gave None while 1 jobs were queued"),
        ("repeats", "'broken', next: it gave a job that was handed out already"),
    ],
)
def test_a_policy_that_breaks_its_contract_ends_the_simulation(wrong: str, text: str) -> None:
    with pytest.raises(PolicyError, match=text):
        run(stream(), policy=Broken(wrong))


class Restless(Ordered):
    """Has whatever runs give way to whatever is queued."""

    name = "restless"

    def key(self, job: Job, now_ns: int) -> float:
        return 0.0

    def preempted(self, running: Sequence[Job], now_ns: int) -> Job | None:
        return running[0] if len(self) else None


def test_time_that_stands_still_is_told() -> None:
    with pytest.raises(ExperimentError, match="requests give way to each other without end"):
        run(*(stream(name, step_ms=0.0) for name in "ab"), policy=Restless())
    hasty = stream(arrivals=ClosedLoop(3, 0.0), cost=Constant(5.0))
    with pytest.raises(ExperimentError, match="callers of a ask again at once without end"):
        run(hasty, queue_limit=1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cores": 0, "requests": 1}, "cores is 0, and must be 1 or more"),
        ({"seed": -1, "requests": 1}, "seed is -1"),
        ({"requests": 0}, "requests is 0"),
        ({"duration_ns": 0}, "duration_ns is 0"),
        ({"queue_limit": 0, "requests": 1}, "queue_limit is 0"),
        ({"aging_ns": 0, "requests": 1}, "aging_ns is 0"),
        ({}, "the run has no end: a never stops by itself"),
    ],
)
def test_runs_that_cannot_be_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ExperimentError, match=text):
        simulate(Workload((stream(),)), **options)


def test_networks_must_have_been_measured() -> None:
    with pytest.raises(ExperimentError, match="a: the steps of a.tflite are not known"):
        run(stream(cost=Network("a.tflite")))
    measured = run(stream(arrivals=at(0.0), cost=Network("a.tflite", (1.0, 2.0))))
    assert measured.requests == (RequestRow(0, 0, 0, 3 * MS, Outcome.MET),)
