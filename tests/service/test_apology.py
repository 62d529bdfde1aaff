"""Why a driver could not be made is told by its process to the application."""

from __future__ import annotations

import socket

import pytest

import nnasync as nn
from nnasync._core.drivers.service.greeting import hello
from nnasync._core.service.apology import apologize
from nnasync._core.wire.connection import Connection
from nnasync._core.wire.messages import Answer, Failed, decode, encode
from nnasync.errors import DeviceUnavailable, GeneralFailure

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop("The loop has no part in it."),
    pytest.mark.usefixtures("no_leaks"),
]


async def test_an_isolated_driver_that_cannot_be_made_says_why() -> None:
    target = "tests.service.counted_driver:broken"
    with pytest.raises(DeviceUnavailable, match="ValueError: the card is upside down"):
        async with nn.open_runtime(devices=[target], isolate=[target]):
            pass


def test_the_greeting_is_answered_with_the_error() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Connection(ours, "the service")
        connection.send(encode(hello(7)))
        apologize(theirs, GeneralFailure("no card"))
        frames = connection.receive()
        assert frames is not None
        (frame,) = frames
        answer = decode(frame.message, Answer)
        assert answer.call == 7
        assert isinstance(answer.value, Failed)
        assert answer.value.text == "no card"


@pytest.mark.parametrize("sent", [b"nonsense", None])
def test_what_is_no_greeting_is_not_answered(sent: bytes | None) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if sent is None:
            ours.shutdown(socket.SHUT_WR)
        else:
            Connection(ours, "the service").send(sent)
        apologize(theirs, GeneralFailure("no card"))
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            ours.recv(1)
