"""The short form of a report, for notebooks: charts along the sweep and the table, no script."""

from __future__ import annotations

from collections.abc import Sequence

from nnasync._core.pages.assets import asset
from nnasync._core.pages.escaping import text
from nnasync.experiments.fidelity import Fidelity, summed_up
from nnasync.experiments.report.sections import along_sweep, view_of
from nnasync.experiments.report.tables import fidelity_table, figures_table
from nnasync.experiments.run_of_point import Run


def summary(title: str, runs: Sequence[Run], x: str = "", errors: Sequence[Fidelity] = ()) -> str:
    """Returns the short report as a piece of HTML that brings its own style."""
    view = view_of(runs, x)
    charts = along_sweep(view) if view.axes.x else ""
    truth = ""
    if errors:
        truth = f"<p>Simulated beside real: {summed_up(errors)}</p>{fidelity_table(errors)}"
    return (
        f"<style>{asset('style.css')}</style>"
        f'<div class="nnx"><b>{text(title)}</b>{charts}{figures_table(view.figures)}{truth}</div>'
    )
