"""A Fourier transform in 16-bit integers, bit for bit that of kiss_fft with FIXED_POINT=16.

Networks for microcontrollers are trained on features that were computed so. Every stage halves or
quarters its inputs first (rounded), so that nothing overflows: the result is the transform divided
by its size. The radix is 4 for as long as it divides, then 2. A real transform of n samples is a
complex one of n / 2, taken apart.
"""

from __future__ import annotations

import functools

import numpy as np

from nnasync._core.arguments import numbers
from nnasync.errors import InvalidArgument
from nnasync.hal import Array

_MAX = 32_767
_LARGEST = 1 << 15

_Complex = tuple[Array, Array]


def fixed_rfft(samples: Array) -> tuple[Array, Array]:
    """Real and imaginary parts, int32 [..., n / 2 + 1] in the range of int16, of int16 [..., n].

    n is a power of 2 from 4 to 32768; raises InvalidArgument for others, and for what is not int16.
    """
    samples = numbers("samples", samples)
    if not np.can_cast(samples.dtype, np.int16):
        raise InvalidArgument(f"samples are int16, not {samples.dtype}")
    size = samples.shape[-1] if samples.ndim else 0
    if size < 4 or size > _LARGEST or size & (size - 1):
        raise InvalidArgument(f"a transform has a power of 2 from 4 to {_LARGEST}, not {size}")
    pairs = samples.astype(np.int32).reshape(*samples.shape[:-1], size // 2, 2)
    real, imaginary = _transform(pairs[..., 0], pairs[..., 1])
    return _taken_apart(real, imaginary)


def _transform(real: Array, imaginary: Array) -> _Complex:
    """Returns the complex transform of [..., n], by decimation in time."""
    size = real.shape[-1]
    if size == 1:
        return real, imaginary
    radix = 4 if size % 4 == 0 else 2
    split = (*real.shape[:-1], size // radix, radix)
    parts = _transform(
        np.moveaxis(real.reshape(split), -1, -2), np.moveaxis(imaginary.reshape(split), -1, -2)
    )
    # Now [..., radix, size / radix]: each part is a transform of every radix-th sample.
    scaled = _divided(parts, radix)
    turned = [
        _product(_part(scaled, number), _twiddles(size, radix, number))
        for number in range(1, radix)
    ]
    stage = _four if radix == 4 else _two
    return stage([_part(scaled, 0), *turned])


def _part(values: _Complex, number: int) -> _Complex:
    return values[0][..., number, :], values[1][..., number, :]


def _two(parts: list[_Complex]) -> _Complex:
    (a, b), (c, d) = parts
    return _joined([a + c, a - c]), _joined([b + d, b - d])


def _four(parts: list[_Complex]) -> _Complex:
    (a, b), (c, d), (e, f), (g, h) = parts
    sum_real, sum_imaginary = _wrapped(a + e), _wrapped(b + f)
    gap_real, gap_imaginary = _wrapped(a - e), _wrapped(b - f)
    odd_real, odd_imaginary = _wrapped(c + g), _wrapped(d + h)
    turn_real, turn_imaginary = _wrapped(c - g), _wrapped(d - h)
    return (
        _joined(
            [
                sum_real + odd_real,
                gap_real + turn_imaginary,
                sum_real - odd_real,
                gap_real - turn_imaginary,
            ]
        ),
        _joined(
            [
                sum_imaginary + odd_imaginary,
                gap_imaginary - turn_real,
                sum_imaginary - odd_imaginary,
                gap_imaginary + turn_real,
            ]
        ),
    )


def _taken_apart(real: Array, imaginary: Array) -> _Complex:
    """Returns the spectrum [..., n + 1] of real samples from the transform of pairs [..., n]."""
    half = real.shape[-1]
    down, _ = _divided((-imaginary, imaginary), 2)
    real, imaginary = _divided((real, imaginary), 2)
    ends = (
        _wrapped(real[..., :1] + imaginary[..., :1]),
        _wrapped(real[..., :1] - imaginary[..., :1]),
    )
    count = half // 2
    low = real[..., 1 : count + 1], imaginary[..., 1 : count + 1]
    back = slice(half - 1, half - 1 - count, -1)
    high = real[..., back], down[..., back]
    sums = _wrapped(low[0] + high[0]), _wrapped(low[1] + high[1])
    gaps = _wrapped(low[0] - high[0]), _wrapped(low[1] - high[1])
    turned = _product(gaps, _super_twiddles(half))
    zeros = np.zeros((*real.shape[:-1], half + 1), np.int32)
    result = zeros, zeros.copy()
    result[0][..., 1 : count + 1] = _wrapped((sums[0] + turned[0]) >> 1)
    result[1][..., 1 : count + 1] = _wrapped((sums[1] + turned[1]) >> 1)
    # Where both halves meet in the middle, the upper one is written last, as in kiss_fft.
    result[0][..., back] = _wrapped((sums[0] - turned[0]) >> 1)
    result[1][..., back] = _wrapped((turned[1] - sums[1]) >> 1)
    result[0][..., :1], result[0][..., half:] = ends
    return result


# -- arithmetic of 16 bits


def _wrapped(values: Array) -> Array:
    return values.astype(np.int16).astype(np.int32)


def _rounded(values: Array) -> Array:
    return _wrapped((values + (1 << 14)) >> 15)


def _divided(values: _Complex, divisor: int) -> _Complex:
    factor = _MAX // divisor
    return _rounded(values[0] * factor), _rounded(values[1] * factor)


def _product(values: _Complex, factors: _Complex) -> _Complex:
    real, imaginary = values
    cosine, sine = factors
    return _rounded(real * cosine - imaginary * sine), _rounded(real * sine + imaginary * cosine)


def _joined(parts: list[Array]) -> Array:
    return _wrapped(np.concatenate(parts, axis=-1))


@functools.lru_cache(maxsize=256)
def _twiddles(size: int, radix: int, number: int) -> _Complex:
    return _unit(-2 * np.pi * number * np.arange(size // radix) / size)


@functools.lru_cache(maxsize=16)
def _super_twiddles(half: int) -> _Complex:
    return _unit(-np.pi * ((np.arange(half // 2) + 1) / half + 0.5))


def _unit(phases: Array) -> _Complex:
    cosine, sine = (np.floor(0.5 + _MAX * f(phases)).astype(np.int32) for f in (np.cos, np.sin))
    return cosine, sine
