"""The timeline as a picture: the whole run above, a fifth of a second of it below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nnasync.cli.demo.demo_timeline import DemoTimeline, TimelineLane
from nnasync.hal import Array, Priority

COLORS = {Priority.HIGH: "#e07a1f", Priority.MEDIUM: "#2878b5", Priority.LOW: "#9aa8b0"}
LOST = "#d7263d"
RIGHT = "#3a9d5d"
_INK = "#22303a"
_FAINT = "#dfe5e9"


def draw(timeline: DemoTimeline, path: Path) -> bool:
    """Write the picture as PNG; False where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(15, 11), dpi=130, facecolor="white")
    FigureCanvasAgg(figure)
    rows = figure.add_gridspec(
        5,
        1,
        height_ratios=(1.5, 1.5, 1.5, 1.0, 4.2),
        hspace=0.42,
        left=0.085,
        right=0.975,
        top=0.895,
        bottom=0.055,
    )
    axes = [figure.add_subplot(rows[0])]
    axes += [figure.add_subplot(rows[index], sharex=axes[0]) for index in (1, 2, 3)]
    _head(figure, timeline)
    _cores(axes[0], timeline)
    streams = [lane for lane in timeline.lanes if lane.latencies or lane.budget_us]
    for axis, lane in zip(axes[1:3], streams, strict=False):
        _latencies(axis, lane)
    _recognized(axes[3], timeline)
    for axis in axes:
        _mark_window(axis, timeline)
        axis.set_xlim(0, timeline.duration_us / 1e6)
    for axis in axes[:3]:
        axis.tick_params(labelbottom=False)
    axes[3].set_xlabel("seconds", color=_INK, fontsize=9, labelpad=1)
    _zoom(figure.add_subplot(rows[4]), timeline)
    figure.savefig(path)
    return True


def _head(figure: Any, timeline: DemoTimeline) -> None:
    summary = timeline.summary
    figure.text(0.085, 0.962, "Two live streams and a load", fontsize=17, weight="bold", color=_INK)
    parts = [
        f"{summary.seconds:.0f} s on {summary.cores} cores, {summary.machine_busy:.1%} busy",
        f"audio met {summary.audio_hits:.2%} of its deadlines",
        f"video {summary.video_hits:.2%}",
    ]
    if summary.low_kept is not None:
        parts.append(f"the load kept {summary.low_kept:.0%} of its throughput")
    if summary.words_right is not None:
        parts.append(f"words {summary.words_right:.1%} right")
    if summary.digits_right is not None:
        parts.append(f"digits {summary.digits_right:.1%} right")
    figure.text(0.085, 0.936, "   ·   ".join(parts), fontsize=10.5, color="#55656f")


def _style(axis: Any, title: str) -> None:
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_color("#b8c4cb")
    axis.tick_params(colors="#55656f", labelsize=8.5, length=0)
    axis.set_title(title, loc="left", fontsize=10, color=_INK, pad=5, weight="bold")
    axis.grid(axis="y", color=_FAINT, linewidth=0.7)
    axis.set_axisbelow(True)


def _cores(axis: Any, timeline: DemoTimeline) -> None:
    """Cores in use by priority, stacked, a bar for every slice of time."""
    slices = min(240, max(timeline.duration_us // 20_000, 1))
    edges = np.linspace(0, timeline.duration_us, slices + 1)
    base = np.zeros(slices)
    for priority in (Priority.HIGH, Priority.MEDIUM, Priority.LOW):
        runs = [run for lane in timeline.lanes if lane.priority == priority for run in lane.runs]
        used = busy(runs, edges)
        axis.bar(
            edges[:-1] / 1e6,
            used,
            np.diff(edges) / 1e6,
            base,
            align="edge",
            color=COLORS[priority],
            linewidth=0,
            label=f"{priority.name} {used.mean():.2f}",
        )
        base += used
    _style(axis, "cores at work")
    axis.set_ylim(0, timeline.cores * 1.04)
    axis.set_yticks(range(timeline.cores + 1))
    legend = axis.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 0.985),
        ncols=3,
        frameon=False,
        fontsize=9,
        handlelength=0.9,
        handleheight=0.9,
        columnspacing=1.4,
        borderaxespad=0.1,
    )
    for label in legend.get_texts():
        label.set_color("#55656f")


def busy(runs: Sequence[tuple[int, int]], edges: Array) -> Array:
    """Cores that `runs` took on average between each two edges."""
    if not runs:
        return np.zeros(len(edges) - 1)
    starts, ends = np.array(sorted(runs), float).T
    covered = np.array([np.clip(edge - starts, 0, ends - starts).sum() for edge in edges])
    used: Array = np.diff(covered) / np.diff(edges)
    return used


