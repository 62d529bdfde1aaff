"""The ear of the word network: constants of a mel spectrum, as matrices.

A window of 400 samples (25 ms) times `spectrum_matrix` is a windowed Fourier transform, real and
imaginary parts side by side; its squares times `mel_matrix` are the energies of 40 bands, and their
logarithm is what the network's memory cells get. Written as matrices, all of it is FULLY_CONNECTED,
MUL and LOG.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nnasync import audio
from training.speech import RATE

__all__ = ["BANDS", "FLOOR", "HOP", "WINDOW", "log_mel", "mel_matrix", "spectrum_matrix"]

WINDOW = 400
HOP = 160
BANDS = 40
FLOOR = 1e-3
_LOW_HZ, _HIGH_HZ = 60.0, 7600.0

Floats = NDArray[np.float32]


def _bins() -> NDArray[np.float64]:
    return np.arange(1, WINDOW // 2, dtype=np.float64) * (RATE / WINDOW)


def spectrum_matrix() -> Floats:
    """Float32 [2 * 199, 400]: cosines, then sines, each under a Hann window."""
    phase = 2 * np.pi * np.outer(np.arange(1, WINDOW // 2), np.arange(WINDOW)) / WINDOW
    waves = np.concatenate([np.cos(phase), np.sin(phase)])
    return (waves * audio.hann(WINDOW)).astype(np.float32)


def mel_matrix() -> Floats:
    """Float32 [40, 2 * 199]: triangles evenly spaced in mel, of unit area, for both halves."""
    limits = audio.hertz_to_mel(np.array([_LOW_HZ, _HIGH_HZ]), "htk")
    edges = audio.mel_to_hertz(np.linspace(limits[0], limits[1], BANDS + 2), "htk")
    low, center, high = (edges[i : i + BANDS, None] for i in range(3))
    center = np.maximum(center, low + RATE / WINDOW / 2)
    high = np.maximum(high, low + RATE / WINDOW * 1.5)
    bins = _bins()
    triangles = np.maximum(
        np.minimum((bins - low) / (center - low), (high - bins) / (high - center)), 0
    )
    triangles /= np.maximum(triangles.sum(axis=1, keepdims=True), 0.1)
    return np.concatenate([triangles, triangles], axis=1).astype(np.float32)


def log_mel(samples: NDArray[np.int16]) -> Floats:
    """Log band energies float32 [hops, 40] of 16 kHz samples, as the network computes them."""
    wave = np.concatenate([np.zeros(WINDOW - HOP, np.float32), samples.astype(np.float32) / 32768])
    windows = np.lib.stride_tricks.sliding_window_view(wave, WINDOW)[::HOP]
    spectrum = windows @ spectrum_matrix().T
    result: Floats = np.log(spectrum * spectrum @ mel_matrix().T + np.float32(FLOOR))
    return result
