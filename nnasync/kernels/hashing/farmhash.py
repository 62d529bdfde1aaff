"""Fingerprint64 of FarmHash ("na"), for many keys of one length at once.

A key is a row of bytes. Arithmetic is on columns of unsigned 64-bit words that wrap around, one
word per key. The function depends on the length: up to 16, 32 or 64 bytes, or longer.
"""

from __future__ import annotations

import numpy as np

from nnasync.hal import Array

_WORD = 2**64 - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
_SEED = 81

Pair = tuple[Array, Array]


class _Keys:
    """Little-endian words of all keys at an offset; a negative one counts from the end."""

    __slots__ = ("_bytes", "length")

    def __init__(self, keys: Array) -> None:
        self._bytes = keys
        self.length = keys.shape[1]

    def word(self, offset: int, size: int = 8) -> Array:
        """The words of `size` bytes, as unsigned 64-bit numbers."""
        start = offset % self.length
        found = np.ascontiguousarray(self._bytes[:, start : start + size])
        return found.view(f"<u{size}")[:, 0].astype(np.uint64)


def fingerprint64(keys: Array) -> Array:
    """The fingerprint of each row of a uint8 array [keys, length], as uint64 [keys]."""
    count, length = keys.shape
    if length == 0:
        return np.full(count, _K2, np.uint64)
    rows = _Keys(keys)
    if length < 4:
        return _up_to_3(rows)
    if length < 8:
        return _up_to_7(rows)
    if length <= 16:
        return _up_to_16(rows)
    if length <= 32:
        return _up_to_32(rows)
    return _up_to_64(rows) if length <= 64 else _long(rows)


def _u64(value: int) -> np.uint64:
    return np.uint64(value & _WORD)


def _multiplier(length: int) -> np.uint64:
    return _u64(_K2 + 2 * length)


def _rotate(x: Array, bits: int) -> Array:
    rotated: Array = (x >> _u64(bits)) | (x << _u64(64 - bits))
    return rotated


def _shift_mix(x: Array) -> Array:
    mixed: Array = x ^ (x >> _u64(47))
    return mixed


def _hash_16(u: Array, v: Array, multiplier: Array | np.uint64) -> Array:
    """The hash of two words."""
    a = _shift_mix((u ^ v) * multiplier)
    b: Array = _shift_mix((v ^ a) * multiplier) * multiplier
    return b


def _up_to_3(keys: _Keys) -> Array:
    length = keys.length
    first, middle, last = (keys.word(at, 1) for at in (0, length >> 1, length - 1))
    y = first + (middle << _u64(8))
    z = _u64(length) + (last << _u64(2))
    mixed: Array = _shift_mix(y * _u64(_K2) ^ z * _u64(_K0)) * _u64(_K2)
    return mixed


def _up_to_7(keys: _Keys) -> Array:
    first = _u64(keys.length) + (keys.word(0, 4) << _u64(3))
    return _hash_16(first, keys.word(-4, 4), _multiplier(keys.length))


def _up_to_16(keys: _Keys) -> Array:
    multiplier = _multiplier(keys.length)
    a, b = keys.word(0) + _u64(_K2), keys.word(-8)
    c = _rotate(b, 37) * multiplier + a
    d = (_rotate(a, 25) + b) * multiplier
    return _hash_16(c, d, multiplier)


def _mix(a: Array, b: Array, c: Array, d: Array, extra: Array | np.uint64) -> Pair:
    """Two words from four."""
    return _rotate(a + b, 43) + _rotate(c, 30) + d, a + _rotate(b + extra, 18) + c


def _up_to_32(keys: _Keys) -> Array:
    multiplier = _multiplier(keys.length)
    a, b = keys.word(0) * _u64(_K1), keys.word(8)
    c, d = keys.word(-8) * multiplier, keys.word(-16) * _u64(_K2)
    return _hash_16(*_mix(a, b, c, d, _u64(_K2)), multiplier)


def _up_to_64(keys: _Keys) -> Array:
    multiplier = _multiplier(keys.length)
    a, b = keys.word(0) * _u64(_K2), keys.word(8)
    c, d = keys.word(-8) * multiplier, keys.word(-16) * _u64(_K2)
    y, rest = _mix(a, b, c, d, _u64(_K2))
    z = _hash_16(y, rest, multiplier)
    e, f = keys.word(16) * multiplier, keys.word(24)
    g, h = (y + keys.word(-32)) * multiplier, (z + keys.word(-24)) * multiplier
    return _hash_16(*_mix(e, f, g, h, a), multiplier)


class _State:
    """What is carried from 64 bytes of long keys to the next 64."""

    __slots__ = ("v", "w", "x", "y", "z")

    def __init__(self, first: Array) -> None:
        nothing = np.zeros_like(first)
        y = _SEED * _K1 + 113
        self.x = first + _u64(_SEED * _K2)
        self.y = nothing + _u64(y)
        self.z = _shift_mix(nothing + _u64(y * _K2 + 113)) * _u64(_K2)
        self.v: Pair = (nothing, nothing)
        self.w: Pair = (nothing, nothing)

    def take(self, keys: _Keys, at: int, multiplier: Array | np.uint64, weight: int) -> None:
        """Mixes in the 64 bytes at an offset; `weight` is 1, and 9 for the last ones."""
        factor = _u64(weight)
        v, w = self.v, self.w
        x = _rotate(self.x + self.y + v[0] + keys.word(at + 8), 37) * multiplier
        y = _rotate(self.y + v[1] + keys.word(at + 48), 42) * multiplier
        x ^= w[1] * factor
        y += v[0] * factor + keys.word(at + 40)
        z = _rotate(self.z + w[0], 33) * multiplier
        self.v = _weak(keys, at, v[1] * multiplier, x + w[0])
        self.w = _weak(keys, at + 32, z + w[1], y + keys.word(at + 16))
        self.x, self.y, self.z = z, y, x


def _weak(keys: _Keys, at: int, a: Array, b: Array) -> Pair:
    """Two words from 32 bytes and two seeds."""
    a = a + keys.word(at)
    b = _rotate(b + a + keys.word(at + 24), 21)
    total = a + keys.word(at + 8) + keys.word(at + 16)
    b = b + _rotate(total, 44)
    return total + keys.word(at + 24), b + a


def _long(keys: _Keys) -> Array:
    """The last 64 bytes count twice where the length is not a multiple of 64."""
    state = _State(keys.word(0))
    for at in range(0, keys.length - 64, 64):
        state.take(keys, at, _u64(_K1), 1)
    rest = (keys.length - 1) % 64
    multiplier = _u64(_K1) + ((state.z & _u64(0xFF)) << _u64(1))
    w0 = state.w[0] + _u64(rest)
    v0 = state.v[0] + w0
    state.v, state.w = (v0, state.v[1]), (w0 + v0, state.w[1])
    state.take(keys, keys.length - 64, multiplier, 9)
    (v0, v1), (w0, w1) = state.v, state.w
    low = _hash_16(v0, w0, multiplier) + _shift_mix(state.y) * _u64(_K0) + state.z
    high = _hash_16(v1, w1, multiplier) + state.x
    return _hash_16(low, high, multiplier)
