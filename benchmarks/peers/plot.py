"""The plot for the README: nnasync's time as a ratio to the best peer's, for each model.

Of a model that takes a few microseconds a ratio says little, as the price of an await is of that
size; such models stand in a panel of their own, which shows the microseconds above the peer's call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.compute import ALL_CORES, ONE_CORE
from benchmarks.peers.ratios import Ratio

__all__ = ["draw"]

COLORS = {ALL_CORES: "#1b6ca8", ONE_CORE: "#9ccbea"}
INK, FAINT, TIE, PALE = "#222222", "#e4e4e4", "#c0392b", "#777777"
TINY_US = 15.0
BAR, INCHES_A_MODEL = 0.36, 0.5
TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0)
LABEL_SHARE = 0.45
"""Part of the width that is kept free for the text behind the longest bar."""


def draw(rows: Sequence[Ratio], path: Path, *, machine: str) -> None:
    """Writes a PNG; bars that point to the left are models that nnasync runs faster."""
    from matplotlib import pyplot

    panels = [
        [row for row in rows if row.budget in COLORS and row.peer_us >= TINY_US],
        [row for row in rows if row.budget in COLORS and row.peer_us < TINY_US],
    ]
    counts = [len({row.model for row in panel}) for panel in panels]
    used = [number for number, count in enumerate(counts) if count]
    figure, all_axes = pyplot.subplots(
        len(used),
        figsize=(9.5, 1.1 + INCHES_A_MODEL * sum(counts) + 0.7 * len(used)),
        dpi=150,
        height_ratios=[counts[number] + 0.2 for number in used],
        squeeze=False,
    )
    for number, axes in zip(used, all_axes[:, 0], strict=True):
        (_draw_above if number else _draw_ratios)(axes, panels[number])
    _head(all_axes[0, 0], machine)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _head(axes: Any, machine: str) -> None:
    axes.set_title(
        "nnasync awaited, beside the best of LiteRT, OpenVINO and ONNX Runtime called directly",
        loc="left",
        fontsize=10,
        pad=18,
    )
    axes.annotate(
        machine,
        (0, 1),
        xytext=(0, 5),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=7,
        color=PALE,
    )
    axes.legend(
        loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, fontsize=8, borderpad=0
    )


def _draw_ratios(axes: Any, rows: Sequence[Ratio]) -> None:
    """Draws bars from 1 to the ratio, on a logarithmic axis."""
    low = min(0.9, *(row.ratio for row in rows)) / 1.1
    high = max(1.1, *(row.ratio for row in rows))
    high *= (high / low) ** (LABEL_SHARE / (1 - LABEL_SHARE))
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    for row, place in _places(axes, rows):
        axes.barh(place, row.ratio - 1, BAR, left=1, color=COLORS[row.budget], zorder=2)
        peer = row.peer.rsplit(" ", 1)[0]
        told = f"{row.ratio:.2f}   {_time(row.nnasync_us)} against {_time(row.peer_us)} ({peer})"
        _label(axes, max(1.0, row.ratio), place, told)
    axes.axvline(1.0, color=TIE, linewidth=1.2, zorder=3)
    longest = math.log(max(row.ratio for row in rows) * 1.3)
    ticks = [tick for tick in TICKS if tick >= low and math.log(tick) <= max(0.1, longest)]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel(
        "time as a ratio to the best peer's: left of the line is faster", fontsize=8, loc="left"
    )


def _draw_above(axes: Any, rows: Sequence[Ratio]) -> None:
    """Draws bars of the microseconds above the peer."""
    above = [row.nnasync_us - row.peer_us for row in rows]
    axes.set_xlim(0, max(0.1, *above) / (1 - LABEL_SHARE))
    for (row, place), more_us in zip(_places(axes, rows), above, strict=True):
        axes.barh(place, more_us, BAR, color=COLORS[row.budget], zorder=2)
        peer = row.peer.rsplit(" ", 1)[0]
        told = f"+{more_us:.1f} µs   {_time(row.nnasync_us)} against {_time(row.peer_us)} ({peer})"
        _label(axes, max(0.0, more_us), place, told)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel(
        "models of a few microseconds: microseconds above the best peer's bare call",
        fontsize=8,
        loc="left",
    )


def _places(axes: Any, rows: Sequence[Ratio]) -> list[tuple[Ratio, float]]:
    """Returns each row with the height of its bar; labels the models and styles the axes."""
    models = list(dict.fromkeys(row.model for row in rows))[::-1]
    axes.set_yticks(range(len(models)), models, fontsize=8)
    axes.set_ylim(-0.6, len(models) - 0.4)
    axes.grid(axis="x", color=FAINT, zorder=0)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    for budget, color in COLORS.items():
        axes.barh(0, 0, color=color, label=budget)
    shifts = {ALL_CORES: BAR / 2, ONE_CORE: -BAR / 2}
    return [(row, models.index(row.model) + shifts[row.budget]) for row in rows]


def _label(axes: Any, end: float, place: float, told: str) -> None:
    """Writes the text of a bar to the right of its end."""
    axes.annotate(
        told,
        (end, place),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=7,
        color=INK,
        zorder=4,
    )


def _time(value_us: float) -> str:
    if value_us < 100:
        return f"{value_us:.1f} µs"
    return f"{value_us:.0f} µs" if value_us < 1000 else f"{value_us / 1000:.2f} ms"
