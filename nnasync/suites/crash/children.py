"""Children of the coordinator: processes with time limits, which may die or hang and cost no other.

Each is the leader of a session of its own, so that Ctrl-C reaches the coordinator alone, and what a
child has started itself goes with it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import anyio
import msgspec

from nnasync._core.child_process import ChildProcess, ending
from nnasync.errors import GeneralFailure
from nnasync.hal import Struct
from nnasync.suites.crash.orders import (
    ChildAt,
    ChildBegun,
    ChildMessage,
    ChildReport,
    CrashOrder,
)
from nnasync.suites.results import Standing

MAX_MESSAGE_BYTES = 1 << 22
START_LIMIT_S = 120.0
"""A child that is not at work by then hangs: an engine may take long to load."""
WORKER = ("-m", "nnasync.suites.crash.worker")

_messages: msgspec.json.Decoder[ChildMessage] = msgspec.json.Decoder(ChildMessage)
_encode = msgspec.json.Encoder().encode


class ChildEnd(Struct, frozen=True):
    """How a child ended: its standing, why, what it was at, its report if it made one.

    `code` is that of its process, None where it still ran and had to be killed.
    """

    standing: Standing
    text: str
    at: str = ""
    report: ChildReport | None = None
    code: int | None = None


class CrashChild:
    """A process that carries out one order; to be used with `async with`."""

    def __init__(
        self, order: CrashOrder, *, heard: Callable[[ChildMessage], object] = lambda _: None
    ) -> None:
        self._order = order
        self._heard = heard
        self._at = ""
        self._end: ChildEnd | None = None
        self._steps = 0
        self.has_begun = anyio.Event()
        self.has_gone_round = anyio.Event()
        self.has_ended = anyio.Event()

    async def __aenter__(self) -> CrashChild:
        self._process = await ChildProcess.start(WORKER, errors=subprocess.DEVNULL)
        with anyio.CancelScope(shield=True):
            await self._process.say(_encode(self._order))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._process.close()

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    @property
    def end(self) -> ChildEnd:
        """Returns how the child ended; one that still runs has not failed."""
        return self._end or ChildEnd(Standing.SUCCESS, "", self._at)

    def kill(self) -> None:
        """Kill the process and all that it started."""
        self._process.kill()

    async def ask_to_end(self) -> None:
        """Ask it to come to an end."""
        await self._process.say(b"end")

    async def follow(self, limit_s: float) -> ChildEnd:
        """Follow it to its end, at most so long from when it is at work; then it is killed."""
        try:
            self._end = await self._followed(limit_s)
        finally:
            for event in (self.has_begun, self.has_gone_round, self.has_ended):
                event.set()
        return self._end

    async def _followed(self, limit_s: float) -> ChildEnd:
        report: ChildReport | None = None
        with anyio.move_on_after(START_LIMIT_S) as scope:
            while report is None:
                message = await self._next()
                if message is None:
                    return await self._dead()
                self._heard(message)
                if isinstance(message, ChildBegun):
                    scope.deadline = anyio.current_time() + limit_s
                    self.has_begun.set()
                elif isinstance(message, ChildAt):
                    self._at = message.text
                    self._steps += 1
                    if self._steps > 1:
                        self.has_gone_round.set()
                elif isinstance(message, ChildReport):
                    report = message
        if report is None:
            self.kill()
            text = f"no end within {limit_s:g} s"
            if not self.has_begun.is_set():
                text = f"it did not begin within {START_LIMIT_S:g} s"
            return ChildEnd(Standing.HANG, text + self._where(), self._at)
        return await self._reported(report)

    async def _reported(self, report: ChildReport) -> ChildEnd:
        """Returns how a child with a report ended, even if it died or hung in its clean-up."""
        code: int | None = None
        with anyio.move_on_after(START_LIMIT_S):
            code = await self._process.ended()
        if code is None:
            self.kill()
            return ChildEnd(Standing.HANG, "the process does not end", self._at, report)
        if code < 0:
            text = f"the process died while it ended: {ending(code)}"
            return ChildEnd(Standing.CRASH, text, self._at, report, code)
        standing = Standing.FAILURE if report.failures else Standing.SUCCESS
        return ChildEnd(standing, "; ".join(report.failures), self._at, report, code)

    async def _dead(self) -> ChildEnd:
        code = await self._process.ended()
        text = f"the process died: {ending(code)}{self._where()}"
        return ChildEnd(Standing.CRASH, text, self._at, None, code)

    def _where(self) -> str:
        return f", at: {self._at}" if self._at else ""

    async def _next(self) -> ChildMessage | None:
        line = await self._process.line(MAX_MESSAGE_BYTES)
        try:
            return None if line is None else _messages.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise GeneralFailure(f"a child said what is no message: {error}") from None
