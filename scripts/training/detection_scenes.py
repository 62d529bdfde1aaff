"""Gray pictures with several handwritten digits of any size and place, and where each is.

A picture has a backdrop, sheets of paper, clutter that is no digit, and up to nine digits, some of
them side by side as a number. The box of a digit is the extent of its ink and a margin of a
twelfth of its height on every side, the way people draw boxes around things.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.strokes import Drawing, cover, scribble, write

__all__ = ["FPS", "MARGIN", "SIDE", "DetectionScene", "play", "scene", "scenes"]

SIDE = 160
FPS = 30
MARGIN = 1 / 12
_SMALLEST, _LARGEST = 14.0, 118.0
_MOST = 9
_TRIES = 30
_BARS = 0.4
_LARGE = 0.2
_GRAY = 114

Gray = NDArray[np.uint8]
Floats = NDArray[np.floating]


class DetectionScene(NamedTuple):
    """A picture uint8 [160, 160], boxes float32 [n, 4] (left, top, right, bottom), labels [n]."""

    image: Gray
    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]


class _Placed(NamedTuple):
    """A digit in its place: lines in pixels, pen widths, its box."""

    label: int
    lines: list[Floats]
    widths: list[tuple[float, float]]
    box: Floats


def scene(rng: np.random.Generator) -> DetectionScene:
    """One picture; the same generator state gives the same picture."""
    image = _room(rng)
    sign = 1.0 if rng.random() < 0.4 else -1.0
    level = rng.uniform(30, 110)
    level = level if sign > 0 else 255 - level
    contrast = rng.uniform(55, 170)
    image += level
    window = _camera(rng)
    placed = _arrange(window, rng)
    _sheets(image, placed, level, sign, rng)
    _clutter(image, sign * contrast, rng)
    for digit in placed:
        left, top, right, bottom = _inside(digit.box)
        ink = cover(
            [line - (left, top) for line in digit.lines], digit.widths, (bottom - top, right - left)
        )
        part = image[top:bottom, left:right]
        pen = level + sign * contrast * rng.uniform(0.8, 1.1)
        part += (pen - part) * ink
    image = _barred(_seen(image, rng), window)
    boxes = np.array([digit.box for digit in placed], np.float32).reshape(-1, 4)
    return DetectionScene(image, boxes, np.array([digit.label for digit in placed], np.int64))


def scenes(seed: int, count: int) -> list[DetectionScene]:
    """Unrelated pictures of a seed."""
    rng = np.random.default_rng([seed, 0xC07D])
    return [scene(rng) for _ in range(count)]


# -- digits that move ---------------------------------------------------------------------------


def play(seed: int, frames: int, *, count: int = 5) -> Iterator[DetectionScene]:
    """A clip of 320x240 pixels with digits side by side, each on its way up and down."""
    rng = np.random.default_rng([seed, 0x5CE4E])
    level, contrast = rng.uniform(200, 225), -rng.uniform(120, 150)
    room = _room(rng) + level
    _sheets(room, [], level, -1.0, rng)
    _clutter(room, contrast * 0.6, rng)
    # Two pixels for one, and as much of the height as 4:3 leaves.
    wide = _blurred(room.repeat(2, 0).repeat(2, 1))[SIDE // 4 : -SIDE // 4]
    edges = np.linspace(0, wide.shape[1], count + 1)
    walkers = [
        _Walker(np.array([[left, 0], [right, len(wide)]]), rng)
        for left, right in itertools.pairwise(edges)
    ]
    for index in range(frames):
        placed = [walker.at(index / FPS) for walker in walkers]
        image = wide.copy()
        for digit in placed:
            image += (level + contrast - image) * cover(digit.lines, digit.widths, image.shape)
        image = _blurred(image) + rng.normal(0, 2.0, image.shape)
        boxes = np.array([digit.box for digit in placed], np.float32)
        labels = np.array([digit.label for digit in placed], np.int64)
        yield DetectionScene(np.clip(np.rint(image), 0, 255).astype(np.uint8), boxes, labels)


class _Walker:
    """A digit on its way in a part of the picture, which it does not leave."""

    def __init__(self, part: Floats, rng: np.random.Generator) -> None:
        room = part[1] - part[0] - 4
        self.digit = _digit(float(rng.uniform(34, 96)), rng)
        while (self.digit.box[2:] - self.digit.box[:2] > room).any():
            self.digit = _digit(float(rng.uniform(34, 96)), rng)
        half = (self.digit.box[2:] - self.digit.box[:2]) / 2
        self.middle = (self.digit.box[2:] + self.digit.box[:2]) / 2
        self.low, self.high = part[0] + half + 2, part[1] - half - 2
        self.start = rng.uniform(0, 2, 2)
        self.speed = rng.uniform((4, 30), (14, 90)) / (self.high - self.low)

    def at(self, time: float) -> _Placed:
        """Where it is after so many seconds."""
        # The distance from the nearest even number is a wave of straight pieces from 0 to 1.
        way = np.abs((self.start + self.speed * time + 1) % 2 - 1)
        return _moved(self.digit, self.low + way * (self.high - self.low) - self.middle)


# -- digits ------------------------------------------------------------------------------------


def _arrange(window: Floats, rng: np.random.Generator) -> list[_Placed]:
    placed: list[_Placed] = []
    room = window[2:] - window[:2]
    wanted = int(rng.integers(0, _MOST + 1))
    while len(placed) < wanted:
        number = int(rng.integers(2, 5)) if rng.random() < 0.2 else 1
        high = min(_LARGEST, room[1] - 26) if number == 1 else 60.0
        low = 56.0 if rng.random() < _LARGE else _SMALLEST
        height = float(np.exp(rng.uniform(np.log(low), np.log(high))))
        group = _side_by_side([_digit(height, rng) for _ in range(number)], rng)
        extent = _extent(group)
        if (extent[2:] - extent[:2] > room - 4).any():
            continue
        for _ in range(_TRIES):
            shift = rng.uniform(window[:2] + 2 - extent[:2], window[2:] - 2 - extent[2:])
            moved = [_moved(digit, shift) for digit in group]
            if not any(_touch(a.box, b.box) for a in moved for b in placed):
                placed += moved
                break
        else:
            break
    return placed


def _digit(height: float, rng: np.random.Generator) -> _Placed:
    label = int(rng.integers(10))
    drawing = write(label, rng)
    lines = [line * height for line in drawing.lines]
    least = max(1.1, height * 0.035)
    widths = [(max(a * height, least), max(b * height, least)) for a, b in drawing.widths]
    points = np.concatenate(lines)
    reach = max(max(pair) for pair in widths) / 2 + height * MARGIN
    return _Placed(
        label,
        lines,
        widths,
        np.concatenate([points.min(axis=0) - reach, points.max(axis=0) + reach]),
    )


def _side_by_side(digits: list[_Placed], rng: np.random.Generator) -> list[_Placed]:
    row, x = [], 0.0
    for digit in digits:
        left, top, right, bottom = digit.box
        height = bottom - top
        overlap = rng.uniform(0.0, 2 * MARGIN) * height * 0.8
        shift = np.array([x - left, rng.normal(0, 0.03) * height - (top + bottom) / 2])
        row.append(_moved(digit, shift))
        x += right - left - overlap
    return row


def _moved(digit: _Placed, shift: Floats) -> _Placed:
    lines = [line + shift for line in digit.lines]
    return digit._replace(lines=lines, box=digit.box + np.tile(shift, 2))


def _extent(group: list[_Placed]) -> Floats:
    boxes = np.array([digit.box for digit in group])
    return np.concatenate([boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)])


def _touch(a: Floats, b: Floats) -> bool:
    return bool((np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]) > 0).all())


def _inside(box: Floats) -> tuple[int, int, int, int]:
    left, top = (max(int(np.floor(v)), 0) for v in box[:2])
    right, bottom = (min(int(np.ceil(v)), SIDE) for v in box[2:])
    return left, top, right, bottom


# -- what is around them ------------------------------------------------------------------------


def _room(rng: np.random.Generator) -> Floats:
    """Light that falls unevenly, around 0, float64 [160, 160]."""
    ramp = np.linspace(-1, 1, SIDE)
    gradient = rng.normal(0, 18) * ramp[None, :] + rng.normal(0, 18) * ramp[:, None]
    knots = int(rng.integers(3, 13))
    coarse = rng.normal(0, rng.uniform(1, 13), (knots, knots))
    at = np.linspace(0, knots - 1, SIDE)
    rows = np.stack([np.interp(at, np.arange(knots), row) for row in coarse])
    smooth = np.stack([np.interp(at, np.arange(knots), column) for column in rows.T]).T
    result: Floats = gradient + smooth
    return result


def _sheets(
    image: Floats, placed: list[_Placed], level: float, sign: float, rng: np.random.Generator
) -> None:
    """Turned rectangles of another gray; those behind digits are as light as the backdrop."""
    for _ in range(int(rng.integers(0, 6))):
        long = np.exp(rng.uniform(np.log(12), np.log(120)))
        center, size = rng.uniform(0, SIDE, 2), long * np.array([1, rng.uniform(0.3, 1)])
        mask = _rectangle(center, size, rng.uniform(0, np.pi))
        gray = rng.uniform(10, 245)
        if any(mask[_window(digit.box)].max() > 0 for digit in placed):
            gray = level + rng.normal(0, 14) - sign * rng.uniform(0, 25)
        image += (gray - image) * mask * rng.uniform(0.5, 1)
    if placed and rng.random() < 0.5:
        _wall(image, placed, sign, rng)


def _wall(image: Floats, placed: list[_Placed], sign: float, rng: np.random.Generator) -> None:
    """Darken (or lighten) all that is not near a digit: sheets held up in a room."""
    near = np.zeros((SIDE, SIDE))
    for digit in placed:
        middle, size = (digit.box[:2] + digit.box[2:]) / 2, digit.box[2:] - digit.box[:2]
        size = size * rng.uniform(1.05, 1.9, 2) + 6
        near = np.maximum(near, _rectangle(middle, size, rng.normal(0, 0.12)))
    keep = np.maximum(near, 1 - rng.uniform(0.4, 1.0))
    away = rng.uniform(20, 160) * sign
    image += away * (1 - keep)


def _window(box: Floats) -> tuple[slice, slice]:
    left, top, right, bottom = _inside(box)
    return slice(top, bottom), slice(left, right)


def _rectangle(center: Floats, size: Floats, angle: float) -> Floats:
    y, x = np.mgrid[:SIDE, :SIDE].astype(np.float64)
    dx, dy = x - center[0], y - center[1]
    along = np.abs(dx * np.cos(angle) + dy * np.sin(angle)) - size[0] / 2
    across = np.abs(dy * np.cos(angle) - dx * np.sin(angle)) - size[1] / 2
    mask: Floats = np.clip(0.5 - np.maximum(along, across), 0, 1)
    return mask


def _clutter(image: Floats, contrast: float, rng: np.random.Generator) -> None:
    for _ in range(int(rng.integers(0, 18))):
        drawing: Drawing = scribble(rng)
        size = np.exp(rng.uniform(np.log(6), np.log(90)))
        strength = rng.uniform(0.15, 1.0 if size < 14 else 0.7)
        strength *= 1 if rng.random() < 0.7 else -0.6
        place = rng.uniform(0, SIDE, 2)
        if _is_like_a_one(drawing):
            continue
        lines = [line * size + place for line in drawing.lines]
        widths = [(a * size + 0.8, b * size + 0.8) for a, b in drawing.widths]
        image += strength * contrast * cover(lines, widths, (SIDE, SIDE))


def _is_like_a_one(drawing: Drawing) -> bool:
    """Whether a scribble is a steep straight line, which is how some people write a 1."""
    (line,) = drawing.lines
    across, down = np.abs(line[-1] - line[0])
    length = np.sqrt((np.diff(line, axis=0) ** 2).sum(axis=1)).sum()
    return bool(down > 1.2 * across and np.hypot(across, down) > 0.87 * length)


def _camera(rng: np.random.Generator) -> Floats:
    """What of the picture a camera fills: all, or all but the bars that its proportions leave."""
    bar = float(rng.choice([20, 35])) if rng.random() < _BARS else 0.0
    sides = [0, bar, SIDE, SIDE - bar] if rng.random() < 0.75 else [bar, 0, SIDE - bar, SIDE]
    return np.array(sides, np.float64)


def _barred(image: Gray, window: Floats) -> Gray:
    left, top, right, bottom = window.astype(int)
    barred = np.full_like(image, _GRAY)
    barred[top:bottom, left:right] = image[top:bottom, left:right]
    return barred


def _seen(image: Floats, rng: np.random.Generator) -> Gray:
    """The picture as a camera has it: soft, noisy, in bytes."""
    for _ in range(int(rng.integers(0, 3))):
        image = image + rng.uniform(0, 1) * (_blurred(image) - image)
    image = image + rng.normal(0, rng.uniform(0.5, 9), image.shape)
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def _blurred(image: Floats) -> Floats:
    padded = np.pad(image, 1, mode="edge")
    rows = (padded[:-2] + 2 * padded[1:-1] + padded[2:]) / 4
    result: Floats = (rows[:, :-2] + 2 * rows[:, 1:-1] + rows[:, 2:]) / 4
    return result
