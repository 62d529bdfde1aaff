"""The nnCache engine: limits, cleaning, the flattened form and its file."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nncache import BlobCache, BlobLimits, Capacity, Select, crc32c, load_blobs, save_blobs

from nnasync.errors import InvalidArgument

LIMITS = BlobLimits(max_key=6, max_value=8, max_total=13)
ROOMY = BlobLimits(max_key=100, max_value=100, max_total=1000)
blobs = st.dictionaries(
    st.binary(min_size=1, max_size=9), st.binary(min_size=1, max_size=9), max_size=9
)


def filled(entries: dict[bytes, bytes], **options: Any) -> BlobCache:
    """A roomy cache with entries."""
    cache = BlobCache(ROOMY, **options)
    for key, value in entries.items():
        assert cache.set(key, value)
    return cache


def test_a_value_is_found_until_it_is_replaced() -> None:
    cache = BlobCache(LIMITS, seed=0)
    assert cache.get(b"abcd") is None
    assert cache.set(b"abcd", b"efgh")
    assert cache.get(b"abcd") == b"efgh"
    assert cache.set(b"abcd", b"ijklm")
    assert cache.get(b"abcd") == b"ijklm"
    assert (len(cache), cache.total_bytes) == (1, 9)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b"v"),
        (b"k", b""),
        (b"k" * 7, b"v"),
        (b"k", b"v" * 9),
        (b"k" * 6, b"v" * 8),
    ],
)
def test_what_does_not_fit_is_ignored(key: bytes, value: bytes) -> None:
    cache = BlobCache(LIMITS)
    assert not cache.set(key, value)
    assert len(cache) == cache.total_bytes == 0


@pytest.mark.parametrize(
    ("key", "value"), [(b"k" * 6, b"v"), (b"k", b"v" * 8), (b"kkkkk", b"v" * 8)]
)
def test_what_fits_exactly_is_stored(key: bytes, value: bytes) -> None:
    assert BlobCache(LIMITS).set(key, value)


def test_cleaning_leaves_at_most_half() -> None:
    cache = BlobCache(BlobLimits(1, 1, 12), seed=0)
    for letter in range(6):
        assert cache.set(bytes([letter]), b"x")
    assert cache.total_bytes == 12
    assert cache.set(b"z", b"x")
    assert len(cache) == 4
    assert b"z" in cache


def test_below_half_nothing_is_cleaned_and_nothing_stored() -> None:
    cache = BlobCache(BlobLimits(6, 12, 13))
    assert cache.set(b"abc", b"def")
    assert not cache.set(b"k", b"v" * 8)
    assert cache.get(b"abc") == b"def"


@pytest.mark.parametrize(
    ("capacity", "left"), [(Capacity.FIT, 6), (Capacity.FIT_HALVE, 4), (Capacity.HALVE, 4)]
)
def test_how_much_is_cleaned(capacity: Capacity, left: int) -> None:
    cache = BlobCache(BlobLimits(1, 1, 12), capacity=capacity, seed=3)
    for letter in b"abcdefg":
        assert cache.set(bytes([letter]), b"x")
    assert len(cache) == left


def test_the_least_recently_used_goes_first() -> None:
    cache = BlobCache(BlobLimits(1, 1, 6), select=Select.LRU, capacity=Capacity.FIT)
    for letter in (b"a", b"b", b"c"):
        cache.set(letter, b"x")
    assert cache.get(b"a") == b"x"
    cache.set(b"d", b"x")
    assert [letter in cache for letter in (b"a", b"b", b"c", b"d")] == [True, False, True, True]


def test_the_random_choice_is_a_choice() -> None:
    """Over many seeds each of the entries goes sometimes."""
    gone = set()
    for seed in range(50):
        cache = BlobCache(BlobLimits(1, 1, 6), capacity=Capacity.FIT, seed=seed)
        for letter in (b"a", b"b", b"c", b"d"):
            cache.set(letter, b"x")
        gone |= {letter for letter in (b"a", b"b", b"c") if letter not in cache}
    assert gone == {b"a", b"b", b"c"}


def test_a_growing_value_may_clean_its_own_entry_away() -> None:
    cache = BlobCache(LIMITS, select=Select.LRU)
    assert cache.set(b"a", b"x" * 6)
    assert cache.set(b"b", b"y" * 5)
    assert not cache.set(b"a", b"x" * 7)
    assert (b"a" in cache, b"b" in cache, cache.total_bytes) == (False, True, 6)


@pytest.mark.parametrize("limits", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_limits_of_nothing_are_refused(limits: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidArgument, match="1 byte"):
        BlobCache(BlobLimits(*limits))


@given(
    st.lists(st.tuples(st.binary(max_size=7), st.binary(max_size=9))),
    st.sampled_from(Select),
    st.sampled_from(Capacity),
)
def test_the_limit_holds_whatever_is_stored(
    entries: list[tuple[bytes, bytes]], select: Select, capacity: Capacity
) -> None:
    cache = BlobCache(LIMITS, select=select, capacity=capacity, seed=1)
    for key, value in entries:
        stored = cache.set(key, value)
        assert not stored or cache.get(key) == value
        assert cache.total_bytes <= LIMITS.max_total


@given(blobs)
def test_flattening_keeps_everything(entries: dict[bytes, bytes]) -> None:
    block = filled(entries).flatten()
    assert len(block) % 8 == 0
    other = BlobCache(ROOMY)
    other.unflatten(block)
    assert {key: other.get(key) for key in entries} == entries
    assert (len(other), other.flatten()) == (len(entries), block)


def test_the_flattened_form_is_the_documented_one() -> None:
    block = filled({b"bb": b"1", b"a": b"23"}, build_id="b1").flatten()
    header = b"$bB_" + b"\3\0\0\0\1\0\0\0" + bytes(4) + b"\2" + bytes(7) + b"\2\0\0\0b1" + bytes(2)
    first = b"\1" + bytes(7) + b"\2" + bytes(7) + b"a23" + bytes(5)
    second = b"\2" + bytes(7) + b"\1" + bytes(7) + b"bb1" + bytes(5)
    assert block == header + first + second


def test_another_build_or_version_is_an_empty_cache() -> None:
    block = filled({b"a": b"b"}, build_id="one").flatten()
    other = BlobCache(ROOMY, build_id="two")
    other.unflatten(block)
    assert len(other) == 0
    same = BlobCache(ROOMY, build_id="one")
    for offset in (4, 8):
        same.unflatten(block[:offset] + b"\x09" + block[offset + 1 :])
        assert len(same) == 0
    same.unflatten(block)
    assert len(same) == 1


@pytest.mark.parametrize("length", [0, 1, 31, 40, 47, 50])
def test_a_block_that_ends_early_is_refused(length: int) -> None:
    block = filled({b"abc": b"d" * 20}).flatten()
    cache = filled({b"old": b"old"})
    with pytest.raises(InvalidArgument, match="blob cache"):
        cache.unflatten(block[:length])
    assert len(cache) == 0


@given(blobs, st.data())
def test_a_damaged_block_is_refused_or_within_the_limits(
    entries: dict[bytes, bytes], data: st.DataObject
) -> None:
    block = bytearray(filled(entries).flatten())
    for _ in range(3):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
    cache = BlobCache(LIMITS)
    try:
        cache.unflatten(bytes(block))
    except InvalidArgument:
        assert len(cache) == 0
    assert cache.total_bytes <= LIMITS.max_total


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_loaded(block: bytes) -> None:
    with pytest.raises(InvalidArgument):
        BlobCache(ROOMY).unflatten(block)


def plain_crc32c(data: bytes) -> int:
    """Bit by bit, as it is defined."""
    state = 0
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state


@given(st.binary(max_size=600))
def test_the_checksum_is_the_one_of_its_definition(data: bytes) -> None:
    assert crc32c(data) == plain_crc32c(data)


def test_the_checksum_of_many_lanes() -> None:
    data = np.random.default_rng(1).bytes(70_001)
    assert crc32c(data) == plain_crc32c(data)
    assert crc32c(b"") == crc32c(bytes(100)) == 0


@pytest.mark.parametrize("key", [None, b"secret"])
def test_a_saved_cache_is_loaded(tmp_path: Path, key: bytes | None) -> None:
    path = tmp_path / "blobs"
    cache = BlobCache(ROOMY)
    assert "No such file" in load_blobs(cache, path, key=key)
    for entries in ({b"a": b"1"}, {b"a": b"2", b"b": b"3"}):
        assert save_blobs(filled(entries), path, key=key) == ""
        assert load_blobs(cache, path, key=key) == ""
        assert {name: cache.get(name) for name in entries} == entries
    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("key", [None, b"secret"])
def test_every_damaged_byte_of_the_file_is_noticed(tmp_path: Path, key: bytes | None) -> None:
    path = tmp_path / "blobs"
    save_blobs(filled({b"a": b"1", b"b": b"2"}), path, key=key)
    path.chmod(0o600)
    content = path.read_bytes()
    cache = filled({b"old": b"old"})
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << random.Random(position).randrange(8)
        path.write_bytes(damaged)
        assert load_blobs(cache, path, key=key) == "the file is not a blob cache, or was modified"
        assert len(cache) == 0
    for length in range(len(content)):
        path.write_bytes(content[:length])
        assert load_blobs(cache, path, key=key)


def test_a_file_under_another_key_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "blobs"
    save_blobs(filled({b"a": b"1"}), path, key=b"secret")
    for key in (None, b"other"):
        assert "modified" in load_blobs(BlobCache(ROOMY), path, key=key)


def test_a_file_above_twice_the_limit_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "blobs"
    path.write_bytes(bytes(2 * LIMITS.max_total + 1))
    assert "more than 26 bytes" in load_blobs(BlobCache(LIMITS), path)


@pytest.mark.parametrize("trap", ["folder", "pipe", "link", "missing/folder", "nul\0"])
def test_what_is_no_file_is_not_loaded(tmp_path: Path, trap: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("elsewhere")
    assert load_blobs(BlobCache(LIMITS), tmp_path / trap)
    if trap != "pipe" and trap != "link":
        assert save_blobs(BlobCache(LIMITS), tmp_path / trap)
