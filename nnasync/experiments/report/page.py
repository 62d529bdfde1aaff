"""The report: one HTML file without any other, for any screen, dark or light, and for paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from nnasync._core.pages.assets import asset
from nnasync._core.pages.document import chips, copy_button, document, section, warning
from nnasync._core.pages.escaping import text
from nnasync.experiments.deciding import confidence_of
from nnasync.experiments.fidelity import Fidelity, limits_told, summed_up
from nnasync.experiments.report.axes import Value, shown
from nnasync.experiments.report.sections import (
    View,
    along_sweep,
    beside,
    distributions,
    grid,
    queues,
    series_legend,
    view_of,
)
from nnasync.experiments.report.tables import fidelity_table, figures_table
from nnasync.experiments.report.timelines import Timeline, timelines_of
from nnasync.experiments.results import Results
from nnasync.experiments.run_of_point import trusted

_HERE = "nnasync.experiments.report"
Drawer = Callable[[View, Value], list[str]]

SECTIONS = ("sweep", "latency", "cores", "queue", "truth")
"""Ids of the sections that pictures are taken of, where they are there."""


def page(results: Results) -> str:
    """Returns the whole report as HTML."""
    view = view_of(trusted(results.runs), results.experiment.x)
    timelines = timelines_of(results.runs)
    sections = [
        _over(view),
        _at_one_value(
            view,
            "latency",
            "Latency",
            "How many of all requests were answered within a time; what was lost never is. Circles "
            "are p50, p99 and p99.9; each further nine has as much room as the one before.",
            distributions,
            real="dashed",
        ),
        _cores(timelines),
        _at_one_value(
            view,
            "queue",
            "Queue",
            "Requests that were queued, over the whole of the first repeat.",
            queues,
        ),
        _truth(view, results.fidelity(), confidence_of(results.experiment)),
        section(
            "figures",
            "Figures",
            "<p>Means over the repeats, ± half of the 95 % confidence interval.</p>"
            + _copyable("all-figures")
            + figures_table(view.figures, "all-figures"),
        ),
    ]
    return document(
        results.experiment.title or results.experiment.name,
        f'{_header(results)}\n{"".join(sections)}\n{_settings(results)}\n<div id="tip"></div>',
        style=asset("report.css", _HERE),
        script=asset("page.js", _HERE),
        data={"runs": timelines},
    )


# -- the head


def _header(results: Results) -> str:
    experiment = results.experiment
    kinds = {run.result.kind for run in results.runs}
    requests = sum(stream.submitted for run in results.runs for stream in run.result.streams)
    told = chips(
        {
            "run": " and ".join(kind for kind in ("simulated", "real") if kind in kinds),
            "points": len({run.point for run in results.runs}),
            "repeats": _repeats(results),
            "each for": f"{experiment.duration_s:g} s",
            "requests": f"{requests:,}",
            "seed": experiment.seed,
            "machine": f"{results.machine.processor}, {results.machine.cores} cores",
        }
    )
    parts = filter(None, experiment.about.strip().split("\n\n"))
    about = "".join(f'<p class="about">{text(each)}</p>' for each in parts)
    return (
        f"<header><h1>{text(experiment.title or experiment.name)}</h1>{about}"
        f"{told}{''.join(map(warning, results.remarks()))}</header>"
    )


def _repeats(results: Results) -> str:
    """Returns how often points were run of each kind, in words, since that may differ by point."""
    told = []
    for kind in ("simulated", "real"):
        counts = Counter(run.point for run in results.runs if run.result.kind == kind).values()
        if counts:
            few, many = min(counts), max(counts)
            told.append(f"{few if few == many else f'{few} to {many}'} {kind}")
    return ", ".join(told)


# -- sections


def _over(view: View) -> str:
    """Returns the charts of deadlines, goodput and tails along the sweep; empty without a sweep."""
    return section("sweep", "Over the sweep", along_sweep(view)) if view.axes.x else ""


def _at_one_value(
    view: View, name: str, title: str, intro: str, draw: Drawer, *, real: str = ""
) -> str:
    """Returns charts for each value along the sweep, of which the page shows one at a time."""
    values = view.axes.x_values or ("",)
    parts = [
        f'<div class="at" data-x="{index}">{grid(charts)}</div>'
        for index, value in enumerate(values)
        if (charts := draw(view, value))
    ]
    if not parts:
        return ""
    tabs = _tabs(view.axes.x_label, values) if len(values) > 1 else ""
    shown_as = series_legend(view, real=real)
    return section(name, title, f"<p>{intro}</p>{tabs}{shown_as}{''.join(parts)}")


def _tabs(label: str, values: Sequence[Value]) -> str:
    buttons = "".join(
        f'<button data-x="{index}">{text(shown(value))}</button>'
        for index, value in enumerate(values)
    )
    return f'<div class="bar">{text(label.partition(" (")[0])}: {buttons}</div>'


def _cores(timelines: Sequence[Timeline]) -> str:
    if not timelines:
        return ""
    options = "".join(
        f'<option value="{index}"{" selected" if index == len(timelines) - 1 else ""}>'
        f"{text(each.label)}</option>"
        for index, each in enumerate(timelines)
    )
    return section(
        "cores",
        "Who had which core",
        "<p>Above, what each core worked for; below, each request: full while it has a core, pale "
        "while it waits, a tick where it was asked for, a cross where no answer came in time.</p>"
        f'<div class="bar"><select id="run" aria-label="run">{options}</select>'
        '<span id="range"></span></div>'
        '<div><canvas id="cores-canvas" tabindex="0" aria-label="who had which core"></canvas>'
        "</div>"
        '<div class="bar tools"><span>wheel: zoom, drag: move, arrow keys and + - work too</span>'
        '<span class="grow"></span><button id="lost">next lost</button>'
        '<button id="closer">closer</button><button id="wider">wider</button>'
        '<button id="all">all</button></div>',
    )


def _truth(view: View, errors: Sequence[Fidelity], confidence: float) -> str:
    """Returns the section on how far simulation and real runs differ, where there are both."""
    if not errors:
        return ""
    charts = [
        beside(view, errors, "mean", "mean latency: error of the simulation, %"),
        beside(view, errors, "p99", "p99 latency: error of the simulation, %"),
    ]
    return section(
        "truth",
        "Simulated beside real",
        _verdict(errors) + "<p>Each point is a stream at a point of the sweep; whiskers are "
        f"{100 * confidence:.3g} % confidence.</p>"
        + series_legend(view, "points")
        + grid([each for each in charts if each])
        + _copyable("errors")
        + fidelity_table(errors, "errors"),
    )


def _verdict(errors: Sequence[Fidelity]) -> str:
    limits = limits_told(errors)
    asked = f"mean and p99 within {limits} of the real ones, deadlines met within 1 point"
    told = f"Of {len(errors)} cases: {summed_up(errors)} ({asked})."
    if any(each.verdict == "outside" for each in errors):
        told += " Errors beyond their limit are marked below."
    if any(each.is_disturbed for each in errors):
        told += " Where others disturbed every real run, nothing can be said."
    is_near = all(each.verdict == "within" for each in errors)
    return f'<p class="verdict{"" if is_near else " far"}">{told}</p>'


def _copyable(table: str) -> str:
    return f'<div class="bar tools">{copy_button(table)}</div>'


def _settings(results: Results) -> str:
    told = msgspec.json.format(msgspec.json.encode(results.experiment), indent=2).decode()
    machine = results.machine
    where = f"{machine.system}, {machine.python}, nnasync {machine.nnasync}"
    return (
        f"<footer><details><summary>settings</summary><pre>{text(told)}</pre></details>"
        f"<p>Begun {text(results.began_at)}, took {results.took_s:.1f} s; {text(where)}.</p>"
        "</footer>"
    )
