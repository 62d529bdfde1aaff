"""Tokens, slots and file names."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.cache.keys import (
    CacheKey,
    FileKind,
    check_counts,
    derive_token,
    file_name,
    file_names,
    operations_digest,
    slot,
    token_of,
)
from nnasync.errors import InvalidArgument
from nnasync.hal import ExecutionPreference, Priority
from tests.cache.entries import KEY

tokens = st.binary(min_size=32, max_size=32)
keys = st.builds(
    CacheKey,
    token=tokens,
    device_name=st.text(max_size=4),
    device_version=st.text(max_size=4),
    library_version=st.just("0.1"),
    preference=st.sampled_from(ExecutionPreference),
    priority=st.sampled_from(Priority),
    step=st.integers(0, 3),
    operations=st.binary(max_size=3),
    variant=st.text(max_size=3),
)


@given(keys, keys)
def test_different_keys_have_different_tokens(one: CacheKey, other: CacheKey) -> None:
    assert (derive_token(one) == derive_token(other)) == (one == other)
    assert len(derive_token(one)) == 32


@pytest.mark.parametrize(
    "change",
    [
        {"token": b"\xff" * 32},
        {"preference": ExecutionPreference.LOW_POWER},
        {"priority": Priority.HIGH},
        {"device_name": "devic"},
        {"device_version": "1.1"},
        {"step": 1},
        {"operations": b"\1"},
        {"variant": "bf16"},
        {"device_name": "device1", "device_version": ".0"},
    ],
)
def test_every_field_changes_the_token(change: dict[str, Any]) -> None:
    changed = msgspec.structs.replace(KEY, **change)
    assert derive_token(changed) != derive_token(KEY)
    assert (slot(changed) == slot(KEY)) == (change.keys() == {"device_version"})


def test_the_library_version_is_checked_and_does_not_name_files() -> None:
    newer = msgspec.structs.replace(KEY, library_version="0.2")
    assert derive_token(newer) == derive_token(KEY)


def test_a_token_is_the_same_in_every_process() -> None:
    expected = "7bbbb442596059f854edb488099355586b3859e0abef98b98a11b68157ca8437"
    assert derive_token(KEY).hex() == expected


@pytest.mark.parametrize("token", [b"", b"x" * 31, b"x" * 33, "x" * 32, None, bytearray(32)])
def test_a_token_of_another_length_is_refused(token: Any) -> None:
    with pytest.raises(InvalidArgument, match="32 bytes"):
        CacheKey(token, "device", "1", "0.1")


@pytest.mark.parametrize("step", [-1, 2**31])
def test_a_step_outside_its_range_is_refused(step: int) -> None:
    with pytest.raises(InvalidArgument, match="step"):
        CacheKey(b"t" * 32, "device", "1", "0.1", step=step)


@pytest.mark.parametrize("counts", [(0, 0), (32, 32), (0, 1)])
def test_counts_within_the_limit_are_accepted(counts: tuple[int, int]) -> None:
    check_counts(counts)


@pytest.mark.parametrize("counts", [(33, 0), (0, 33), (-1, 0)])
def test_counts_beyond_the_limit_are_refused(counts: tuple[int, int]) -> None:
    with pytest.raises(InvalidArgument, match="0 to 32"):
        check_counts(counts)


def test_names_have_the_low_half_byte_first() -> None:
    assert file_name(b"\x3f" * 32, FileKind.MODEL, 7) == "PD" * 32 + "17"
    assert file_name(b"\x01\xa0" * 16, FileKind.DATA, 31) == "BAAK" * 16 + "231"


@given(tokens, st.sampled_from(FileKind), st.integers(0, 31))
def test_a_name_tells_its_token(token: bytes, kind: FileKind, index: int) -> None:
    assert token_of(file_name(token, kind, index)) == token


@pytest.mark.parametrize(
    "name",
    [
        "",
        "A" * 64,
        "A" * 66,
        "A" * 64 + "30",
        "A" * 64 + "132",
        "A" * 64 + "101",
        "A" * 63 + "Q10",
        "x" + "A" * 64 + "10",
        "A" * 64 + "10\n",
        "A" * 64 + "1²",
    ],
)
def test_other_names_have_no_token(name: str) -> None:
    assert token_of(name) is None


def test_all_names_of_an_entry() -> None:
    names = file_names(b"\0" * 32, (2, 1))
    assert [name[64:] for name in names] == ["10", "11", "20"]


def test_operations_are_told_apart_by_order_and_source() -> None:
    digests = {
        operations_digest(pairs)
        for pairs in ([], [(0, 1)], [(1, 0)], [(0, 1), (0, 2)], [(0, 2), (0, 1)])
    }
    assert len(digests) == 5
