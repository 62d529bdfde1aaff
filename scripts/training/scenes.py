"""Gray video of one moving handwritten-looking digit after another over a cluttered background.

A `Scene` fixes what stays for its whole length: backdrop, clutter, polarity, camera noise. A
`Glyph` is one digit (or none) with its path; `frame` draws a scene at an instant with a glyph in
front.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.strokes import Drawing, cover, scribble, write

__all__ = ["FPS", "NONE", "SIDE", "Glyph", "Scene", "play", "samples"]

SIDE = 64
FPS = 30
NONE = 10
MARGIN = 24
CANVAS = SIDE + 2 * MARGIN
EMPTY_SHARE = 0.12

Gray = NDArray[np.uint8]
Floats = NDArray[np.floating]


class Glyph:
    """One digit on its path through the frame, or `NONE`; times are seconds since it appeared."""

    def __init__(self, label: int, rng: np.random.Generator) -> None:
        self.label = label
        self.drawing = Drawing((), ()) if label == NONE else write(label, rng)
        self.height = rng.uniform(22, 44)
        self.center = rng.uniform(18, SIDE - 18, 2)
        self.velocity = rng.uniform(-16, 16, 2)
        self.swing = rng.uniform(0, 4, 2)
        self.phase = rng.uniform(0, 2 * np.pi, 2)
        self.spin = rng.uniform(-0.2, 0.2)
        self.growth = rng.uniform(-0.15, 0.15)

    def ink(self, time: float) -> NDArray[np.float32]:
        """Coverage float32 [64, 64] of the digit at `time`; always inside the frame as a whole."""
        if not self.drawing.lines:
            return np.zeros((SIDE, SIDE), np.float32)
        scale = self.height * (1 + self.growth * (time - 0.5))
        angle = self.spin * (time - 0.5)
        turn = scale * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        lines = [line @ turn for line in self.drawing.lines]
        place = self.center + self.velocity * time + self.swing * np.sin(4 * time + self.phase)
        everything = np.concatenate(lines)
        room = 5.0
        place = np.maximum(place, room - everything.min(axis=0))
        place = np.minimum(place, SIDE - 1 - room - everything.max(axis=0))
        widths = [(a * scale, b * scale) for a, b in self.drawing.widths]
        return cover([line + place for line in lines], widths, (SIDE, SIDE))


class Scene:
    """Backdrop with clutter, and how the camera sees it."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.sign = 1.0 if rng.random() < 0.5 else -1.0
        self.contrast = rng.uniform(65, 150)
        level = rng.uniform(25, 90)
        self.level = level if self.sign > 0 else 255 - level
        self.noise = rng.uniform(1.0, 10.0)
        self.softness = rng.uniform(0.0, 1.0)
        self.drift = rng.uniform(-8, 8, 2)
        self.flicker = rng.uniform(0, 0.05)
        self.canvas = self.level + self._backdrop() + self._clutter()

    def _backdrop(self) -> Floats:
        rng = self.rng
        ramp = np.linspace(-1, 1, CANVAS)
        gradient = rng.normal(0, 20) * ramp[None, :] + rng.normal(0, 20) * ramp[:, None]
        coarse = rng.normal(0, rng.uniform(2, 14), (9, 9))
        grain = rng.normal(0, rng.uniform(0, 4), (CANVAS, CANVAS))
        at = np.linspace(0, 8, CANVAS)
        rows = np.stack([np.interp(at, np.arange(9), row) for row in coarse])
        smooth = np.stack([np.interp(at, np.arange(9), column) for column in rows.T]).T
        result: Floats = gradient + smooth + grain
        return result

    def _clutter(self) -> Floats:
        rng = self.rng
        image = np.zeros((CANVAS, CANVAS), np.float32)
        for _ in range(int(rng.integers(4, 20))):
            drawing = scribble(rng)
            size = rng.uniform(8, 34)
            strong = size < 13
            strength = rng.uniform(0.2, 0.95 if strong else 0.6) * (
                1 if rng.random() < 0.75 else -0.5
            )
            place = rng.uniform(0, CANVAS, 2)
            ink = cover(
                [line * size + place for line in drawing.lines],
                [(a * size + 0.8, b * size + 0.8) for a, b in drawing.widths],
                (CANVAS, CANVAS),
            )
            image += strength * self.sign * self.contrast * ink
        return image

    def frame(self, time: float, glyph: Glyph, glyph_time: float) -> Gray:
        """The camera's picture uint8 [64, 64] at `time` seconds since the scene began."""
        image = _pan(self.canvas, MARGIN + MARGIN * 0.9 * np.sin(self.drift * time / MARGIN))
        ink = glyph.ink(glyph_time)
        pen = self.level + self.sign * self.contrast
        image = image + (pen - image) * ink
        image = image + self.softness * (_blur(image) - image)
        image *= 1 + self.flicker * np.sin(7 * time)
        image += self.rng.normal(0, self.noise, image.shape)
        return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def _pan(canvas: Floats, corner: Floats) -> Floats:
    column, row = (int(v) for v in np.floor(corner))
    fx, fy = corner - np.floor(corner)
    part = canvas[row : row + SIDE + 1, column : column + SIDE + 1]
    rows = part[:-1] * (1 - fy) + part[1:] * fy
    result: Floats = rows[:, :-1] * (1 - fx) + rows[:, 1:] * fx
    return result


def _blur(image: Floats) -> Floats:
    padded = np.pad(image, 1, mode="edge")
    rows = (padded[:-2] + 2 * padded[1:-1] + padded[2:]) / 4
    result: Floats = (rows[:, :-2] + 2 * rows[:, 1:-1] + rows[:, 2:]) / 4
    return result


class Labeled(NamedTuple):
    """A picture uint8 [64, 64] and what it shows: 0 to 9, or `NONE`."""

    image: Gray
    label: int


def _next_label(previous: int, rng: np.random.Generator) -> int:
    if previous != NONE and rng.random() < EMPTY_SHARE:
        return NONE
    return int(rng.choice([digit for digit in range(10) if digit != previous]))


def play(seed: int, frames: int) -> Iterator[Labeled]:
    """A clip: every 0.5 to 1 s another digit (or none), every 4 to 8 s another scene."""
    rng = np.random.default_rng([seed, 0xD161])
    scene, scene_start, scene_end = Scene(rng), 0, 0
    glyph, glyph_start, glyph_end = Glyph(NONE, rng), 0, 0
    for index in range(frames):
        if index >= glyph_end:
            if index >= scene_end:
                scene, scene_start = Scene(rng), index
                scene_end = index + int(rng.integers(4 * FPS, 8 * FPS))
            glyph, glyph_start = Glyph(_next_label(glyph.label, rng), rng), index
            glyph_end = index + int(rng.integers(FPS // 2, FPS + 1))
        image = scene.frame((index - scene_start) / FPS, glyph, (index - glyph_start) / FPS)
        yield Labeled(image, glyph.label)


def samples(seed: int, count: int, *, per_scene: int = 4) -> tuple[Gray, NDArray[np.int64]]:
    """Unrelated pictures for training: uint8 [count, 64, 64] and labels int64 [count]."""
    rng = np.random.default_rng([seed, 0x7EAC])
    images = np.empty((count, SIDE, SIDE), np.uint8)
    labels = np.empty(count, np.int64)
    for index in range(count):
        if index % per_scene == 0:
            scene = Scene(rng)
        label = NONE if rng.random() < EMPTY_SHARE else int(rng.integers(10))
        glyph = Glyph(label, rng)
        images[index] = scene.frame(rng.uniform(0, 8), glyph, rng.uniform(0, 1))
        labels[index] = label
    return images, labels
