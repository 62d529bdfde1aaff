"""A child process that is spoken with in lines, as the suites have them for what may die or hang.

It is started whole or not at all: a cancellation during the start would leave a process that nobody
knows. And it is gone with its block, with all that it started where it leads a session of its own.

It is not started by the event loop. uvloop forks, and runs Python in the copy of this process
before the new program takes over: what was given to `os.register_at_fork`, and what restores
signals. The garbage collector may run then, and free a codec of FFmpeg that is garbage in this
process; that waits for its threads, which a fork does not copy, for ever, and the loop waits for
the new program. `subprocess` runs no Python in the child, nor what a library does at a fork
(`vfork`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import IO, Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
from anyio.abc import ByteReceiveStream
from anyio.streams.buffered import BufferedByteReceiveStream

from nnasync.errors import GeneralFailure


class ChildProcess:
    """One process; `start` makes one, and `close` ends it."""

    def __init__(self, process: subprocess.Popen[bytes], *, leads: bool) -> None:
        """`leads` tells that it is the leader of a session of its own."""
        if process.stdin is None or process.stdout is None:
            raise GeneralFailure("a child process has no standard input or output")
        self._process = process
        self._leads = leads
        self._input = process.stdin
        self._output = _Pipe(process.stdout)
        self._lines = BufferedByteReceiveStream(self._output)
        os.set_blocking(self._input.fileno(), False)

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
        start = _Start(
            lambda: subprocess.Popen(
                [sys.executable, *arguments],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=leads,
                pass_fds=tuple(descriptors),
            )
        )
        try:
            with anyio.CancelScope(shield=True):
                process = await anyio.to_thread.run_sync(start.run)
        except BaseException:
            start.give_up()  # A task of asyncio can be cancelled all the same, as by Ctrl-C.
            raise
        return cls(process, leads=leads)

    @property
    def is_over(self) -> bool:
        """Returns whether it has ended, as far as is known."""
        return self._process.poll() is not None

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    async def say(self, line: bytes) -> None:
        """Send a line; one that has died does not hear it, which its silence tells."""
        left = memoryview(line + b"\n")
        await anyio.lowlevel.checkpoint()
        with contextlib.suppress(BrokenPipeError, anyio.ClosedResourceError):
            while left and not self._input.closed:
                if taken := self._input.write(left):
                    left = left[taken:]
                else:
                    await anyio.wait_writable(self._input)

    async def line(self, most: int) -> bytes | None:
        """The next line that it says, at most `most` bytes; None where it says no more.

        Raises GeneralFailure for a longer one.
        """
        try:
            return await self._lines.receive_until(b"\n", most)
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.ClosedResourceError):
            return None
        except anyio.DelimiterNotFound:
            raise GeneralFailure(
                f"a child process said something too long: a line of over {most} bytes"
            ) from None

    async def ended(self) -> int:
        """Wait for its end; its exit code, or the number of a signal, negated."""
        if self._process.poll() is None:
            try:
                exit_fd = os.pidfd_open(self._process.pid)
            except (OSError, AttributeError):  # this system has none
                return await anyio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
            try:
                await anyio.wait_readable(exit_fd)
            finally:
                os.close(exit_fd)
        return self._process.wait()

    def kill(self) -> None:
        """Kill it, and all that it started where it leads a session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._leads:
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()

    async def close(self) -> None:
        """Kill it and give its streams back; idempotent."""
        self.kill()
        with anyio.CancelScope(shield=True):
            if not self._input.closed:
                anyio.notify_closing(self._input)
                self._input.close()
            await self._output.aclose()
            await self.ended()


class _Start:
    """A process that a thread starts, while whoever wants it may give it up."""

    def __init__(self, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_given_up = False

    def run(self) -> subprocess.Popen[bytes]:
        """Start it; one that is not wanted any more is ended."""
        process = self._start()
        with self._lock:
            self._process, is_given_up = process, self._is_given_up
        if is_given_up:
            _bury(process)
        return process

    def give_up(self) -> None:
        """Have it end, now or as soon as it is started."""
        with self._lock:
            self._is_given_up, process = True, self._process
        if process is not None:
            threading.Thread(target=_bury, args=(process,), name="nnasync-burial").start()


def _bury(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.kill()


class _Pipe(ByteReceiveStream):
    """What a child says, as it comes."""

    def __init__(self, pipe: IO[bytes]) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._pipe = pipe

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Up to so many bytes; raises EndOfStream after the last."""
        while not self._pipe.closed:
            await anyio.wait_readable(self._pipe)
            if (data := self._pipe.read(max_bytes)) is not None:  # else woken for nothing
                if not data:
                    raise anyio.EndOfStream
                return data
        raise anyio.ClosedResourceError

    async def aclose(self) -> None:
        """Wake who waits, and close; idempotent."""
        if not self._pipe.closed:
            anyio.notify_closing(self._pipe)
            self._pipe.close()


@asynccontextmanager
async def child_process(
    arguments: Sequence[str], *, leads: bool = True
) -> AsyncIterator[ChildProcess]:
    """A child that ends with the block."""
    child = await ChildProcess.start(arguments, leads=leads)
    try:
        yield child
    finally:
        await child.close()


def lines_to_parent() -> Callable[[object], None]:
    """Make this process the child of one that reads its messages, and give what sends them.

    Called first, on the main thread. Each message is a line of JSON on what was standard output,
    sent from any thread; what else is printed goes to standard error. Ctrl-C and SIGTERM are the
    parent's to handle. Sending raises BrokenPipeError where nobody listens any more.
    """
    leave_signals_to_parent()
    channel = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    encode, lock = msgspec.json.Encoder().encode, threading.Lock()

    def send(message: object) -> None:
        line = memoryview(encode(message) + b"\n")
        with lock:
            while line:
                line = line[os.write(channel, line) :]

    return send


def leave_signals_to_parent() -> None:
    """Have Ctrl-C and SIGTERM do nothing in this child, which its parent ends.

    Both may be sent to all processes of a group, as terminals and `timeout` do. Without its parent
    SIGTERM ends it.
    """
    parent = os.getppid()

    def heed(number: int, _frame: object) -> None:
        if os.getppid() != parent:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A handler, as programs that are started from here would ignore it as well.
    signal.signal(signal.SIGTERM, heed)


def ending(code: int) -> str:
    """Returns a text on how a process ended."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
