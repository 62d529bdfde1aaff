"""What comes from the process that holds contests is checked as if a stranger had sent it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from nnasync._core.compilation.choice import Choice, Part
from nnasync._core.compilation.contest_messages import (
    Ask,
    Held,
    Talk,
    Trying,
    Unheld,
    read_answer,
    read_ask,
)
from nnasync._core.compilation.report import Rejection
from nnasync._core.compilation.verdicts import Question
from nnasync.errors import DeviceDied, GeneralFailure
from nnasync.hal import ErrorStatus, Priority

QUESTION = Question(
    model="abc",
    devices=(("a", "1"), ("b", "1")),
    judge="b 1",
    preference=1,
    precision=None,
    cores=2,
)
ASK = Ask(("a", "b"), (), QUESTION, Priority.MEDIUM, 1000, 1.0, None)
HELD = Held(
    chosen=Choice((Part("b", "1"),)),
    reason="fastest",
    median_ns=1.5,
    candidates=(),
    rejections=(Rejection("a", -1, "no"),),
    crowding=1.0,
    unprepared={"a": (ErrorStatus.GENERAL_FAILURE, "broken")},
    is_final=True,
)


def packed(message: Any) -> bytes:
    return msgspec.msgpack.encode(message)


@pytest.mark.parametrize("answer", [HELD, Trying("a"), Unheld("no")])
def test_an_answer_arrives_as_it_was_sent(answer: Any) -> None:
    assert read_answer(packed(answer), ASK) == answer


def test_a_question_arrives_as_it_was_sent() -> None:
    assert read_ask(packed(ASK)) == ASK


@pytest.mark.parametrize(
    "changes",
    [
        {"chosen": Choice(())},
        {"chosen": Choice((Part("a", "1"), Part("b", "1")))},
        {"median_ns": float("nan")},
        {"median_ns": -1.0},
        {"crowding": 0.5},
        {"crowding": float("inf")},
        {"rejections": (Rejection("a", -1, "no"),) * 5000},
    ],
    ids=str,
)
def test_an_answer_that_makes_no_sense_is_refused(changes: Any) -> None:
    with pytest.raises(GeneralFailure):
        read_answer(packed(msgspec.structs.replace(HELD, **changes)), ASK)


@pytest.mark.parametrize("message", [b"", b"\xc1", packed({"type": "Held"}), packed([1]) * 3])
def test_what_is_no_message_is_refused(message: bytes) -> None:
    with pytest.raises(GeneralFailure):
        read_answer(message, ASK)
    with pytest.raises(GeneralFailure):
        read_ask(message)


@pytest.fixture
def ends() -> Iterator[tuple[Talk, Talk]]:
    """Both ends of a connection."""
    one, other = (Talk(sock, "the other") for sock in socket.socketpair())
    yield one, other
    one.close()
    other.close()


def test_messages_come_one_by_one_and_then_the_end(ends: tuple[Talk, Talk]) -> None:
    one, other = ends
    one.send(ASK)
    one.send(Trying("a"))
    frames = [other.receive(10), other.receive(10)]
    assert [frame and frame.message for frame in frames] == [packed(ASK), packed(Trying("a"))]
    one.close()
    assert other.receive(10) is None


def test_silence_ends_the_patience(ends: tuple[Talk, Talk]) -> None:
    with pytest.raises(TimeoutError, match="the other said nothing"):
        ends[0].receive(0)


def test_who_is_gone_hears_nothing(ends: tuple[Talk, Talk]) -> None:
    ends[1].close()
    with pytest.raises(DeviceDied):
        ends[0].send(Unheld("no"))
