"""A fuzzing process as its parent has it: given tasks, listened to, watched, and mourned.

A process that ends has crashed at the input that it began last. One that does not go on for too
long hangs, and one that has too much memory is ended before the machine has none: both are killed.
"""

from __future__ import annotations

import math
import re
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import IO

import anyio
import msgspec

from nnasync._core.child_process import ChildProcess, ending
from nnasync.errors import DeviceDied, GeneralFailure, InvalidArgument
from nnasync.suites.fuzz import usage
from nnasync.suites.fuzz.board import Board, board_file
from nnasync.suites.fuzz.conversation import (
    MAX_LINE_BYTES,
    Begun,
    Done,
    Guided,
    Ready,
    Said,
    Setting,
    Stretch,
    Task,
    TaskEnded,
    Unfit,
)
from nnasync.suites.fuzz.verdicts import Broken, Ending, InputResult

WORKER = ("-m", "nnasync.suites.fuzz.worker")
_START_S = 120.0
_WATCH_S = 0.25
_TOLD_BYTES = 1 << 20
_SLACK_BYTES = 512 << 20
_said: msgspec.json.Decoder[Said] = msgspec.json.Decoder(Said)


Count = Callable[[Counter[Ending]], object]
"""Is told of inputs that are over, as they come."""


class Child:
    """A process in which inputs are tried."""

    def __init__(
        self,
        setting: Setting,
        process: ChildProcess,
        board: Board,
        errors: IO[bytes],
        limit_s: float,
    ) -> None:
        self._setting = setting
        self._process = process
        self._board = board
        self._counted = Counter[Ending]()
        self._count: Count | None = None
        self._errors = errors
        self._limit_s = limit_s
        self._most_bytes = math.inf
        self._killed: Broken | None = None
        self._is_in_stretch = False
        self.begun: Begun | None = None

    async def ready(self, fd: int) -> None:
        """Wait for the device; raises InvalidArgument with why there is none, DeviceDied.

        `fd` is the descriptor of the board.
        """
        await self._send(fd)
        await self._send(self._setting)
        said = await self._hear(_START_S)
        if isinstance(said, Unfit):
            raise InvalidArgument(said.reason)
        if not isinstance(said, Ready):
            code = await self._end()
            raise DeviceDied(
                f"device {self._setting.device} does not start in a process of its own:"
                f" {ending(code)}{self._last_words()}"
            )
        resident = usage.resident_bytes(self._process.pid)
        if resident:
            self._most_bytes = resident + self._setting.memory_bytes + _SLACK_BYTES

    async def does(
        self, task: Task, done: Callable[[Begun, InputResult], object], count: Count | None = None
    ) -> TaskEnded | None:
        """Have a task carried out; None where the process was lost in it, and `done` heard why.

        Of a stretch `done` hears of what is broken, and `count` of the other inputs.
        """
        self.begun, self._count = None, count
        self._is_in_stretch = isinstance(task, Stretch)
        await self._send(task)
        try:
            return await self._listen(task, done)
        finally:
            self._is_in_stretch = False
            self._tell()

    async def _listen(
        self, task: Task, done: Callable[[Begun, InputResult], object]
    ) -> TaskEnded | None:
        is_stretch = isinstance(task, Stretch)
        while True:
            said = await self._hear(math.inf if is_stretch else self._limit_s)
            if isinstance(said, Begun):
                self.begun = said
            elif isinstance(said, Done):
                begun, self.begun = self.begun or Begun(said.number, said.part), None
                done(begun, said.result)
            elif isinstance(said, TaskEnded):
                return said
            elif isinstance(said, Unfit):
                raise InvalidArgument(said.reason)
            elif said is None:
                code = await self._end()
                if isinstance(task, Guided) and code == 0:
                    return TaskEnded()
                if is_stretch and self._board.is_busy:
                    self.begun = Begun(*self._board.place)
                if self.begun is None:
                    # As where it lets go of the model of the last input.
                    text = self._verdict(code).text
                    raise DeviceDied(f"a fuzzing process was lost between inputs: {text}")
                done(self.begun, self._verdict(code))
                return None

    def _tell(self) -> None:
        """Tell of the inputs that are over since it was told last."""
        ended = self._board.endings()
        if self._count is not None and ended != self._counted:
            self._count(ended - self._counted)
        self._counted = ended

    async def _hear(self, limit_s: float) -> Said | None:
        """The next line; None at the end, whoever made it."""
        with anyio.move_on_after(limit_s) as scope:
            line = await self._process.line(MAX_LINE_BYTES)
            if line is None:
                return None
            try:
                return _said.decode(line)
            except msgspec.MsgspecError as error:
                raise GeneralFailure(f"a fuzzing process said no message: {error}") from error
        if scope.cancelled_caught:
            self.kill(Broken.HANG)
        return None

    def kill(self, why: Broken) -> None:
        """End the process for a broken promise."""
        if not self._process.is_over:
            self._killed = self._killed or why
            self._process.kill()

    async def watch(self) -> None:
        """End the process where it has too much memory or does not go on; runs beside it."""
        known, since_s = None, time.monotonic()
        while not self._process.is_over:
            if usage.resident_bytes(self._process.pid) > self._most_bytes:
                self.kill(Broken.MEMORY)
                return
            now_s = time.monotonic()
            state = (*self._board.place, self._board.is_busy) if self._is_in_stretch else None
            if state is None or state != known:
                known, since_s = state, now_s
            elif now_s - since_s > self._limit_s:
                self.kill(Broken.HANG)
                return
            self._tell()
            await anyio.sleep(_WATCH_S)

    def _verdict(self, code: int) -> InputResult:
        if self._killed is Broken.HANG:
            return InputResult(broken=Broken.HANG, text=f"no answer within {self._limit_s:g} s")
        if self._killed is Broken.MEMORY:
            most = self._setting.memory_bytes >> 20
            return InputResult(broken=Broken.MEMORY, text=f"it takes more than {most} MiB")
        text = f"the process ended: {ending(code)}{self._last_words()}"
        return InputResult(broken=Broken.CRASH, text=text)

    def _last_words(self) -> str:
        """Returns the process's last words in one line: a sanitizer's report, or its stack."""
        size = self._errors.seek(0, 2)
        self._errors.seek(max(0, size - _TOLD_BYTES))
        everything = text = self._errors.read().decode(errors="replace").strip()
        found = re.findall(
            r"^.*(?:ERROR: \w*Sanitizer|SUMMARY: |runtime error:|terminate called|what\(\):).*$",
            text,
            re.MULTILINE,
        )[:3]
        text = text.rpartition("Current thread ")[2]
        stack = re.findall(r'^  File ".*?([^/"]+)", line (\d+) in (\w+)', text, re.MULTILINE)[:2]
        found += [f"{name}:{line} {function}" for name, line, function in stack]
        found = found or everything.split("\n")[-1:]
        return "".join(f"; {' '.join(line.split())[:200]}" for line in found if line)

    async def _send(self, message: int | Setting | Task) -> None:
        await self._process.say(msgspec.json.encode(message))

    async def _end(self) -> int:
        with anyio.move_on_after(5):
            return await self._process.ended()
        self._process.kill()
        return await self._process.ended()


@asynccontextmanager
async def child(setting: Setting, limit_s: float) -> AsyncIterator[Child]:
    """A process with its device open; it is gone at the end."""
    with ExitStack() as stack:
        errors = stack.enter_context(tempfile.TemporaryFile())
        fd = board_file(stack)
        process = await ChildProcess.start(WORKER, errors=errors, descriptors=(fd,))
        try:
            one = Child(setting, process, stack.enter_context(Board(fd)), errors, limit_s)
            await one.ready(fd)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one.watch)
                try:
                    yield one
                finally:
                    tasks.cancel_scope.cancel()
        finally:
            await process.close()
