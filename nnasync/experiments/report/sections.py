"""The charts of a report: over the sweep, distributions, queues, simulated beside real."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from nnasync._core.pages.charts import Form, Mark, Rule, Series, chart, legend
from nnasync._core.pages.escaping import text
from nnasync._core.pages.scales import Linear, Logarithmic, Nines, Scale, scale_of
from nnasync.experiments.fidelity import Fidelity
from nnasync.experiments.figures import Figures, Kind, figures_of
from nnasync.experiments.intervals import Interval
from nnasync.experiments.record import StreamResult
from nnasync.experiments.report.axes import Axes, Value, axes_of, shown
from nnasync.experiments.run_of_point import Run

_MOST_NINES = 4.0
_FEW = 10.0
"""So many requests must lie beyond a quantile for it to be shown."""


class View(msgspec.Struct, frozen=True):
    """Runs, with their figures and the axes along which they are shown."""

    runs: tuple[Run, ...]
    figures: tuple[Figures, ...]
    axes: Axes

    @property
    def streams(self) -> tuple[str, ...]:
        """Returns the names of all streams, in their order."""
        return tuple(dict.fromkeys(each.stream for each in self.figures))

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Returns the kinds of run that there are: simulated, real, or both."""
        kinds: tuple[Kind, ...] = ("simulated", "real")
        return tuple(kind for kind in kinds if any(f.kind == kind for f in self.figures))

    def color(self, values: dict[str, Value]) -> int:
        """Returns the number of a series' color."""
        return self.axes.series.index(self.axes.series_of(values))


def view_of(runs: Sequence[Run], x: str = "") -> View:
    """Prepares some runs to be shown; `x` is the swept key along the charts."""
    return View(tuple(runs), figures_of(runs), axes_of(runs, x))


def series_legend(view: View, form: str = "line", *, real: str = "") -> str:
    """Returns the legend of the colors, and of how real runs are drawn where `real` says that."""
    entries = [(label, index, form) for index, label in enumerate(view.axes.series) if label]
    if real and len(view.kinds) == 2:
        entries += [("simulated", 5, "line"), ("real", 5, real)]
    return legend(entries) if entries else ""


def grid(charts: Sequence[str]) -> str:
    """Returns charts side by side, as many in a row as fit."""
    return f'<div class="charts">{"".join(charts)}</div>'


# -- over the sweep


def along_sweep(view: View) -> str:
    """Returns charts of deadlines met, goodput and tails of all streams, with their legend."""
    charts = [
        *over_sweep(view, "attainment", "deadlines met, %", scale="percent"),
        *over_sweep(view, "goodput_hz", "answers in time a second", scale="from zero"),
        *over_sweep(view, "p99_ms", "p99 latency, ms", scale="ratio"),
    ]
    intro = f"<p>Over {text(view.axes.x_label)}; bands and whiskers are 95 % confidence.</p>"
    return intro + series_legend(view, real="points") + grid(charts)


def over_sweep(view: View, measure: str, title: str, *, scale: str) -> list[str]:
    """Returns one chart of a measure for each stream that has it.

    scale: "percent" for shares, "from zero", or "ratio" for a logarithmic one.
    """
    charts = []
    for stream in view.streams:
        figures = [f for f in view.figures if f.stream == stream and measure in f.measures]
        if measure == "attainment":
            figures = [f for f in figures if f.deadline_ms is not None]
        if figures:
            charts.append(_over(view, figures, measure, f"{stream}: {title}", scale))
    return charts


def _over(view: View, figures: Sequence[Figures], measure: str, title: str, scale: str) -> str:
    factor = 100.0 if scale == "percent" else 1.0
    series = [
        Series(label, color, tuple(marks), "line" if kind == "simulated" else "points")
        for kind in view.kinds
        for color, label in enumerate(view.axes.series)
        if (marks := list(_marks(view, figures, measure, kind, label, factor)))
    ]
    rules = []
    deadline_ms = figures[0].deadline_ms
    if scale == "ratio" and deadline_ms is not None:
        rules = [Rule(deadline_ms, "deadline")]
    values = [mark.y for each in series for mark in each.marks]
    y = _upright(values + [rule.value for rule in rules], scale)
    x = scale_of(view.axes.x_values)
    return chart(series, x, y, title=title, x_label=view.axes.x_label, rules=rules)


