"""Streams whose waiting requests are run together: simulated and real."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nnasync.errors import ExperimentError
from nnasync.experiments import (
    Batching,
    Constant,
    Overheads,
    Periodic,
    Poisson,
    Recording,
    RunResult,
    Stream,
    Workload,
    run_real,
    simulate,
)

MS = 1_000_000
ALL = Recording(timeline_requests=1_000)


def requests(*times_ms: float, batching: Batching, **changes: Any) -> tuple[Stream, ...]:
    """A stream with a request every other millisecond, as many as there are times."""
    period_ms = times_ms[1] - times_ms[0] if len(times_ms) > 1 else 3.6e6
    given: dict[str, Any] = {"cost": Constant(10.0)}
    arrivals = Periodic(period_ms, phase_ms=times_ms[0])
    return (Stream(name="a", arrivals=arrivals, batching=batching, **(given | changes)),)


def run(*streams: Stream, until_ms: float = 60.0, **options: Any) -> RunResult:
    return simulate(Workload(streams), duration_ns=round(until_ms * MS), record=ALL, **options)


def outcomes(found: RunResult) -> list[tuple[str, float]]:
    return [(row.outcome.value, row.ended_ns / MS) for row in found.requests]


def test_those_that_wait_for_a_core_go_together() -> None:
    found = run(*requests(0.0, 4.0, batching=Batching(max_rows=2, each=0.5)), until_ms=34.9)
    # The first goes at once; then two at a time, which cost 15.
    assert outcomes(found)[:3] == [("met", 10.0), ("met", 25.0), ("met", 25.0)]
    assert found.busy_ns == 34.9 * MS


def test_a_window_has_a_request_wait_for_company() -> None:
    batching = Batching(max_rows=3, window_ms=6.0, each=0.0)
    found = run(*requests(0.0, 2.0, batching=batching), cores=2, until_ms=15.0)
    # As soon as there are three they go, before the window is over.
    assert outcomes(found)[:3] == [("met", 14.0)] * 3
    alone = run(*requests(0.0, batching=batching), cores=2)
    assert outcomes(alone) == [("met", 16.0)]


def test_each_keeps_its_deadline() -> None:
    batching = Batching(max_rows=4, each=1.0)
    found = run(*requests(0.0, 4.0, batching=batching, deadline_ms=15.0), until_ms=19.5)
    # When the first one has ended it is known that the second one cannot be in time even alone.
    assert outcomes(found)[:2] == [("met", 10.0), ("refused", 10.0)]


def test_what_cannot_be_in_time_behind_others_is_refused() -> None:
    batching = Batching(max_rows=1)
    found = run(*requests(0.0, 1.0, batching=batching, deadline_ms=12.0), until_ms=39.5)
    assert "refused" in {outcome for outcome, _ in outcomes(found)}
    (stream,) = found.streams
    assert stream.submitted == 40
    assert stream.met >= 2


def test_a_run_whose_callers_have_all_gone_is_given_up() -> None:
    streams = requests(0.0, batching=Batching(), cancel_after_ms=3.0, step_ms=1.0)
    found = run(*streams)
    assert outcomes(found) == [("cancelled", 3.0)]
    assert found.busy_ns == 3 * MS


@pytest.mark.parametrize("overheads", [None, Overheads(20_000, 40_000, 50_000)])
@pytest.mark.parametrize("policy", [None, "edf"])
def test_nobody_is_lost_and_two_runs_are_equal(overheads: Overheads | None, policy: str) -> None:
    stream = Stream(
        name="a",
        arrivals=Poisson(400),
        cost=Constant(8.0),
        deadline_ms=50,
        batching=Batching(max_rows=4, window_ms=2.0),
    )
    other = Stream(name="b", arrivals=Poisson(30), cost=Constant(2.0), priority="high")
    first, again = (
        simulate(
            Workload((stream, other)),
            cores=2,
            requests=800,
            overheads=overheads,
            policy=policy,
            record=ALL,
        )
        for _ in range(2)
    )
    assert msgspec.json.encode(first) == msgspec.json.encode(again)
    assert sum(each.submitted for each in first.streams) == 800
    assert sum(each.pending for each in first.streams) == 0
    assert all(each.met for each in first.streams)


@pytest.mark.anyio
async def test_real_requests_go_together() -> None:
    stream = Stream(
        name="a",
        arrivals=Periodic(1.0),
        cost=Constant(20.0),
        batching=Batching(max_rows=8, each=0.0),
    )
    found = await run_real(Workload((stream,)), requests=30)
    (result,) = found.streams
    assert (result.submitted, result.met) == (30, 30)
    # Alone they take 600 ms.
    assert found.busy_ns < 300 * MS


@pytest.mark.parametrize(
    ("changes", "text"),
    [({"max_rows": 0}, "max_rows is 0"), ({"each": 2.0}, "each is 2"), ({"window_ms": -1}, "-1")],
)
def test_batching_that_cannot_be_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ExperimentError, match=text):
        Batching(**changes)
