"""What an application and the process that holds its contests say to each other.

The application asks one question at a time and sends the model as a file. The process says whom it
is about to try, so that it is known who ended it if it ends, and then what came of the contest.
Either end waits on a thread. Whatever arrives is checked as if a stranger had sent it.
"""

from __future__ import annotations

import math
import select
import socket
from collections import deque
from collections.abc import Sequence

import msgspec

from nnasync._core.clock import now_ns
from nnasync._core.compilation.choice import Choice, is_sound
from nnasync._core.compilation.promise import Promise
from nnasync._core.compilation.report import Candidate, Rejection
from nnasync._core.compilation.verdicts import Question
from nnasync._core.wire.connection import Connection, Frame
from nnasync.errors import GeneralFailure
from nnasync.hal import ErrorStatus, Priority
from nnasync.hal.decoders import msgpack_decoder

_MAX_LINES = 4096


class Ask(msgspec.Struct, frozen=True):
    """Asks for a contest; the model comes as a file beside this message.

    devices: the names by which the devices are made. left_out: those of them that may not compete.
    question: what the verdict will be on; both ends must have the same devices. remaining_ns: the
    time until the deadline, if there is one. cpu_ns: the processor time that it may take, 0 for
    any; with it the process runs in the system's idle class. only: those that compete, empty for
    all. has_whole: whether the file as one operation comes behind the model. promises: what is
    known of contenders from models of the same kind.
    """

    devices: tuple[str, ...]
    left_out: tuple[str, ...]
    question: Question
    priority: Priority
    budget_ns: int
    patience_s: float
    remaining_ns: int | None
    cpu_ns: int = 0
    only: tuple[Choice, ...] = ()
    has_whole: bool = False
    promises: tuple[Promise, ...] = ()


class Trying(msgspec.Struct, frozen=True, tag=True):
    """Names the device that is about to prepare or run the model."""

    device: str


class Held(msgspec.Struct, frozen=True, tag=True):
    """Tells what came of a contest, and who was chosen.

    crowding: see `circumstances`. unprepared: the devices that failed to prepare the model, with
    the status and the words of what they raised. is_final: whether the contest came to its end.
    untried: who did not compete since the processor time was used up.
    """

    chosen: Choice
    reason: str
    median_ns: float | None
    candidates: tuple[Candidate, ...]
    rejections: tuple[Rejection, ...]
    crowding: float
    unprepared: dict[str, tuple[ErrorStatus, str]]
    is_final: bool
    untried: tuple[Choice, ...] = ()


class Unheld(msgspec.Struct, frozen=True, tag=True):
    """Tells why there was no contest."""

    reason: str


Answer = Trying | Held | Unheld


def read_ask(message: bytes) -> Ask:
    """Returns the question in a message; raises GeneralFailure for what is none."""
    try:
        return msgpack_decoder(Ask).decode(message)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise GeneralFailure(f"this asks for no contest: {error}") from error


def read_answer(message: bytes, ask: Ask) -> Answer:
    """Returns the answer in a message; raises GeneralFailure for what is none to this question."""
    try:
        answer: Answer = msgpack_decoder(Answer).decode(message)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise GeneralFailure(f"this tells of no contest: {error}") from error
    if isinstance(answer, Held) and not _is_sound(answer, ask):
        raise GeneralFailure("what is told of the contest makes no sense")
    return answer


def _is_sound(held: Held, ask: Ask) -> bool:
    median_ns = held.median_ns
    return (
        is_sound(held.chosen)
        and max(len(held.candidates), len(held.rejections), len(held.untried)) <= _MAX_LINES
        and 1 <= held.crowding < math.inf
        and (median_ns is None or 0 <= median_ns < math.inf)
    )


class Talk:
    """Sends and receives messages at one end of a connection, for a thread that may wait."""

    def __init__(self, sock: socket.socket, who: str) -> None:
        """Takes the socket over; `who` is at the other end."""
        self._who = who
        self._connection = Connection(sock, who)
        self._frames: deque[Frame] = deque()

    def send(self, message: Answer | Ask, fds: Sequence[int] = ()) -> None:
        """Send a message and descriptors; raises DeviceDied where the other end is gone."""
        self._connection.send(msgspec.msgpack.encode(message), fds)
        while self._connection.has_waiting:
            self._wait(select.POLLOUT, None)
            self._connection.flush()

    def receive(self, patience_s: float) -> Frame | None:
        """Returns the next message, None at the end of the connection.

        Raises TimeoutError, and GeneralFailure for a broken message. The descriptors of the frame
        belong to the caller.
        """
        until_ns = now_ns() + int(patience_s * 1e9)
        while not self._frames:
            left_s = (until_ns - now_ns()) / 1e9
            if left_s < 0 or not self._wait(select.POLLIN, left_s):
                raise TimeoutError(f"{self._who} said nothing for {patience_s:g} s")
            frames = self._connection.receive()
            if frames is None:
                return None
            self._frames += frames
        return self._frames.popleft()

    def close(self) -> None:
        """Close the connection, and what has arrived and was not asked for."""
        for frame in self._frames:
            frame.close()
        self._frames.clear()
        self._connection.close()

    def _wait(self, events: int, patience_s: float | None) -> bool:
        poller = select.poll()
        poller.register(self._connection.socket, events)
        return bool(poller.poll(None if patience_s is None else patience_s * 1e3))
