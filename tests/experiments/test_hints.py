"""Hints: what there is where a key or a kind is not known."""

from __future__ import annotations

from typing import Any

import pytest

from nnasync.errors import ExperimentError
from nnasync.experiments.experiment import experiment_of

STREAM: dict[str, Any] = {
    "name": "a",
    "arrivals": {"kind": "poisson", "rate_hz": 9},
    "cost": {"kind": "constant", "ms": 1},
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"deadline": 5}, r"streams\[0\]: .*unknown field `deadline`; did you mean deadline_ms\?"),
        ({"zzz": 5}, r"unknown field `zzz`; there are name, arrivals, cost, priority"),
        (
            {"arrivals": {"kind": "poisson", "rate_hz": 9, "cv": 2}},
            r"streams\[0\]\.arrivals: .*unknown field `cv`; there are kind, rate_hz$",
        ),
        ({"cost": {"kind": "const", "ms": 1}}, r"Invalid value 'const'; there are constant, expo"),
        ({"batching": {"rows": 2}}, r"unknown field `rows`; did you mean max_rows\?"),
        (
            {"cost": {"kind": "network", "model": "a", "times": {"usual_ms": [1], "wide": []}}},
            r"cost\.times: .*unknown field `wide`; did you mean wide_ms\?",
        ),
        ({"arrivals": [1]}, r"streams\[0\]\.arrivals: Expected `object`"),
    ],
)
def test_what_is_unknown_is_told_with_what_there_is(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ExperimentError, match=expected):
        experiment_of({"streams": [STREAM | changes]})


def test_a_load_that_nothing_could_start_names_its_stream() -> None:
    experiment = experiment_of({"streams": [STREAM], "load": 1e9})
    with pytest.raises(ExperimentError, match="load is 1e.09: of a, rate_hz is 1e.12, more than"):
        experiment.workload()
