"""Handwritten-looking digits and clutter as pen strokes, drawn anti-aliased into gray images.

A digit is one of several templates: strokes of control points in the unit square, x to the right
and y downwards, smooth (Catmull-Rom) or angular. `write` distorts a template the way hands differ:
every control point moves, the whole is slanted, stretched and turned. A `Drawing` is then only
polylines with pen widths, in units of the digit's height around its center, that `cover`
rasterizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["DIGITS", "Drawing", "Stroke", "cover", "scribble", "spline", "write"]

Floats = NDArray[np.floating]

SAMPLES_PER_SEGMENT = 6


class Stroke(NamedTuple):
    """Control points of one pen movement."""

    points: tuple[tuple[float, float], ...]
    smooth: bool = True


class Drawing(NamedTuple):
    """Polylines, each [n, 2] as x and y, and the pen's width at their start and end."""

    lines: tuple[Floats, ...]
    widths: tuple[tuple[float, float], ...]


def _points(percent: str) -> tuple[tuple[float, float], ...]:
    pairs = (pair.split(",") for pair in percent.split())
    return tuple((int(x) / 100, int(y) / 100) for x, y in pairs)


def _curve(percent: str) -> Stroke:
    return Stroke(_points(percent))


def _angular(percent: str) -> Stroke:
    return Stroke(_points(percent), smooth=False)


DIGITS: tuple[tuple[tuple[Stroke, ...], ...], ...] = (
    (
        (_curve("50,0 14,18 6,52 20,88 50,100 82,86 94,50 82,16 52,0"),),
        (_curve("50,0 14,18 6,52 20,88 50,100 82,86 94,50 80,14 46,2 36,10"),),
        (_curve("60,3 26,10 20,90 50,100 78,88 76,10 50,0"),),
    ),
    (
        (_angular("50,0 50,100"),),
        (_angular("26,24 54,0 54,100"),),
        (
            _angular("28,20 52,0 52,100"),
            _angular("24,100 80,100"),
        ),
        (_curve("30,22 46,12 56,0 54,40 50,100"),),
    ),
    (
        (
            _curve("14,24 26,4 56,0 80,16 74,44 40,76 12,100"),
            _angular("12,100 88,98"),
        ),
        (_curve("16,20 42,0 78,10 76,42 40,84 16,96 16,78 38,80 60,98 90,92"),),
        (
            _curve("12,14 50,0 82,18 68,50 34,78 10,98"),
            _curve("10,98 40,92 64,100 90,94"),
        ),
    ),
    (
        (
            _curve("16,12 50,0 80,16 70,40 42,48"),
            _curve("42,48 78,56 86,80 54,100 12,88"),
        ),
        (
            _angular("16,2 82,2 46,40"),
            _curve("46,40 78,50 86,76 60,98 14,92"),
        ),
        (_curve("18,10 52,0 78,18 62,40 46,46 66,52 84,74 58,98 16,94"),),
    ),
    (
        (
            _angular("24,2 12,58 88,58"),
            _angular("70,16 66,100"),
        ),
        (_angular("68,100 68,0 8,68 92,68"),),
        (
            _curve("26,0 20,30 22,52 50,54 78,48"),
            _angular("80,4 72,100"),
        ),
        (
            _angular("50,0 10,64 90,64"),
            _angular("66,36 66,100"),
        ),
    ),
    (
        (
            _angular("84,2 26,2 20,44"),
            _curve("20,44 54,36 86,58 76,88 44,100 12,90"),
        ),
        (
            _curve("26,4 22,26 22,44 60,42 84,66 64,96 14,94"),
            _angular("26,4 86,0"),
        ),
        (
            _curve("84,4 40,4 24,12 22,42"),
            _curve("22,42 62,40 86,68 60,98 14,88"),
        ),
    ),
    (
        (_curve("74,2 36,20 14,56 20,88 50,100 80,86 80,62 50,50 20,66"),),
        (_curve("56,0 26,34 16,70 36,98 74,94 82,68 56,54 24,72"),),
        (_curve("80,12 56,0 26,16 14,60 26,94 60,100 84,80 72,54 40,54 18,74"),),
    ),
    (
        (_angular("12,2 88,2 40,100"),),
        (
            _angular("12,4 86,2 38,100"),
            _angular("30,50 82,50"),
        ),
        (_curve("10,12 30,4 60,8 88,2 60,42 44,100"),),
        (_angular("12,16 14,2 86,2 48,100"),),
    ),
    (
        (_curve("74,12 50,0 22,12 28,36 70,60 82,84 50,100 18,84 30,60 68,38 76,14"),),
        (
            _curve("52,0 22,8 20,32 50,46 78,32 78,10 52,0"),
            _curve("50,46 14,60 14,88 50,100 86,88 86,60 50,46"),
        ),
        (_curve("52,46 24,28 30,6 54,0 78,10 72,32 50,46 20,66 22,94 54,100 82,88 78,64 52,46"),),
    ),
    (
        (
            _curve("78,24 60,2 26,8 18,34 42,50 72,38 80,12"),
            _angular("80,8 74,100"),
        ),
        (_curve("78,16 50,0 20,18 28,46 60,48 80,20 80,52 66,88 28,98"),),
        (_curve("76,14 46,0 18,20 30,48 62,42 78,12 74,50 50,100"),),
    ),
)
"""Templates of the digits 0 to 9."""


