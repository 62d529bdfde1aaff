"""Headers found again by their bytes: which are remembered, and how many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.serving.known_heads import KnownHead, KnownHeads, head_in

pytestmark = pytest.mark.one_loop("no loop has a part in it")

HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n"
KNOWN = KnownHead(("m", ""), {b"host": b"x", b"content-length": b"3"}, 3)


def noted(head: bytes) -> KnownHead | None:
    heads = KnownHeads()
    heads.note(head, KNOWN)
    return heads.find(head)


@given(rest=st.binary(max_size=40))
def test_a_header_ends_at_the_first_empty_line(rest: bytes) -> None:
    assert head_in(HEAD + rest) == HEAD


@given(cut=st.integers(0, len(HEAD) - 1))
def test_a_part_of_a_header_is_none(cut: int) -> None:
    assert head_in(HEAD[:cut]) == b""


def test_a_long_header_is_not_looked_for() -> None:
    assert head_in(b"POST / HTTP/1.1\r\nx: " + b"y" * 2000 + b"\r\n\r\n") == b""


def test_what_was_noted_is_found_by_the_same_bytes_only() -> None:
    heads = KnownHeads()
    heads.note(HEAD, KNOWN)
    assert heads.find(head_in(HEAD + b"abc")) is KNOWN
    assert heads.find(HEAD.replace(b"host: x", b"host: y")) is None


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\ncontent-length: 3\n\nbody\r\n\r\n",
        b"\r\n\r\n",
        b"\r\n" + HEAD,
        HEAD.replace(b"POST", b"GET"),
        HEAD.replace(b"\r\nhost", b"\nhost"),
    ],
)
def test_what_a_parser_may_end_elsewhere_is_not_remembered(head: bytes) -> None:
    assert noted(head) is None


def test_the_oldest_are_forgotten() -> None:
    heads = KnownHeads()
    names = [HEAD.replace(b"host: x", b"host: %d" % number) for number in range(1000)]
    for name in names:
        heads.note(name, KNOWN)
    found = [name for name in names if heads.find(name) is not None]
    assert found == names[-256:]
