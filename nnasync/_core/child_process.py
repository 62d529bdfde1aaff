"""A child process that is spoken with in lines, as the suites have them for what may die or hang.

It is started whole or not at all: a cancellation during the start would leave a process that nobody
knows. And it is gone with its block, with all that it started where it leads a session of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import IO, Any

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from nnasync.errors import GeneralFailure


class ChildProcess:
    """One process; `start` makes one, and `close` ends it."""

    def __init__(self, process: anyio.abc.Process, *, leads: bool) -> None:
        """`leads` tells that it is the leader of a session of its own."""
        if process.stdin is None or process.stdout is None:
            raise GeneralFailure("a child process has no standard input or output")
        self._process = process
        self._leads = leads
        self._channel: anyio.abc.ByteSendStream = process.stdin
        self._lines = BufferedByteReceiveStream(process.stdout)

    @classmethod
    async def start(
        cls,
        arguments: Sequence[str],
        *,
        errors: int | IO[Any] | None = None,
        leads: bool = True,
        descriptors: Sequence[int] = (),
    ) -> ChildProcess:
        """Have this interpreter run `arguments`; what it says on standard error goes to `errors`.

        One that leads a session of its own does not hear Ctrl-C, also while it starts. It has
        these `descriptors` beside the usual ones.
        """
        with anyio.CancelScope(shield=True):
            process = await anyio.open_process(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=leads,
                pass_fds=tuple(descriptors),
            )
        return cls(process, leads=leads)

    @property
    def is_over(self) -> bool:
        """Whether it has ended, as far as is known."""
        return self._process.returncode is not None

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    async def say(self, line: bytes) -> None:
        """Send a line; one that has died does not hear it, which its silence tells."""
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._channel.send(line + b"\n")

    async def line(self, most: int) -> bytes | None:
        """The next line that it says, at most `most` bytes; None where it says no more.

        Raises GeneralFailure for a longer one.
        """
        try:
            return await self._lines.receive_until(b"\n", most)
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.BrokenResourceError):
            return None
        except anyio.DelimiterNotFound:
            raise GeneralFailure(
                f"a child process said something too long: a line of over {most} bytes"
            ) from None

    async def ended(self) -> int:
        """Wait for its end; its exit code, or the number of a signal, negated."""
        return await self._process.wait()

    def kill(self) -> None:
        """Kill it, and all that it started where it leads a session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._leads:
                os.killpg(self._process.pid, signal.SIGKILL)
            elif self._process.returncode is None:
                self._process.kill()

    async def close(self) -> None:
        """Kill it and give its streams back; idempotent."""
        self.kill()
        with anyio.CancelScope(shield=True):
            await self._process.aclose()


@asynccontextmanager
async def child_process(
    arguments: Sequence[str], *, errors: int | IO[Any] | None = None, leads: bool = True
) -> AsyncIterator[ChildProcess]:
    """A child that ends with the block."""
    child = await ChildProcess.start(arguments, errors=errors, leads=leads)
    try:
        yield child
    finally:
        await child.close()


def ending(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
