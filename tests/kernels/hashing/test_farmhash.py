"""Fingerprints of keys of all lengths: known values, and that every byte counts."""

from __future__ import annotations

import numpy as np
import pytest

from nnasync.hal import Array
from nnasync.kernels.hashing.farmhash import fingerprint64

KNOWN = [
    (0, 0x9AE16A3B2F90404F),
    (1, 0xBE6056EDF5E94B54),
    (2, 0xE2A60E1D8BA55661),
    (3, 0x8957B1C61C445B2E),
    (4, 0x69AD7F91FAEBBCFC),
    (5, 0x49BBB01774781EA0),
    (7, 0x48081232C6D44544),
    (8, 0x89FDD61A1C8EF085),
    (12, 0xB07C8FEE32CD97A6),
    (16, 0xB49CEE17B62FE7A9),
    (17, 0x769CD28F420AAAAE),
    (24, 0x66B0F96B91473E30),
    (32, 0xEC1B5C353598D362),
    (33, 0x66D000214C645F06),
    (48, 0xDFE3B8E40B4179E7),
    (64, 0xF3E85E9145391AC3),
    (65, 0xBDDADCBC73DDDE29),
    (100, 0xFEB0099D0DC028BA),
    (128, 0xA996CD8058CBA4A0),
    (129, 0xB64AD884FC337B52),
    (192, 0x039CBADF14C8536E),
    (193, 0xD9A1981F6518D622),
    (1000, 0x726CFF74368A2C2F),
]


def keys(length: int, count: int = 1, seed: int = 0) -> Array:
    """Keys that follow from plain arithmetic."""
    index = np.arange(count * length).reshape(count, length)
    return ((index * 167 + index // 7 * 13 + seed) % 251).astype(np.uint8)


@pytest.mark.parametrize(("length", "expected"), KNOWN)
def test_known_fingerprints(length: int, expected: int) -> None:
    assert int(fingerprint64(keys(length))[0]) == expected


@pytest.mark.parametrize("length", [1, 3, 5, 8, 16, 17, 40, 64, 65, 128, 200])
def test_keys_are_hashed_one_by_one(length: int) -> None:
    many = keys(length, 5)
    found = fingerprint64(many)
    assert found.dtype == np.uint64
    single = [fingerprint64(many[index : index + 1])[0] for index in range(5)]
    np.testing.assert_array_equal(found, single)


@pytest.mark.parametrize("length", [*range(1, 70), 127, 128, 129, 200])
def test_every_bit_counts(length: int) -> None:
    key = keys(length)
    changed = np.repeat(key, 8 * length, 0)
    for bit in range(8 * length):
        changed[bit, bit // 8] ^= 1 << bit % 8
    assert np.unique(fingerprint64(np.concatenate([key, changed]))).size == 8 * length + 1