def _latencies(axis: Any, lane: TimelineLane) -> None:
    """A dot for every item: when it was captured, how long its answer took."""
    color = COLORS[Priority(lane.priority)]
    good = np.array([(at, took) for at, took, done in lane.latencies if done] or [(0, 0)]) / 1e3
    lost = np.array([(at, took) for at, took, done in lane.latencies if not done])
    budget_ms = lane.budget_us / 1e3
    axis.scatter(good[:, 0] / 1e3, good[:, 1], s=5, color=color, alpha=0.55, linewidths=0)
    if lost.size:
        axis.scatter(
            lost[:, 0] / 1e6,
            np.minimum(lost[:, 1] / 1e3, budget_ms * 1.12),
            marker="x",
            s=26,
            color=LOST,
            linewidths=1.3,
            zorder=3,
        )
    axis.axhline(budget_ms, color=LOST, linewidth=1, linestyle=(0, (5, 3)))
    label = f"{len(lost)} lost" if len(lost) else "none lost"
    _style(
        axis,
        f"{lane.name}: from capture to answer, ms  (deadline {budget_ms:.0f} ms, "
        f"{len(lane.latencies)} items, {label})",
    )
    axis.set_ylim(0, budget_ms * 1.25)


def _recognized(axis: Any, timeline: DemoTimeline) -> None:
    """Words and digits of the truth: green where they were recognized, red where not."""
    _style(axis, "what was said and shown: green where it was recognized")
    axis.grid(visible=False)
    for said in timeline.said:
        start, width = said.start_us / 1e6, (said.end_us - said.start_us) / 1e6
        axis.barh(1, width, 0.8, left=start, color=RIGHT if said.right else LOST, linewidth=0)
        if timeline.duration_us < 25e6:
            axis.text(
                start + width / 2, 1, said.text, ha="center", va="center", fontsize=7, color="white"
            )
    for digit in timeline.digits:
        if digit.text:
            start, width = digit.start_us / 1e6, (digit.end_us - digit.start_us) / 1e6
            axis.barh(0, width * 0.94, 0.8, left=start, color=RIGHT, linewidth=0)
            axis.barh(0, width * 0.94 * (1 - digit.right), 0.8, left=start, color=LOST, linewidth=0)
            axis.text(
                start + width / 2,
                -0.02,
                digit.text,
                ha="center",
                va="center",
                fontsize=7,
                color="white",
            )
    axis.set_yticks([0, 1], ["digits", "words"])
    axis.set_ylim(-0.55, 1.55)


def _mark_window(axis: Any, timeline: DemoTimeline) -> None:
    start, end = timeline.window_us
    axis.axvspan(start / 1e6, end / 1e6, color=_INK, alpha=0.13, linewidth=0, zorder=0)


def _zoom(axis: Any, timeline: DemoTimeline) -> None:
    """Lanes of one short window: pale from asking to answer, full where it had a core."""
    start, end = timeline.window_us
    lanes = timeline.lanes
    for row, lane in enumerate(lanes):
        _zoom_lane(axis, lane, len(lanes) - 1 - row, start, end)
    _style(
        axis,
        f"{(end - start) / 1e3:.0f} ms of it, from {start / 1e6:.2f} s: "
        "full where it has a core, pale where it waits, ticks where something is captured",
    )
    axis.grid(visible=False)
    axis.grid(axis="x", color=_FAINT, linewidth=0.7)
    axis.set_xlim(0, (end - start) / 1e3)
    axis.set_ylim(-0.6, len(lanes) - 0.4)
    axis.set_yticks(range(len(lanes)), [lane.name for lane in reversed(lanes)])
    axis.set_xlabel("milliseconds", color=_INK, fontsize=9, labelpad=1)


def _zoom_lane(axis: Any, lane: TimelineLane, y: int, start: int, end: int) -> None:
    color = COLORS[Priority(lane.priority)]
    for spans, height, alpha in ((lane.waits, 0.62, 0.28), (lane.runs, 0.62, 1.0)):
        shown = [
            ((a - start) / 1e3, max((b - a) / 1e3, 0.12))
            for a, b in spans
            if b >= start and a <= end
        ]
        axis.broken_barh(shown, (y - height / 2, height), color=color, alpha=alpha, linewidth=0)
    captured = [at for at, _, _ in lane.latencies if start <= at <= end]
    ticks = [(at - start) / 1e3 for at in captured]
    axis.vlines(ticks, y - 0.42, y + 0.42, color=_INK, linewidth=1.0)
    lost = [(at - start) / 1e3 for at in lane.lost if start <= at <= end]
    axis.scatter(lost, [y] * len(lost), marker="x", s=55, color=LOST, linewidths=2, zorder=4)