def spline(points: Floats, *, smooth: bool) -> Floats:
    """Polyline [n, 2] through control points: a Catmull-Rom curve, or straight pieces."""
    if not smooth or len(points) < 3:
        return points
    ends = np.concatenate(
        [2 * points[:1] - points[1:2], points, 2 * points[-1:] - points[-2:-1]], axis=0
    )
    p0, p1, p2, p3 = (ends[i : len(ends) - 3 + i, None] for i in range(4))
    t = np.linspace(0, 1, SAMPLES_PER_SEGMENT, endpoint=False)[None, :, None]
    curve = 0.5 * (
        2 * p1
        + (p2 - p0) * t
        + (2 * p0 - 5 * p1 + 4 * p2 - p3) * t**2
        + (3 * p1 - p0 - 3 * p2 + p3) * t**3
    )
    return np.concatenate([curve.reshape(-1, 2), points[-1:]], axis=0)


def write(digit: int, rng: np.random.Generator) -> Drawing:
    """A digit as somebody's hand writes it, about one unit high around the origin."""
    templates = DIGITS[digit]
    strokes = templates[int(rng.integers(len(templates)))]
    wobble, aspect = rng.uniform(0.015, 0.045), rng.uniform(0.45, 0.85)
    slant, turn = rng.uniform(-0.12, 0.32), rng.uniform(-0.2, 0.2)
    shape = np.array([[aspect, 0.0], [-slant, 1.0]])
    rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    phase, bend = rng.uniform(0, 2 * np.pi, 2), rng.uniform(0, 0.04)
    width = rng.uniform(0.06, 0.15)
    lines, widths = [], []
    for stroke in strokes:
        points = np.array(stroke.points) - 0.5
        points = points + rng.normal(0, wobble, points.shape)
        line = spline(points, smooth=stroke.smooth)
        line = line + bend * np.sin(5 * line[:, ::-1] + phase)
        lines.append(line @ shape @ rotation)
        widths.append((width * rng.uniform(0.8, 1.2), width * rng.uniform(0.7, 1.2)))
    return Drawing(tuple(lines), tuple(widths))


def scribble(rng: np.random.Generator) -> Drawing:
    """A stroke that is no digit: a line, an arc, a zigzag or a dot, about one unit large."""
    kind = int(rng.integers(4))
    if kind == 0:
        angle, bow = rng.uniform(0, np.pi), rng.normal(0, 0.08)
        along, across = (
            np.array([np.cos(angle), np.sin(angle)]),
            np.array([-np.sin(angle), np.cos(angle)]),
        )
        line = spline(np.array([-0.5 * along, bow * across, 0.5 * along]), smooth=True)
    elif kind == 1:
        angles = rng.uniform(0, 2 * np.pi) + np.linspace(0, rng.uniform(0.8, 3.0), 9)
        line = 0.5 * np.stack([np.cos(angles), np.sin(angles) * rng.uniform(0.6, 1)], axis=1)
    elif kind == 2:
        steps = int(rng.integers(4, 7))
        x = np.linspace(-0.5, 0.5, steps)
        y = 0.14 * (-1.0) ** np.arange(steps) + rng.normal(0, 0.04, steps)
        turn = rng.uniform(0, np.pi)
        line = np.stack(
            [x * np.cos(turn) - y * np.sin(turn), x * np.sin(turn) + y * np.cos(turn)], axis=1
        )
    else:
        line = rng.normal(0, 0.04, (3, 2))
    width = rng.uniform(0.04, 0.14)
    return Drawing((line,), ((width, width * rng.uniform(0.6, 1.2)),))


def cover(
    lines: Sequence[Floats], widths: Sequence[tuple[float, float]], shape: tuple[int, int]
) -> NDArray[np.float32]:
    """How much of each pixel (0..1, float32 [height, width]) the pen covers; pixels are units."""
    image = np.zeros(shape, np.float32)
    for line, (first, last) in zip(lines, widths, strict=True):
        margin = max(first, last) / 2 + 1
        low = np.maximum(np.floor(line.min(axis=0) - margin), 0).astype(int)
        high = np.minimum(np.ceil(line.max(axis=0) + margin) + 1, shape[::-1]).astype(int)
        if (high <= low).any():
            continue
        x = np.arange(low[0], high[0], dtype=np.float32)[None, :, None]
        y = np.arange(low[1], high[1], dtype=np.float32)[:, None, None]
        ink = _pen(line.astype(np.float32), first, last, x, y)
        part = image[low[1] : high[1], low[0] : high[0]]
        np.maximum(part, ink, out=part)
    return image


def _pen(line: Floats, first: float, last: float, x: Floats, y: Floats) -> Floats:
    start, step = line[:-1], np.diff(line, axis=0)
    length2 = np.maximum((step**2).sum(axis=1), 1e-6)
    along = ((x - start[:, 0]) * step[:, 0] + (y - start[:, 1]) * step[:, 1]) / length2
    along = np.clip(along, 0, 1)
    dx = x - start[:, 0] - along * step[:, 0]
    dy = y - start[:, 1] - along * step[:, 1]
    reach = np.linspace(first, last, len(start), dtype=np.float32) / 2
    ink: Floats = np.clip(reach + 0.5 - np.sqrt(dx * dx + dy * dy), 0, 1).max(axis=2)
    return ink
