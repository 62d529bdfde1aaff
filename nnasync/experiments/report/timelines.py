"""The data of the timeline: who had which core, for the first requests of each point."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nnasync.experiments.record import Outcome, RunResult
from nnasync.experiments.report.axes import shown
from nnasync.experiments.run_of_point import Run

_SHOWN = 60
"""About so many requests are in view at first."""

_DIGITS = 4


class Timeline(msgspec.Struct, frozen=True):
    """An excerpt of a run for the script of the page: times in ms, rows as it reads them.

    core_runs: core, stream, request, began, ended. lifetimes: stream, request, planned, ended,
    whether it got no answer in time. window: how much is shown at first.
    """

    label: str
    cores: int
    streams: tuple[str, ...]
    until: float
    window: float
    core_runs: tuple[tuple[int, int, int, float, float], ...]
    lifetimes: tuple[tuple[int, int, float, float, bool], ...]


def timelines_of(runs: Sequence[Run]) -> list[Timeline]:
    """Returns the excerpts of the first repeat of each point and kind of run."""
    return [timeline_of(run) for run in runs if run.repeat == 0 and run.result.requests]


def timeline_of(run: Run) -> Timeline:
    """Returns the excerpt of one run, from the first recorded arrival on."""
    result = run.result
    start_ns = min(row.arrived_ns for row in result.requests)
    lifetimes = tuple(
        (
            row.stream,
            row.request,
            _ms(row.arrived_ns - start_ns),
            _ms(row.ended_ns - start_ns),
            row.outcome not in (Outcome.MET, Outcome.PENDING, Outcome.CANCELLED),
        )
        for row in result.requests
    )
    last = max(planned for _, _, planned, _, _ in lifetimes) or 1.0
    return Timeline(
        label=_label(run),
        cores=result.cores,
        streams=tuple(stream.name for stream in result.streams),
        until=last,
        window=last * min(1.0, _SHOWN / len(lifetimes)),
        core_runs=_core_runs(result, start_ns),
        lifetimes=lifetimes,
    )


def _core_runs(result: RunResult, start_ns: int) -> tuple[tuple[int, int, int, float, float], ...]:
    return tuple(
        (
            span.core,
            span.stream,
            span.request,
            _ms(span.began_ns - start_ns),
            _ms(span.ended_ns - start_ns),
        )
        for span in result.spans
    )


def _ms(duration_ns: int) -> float:
    return round(duration_ns / 1e6, _DIGITS)


def _label(run: Run) -> str:
    parts = [f"{key.rpartition('.')[2]} {shown(value)}" for key, value in run.values.items()]
    return ", ".join([*parts, run.result.kind])
