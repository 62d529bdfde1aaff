"""Everything behind the page: networks, settings, sessions, viewers, and what they are told.

A viewer is an open page. It watches the session that the server plays (`--source`), or one of its
own, which begins with its camera's offer or with the clips and ends with the page at the latest.
Settings are the server's: all pages see and change the same ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

import anyio
import anyio.abc

from nnasync.cli.live.link import StreamSettings
from nnasync.cli.live.load_keeper import LoadKeeper
from nnasync.cli.live.messages import (
    Command,
    Ended,
    Hello,
    KillDriver,
    LinkState,
    Notice,
    Offer,
    SdpAnswer,
    SetLoad,
    SetNetwork,
    SetStream,
    Stop,
    StreamName,
    WatchClips,
    encode,
)
from nnasync.cli.live.networks import Networks
from nnasync.cli.live.outbox import Outbox
from nnasync.cli.live.session import Session
from nnasync.cli.live.sources import Sources, of_browser
from nnasync.cli.live.ticks import Ticker
from nnasync.errors import (
    BadState,
    DeviceUnavailable,
    InvalidArgument,
    NNError,
    ResourceExhaustedTransient,
)
from nnasync.hal import Priority

logger = logging.getLogger(__name__)

Opening = AbstractAsyncContextManager[Sources]

MAX_VIEWERS = 32
MAX_SESSIONS = 4
_PERIOD_S = 0.1


class Viewer:
    """An open page, and the session of its own that it may have."""

    def __init__(self) -> None:
        self.outbox = Outbox()
        self.session: Session | None = None
        self.plays = False
        self.follows: tuple[Opening, bool] | None = None
        """What it plays when the session that is being stopped has closed its source."""
        self.scope = anyio.CancelScope()

    def tell(self, message: str | bytes, *, key: str = "") -> None:
        """Have a message sent."""
        self.outbox.put(message, key=key)


class Studio:
    """What all pages share."""

    def __init__(
        self,
        networks: Networks,
        ticker: Ticker,
        load: LoadKeeper,
        names: Sequence[str],
        settings: dict[StreamName, StreamSettings],
        *,
        source: str,
        open_clips: Callable[[], Opening],
    ) -> None:
        """`source` names what the server plays; empty where each page brings its own."""
        self._networks = networks
        self._ticker = ticker
        self._load = load
        self._names = names
        self._settings = settings
        self._source = source
        self._open_clips = open_clips
        self._network: LinkState = "normal"
        self._viewers: set[Viewer] = set()
        self._shared: Session | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self.refused = 0

    async def run(self, shared: Opening | None) -> None:
        """Serve viewers until cancelled, and play what the server plays to them."""
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._load.run)
            self._tasks.start_soon(self._tick)
            if shared is not None:
                async with shared as sources:
                    self._shared = self._session(sources, self, shows_pictures=True)
                    await self._shared.run()
                raise DeviceUnavailable(f"{self._source} is at its end")

    def tell(self, message: str | bytes, *, key: str = "") -> None:
        """Have a message sent to all viewers."""
        for viewer in self._viewers:
            viewer.tell(message, key=key)

    def note(self, text: str) -> None:
        """Tell all viewers that something happened."""
        self.tell(encode(Notice(text)))

    def admit(self) -> Viewer:
        """A new viewer; raises ResourceExhaustedTransient where there are `MAX_VIEWERS`."""
        if len(self._viewers) >= MAX_VIEWERS:
            self.refused += 1
            raise ResourceExhaustedTransient(f"{MAX_VIEWERS} pages are open, which is the most")
        viewer = Viewer()
        self._viewers.add(viewer)
        self._load.watch(is_watched=True)
        viewer.tell(
            encode(
                Hello(
                    self._source,
                    self._networks.driver,
                    self._ticker.cores,
                    takes_cameras=not self._source,
                )
            )
        )
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """The page of a viewer is closed, and with it the session of its own."""
        viewer.outbox.close()
        viewer.scope.cancel()
        self._viewers.discard(viewer)
        self._load.watch(is_watched=bool(self._viewers))

    def obey(self, viewer: Viewer, command: Command) -> None:
        """Do what a page asks for; raises NNError where that cannot be."""
        match command:
            case SetStream(stream=name):
                settings = self._settings[name]
                settings.priority = Priority[command.priority]
                settings.budget_ns = command.deadline_ms * 1_000_000
            case SetLoad(clients=clients):
                self._load.set(clients)
            case SetNetwork(state=state):
                self._network = state
                for session in self._sessions:
                    session.set_link(state)
            case KillDriver():
                pid = self._networks.kill_driver()
                self.tell(encode(Notice(f"process {pid} of {self._networks.driver} was killed")))
            case Stop():
                viewer.follows = None
                viewer.scope.cancel()
            case WatchClips():
                self._begin(viewer, self._open_clips(), shows_pictures=True)
            case Offer(sdp=sdp):
                answer = partial(_tell_answer, viewer)
                self._begin(viewer, of_browser(sdp, answer), shows_pictures=False)

    @property
    def _sessions(self) -> list[Session]:
        own = [viewer.session for viewer in self._viewers if viewer.session is not None]
        return own if self._shared is None else [self._shared, *own]

    def _begin(self, viewer: Viewer, opening: Opening, *, shows_pictures: bool) -> None:
        if self._source:
            raise InvalidArgument(f"this server plays {self._source} to all pages")
        if viewer.plays and viewer.scope.cancel_called:
            viewer.follows = opening, shows_pictures
            return
        if viewer.plays:
            raise BadState("this page has a session; stop it first")
        if sum(each.plays for each in self._viewers) >= MAX_SESSIONS:
            self.refused += 1
            raise ResourceExhaustedTransient(f"{MAX_SESSIONS} sessions play, which is the most")
        if self._tasks is None:
            raise ResourceExhaustedTransient("the server is not ready yet")
        viewer.plays, viewer.scope = True, anyio.CancelScope()
        self._tasks.start_soon(self._play, viewer, opening, shows_pictures)

    def _session(
        self, sources: Sources, audience: Studio | Viewer, *, shows_pictures: bool
    ) -> Session:
        session = Session(
            sources,
            self._networks,
            self._names,
            self._settings,
            audience,
            shows_pictures=shows_pictures,
        )
        session.set_link(self._network)
        return session

    async def _play(self, viewer: Viewer, opening: Opening, shows_pictures: bool) -> None:
        """A session of one viewer: what ends it is told there, and ends nothing else."""
        reason = ""
        try:
            with viewer.scope:
                async with opening as sources:
                    session = self._session(sources, viewer, shows_pictures=shows_pictures)
                    viewer.session = session
                    await session.run()
                    reason = "the source is at its end"
        except* NNError as group:
            reason = _first(group)
        except* Exception as group:
            logger.exception("a session failed")
            reason = f"the server failed: {_first(group)}"
        finally:
            viewer.plays, viewer.session = False, None
        viewer.tell(encode(Ended(reason)))
        self._go_on(viewer)

    def _go_on(self, viewer: Viewer) -> None:
        """Begin what the page asked for while the session before was being stopped."""
        follows, viewer.follows = viewer.follows, None
        if follows is None or viewer.outbox.is_closed:
            return
        opening, shows_pictures = follows
        try:
            self._begin(viewer, opening, shows_pictures=shows_pictures)
        except NNError as error:
            viewer.tell(encode(Ended(str(error))))

    async def _tick(self) -> None:
        while True:
            await anyio.sleep(_PERIOD_S)
            self._ticker.advance()
            shared = {} if self._shared is None else self._shared.tick()
            for viewer in self._viewers:
                streams = shared if viewer.session is None else viewer.session.tick()
                tick = self._ticker.tick(streams, self._network, len(self._viewers), self.refused)
                viewer.tell(encode(tick), key="tick")


def _tell_answer(viewer: Viewer, sdp: str) -> None:
    viewer.tell(encode(SdpAnswer(sdp)))


def _first(group: ExceptionGroup[Exception]) -> str:
    """The text of the first error in a group."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(str(error).split())
