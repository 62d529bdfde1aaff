"""Keeps a service connected: one that is ours is started again as soon as it has died.

Starting, greeting and waiting are done on a thread for each start, since a service dies while no
event loop looks, too. Whoever needs the service waits for a fence.
"""

from __future__ import annotations

import logging
import threading

from nnasync._core.drivers.service.client_tracing import Traces
from nnasync._core.drivers.service.greeting import hello, welcome_of
from nnasync._core.drivers.service.link import Link, Source
from nnasync._core.drivers.service.offered_memories import OfferedMemories
from nnasync._core.drivers.service.offered_models import OfferedModels
from nnasync._core.wire.messages import Welcome
from nnasync.errors import (
    DeviceDied,
    DeviceUnavailable,
    MissedDeadlineTransient,
    NNError,
    ResourceExhaustedTransient,
)
from nnasync.fences import Fence

logger = logging.getLogger(__name__)

PATIENCE_S = 60.0
"""How long a service may take until it serves: it may have to load an engine."""


class ConnectedSession:
    """One connection, and what the service knows through it."""

    def __init__(self, link: Link, welcome: Welcome) -> None:
        self.link = link
        self.welcome = welcome
        self.memories = OfferedMemories(link)
        self.models = OfferedModels(link)


class Supervisor:
    """The session with a service, and the next one where that is over."""

    def __init__(self, source: Source, name: str, *, hang_after_s: float, called: str = "") -> None:
        """A service that is silent for `hang_after_s` while it is awaited is killed; 0: never.

        `called` is how instruments are told of its device, if that is not by its own name.
        """
        self.name = name
        self._called = called
        self.traces = Traces()
        self._source = source
        self._hang_after_s = hang_after_s
        self._lock = threading.Lock()
        self.session: ConnectedSession | None = None
        """The last one there was; its link says whether it is over."""
        self._leaving: list[Link] = []
        self._starting: Link | None = None
        self._under_way: Fence | None = None
        self._closed = False

    @property
    def pid(self) -> int:
        """Returns the id of the process that serves, or is about to; 0 if there is none."""
        for link in self._links():
            if link.error is None:
                return link.peer.pid
        return 0

    async def connected(self) -> ConnectedSession:
        """The session, a new one where the last is over.

        Raises DeviceUnavailable where none can be had, ResourceExhaustedTransient where no thread
        or descriptor is left for it now.
        """
        while True:
            session = self.session
            if session is None or session.link.error is not None:
                await self._start()
            elif session.link.connection.is_broken or session.link.peer.has_ended:
                # Its thread is about to notice; what is sent now would be lost.
                await session.link.over
            else:
                return session

    def close(self) -> None:
        """End the session; a process that was started for it ends too."""
        with self._lock:
            self._closed = True
        for link in self._links():
            link.close()

    async def ended(self) -> None:
        """Wait until a closed supervisor has seen its process off."""
        under_way = self._under_way
        if under_way is not None:
            try:
                await under_way
            except NNError:
                pass  # Whoever wanted the session was told.
        last = [] if self.session is None else [self.session.link]
        for link in (*self._leaving, *last):
            await link.ended

    def _links(self) -> list[Link]:
        """The connection under way, and the last one there was."""
        last = None if self.session is None else self.session.link
        return [link for link in (self._starting, last) if link is not None]

    def _start(self) -> Fence:
        """Begin a session unless there is one; the fence is settled when that is done."""
        with self._lock:
            fence, session = Fence(), self.session
            if self._closed:
                fence.fail(DeviceUnavailable(f"{self.name} is closed"))
            elif self._under_way is not None:
                return self._under_way
            elif session is not None and session.link.error is None:
                fence.signal()
            else:
                self._run_apart(fence)
            return fence

    def _run_apart(self, fence: Fence) -> None:
        """Begin a session on a thread; the next who asks tries again where none can be started."""
        name = "nnasync-supervisor"
        thread = threading.Thread(target=self._run, args=(fence,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            fence.fail(ResourceExhaustedTransient(f"no thread to start {self.name} on: {error}"))
        else:
            self._under_way = fence

    def _run(self, fence: Fence) -> None:
        """On a thread of its own: begin a session, once the last process was reaped."""
        error: NNError | None = None
        try:
            if self.session is not None:
                self._leave(self.session.link)
            session = self._begun()
        except NNError as failure:
            error = failure
        except Exception as failure:
            logger.exception("%s was not started", self.name)
            error = DeviceUnavailable(f"{self.name} was not started: {failure}")
        with self._lock:
            self._starting = self._under_way = None
            if error is None:
                self.session = session
                self.traces.follow(session.link, self._called or session.welcome.name)
                if self._closed:
                    session.link.close()
        if error is not None:
            fence.fail(error)
            return
        fence.signal()
        session.link.over.add_callback(self._lost)

    def _leave(self, link: Link) -> None:
        """Wait until the last process is gone; one that is dead may take its time to be."""
        if not link.is_dead:
            link.ended.wait_blocking()
        self._leaving = [each for each in (*self._leaving, link) if not each.ended.done]

    def _lost(self, _: Fence) -> None:
        """A session is over: its thread asks for the next one, where that is ours to have."""
        if self._source.restarts and not self._closed:
            self._start()

    def _begun(self) -> ConnectedSession:
        """A session with a service that has greeted; one that is killed meanwhile is followed."""
        last: NNError | None = None
        while True:
            try:
                link = Link(self._source, self.name)
            except DeviceUnavailable as error:
                if last is None:
                    raise
                raise DeviceUnavailable(f"{error}; the last time {last}") from last
            except OSError as error:
                text = f"{self.name}: no connection can be made: {error}"
                raise ResourceExhaustedTransient(text) from error
            try:
                return self._greeted(link)
            except BaseException as error:
                link.close()
                link.ended.wait_blocking()
                if not isinstance(error, DeviceDied):
                    raise
                if self._closed or not (self._source.restarts and link.peer.was_killed):
                    told = "; its standard error says why" if self._source.restarts else ""
                    raise DeviceUnavailable(f"{link.error} before it served{told}") from error
                last = link.error

    def _greeted(self, link: Link) -> ConnectedSession:
        with self._lock:
            self._starting = link
            if self._closed:
                raise DeviceUnavailable(f"{self.name} is closed")
        name = self.name
        try:
            call = link.begin(hello)
            call.fence.wait_blocking(PATIENCE_S)
            welcome = welcome_of(call.value)
        except MissedDeadlineTransient as error:
            raise DeviceUnavailable(f"{name}: no answer within {PATIENCE_S:g} s") from error
        except DeviceDied:
            raise
        except NNError as error:
            raise DeviceUnavailable(f"{name}: {error}") from error
        self._check(welcome)
        link.heartbeat.begin(self._hang_after_s)
        return ConnectedSession(link, welcome)

    def _check(self, welcome: Welcome) -> None:
        """Raise DeviceUnavailable for another device than the one that was here before."""
        before = None if self.session is None else self.session.welcome
        if before is not None and _identity(welcome) != _identity(before):
            raise DeviceUnavailable(
                f"another device answers in place of {before.name} {before.device_version}: "
                f"{welcome.name} {welcome.device_version}"
            )


def _identity(welcome: Welcome) -> tuple[str, str]:
    return welcome.name, welcome.device_version