def _marks(
    view: View, figures: Sequence[Figures], measure: str, kind: Kind, label: str, factor: float
) -> Iterator[Mark]:
    for each in figures:
        if each.kind != kind or view.axes.series_of(each.values) != label:
            continue
        found = each.measures[measure]
        x = view.axes.x_of(each.values)
        low, high = found.low * factor, found.high * factor
        mean = found.mean * factor
        spread = "" if found.half is None else f" ± {found.half * factor:.3g}"
        told = f"{label + ': ' if label else ''}{mean:.5g}{spread} at {shown(x)} ({kind})"
        is_known = found.half is not None
        yield Mark(x, mean, low if is_known else None, high if is_known else None, told)


def _upright(values: Sequence[float], scale: str) -> Scale:
    low, high = min(values), max(values)
    if scale == "percent":
        return Linear(max(0.0, math.floor((low - 1e-9) / 10) * 10), 100.0)
    if scale == "ratio" and low > 0:
        return Logarithmic(low / 1.25, high * 1.25)
    return Linear(0.0, high * 1.08 or 1.0)


# -- distributions


def distributions(view: View, x: Value) -> list[str]:
    """Returns charts of the latency distributions at one value of the sweep, one a stream."""
    return [made for stream in view.streams if (made := _distribution(view, stream, x)) is not None]


def _distribution(view: View, stream: str, x: Value) -> str | None:
    curves: list[Series] = []
    dots: list[Series] = []
    most_nines = 1.0
    for (kind, label), runs in _pooled(view, x).items():
        found = _distributed([each for run in runs if (each := run.stream(stream)) is not None])
        if not found.points:
            continue
        most_nines = max(most_nines, found.nines)
        color = view.axes.series.index(label)
        told = ", ".join(filter(None, (label, kind)))
        form: Form = "curve" if kind == "simulated" else "dashed"
        marks = tuple(Mark(ms, share) for ms, share in found.points)
        curves.append(Series(told, color, marks, form))
        dots.append(Series(told, color, tuple(_named(found, told)), "points"))
    values = [float(mark.x) for each in curves for mark in each.marks]
    if not values:
        return None
    scale = Logarithmic(min(values), max(values))
    deadline_ms = next(f.deadline_ms for f in view.figures if f.stream == stream)
    rules = []
    if deadline_ms is not None and scale.low <= deadline_ms <= scale.high:
        rules = [Rule(deadline_ms, "deadline", is_upright=True)]
    return chart(
        [*curves, *dots],
        scale,
        Nines(most_nines),
        title=f"{stream}: share answered within a time",
        x_label="milliseconds from the planned arrival",
        rules=rules,
    )


def _pooled(view: View, x: Value) -> dict[tuple[Kind, str], list[Run]]:
    """Groups the runs at one value of the sweep by kind and series, all repeats together."""
    found: dict[tuple[Kind, str], list[Run]] = {}
    for run in view.runs:
        if view.axes.x_of(run.values) == x:
            key = run.result.kind, view.axes.series_of(run.values)
            found.setdefault(key, []).append(run)
    return found


class _Distribution(msgspec.Struct, frozen=True):
    """Pairs of a latency in ms and the share of requests answered by then; as far as `nines`."""

    points: tuple[tuple[float, float], ...]
    nines: float

    def quantile_ms(self, share: float) -> float | None:
        """Returns by when that share was answered.

        Returns None if it never was, or the data do not tell.
        """
        if share > 1 - 10**-self.nines + 1e-12:
            return None
        return next((ms for ms, reached in self.points if reached >= share), None)


