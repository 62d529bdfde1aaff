"""Images and signals like those that networks were made for, made up from a seed.

Networks answer white noise with nothing in particular, so that rounding decides what comes out, and
they answer what is smooth everywhere from a few of their features. Photographs are neither: the
power of their details falls with the square of the frequency, and they consist of objects with
edges, before backgrounds that change slowly. Sounds are tones, sweeps and bursts of noise that come
and go. All fields here are numbers in [0, 1], made to use most of that range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nnasync.hal import Array

Field = Callable[[Sequence[int], np.random.Generator], Array]
"""Makes numbers in [0, 1]: of the shape [height, width, channels], or of any shape for signals."""

_SHAPES = 12
_EDGE = 0.02
"""How wide the edges of shapes are, as a part of the image."""
_ATTACKS = 4


def ramp(shape: Sequence[int]) -> Array:
    """Returns numbers from the lowest to the highest, along the longest dimension."""
    axis = int(np.argmax(shape)) if shape else 0
    places = np.linspace(0, 1, shape[axis]) if shape else np.zeros(1)
    sizes = [-1 if position == axis else 1 for position in range(len(shape))]
    return np.broadcast_to(places.reshape(sizes), tuple(shape)).copy()


def _scene(shape: Sequence[int], random: np.random.Generator) -> Array:
    """Draws a field whose spectrum falls as those of photographs do, in colors that go together."""
    height, width, channels = shape
    rows, columns = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :]
    frequency = np.maximum(np.hypot(rows, columns), 1 / max(height, width))
    shade = _colored(frequency, (height, width), random)
    tints = [_colored(frequency, (height, width), random) for _ in range(channels)]
    return _spread(np.stack([shade + 0.4 * tint for tint in tints], axis=-1))


def _colored(frequency: Array, size: tuple[int, int], random: np.random.Generator) -> Array:
    noise = random.normal(size=(2, *frequency.shape))
    field = np.fft.irfft2((noise[0] + 1j * noise[1]) / frequency, size)
    scaled: Array = field / max(float(field.std()), 1e-12)
    return scaled


def _objects(shape: Sequence[int], random: np.random.Generator) -> Array:
    """Draws ellipses with soft edges before a slowly changing background, and some texture."""
    height, width, channels = shape
    rows, columns = np.linspace(0, 1, height)[:, None, None], np.linspace(0, 1, width)[:, None]
    image = _background(shape, random)
    for _ in range(_SHAPES):
        middle, radius = random.uniform(0, 1, 2), random.uniform(0.05, 0.35, 2)
        turn, color = random.uniform(0, np.pi), random.uniform(0, 1, channels)
        down, right = rows - middle[0], columns - middle[1]
        along = (down * np.cos(turn) + right * np.sin(turn)) / radius[0]
        across = (right * np.cos(turn) - down * np.sin(turn)) / radius[1]
        inside = 1 / (1 + np.exp((np.hypot(along, across) - 1) * min(radius) / _EDGE))
        image = image * (1 - inside) + color * inside
    texture = random.normal(0, 0.02, tuple(shape))
    return np.clip(image + texture, 0, 1)


def _background(shape: Sequence[int], random: np.random.Generator) -> Array:
    """Draws a gradient from one color to another."""
    height, width, channels = shape
    rows, columns = np.linspace(0, 1, height)[:, None, None], np.linspace(0, 1, width)[:, None]
    first, last = random.uniform(0, 1, (2, channels))
    turn = random.uniform(0, 1)
    share = turn * rows + (1 - turn) * columns
    blended: Array = first + (last - first) * share
    return blended


def _dusk(shape: Sequence[int], random: np.random.Generator) -> Array:
    """Draws a scene with little light."""
    return 0.4 * _scene(shape, random) ** 1.5


IMAGES: tuple[Field, ...] = (_objects, _dusk, _scene)


def _tones(shape: Sequence[int], random: np.random.Generator) -> Array:
    """Draws a few tones and their harmonics."""
    time = _time(shape)
    signal = np.zeros(time.shape)
    for _ in range(3):
        pitch, phase = 2 ** random.uniform(1, 6), random.uniform(0, 2 * np.pi)
        for harmonic in range(1, 5):
            signal += np.sin(2 * np.pi * pitch * harmonic * time + phase) / harmonic
    return _spread(signal).reshape(tuple(shape))


def _chirp(shape: Sequence[int], random: np.random.Generator) -> Array:
    """Draws a tone that rises, and grows louder."""
    time = _time(shape)
    low, high = 2 ** random.uniform(0, 3), 2 ** random.uniform(4, 7)
    signal = np.sin(2 * np.pi * (low + (high - low) / 2 * time) * time) * np.sqrt(time)
    return _spread(signal).reshape(tuple(shape))


def _bursts(shape: Sequence[int], random: np.random.Generator) -> Array:
    """Draws noise that comes and fades, as consonants and steps do."""
    time = _time(shape)
    loudness = np.full(time.shape, 0.05)
    for start in random.uniform(0, 1, _ATTACKS):
        after = time - start
        loudness += np.where(after >= 0, np.exp(-np.maximum(after, 0) * 12), 0)
    return _spread(random.normal(size=time.shape) * loudness).reshape(tuple(shape))


def _levels(shape: Sequence[int], random: np.random.Generator) -> Array:
    """Draws independent numbers, most of them small, as features are."""
    drawn: Array = random.beta(0.7, 2, tuple(shape))
    return drawn


def _noise(shape: Sequence[int], random: np.random.Generator) -> Array:
    """Draws independent numbers around the middle."""
    return np.clip(random.normal(0.5, 0.25, tuple(shape)), 0, 1)


SIGNALS: tuple[Field, ...] = (_tones, _levels, _chirp, _bursts, _noise)


def _time(shape: Sequence[int]) -> Array:
    count = int(np.prod(shape, dtype=np.int64))
    return np.arange(count) / max(1, count)


def _spread(field: Array) -> Array:
    """Returns the field with most of its values spread over [0, 1]."""
    if not field.size:
        return field
    low, high = np.quantile(field, (0.01, 0.99))
    if high <= low:
        return np.full(field.shape, 0.5)
    spread: Array = np.clip((field - low) / (high - low), 0, 1)
    return spread
