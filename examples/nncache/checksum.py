"""CRC-32C as the nnCache file has it: polynomial 0x82F63B78, from 0 on, not inverted at the end.

Without the usual inversions the checksum is linear, and zeros in front change nothing. So the data
are cut into lanes of equal length that numpy works on together, a byte of each at a time; pairs of
lanes are then joined by shifting the left one over the length of the right one, which is a matrix
of bits.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

__all__ = ["crc32c"]

Words = npt.NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78
_MAX_LANES = 4096


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """The checksum of bytes; 0 of none, and of zeros."""
    source = np.frombuffer(data, np.uint8)
    lanes = 1
    while lanes < _MAX_LANES and lanes * lanes < source.size:
        lanes *= 2
    length = -(-source.size // lanes)
    padded = np.zeros(lanes * length, np.uint8)
    padded[padded.size - source.size :] = source
    return _joined(_lanes(padded.reshape(lanes, length)), length)


def _lanes(data: npt.NDArray[np.uint8]) -> Words:
    table = _table()
    state = np.zeros(len(data), np.uint32)
    for column in np.ascontiguousarray(data.T):
        state = table[(state ^ column) & 0xFF] ^ (state >> 8)
    return state


def _joined(state: Words, length: int) -> int:
    shift = _power(_one_byte(), length)
    while len(state) > 1:
        state = _apply(shift, state[0::2]) ^ state[1::2]
        shift = _apply(shift, shift)
    return int(state[0])


@functools.cache
def _table() -> Words:
    state: Words = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        state = (state >> np.uint32(1)) ^ np.where(state & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    return state


def _one_byte() -> Words:
    """The matrix that lets a zero byte follow: what becomes of each single bit."""
    bits = _bits()
    low: Words = _table()[bits & 0xFF]
    return low ^ (bits >> np.uint32(8))


def _bits() -> Words:
    """Words with one bit each."""
    return np.array([1 << bit for bit in range(32)], np.uint32)


def _apply(matrix: Words, words: Words) -> Words:
    result = np.zeros_like(words)
    for bit in range(32):
        result ^= np.where(words >> bit & 1, matrix[bit], np.uint32(0))
    return result


def _power(matrix: Words, exponent: int) -> Words:
    result = _bits()
    while exponent:
        if exponent & 1:
            result = _apply(matrix, result)
        matrix = _apply(matrix, matrix)
        exponent >>= 1
    return result
