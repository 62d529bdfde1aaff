"""Workloads on the real runtime: the same requests, accounts that add up, what each kind does."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import nnasync as nn
from nnasync.errors import ExperimentError, InvalidArgument
from nnasync.experiments import (
    ClosedLoop,
    Constant,
    Network,
    Outcome,
    Periodic,
    Poisson,
    Recorded,
    Recording,
    RunResult,
    Steps,
    Stream,
    Trace,
    Workload,
    simulate,
)
from nnasync.experiments.real import run_real
from nnasync.scheduler import Job
from nnasync.scheduler.policies import FirstComeFirstServed, Reservation, Reservations
from tests.rigs import doubler

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]

MS = 1_000_000
ALL = Recording(timeline_requests=10_000)


async def ran(*streams: Stream, **settings: Any) -> RunResult:
    settings.setdefault("record", ALL)
    return await run_real(Workload(streams), **settings)


def adds_up(result: RunResult) -> None:
    for stream in result.streams:
        lost = stream.expired + stream.refused + stream.displaced + stream.cancelled
        assert stream.submitted == stream.completed + lost + stream.pending
        assert stream.latency.count == stream.completed


async def test_the_requests_are_those_of_the_simulation() -> None:
    streams = (
        Stream(name="a", arrivals=Poisson(rate_hz=200), cost=Constant(ms=1)),
        Stream(name="b", arrivals=Poisson(rate_hz=100), cost=Constant(ms=2), priority="low"),
    )
    real = await ran(*streams, cores=2, seed=3, requests=40)
    simulated = simulate(Workload(streams), cores=2, seed=3, requests=40, record=ALL)
    adds_up(real)
    assert (real.kind, real.policy, real.notes) == ("real", "default", ())
    planned = [
        sorted((row.arrived_ns, row.stream) for row in each.requests) for each in (real, simulated)
    ]
    assert planned[0] == planned[1]
    for row in real.requests:
        assert row.outcome is Outcome.MET
        assert row.ended_ns - row.arrived_ns >= (row.stream + 1) * MS


@pytest.mark.parametrize("device", ["sleep", "spin"])
async def test_one_core_runs_one_at_a_time_for_as_long_as_it_costs(device: str) -> None:
    stream = Stream(name="a", arrivals=Poisson(rate_hz=250), cost=Constant(ms=3))
    result = await ran(stream, device=device, policy="fifo", requests=25)
    adds_up(result)
    spans = sorted(result.spans, key=lambda span: span.began_ns)
    assert len(spans) == 25
    assert {span.core for span in spans} == {0}
    assert all(one.ended_ns <= two.began_ns for one, two in itertools.pairwise(spans))
    assert all(span.ended_ns - span.began_ns >= 3 * MS for span in spans)
    assert result.busy_ns >= 3 * MS * len(spans)
    order = [span.request for span in spans]
    assert order == sorted(order)


async def test_what_may_be_stopped_is_and_its_steps_are_kept() -> None:
    """HIGH every 20 ms beside one long LOW with steps of 2 ms; FIFO would have it wait."""
    short = Stream(
        name="short",
        arrivals=Periodic(period_ms=20, phase_ms=11),
        cost=Constant(ms=1),
        priority="high",
    )
    # On a busy machine LOW may be over before HIGH gets a core to come from; then it takes longer.
    for steps in (60, 240, 960):
        long = Stream(
            name="long",
            arrivals=Periodic(period_ms=10_000),
            cost=Steps(steps_ms=(2.0,) * steps),
            priority="low",
        )
        result = await ran(long, short, policy="fixed-priority-preemptive", requests=8)
        adds_up(result)
        pieces = [span for span in result.spans if span.stream == 0]
        assert result.preemptions == len(pieces) - 1
        assert sum(span.ended_ns - span.began_ns for span in pieces) >= 2 * steps * MS
        assert result.streams[0].met == 1
        if result.preemptions:
            break
    assert result.preemptions >= 1


async def test_callers_of_a_closed_loop_wait_for_their_answers() -> None:
    stream = Stream(name="c", arrivals=ClosedLoop(callers=2, think_ms=4), cost=Constant(ms=4))
    result = await ran(stream, cores=2, requests=20)
    adds_up(result)
    assert result.streams[0].met == 20
    alive = [
        sum(row.arrived_ns <= at.arrived_ns < row.ended_ns for row in result.requests)
        for at in result.requests
    ]
    assert max(alive) <= 2


async def test_what_is_late_is_given_up_or_finished() -> None:
    settings: dict[str, Any] = {"arrivals": Periodic(period_ms=10), "cost": Constant(ms=30)}
    drop = Stream(name="drop", deadline_ms=25, **settings)
    result = await ran(drop, policy="fifo", requests=10)
    adds_up(result)
    assert result.streams[0].expired + result.streams[0].refused == 10
    finish = Stream(name="finish", deadline_ms=25, late="finish", **settings)
    result = await ran(finish, policy="fifo", requests=4)
    adds_up(result)
    assert result.streams[0].late == 4
    assert result.notes == (
        "stream finish finishes what is late: the policy is not told of its deadlines",
    )


async def test_what_cannot_be_met_is_refused_at_once() -> None:
    stream = Stream(name="a", arrivals=Periodic(period_ms=4), cost=Constant(ms=8), deadline_ms=20)
    result = await ran(stream, policy="predicted-finish", requests=20)
    adds_up(result)
    assert result.streams[0].refused > 3
    assert result.policy == "predicted-finish"


async def test_who_gives_up_is_counted_as_that() -> None:
    stream = Stream(
        name="a",
        arrivals=Periodic(period_ms=20),
        cost=Constant(ms=10_000),
        step_ms=1,
        cancel_after_ms=10,
    )
    result = await ran(stream, requests=5)
    adds_up(result)
    assert result.streams[0].cancelled == 5


async def test_a_full_queue_displaces_and_refuses() -> None:
    low = Stream(name="low", arrivals=Periodic(period_ms=1), cost=Constant(ms=40), priority="low")
    high = Stream(
        name="high",
        arrivals=Periodic(period_ms=10, phase_ms=30),
        cost=Constant(ms=40),
        priority="high",
    )
    result = await ran(low, high, queue_limit=4, requests=60)
    adds_up(result)
    assert result.streams[0].refused > 10
    assert result.streams[0].displaced >= 1


async def test_clients_have_their_reservations() -> None:
    """Two clients that ask for all of it; one has three quarters."""
    streams = [
        Stream(
            name=name,
            arrivals=ClosedLoop(callers=3, think_ms=0),
            cost=Constant(ms=2),
            client=name,
        )
        for name in ("large", "small")
    ]
    shares = {1: Reservation(15 * MS, 20 * MS), 2: Reservation(5 * MS, 20 * MS)}
    # Who else keeps the cores busy changes what each of them gets, but not time after time.
    for _ in range(5):
        result = await ran(*streams, duration_ns=400 * MS, policy=Reservations(shares))
        adds_up(result)
        assert result.policy == "reservations"
        large, small = (
            sum(span.ended_ns - span.began_ns for span in result.spans if span.stream == number)
            for number in (0, 1)
        )
        if 1.5 < large / small < 6:
            break
    assert 1.5 < large / small < 6


async def test_a_bad_policy_is_told_in_the_record() -> None:
    class Bad(FirstComeFirstServed):
        name = "bad"

        def next(self, now_ns: int) -> Job | None:
            raise ZeroDivisionError("of no use")

    stream = Stream(name="a", arrivals=Periodic(period_ms=10), cost=Constant(ms=1))
    result = await ran(stream, policy=Bad(), requests=8)
    adds_up(result)
    assert result.streams[0].met == result.streams[0].submitted == 8
    assert result.policy == "default"
    (note,) = result.notes
    assert (
        note == "policy 'bad', next: it raised ZeroDivisionError: of no use; the default rule since"
    )


@pytest.mark.one_loop("The network makes no difference to the loop.")
async def test_a_real_network(tmp_path: Path) -> None:
    nn.save(doubler(), tmp_path / "doubler.nnm")
    stream = Stream(
        name="net",
        arrivals=Periodic(period_ms=5),
        cost=Network(model=str(tmp_path / "doubler.nnm")),
        priority="high",
    )
    result = await ran(stream, requests=10)
    adds_up(result)
    assert result.streams[0].met == 10
    assert result.busy_ns > 0


async def test_a_trace_ends_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time,cost\n0,1\n0.005,2\n0.01,3\n")
    stream = Stream(name="t", arrivals=Trace(path=str(path)), cost=Recorded())
    result = await ran(stream)
    adds_up(result)
    assert result.streams[0].met == 3
    lengths = sorted(span.ended_ns - span.began_ns for span in result.spans)
    assert [length // MS for length in lengths] >= [1, 2, 3]


async def test_what_a_trace_has_wrong_ends_the_run(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time,cost\n0,1\n0.005,2\n0.001,3\n")
    stream = Stream(name="t", arrivals=Trace(path=str(path)), cost=Recorded())
    with pytest.raises(ExperimentError, match="trace.csv"):
        await ran(stream)


@pytest.mark.parametrize(
    ("settings", "text"),
    [({}, "duration_ns or requests"), ({"policy": "lifo", "requests": 1}, "no policy 'lifo'")],
)
async def test_what_cannot_be_run(settings: dict[str, Any], text: str) -> None:
    stream = Stream(name="a", arrivals=Poisson(rate_hz=10), cost=Constant(ms=1))
    with pytest.raises(InvalidArgument, match=text):
        await ran(stream, **settings)


async def test_warm_up_requests_run_and_do_not_count() -> None:
    stream = Stream(name="a", arrivals=Periodic(period_ms=10), cost=Constant(ms=1))
    recording = Recording(warm_up_ms=45, timeline_requests=100)
    result = await ran(stream, record=recording, requests=10)
    adds_up(result)
    assert [row.arrived_ns for row in result.requests] == [at * 10 * MS for at in range(5, 10)]
    assert result.streams[0].met == 5
    assert result.busy_ns >= 10 * MS


async def test_what_is_due_at_once_begins_in_its_order() -> None:
    """Tasks that are begun together run in any order on trio."""
    stream = Stream(name="a", arrivals=Periodic(period_ms=0.001), cost=Constant(ms=0.001))
    result = await ran(stream, policy="fifo", requests=50)
    planned = [row.arrived_ns for row in result.requests]
    assert planned == sorted(planned)
    # A worker may have run one before it is told that it was queued.
    queued = [row.queued_ns for row in result.requests if row.queued_ns >= 0]
    assert queued == sorted(queued)


async def test_what_has_no_answer_in_the_end_is_pending() -> None:
    stream = Stream(name="a", arrivals=Periodic(period_ms=1000), cost=Constant(ms=200))
    result = await ran(stream, duration_ns=20 * MS)
    adds_up(result)
    assert (result.streams[0].submitted, result.streams[0].pending) == (1, 1)
    assert result.duration_ns == 20 * MS
