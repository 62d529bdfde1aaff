"""The mel scale, its filters, and features made of their logarithms.

Two scales are in use: "htk", 2595 log10(1 + f / 700), and "slaney", straight up to 1000 Hz and
logarithmic above, which librosa, torchaudio's default and Whisper have. Filters are triangles
between points that are evenly spaced on the scale; with `unit_area` each is divided by its width in
Hz.
"""

from __future__ import annotations

import functools
from typing import Literal, TypeAlias

import numpy as np

from nnasync._core.arguments import check_choice, check_number, check_whole, numbers
from nnasync.audio.frames import MOST_SAMPLES
from nnasync.errors import InvalidArgument
from nnasync.hal import Array

MelScale: TypeAlias = Literal["slaney", "htk"]
"""How hertz become mel: Slaney's Auditory Toolbox, or the formula of HTK."""

_SCALES = ("slaney", "htk")
_HIGHEST_HZ = 1_000_000_000
_LINEAR_HZ_PER_MEL = 200 / 3
_BEND_HZ = 1000.0
_BEND_MEL = _BEND_HZ / _LINEAR_HZ_PER_MEL
_LOG_STEP = np.log(6.4) / 27


def hertz_to_mel(hertz: Array | float, scale: MelScale = "slaney") -> Array:
    """Frequencies on the mel scale, float64.

    Raises InvalidArgument for an unknown scale, and for what are no numbers.
    """
    values = numbers("hertz", hertz).astype(np.float64)
    if _is_htk(scale):
        htk: Array = 2595 * np.log10(1 + values / 700)
        return htk
    above = _BEND_MEL + np.log(np.maximum(values, _BEND_HZ) / _BEND_HZ) / _LOG_STEP
    return np.where(values < _BEND_HZ, values / _LINEAR_HZ_PER_MEL, above)


def mel_to_hertz(mel: Array | float, scale: MelScale = "slaney") -> Array:
    """Returns mel as hertz; the reverse of `hertz_to_mel`."""
    values = numbers("mel", mel).astype(np.float64)
    if _is_htk(scale):
        htk: Array = 700 * (10 ** (values / 2595) - 1)
        return htk
    above = _BEND_HZ * np.exp(_LOG_STEP * (np.maximum(values, _BEND_MEL) - _BEND_MEL))
    return np.where(values < _BEND_MEL, values * _LINEAR_HZ_PER_MEL, above)


def mel_filters(
    rate_hz: int,
    fft_size: int,
    bands: int,
    *,
    low_hz: float = 0.0,
    high_hz: float | None = None,
    scale: MelScale = "slaney",
    unit_area: bool = True,
) -> Array:
    """Weights of the bins of a spectrum, float32 [bands, fft_size // 2 + 1], read only.

    From `low_hz` to `high_hz`, by default half the rate. Raises InvalidArgument where that is no
    range, or there is no band.
    """
    check_whole("rate_hz", rate_hz, 1, _HIGHEST_HZ)
    check_whole("fft_size", fft_size, 2, MOST_SAMPLES)
    check_whole("bands", bands, 1, MOST_SAMPLES)
    top = rate_hz / 2 if high_hz is None else high_hz
    check_number("low_hz", low_hz)
    check_number("high_hz", top)
    if not 0 <= low_hz < top <= rate_hz / 2:
        raise InvalidArgument(
            f"bands from {low_hz} to {top} Hz at {rate_hz} Hz: 0 <= low < high <= {rate_hz / 2} "
            "is needed"
        )
    check_choice("scale", scale, _SCALES)
    return _filters(rate_hz, fft_size, bands, low_hz, top, scale, bool(unit_area))


@functools.lru_cache(maxsize=32)
def _filters(
    rate_hz: int,
    fft_size: int,
    bands: int,
    low_hz: float,
    high_hz: float,
    scale: MelScale,
    unit_area: bool,
) -> Array:
    limits = hertz_to_mel(np.array([low_hz, high_hz]), scale)
    points = mel_to_hertz(np.linspace(limits[0], limits[1], bands + 2), scale)
    bins = np.arange(fft_size // 2 + 1) * (rate_hz / fft_size)
    low, center, high = (points[i : i + bands, None] for i in range(3))
    filters = np.minimum((bins - low) / (center - low), (high - bins) / (high - center))
    scaled = np.maximum(filters, 0) * (2 / (high - low) if unit_area else 1.0)
    weights: Array = scaled.astype(np.float32)
    weights.flags.writeable = False
    return weights


def mfcc(log_mel: Array, count: int = 13, *, orthogonal: bool = True) -> Array:
    """Returns the first `count` cepstral coefficients, float32, of log mel energies [..., bands].

    The cosine transform (DCT-II) over the bands: orthogonal, or as tf.signal scales it, in which
    the first coefficient is larger by the square root of 2. Raises InvalidArgument for a count
    that is not 1 to the number of bands.
    """
    energies = numbers("log_mel", log_mel)
    bands = energies.shape[-1] if energies.ndim else 0
    check_whole("count", count, 1)
    if count > bands:
        raise InvalidArgument(f"{bands} bands give 1 to {bands} coefficients, not {count}")
    found: Array = energies.astype(np.float32) @ _cosines(bands, count, bool(orthogonal))
    return found


@functools.lru_cache(maxsize=16)
def _cosines(bands: int, count: int, orthogonal: bool) -> Array:
    at, order = np.arange(bands)[:, None] + 0.5, np.arange(count)[None]
    waves = np.cos(np.pi / bands * at * order) * np.sqrt(2 / bands)
    if orthogonal:
        waves[:, 0] /= np.sqrt(2)
    table: Array = waves.astype(np.float32)
    return table


def _is_htk(scale: str) -> bool:
    check_choice("scale", scale, _SCALES)
    return scale == "htk"
