"""Sweeps: every combination once, and keys that name nothing are told."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import InvalidArgument
from nnasync.experiments.sweeps import only, points

DOCUMENT: dict[str, Any] = {
    "cores": 2,
    "policy": "fifo",
    "streams": [
        {"name": "words", "arrivals": {"kind": "periodic", "period_ms": 10}},
        {"name": "photos", "arrivals": {"kind": "gamma", "rate_hz": 5, "cv": 1}},
    ],
}

AXES = st.dictionaries(
    st.sampled_from(["cores", "load", "streams.photos.arrivals.cv", "streams.*.deadline_ms"]),
    st.lists(st.integers(1, 100), min_size=1, max_size=4, unique=True),
)


@given(AXES)
def test_points_are_all_combinations(axes: dict[str, list[int]]) -> None:
    before = copy.deepcopy(DOCUMENT)
    found = list(points(DOCUMENT, axes))
    assert len(found) == math.prod(map(len, axes.values()))
    assert len({tuple(point.values.items()) for point in found}) == len(found)
    assert before == DOCUMENT
    for point in found:
        assert list(point.values) == list(axes)
        for key, value in point.values.items():
            assert value in axes[key]
        if "cores" in axes:
            assert point.document["cores"] == point.values["cores"]


def test_the_last_key_changes_fastest() -> None:
    found = points(DOCUMENT, {"cores": [1, 2], "load": [0.5, 0.9]})
    assert [tuple(point.values.values()) for point in found] == [
        (1, 0.5),
        (1, 0.9),
        (2, 0.5),
        (2, 0.9),
    ]


def test_streams_are_found_by_name_or_all_of_them() -> None:
    (point,) = points(DOCUMENT, {"streams.photos.arrivals.cv": [4]})
    assert [stream["arrivals"].get("cv") for stream in point.document["streams"]] == [None, 4]
    (point,) = points(DOCUMENT, {"streams.*.deadline_ms": [7]})
    assert [stream["deadline_ms"] for stream in point.document["streams"]] == [7, 7]


def test_tables_are_shown_by_their_label_or_name() -> None:
    values = [
        "fifo",
        {"name": "edf", "preempts": False},
        {"label": "three steps", "value": [1, 1, 1]},
        {"label": "admission", "name": "predicted-finish", "order": "edf"},
    ]
    found = list(points(DOCUMENT, {"policy": values}))
    assert [point.values["policy"] for point in found] == [
        "fifo",
        "edf",
        "three steps",
        "admission",
    ]
    assert [point.document["policy"] for point in found] == [
        "fifo",
        {"name": "edf", "preempts": False},
        [1, 1, 1],
        {"name": "predicted-finish", "order": "edf"},
    ]


def test_several_keys_are_set_together() -> None:
    values = [
        {"label": "both", "set": {"policy": "edf", "streams.photos.late": "finish"}},
        {"label": "one", "set": {"cores": 3}},
    ]
    both, one = points(DOCUMENT, {"variant": values})
    assert (both.values, one.values) == ({"variant": "both"}, {"variant": "one"})
    assert both.document["policy"] == "edf"
    assert both.document["streams"][1]["late"] == "finish"
    assert "variant" not in both.document
    assert (one.document["policy"], one.document["cores"]) == ("fifo", 3)


@pytest.mark.parametrize(
    ("axes", "told"),
    [
        ({"streams.pictures.cost": [1]}, "no 'pictures'; there is words, photos"),
        ({"streams.photos.cost.ms": [1]}, "no 'cost'; there is name, arrivals"),
        ({"cores.many": [1]}, "'cores' is a single value"),
        ({"cores.many.more": [1]}, "no 'many'; there is nothing"),
        ({"streams.photos": [1]}, "'streams' is a list; name a part of it"),
        ({"streams.*": [1]}, "and then a key of that: there is words, photos"),
        ({"cores": []}, "'cores': a list of at least one value"),
        ({"cores": 3}, "'cores': a list of at least one value"),
        ({"cores": [1, 1]}, "'cores': a value is there twice"),
    ],
)
def test_keys_that_name_nothing_are_told(axes: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        list(points(DOCUMENT, axes))
    assert told in str(raised.value)


def test_some_values_of_a_sweep_are_chosen_as_they_are_shown() -> None:
    axes: dict[str, list[Any]] = {
        "load": [0.5, 1, 2],
        "policy": ["fifo", {"label": "by deadline", "name": "edf"}],
    }
    assert only(axes, "load", ["2", "0.5"]) == [0.5, 2]
    assert only(axes, "policy", ["by deadline"]) == [{"label": "by deadline", "name": "edf"}]
    with pytest.raises(InvalidArgument, match=r"no value '3' in the sweep; there is 0.5, 1, 2"):
        only(axes, "load", ["0.5", "3"])
    with pytest.raises(InvalidArgument, match="'cores' is no key of the sweep; there is load"):
        only(axes, "cores", ["1"])
