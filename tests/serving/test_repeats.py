"""Messages found again by what is ahead of their elements: which, and how many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nnasync.serving.messages import InferRequest
from nnasync.serving.repeats import Repeat, Repeats

pytestmark = pytest.mark.one_loop("no loop has a part in it")

MODEL: Any = None


def repeat(offset: int, size: int) -> Repeat:
    """What would be known of a message of so many bytes."""
    request = InferRequest("m")
    return Repeat(MODEL, request, np.dtype("B"), (size - offset,), offset, size, (b"",), False)


def test_a_message_is_found_by_what_is_ahead_and_by_its_length() -> None:
    repeats, known = Repeats(), repeat(3, 5)
    repeats.note(b"abcde", known)
    assert repeats.find(b"abcxy") is known
    assert repeats.find(b"abXxy") is None
    assert repeats.find(b"abcde?") is None
    repeats.note(b"xyz????", repeat(3, 7))
    assert repeats.find(b"abcdefg") is None


def test_the_last_one_of_a_length_says_where_elements_begin() -> None:
    repeats = Repeats()
    repeats.note(b"abcde", repeat(3, 5))
    repeats.note(b"ab345", known := repeat(2, 5))
    assert repeats.find(b"ab???") is known
    assert repeats.find(b"abcde") is known
    assert repeats.find(b"cdefg") is None


def test_what_is_long_ahead_is_not_remembered() -> None:
    repeats, message = Repeats(), bytes(1100)
    repeats.note(message, repeat(1025, 1100))
    assert repeats.find(message) is None
    repeats.note(message, known := repeat(1024, 1100))
    assert repeats.find(message) is known


def test_what_was_met_once_is_not_worth_remembering() -> None:
    repeats = Repeats()
    assert not repeats.meets_again(b"abcde", 2)
    assert not repeats.meets_again(b"abXde", 2)
    assert not repeats.meets_again(b"abcde", 3)
    assert repeats.meets_again(b"abcXX", 2)
    repeats.clear()
    assert not repeats.meets_again(b"abcde", 2)
    for _ in range(2):
        assert not repeats.meets_again(bytes(1100), 75), "that is long ahead"
    assert not repeats.meets_again(bytes(1100), 76)
    assert repeats.meets_again(bytes(1100), 76)


def test_those_that_were_met_once_push_nothing_out_and_are_so_many_at_most() -> None:
    repeats, known = Repeats(), repeat(5, 5)
    repeats.note(b"known", known)
    messages = [b"%05d" % number for number in range(1000)]
    assert not any(repeats.meets_again(message, 0) for message in messages)
    assert repeats.find(b"known") is known
    assert not repeats.meets_again(messages[0], 0)
    assert repeats.meets_again(messages[-1], 0)


def test_there_are_so_many_at_most() -> None:
    repeats = Repeats()
    messages = [b"%05d" % number for number in range(1000)]
    for message in messages:
        repeats.note(message, repeat(5, 5))
    found = [message for message in messages if repeats.find(message) is not None]
    assert found
    assert len(found) <= 256
    assert messages[-1] in found
