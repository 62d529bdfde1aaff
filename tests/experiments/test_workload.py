"""Workloads: costs, seeds, loads, and what cannot be."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import numpy as np
import pytest

from nnasync.errors import ExperimentError
from nnasync.experiments import (
    ClosedLoop,
    Constant,
    Exponential,
    Histogram,
    Lognormal,
    Network,
    Periodic,
    Poisson,
    Recorded,
    RunTimes,
    Steps,
    Stream,
    Trace,
    Workload,
    at_load,
    costs_of,
    offered_load,
    request_blocks,
    think_times,
)
from nnasync.hal import NEVER_NS, Priority

COUNT = 100_000
DRAWN = Constant | Exponential | Lognormal | Histogram | Steps


def stream(**changes: Any) -> Stream:
    given: dict[str, Any] = {"name": "s", "arrivals": Poisson(10.0), "cost": Constant(2.0)}
    return Stream(**(given | changes))


@pytest.mark.parametrize(
    ("cost", "cv"),
    [
        (Constant(2.0), 0.0),
        (Exponential(2.0), 1.0),
        (Lognormal(2.0, 1.5), 1.5),
        (Steps((0.5, 1.0, 0.5)), 0.0),
        (Steps((0.5, 1.5), cv=0.3), 0.3),
        (Histogram((0.0, 4.0), (9.0,)), 1 / 3**0.5),
    ],
)
def test_costs_have_the_mean_and_the_variation_that_was_asked_for(cost: DRAWN, cv: float) -> None:
    drawn = cost.draw(np.random.default_rng(1), COUNT)
    assert drawn.min() >= 1
    assert drawn.mean() == pytest.approx(2e6, rel=4 * cv / COUNT**0.5 + 1e-9)
    assert drawn.std() / drawn.mean() == pytest.approx(cv, rel=0.1, abs=1e-9)
    assert cost.mean_ns == pytest.approx(2e6)


def test_a_histogram_is_drawn_as_it_was_measured() -> None:
    cost = Histogram((1.0, 2.0, 3.0, 10.0), (1.0, 0.0, 3.0))
    drawn = cost.draw(np.random.default_rng(2), COUNT) / 1e6
    counts, _ = np.histogram(drawn, (1.0, 2.0, 3.0, 10.0))
    assert counts[1] == 0
    assert counts[0] / COUNT == pytest.approx(0.25, abs=0.01)
    assert drawn[drawn > 3].mean() == pytest.approx(6.5, rel=0.01)


def test_steps_end_at_their_shares() -> None:
    assert Steps((1.0, 2.0, 1.0)).borders == (0.25, 0.75, 1.0)


def test_requests_depend_on_seed_and_name_alone() -> None:
    mine = next(request_blocks(stream(), 5))
    assert next(request_blocks(stream(priority="high", deadline_ms=3.0), 5)) == mine
    assert next(request_blocks(stream(), 6)) != mine
    assert next(request_blocks(stream(name="t"), 5)) != mine
    times, costs = next(request_blocks(stream(cost=Exponential(1.0)), 5))
    assert times == mine[0]
    assert costs != mine[1]
    assert list(itertools.islice(costs_of(stream(cost=Exponential(1.0)), 5), len(costs))) == costs


def test_priorities_and_deadlines_are_told_in_the_words_of_the_hal() -> None:
    assert stream(priority="high").urgency is Priority.HIGH
    assert stream(deadline_ms=1.5).deadline_ns == 1_500_000
    assert stream().deadline_ns == NEVER_NS


def test_a_load_is_reckoned_and_set_of_open_streams() -> None:
    closed = stream(name="c", arrivals=ClosedLoop(3, 1.0))
    work = Workload((stream(), stream(name="p", arrivals=Periodic(20.0)), closed))
    assert offered_load(work, cores=2) == pytest.approx((0.02 + 0.1) / 2)
    scaled = at_load(work, 2, 0.9)
    assert offered_load(scaled, 2) == pytest.approx(0.9)
    assert scaled.streams[2] == closed
    with pytest.raises(ExperimentError, match="no stream has open arrivals"):
        at_load(Workload((closed,)), 1, 0.5)
    with pytest.raises(ExperimentError, match="load is -1"):
        at_load(work, 1, -1.0)
    with pytest.raises(ExperimentError, match="the steps of a.tflite are not known"):
        offered_load(Workload((stream(cost=Network("a.tflite")),)), 1)


def test_a_workload_is_read_from_data_and_errors_name_the_key() -> None:
    text = (
        '{"streams": [{"name": "a", "arrivals": {"kind": "on_off", "rate_hz": 9, "on_ms": 1, '
        '"off_ms": 2}, "cost": {"kind": "steps", "steps_ms": [1, 2]}, "priority": "low"}]}'
    )
    read = msgspec.json.decode(text, type=Workload)
    assert read.streams[0].cost == Steps((1.0, 2.0))
    assert msgspec.json.decode(msgspec.json.encode(read), type=Workload) == read
    for wrong, where in (
        ('"rate_hz": -9', r"rate_hz is -9.*`\$\.streams\[0\]\.arrivals`"),
        ('"rate_hz": 9, "rats": 1', r"unknown field `rats` - at `\$\.streams\[0\]\.arrivals`"),
        ('"rate_hz": "x"', r"`\$\.streams\[0\]\.arrivals\.rate_hz`"),
    ):
        with pytest.raises(msgspec.ValidationError, match=where):
            msgspec.json.decode(text.replace('"rate_hz": 9', wrong), type=Workload)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Workload(()), "streams is empty"),
        (lambda: Workload((stream(), stream())), r"\[1\].name: another stream is called s"),
        (lambda: stream(name=""), "name is empty"),
        (lambda: stream(deadline_ms=0.0), "deadline_ms is 0"),
        (lambda: stream(cancel_after_ms=-1.0), "cancel_after_ms is -1"),
        (lambda: stream(step_ms=-1.0), "step_ms is -1"),
        (lambda: stream(step_ms=1.0, cost=Steps((1.0,))), "the cost has steps of its own"),
        (lambda: stream(cost=Recorded()), "need arrivals of the kind trace"),
        (lambda: Constant(-1.0), "ms is -1, and must be greater than 0"),
        (lambda: Exponential(0.0), "mean_ms is 0"),
        (lambda: Lognormal(1.0, -1.0), "cv is -1"),
        (lambda: Steps(()), "steps_ms is empty"),
        (lambda: Steps((1.0, 0.0)), r"steps_ms\[1\] is 0"),
        (lambda: Network("a", (1.0, -1.0)), r"steps_ms\[1\] is -1"),
        (lambda: RunTimes((2.0, 1.0)), r"usual_ms\[1\] is 1, and must be 2 or more"),
        (lambda: RunTimes((1.0,), wide_ms=(1.0, 2.0)), "wide_ms has 2 values"),
        (lambda: Histogram((1.0,), ()), "one edge more than counts"),
        (lambda: Histogram((1.0, 1.0), (1.0,)), r"edges_ms\[1\] is 1, and must be greater"),
        (lambda: Histogram((0.0, 1.0), (-1.0,)), r"counts\[0\] is -1"),
        (lambda: Histogram((0.0, 1.0), (0.0,)), "the sum of counts is 0"),
        (lambda: next(request_blocks(stream(arrivals=ClosedLoop(1, 1.0)), 0)), "answers decide"),
        (lambda: think_times(stream(), 0), "only callers of a closed loop think"),
        (lambda: next(request_blocks(stream(cost=Network("a")), 0)), "the steps of a are not"),
        (
            lambda: next(costs_of(stream(arrivals=Trace("t"), cost=Recorded()), 0)),
            "recorded costs come with the trace",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: Any, text: str) -> None:
    with pytest.raises(ExperimentError, match=text):
        make()
