"""Figures of a point over its repeats: each with its mean and confidence interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from nnasync.experiments.intervals import Interval, interval
from nnasync.experiments.record import StreamResult
from nnasync.experiments.run_of_point import Run

Kind = Literal["simulated", "real"]

MEASURES = (
    "attainment",
    "goodput_hz",
    "mean_ms",
    "p50_ms",
    "p90_ms",
    "p99_ms",
    "p999_ms",
    "max_ms",
)
COUNTS = (
    "submitted",
    "met",
    "late",
    "expired",
    "refused",
    "displaced",
    "cancelled",
    "pending",
)


class Figures(msgspec.Struct, frozen=True):
    """What one stream had in one point, in all repeats of one kind of run.

    measures: those of MEASURES that are known. counts: those of COUNTS, summed over the repeats.
    """

    kind: Kind
    point: int
    values: dict[str, float | str]
    stream: str
    priority: str
    deadline_ms: float | None
    repeats: int
    measures: dict[str, Interval]
    counts: dict[str, int]

    def mean(self, measure: str) -> float | None:
        """Returns the mean of a measure over the repeats; None if it is not known."""
        found = self.measures.get(measure)
        return None if found is None else found.mean


def figures_of(runs: Iterable[Run]) -> tuple[Figures, ...]:
    """Returns the figures of all points, in the order of the runs."""
    groups: dict[tuple[Kind, int, str], list[tuple[Run, StreamResult]]] = {}
    for run in runs:
        for stream in run.result.streams:
            key = (run.result.kind, run.point, stream.name)
            groups.setdefault(key, []).append((run, stream))
    return tuple(_summed(pairs) for pairs in groups.values())


def measures_of(run: Run, stream: StreamResult) -> dict[str, float]:
    """Returns all measures of one stream in one run; unknown ones are NaN."""
    latency, seconds = stream.latency, run.result.duration_ns / 1e9
    is_known = latency.count > 0
    return {
        "attainment": stream.attainment,
        "goodput_hz": stream.met / seconds if seconds else math.nan,
        "mean_ms": latency.mean_ns / 1e6 if is_known else math.nan,
        "p50_ms": latency.p50_ns / 1e6,
        "p90_ms": latency.quantile(0.9) / 1e6,
        "p99_ms": latency.p99_ns / 1e6,
        "p999_ms": latency.p999_ns / 1e6,
        "max_ms": latency.most_ns / 1e6 if is_known else math.nan,
    }


def _summed(pairs: list[tuple[Run, StreamResult]]) -> Figures:
    run, stream = pairs[0]
    return Figures(
        kind=run.result.kind,
        point=run.point,
        values=run.values,
        stream=stream.name,
        priority=stream.priority,
        deadline_ms=None if stream.deadline_ns is None else stream.deadline_ns / 1e6,
        repeats=len(pairs),
        measures=dict(_intervals(pairs)),
        counts={name: sum(getattr(each, name) for _, each in pairs) for name in COUNTS},
    )


def _intervals(pairs: list[tuple[Run, StreamResult]]) -> Iterator[tuple[str, Interval]]:
    measured = [measures_of(run, stream) for run, stream in pairs]
    for name in MEASURES:
        found = interval([each[name] for each in measured if math.isfinite(each[name])])
        if found is not None:
            yield name, found
