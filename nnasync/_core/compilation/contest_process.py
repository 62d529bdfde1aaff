"""Contests in a process of their own, so that the application's event loop never stalls for one.

To measure a dozen plans means to load every engine and to let go of what it made, and some of these
calls keep the interpreter lock for ten milliseconds and more. So a runtime has them done in a
process that it starts for its first contest. It runs the same code on devices that are made by the
same names with the same options, at a lower priority than the application (in the system's idle
class where nobody waits for it), and tells who has won. Only the winner is prepared in the
application.

The process serves one contest after another, since two at once would disturb each other. It ends
with its runtime, and by itself when nothing was asked for a while or the application is gone. A
device that ends it, or that keeps silent for minutes, has done so to no one else: the contest is
held again without it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Sequence

import anyio

from nnasync._core import model as models
from nnasync._core.cache.outcome import Rejected
from nnasync._core.cache.sealed import memory_file
from nnasync._core.compilation.contest_messages import Ask, Held, Talk, Unheld, read_answer
from nnasync._core.drivers.service.child import Peer, start_process
from nnasync._core.workers.anyio_threads import in_helper_thread
from nnasync.errors import DeviceError, NNError
from nnasync.hal import Model

_MODULE = "nnasync._core.service.contests"
_WHO = "the process that holds contests"
_PATIENCE_S = 120.0
"""How long one device may prepare the model without a word."""
_IDLE_PATIENCE_S = 3600.0
"""The same in the idle class, where it may get no core for long; closing does not wait for it."""
_GRACE_S = 10.0
"""How long the end of a process that was killed is awaited; on a busy machine it takes a while."""


class NoContest(Exception):
    """Says why a contest cannot be held in another process."""


class ContenderDied(Exception):
    """Says that a device ended the process that measured it, or did not come back."""

    def __init__(self, device: str, exit_reason: str) -> None:
        super().__init__(f"the process that measured {device} {exit_reason}")
        self.device = device


def can_start() -> bool:
    """Returns whether this program is a Python interpreter, which can run a module."""
    name = os.path.basename(sys.executable or "")
    return name.startswith(("python", "pypy")) and not getattr(sys, "frozen", False)


class _Running:
    """Holds a process and the connection to it."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.talk = Talk(peer.socket, _WHO)
        self.is_idle_class = False
        """Whether it has the lowest priority for good: no thread leaves that class."""

    def end(self) -> None:
        """Kill it and wait for its end."""
        self.talk.close()
        self.peer.kill()
        self.peer.reap()


class ContestProcess:
    """Holds the contests of one runtime, one at a time."""

    def __init__(self, settings: str) -> None:
        """`settings` are the options of the runtime, as JSON."""
        self._settings = settings
        self._turn = anyio.Lock()
        self._starting = threading.Lock()
        self._changing = threading.Condition()
        self._idle: _Running | None = None
        self._asked: set[_Running] = set()
        self._is_closed = False

    def begin(self) -> None:
        """Start the process for a contest that follows, from any thread; a failure is told then."""
        with self._starting:
            with self._changing:
                if self._idle is not None or self._asked or self._is_closed or not can_start():
                    return
            with contextlib.suppress(DeviceError, OSError):
                self._keep(_Running(start_process(_WHO, _MODULE, self._settings)))

    async def hold(self, model: Model, ask: Ask, whole: Model | None = None) -> Held:
        """Has the process hold a contest; returns the result, raises NoContest, ContenderDied.

        `whole` is the file of the model as one operation, if the question `has_whole`. Where it is
        cancelled the process is killed.
        """
        if not can_start():
            raise NoContest("this program is no Python interpreter")
        given = [model] if whole is None else [model, whole]
        async with self._turn:
            over = threading.Event()
            try:
                return await in_helper_thread(self._held, given, ask, over, abandon_on_cancel=True)
            finally:
                over.set()
                self._kill()

    def close(self) -> None:
        """End the process; may take a moment."""
        with self._changing:
            self._is_closed = True
        self._kill()
        with self._changing:
            running, self._idle = self._idle, None
            self._changing.wait_for(lambda: not self._asked, _GRACE_S)
        if running is not None:
            running.end()

    def _kill(self) -> None:
        """Let whoever asks at the moment find the other end gone."""
        with self._changing:
            for running in self._asked:
                running.peer.kill()

    def _held(self, given: Sequence[Model], ask: Ask, over: threading.Event) -> Held:
        try:
            return self._held_once(given, ask, over)
        except _Unheard:
            # It was idle, and ended just now.
            try:
                return self._held_once(given, ask, over)
            except _Unheard as error:
                raise NoContest(str(error)) from error

    def _held_once(self, given: Sequence[Model], ask: Ask, over: threading.Event) -> Held:
        running = self._begun(over, is_urgent=not ask.cpu_ns)
        running.is_idle_class |= ask.cpu_ns > 0
        try:
            held = self._answered(running, given, ask)
        except NoContest:
            self._keep(running)
            raise
        except BaseException:
            self._over(running)
            raise
        self._keep(running)
        return held

    def _answered(self, running: _Running, given: Sequence[Model], ask: Ask) -> Held:
        """Ask, and listen until the contest is over."""
        tried = ""
        patience_s = _IDLE_PATIENCE_S if ask.cpu_ns else _PATIENCE_S
        try:
            with contextlib.ExitStack() as stack:
                files = [stack.enter_context(open(memory_file(), "wb")) for _ in given]
                for model, file in zip(given, files, strict=True):
                    models.write(model, file)
                running.talk.send(ask, [file.fileno() for file in files])
            while frame := running.talk.receive(patience_s):
                frame.close()
                answer = read_answer(frame.message, ask)
                if isinstance(answer, Held):
                    return answer
                if isinstance(answer, Unheld):
                    raise NoContest(answer.reason)
                tried = answer.device
            exit_reason = (
                "ended the connection" if self._is_closed else running.peer.exit_reason(1.0)
            )
        except TimeoutError:
            exit_reason = f"said nothing for {patience_s:g} s"
        except (OSError, Rejected, NNError) as error:
            raise _Unheard(str(error)) from error
        if not tried or self._is_closed:
            raise _Unheard(exit_reason)
        raise ContenderDied(tried, exit_reason)

    def _begun(self, over: threading.Event, *, is_urgent: bool) -> _Running:
        """Returns a process for a question; waits for one whose start is under way."""
        with self._starting:
            with self._changing:
                if over.is_set() or self._is_closed:
                    raise NoContest("nobody waits for it any more")
                running, self._idle = self._idle, None
            if running is not None and is_urgent and running.is_idle_class:
                running.end()
                running = None
            if running is None:
                try:
                    running = _Running(start_process(_WHO, _MODULE, self._settings))
                except (DeviceError, OSError) as error:
                    raise NoContest(str(error)) from error
            with self._changing:
                self._asked.add(running)
                if over.is_set() or self._is_closed:
                    running.peer.kill()
        return running

    def _keep(self, running: _Running) -> None:
        """Keep a process for the next contest."""
        with self._changing:
            self._asked.discard(running)
            self._changing.notify_all()
            if self._idle is None and not self._is_closed:
                self._idle = running
                return
        running.end()

    def _over(self, running: _Running) -> None:
        running.end()
        with self._changing:
            self._asked.discard(running)
            self._changing.notify_all()


class _Unheard(Exception):
    """Says that the process ended, or was not understood, before it tried anybody."""