def _distributed(streams: Sequence[StreamResult]) -> _Distribution:
    """Returns the distribution over all requests; lost ones count as never answered."""
    asked = sum(each.submitted - each.cancelled - each.pending for each in streams)
    counts: dict[int, int] = {}
    for each in streams:
        for upper_ns, count in each.latency.buckets:
            counts[upper_ns] = counts.get(upper_ns, 0) + count
    nines = min(_MOST_NINES, math.log10(max(asked / _FEW, 10.0)))
    points: list[tuple[float, float]] = []
    below = 0
    for upper_ns in sorted(counts):
        if not points:
            points.append((upper_ns / 1e6, 0.0))
        below += counts[upper_ns]
        points.append((upper_ns / 1e6, below / asked))
    return _Distribution(tuple(points), nines)


def _named(found: _Distribution, told: str) -> Iterator[Mark]:
    for share, name in ((0.5, "p50"), (0.99, "p99"), (0.999, "p99.9")):
        ms = found.quantile_ms(share)
        if ms is not None:
            yield Mark(ms, share, told=f"{name} of {told}: {ms:.4g} ms")


# -- queues


def queues(view: View, x: Value) -> list[str]:
    """Returns charts of the queue's length in the first repeat, simulated and real apart."""
    charts = []
    for kind in view.kinds:
        series = [
            Series(label, color, tuple(Mark(ns / 1e9, float(n)) for ns, n in run.result.queue))
            for run, color, label in _first_repeats(view, x)
            if run.result.kind == kind and run.result.queue
        ]
        if not series:
            continue
        steps = [Series(each.label, each.color, each.marks, "steps") for each in series]
        marks = [mark for each in steps for mark in each.marks]
        title = f"requests in the queue ({kind})"
        last = max(float(mark.x) for mark in marks)
        y = _upright([max(mark.y for mark in marks), 0.0, 1.0], "from zero")
        charts.append(chart(steps, Linear(0.0, last), y, title=title, x_label="seconds"))
    return charts


def _first_repeats(view: View, x: Value) -> Iterator[tuple[Run, int, str]]:
    """Yields the first repeat of each series and kind at one value of the sweep."""
    for run in view.runs:
        if run.repeat == 0 and view.axes.x_of(run.values) == x:
            yield run, view.color(run.values), view.axes.series_of(run.values)


# -- simulated beside real


def beside(
    view: View, errors: Sequence[Fidelity], measure: Literal["mean", "p99"], title: str
) -> str | None:
    """Returns a chart of the simulation's errors at every point, with their limits.

    Returns None where there are no errors to be shown.
    """
    real = {(f.point, f.stream): f for f in view.figures if f.kind == "real"}
    known = [
        (each, error, truth)
        for each in errors
        if (error := each.intervals.get(measure)) is not None
        and (truth := real[each.point, each.stream].mean(f"{measure}_ms"))
    ]
    if not known:
        return None
    latencies = [truth for _, _, truth in known]
    ends = [end for _, error, _ in known for end in (error.low, error.high)]
    limits = sorted({each.limit for each, _, _ in known})
    most = 120 * min(max(*map(abs, ends), *limits), 1.0)
    points = [
        Series(label, color, tuple(_errors(view, known, label)), "points")
        for color, label in enumerate(view.axes.series)
    ]
    return chart(
        points,
        Logarithmic(min(latencies) / 1.3, max(latencies) * 1.3),
        Linear(-most, most),
        title=title,
        x_label="real latency, ms",
        rules=[
            Rule(100 * limit * sign, "limit" if sign > 0 else "")
            for limit in limits
            for sign in (1, -1)
        ],
    )


def _errors(
    view: View, known: Sequence[tuple[Fidelity, Interval, float]], label: str
) -> Iterator[Mark]:
    for each, error, real_ms in known:
        if view.axes.series_of(each.values) == label:
            where = ", ".join(f"{key} {shown(value)}" for key, value in each.values.items())
            told = f"{each.stream}, {where}: real {real_ms:.4g} ms, simulated {error.mean:+.1%}"
            told += f" ({each.told})"
            if error.half is None:
                yield Mark(real_ms, 100 * error.mean, told=told)
            else:
                yield Mark(real_ms, 100 * error.mean, 100 * error.low, 100 * error.high, told)
