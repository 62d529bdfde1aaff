"""Calls that wait for others, or run with them, each with a deadline and an answer of its own."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import anyio

from nnasync import errors
from nnasync._core.clock import Deadline, now_ns
from nnasync.batching.rule import Waiting
from nnasync.errors import because
from nnasync.hal import Array, Priority


class Member:
    """A call that waits or runs with others."""

    def __init__(
        self, arrays: Sequence[Array], rows: int, arrived_ns: int, deadline: Deadline | None
    ) -> None:
        self.arrays = arrays
        self.deadline = deadline
        due_ns = math.inf if deadline is None else deadline.at_ns
        self.due = Waiting(rows, arrived_ns, due_ns)
        self.run: Run | None = None
        self.is_gone = self.is_repeated = False
        self._done = anyio.Event()
        self._value: Any = None
        self._error: Exception | None = None

    @property
    def is_answered(self) -> bool:
        """Returns whether the call has its value or its error."""
        return self._done.is_set()

    def succeed(self, value: Any) -> None:
        """Answers the call with a value."""
        self._value = value
        self._done.set()

    def fail(self, error: Exception) -> None:
        """Answers the call with a copy of the error: others may raise the same one."""
        self._error = copy.copy(error)
        self._done.set()

    async def answer(self) -> Any:
        """Waits for the answer, until the deadline at the latest."""
        while not self._done.is_set():
            left_s = (self.due.deadline_ns - now_ns()) / 1e9
            if left_s <= 0:
                raise self._missed()
            with anyio.move_on_after(left_s):
                await self._done.wait()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # Its traceback has this frame.
        return self._value

    def _missed(self) -> errors.MissedDeadline:
        if self.run is not None:
            text = "the deadline passed while the call ran together with others"
            return because("running", errors.MissedDeadlineTransient(text))
        text = "the deadline passed while the call waited to be joined"
        return because("queue", errors.MissedDeadlinePersistent(text))


class Run:
    """Calls that run as one; it is cancelled when the last of them is gone."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.scope = anyio.CancelScope()
        self._left = len(members)
        for member in members:
            member.run = self

    def leave(self) -> None:
        """Notes that one of the calls is gone."""
        self._left -= 1
        if self._left == 0:
            self.scope.cancel()


class Queue:
    """Calls that can go together: those that wait, and how many runs are under way."""

    def __init__(self, priority: Priority | None) -> None:
        self.priority = priority
        self.members: list[Member] = []
        self.running = 0
        self.looks_at_ns: float = math.inf

    @property
    def is_used(self) -> bool:
        """Returns whether any call waits or runs, or the queue is to be looked at later."""
        return bool(self.members) or self.running > 0 or self.looks_at_ns < math.inf

    def leave(self, member: Member) -> None:
        """Notes that a call is answered, or gave up."""
        member.is_gone = True
        if member in self.members:
            self.members.remove(member)
        elif member.run is not None and not member.is_answered:
            member.run.leave()

    def close(self) -> None:
        """Answers those that wait with an error."""
        for member in self.members:
            member.fail(closed())
        self.members.clear()


def closed() -> errors.DeviceUnavailable:
    """Returns the error of calls that are there when the batcher is closed, or come later."""
    return because("closing", errors.DeviceUnavailable("the batcher is closed"))
