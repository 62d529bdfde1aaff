"""Numbers beyond measure: refused where they are said, bounded where they are drawn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import ExperimentError
from nnasync.experiments import Workload, arrivals, costs, simulate
from nnasync.experiments.checks import whole_ns
from nnasync.experiments.experiment import experiment_of

STREAM = {
    "name": "a",
    "arrivals": {"kind": "poisson", "rate_hz": 50},
    "cost": {"kind": "constant", "ms": 1},
}


@pytest.mark.parametrize(
    "make",
    [
        lambda: arrivals.Poisson(1e-12),
        lambda: arrivals.Poisson(50).scaled(1e-300),
        lambda: arrivals.Periodic(1e14),
        lambda: arrivals.Periodic(10, phase_ms=1e13),
        lambda: arrivals.OnOff(50, 10, 1e300),
        lambda: arrivals.OnOff(1, 1e-9, 10),
        lambda: arrivals.Gamma(50, 1e5),
        lambda: arrivals.Gamma(50, 1e-170),
        lambda: costs.Constant(1e14),
        lambda: costs.Exponential(1e14),
        lambda: costs.Lognormal(1, 1e200),
        lambda: costs.Steps((1e14,)),
        lambda: costs.Histogram((0, 1e14), (1,)),
    ],
)
def test_what_is_beyond_measure_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ExperimentError, match="must be"):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: costs.Recorded(math.inf),
        lambda: costs.Constant(math.inf),
        lambda: arrivals.Poisson(math.inf),
        lambda: arrivals.Periodic(10, phase_ms=math.inf),
    ],
)
def test_what_is_infinite_is_told_as_that(make: Callable[[], object]) -> None:
    with pytest.raises(ExperimentError, match="is inf, and must be a finite number"):
        make()


@given(st.lists(st.floats(allow_nan=False), min_size=1))
def test_whole_nanoseconds_keep_their_order(values: list[float]) -> None:
    found = whole_ns(np.sort(values)).tolist()
    assert found == sorted(found)
    assert found[0] >= 0


@pytest.mark.parametrize(
    "process",
    [
        arrivals.Poisson(1e-9),
        arrivals.Gamma(1e-9, 100),
        arrivals.OnOff(1e-6, 1e7, 1e10),
        arrivals.Periodic(1e10, phase_ms=1e10, jitter_ms=1e10),
    ],
)
def test_the_rarest_requests_never_go_back_in_time(process: arrivals.Poisson) -> None:
    for block in itertools.islice(process.blocks(np.random.default_rng(0)), 3):
        assert block[0] >= 0
        assert (np.diff(block) >= 0).all()


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"name": "../../elsewhere"}, "name"),
        ({"duration_s": float("inf")}, "duration_s"),
        ({"aging_ms": 1e300}, "aging_ms"),
    ],
)
def test_a_file_with_such_values_is_refused(changed: dict[str, object], why: str) -> None:
    with pytest.raises(ExperimentError, match=why):
        experiment_of({"streams": [STREAM], **changed})


@pytest.mark.parametrize(
    "policy", [{"name": "edf", "policy": "x"}, {"name": "reservations", "clients": 5}]
)
def test_a_policy_that_does_not_take_that_says_so(policy: dict[str, object]) -> None:
    experiment = experiment_of({"streams": [STREAM], "policy": policy})
    with pytest.raises(ExperimentError, match="policy"):
        experiment.make_policy()


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"cores": 10**9}, "cores"),
        ({"repeats": 10**9}, "repeats"),
        ({"real_repeats": 10**9}, "real_repeats"),
        (
            {
                "streams": [
                    {**STREAM, "arrivals": {"kind": "closed_loop", "callers": 10**9, "think_ms": 1}}
                ]
            },
            "streams",
        ),
    ],
)
def test_more_than_any_memory_holds_is_refused(changes: dict[str, object], key: str) -> None:
    """A simulation makes each of them before it begins."""
    with pytest.raises(ExperimentError, match=f"^{key}"):
        experiment_of({"streams": [STREAM], **changes})


def test_no_machine_has_so_many_cores() -> None:
    stream = experiment_of({"streams": [STREAM]}).streams[0]
    with pytest.raises(ExperimentError, match="cores is 1e"):
        simulate(Workload((stream,)), cores=10**9, requests=1)
