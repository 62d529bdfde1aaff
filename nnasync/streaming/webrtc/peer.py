"""One peer: what it offered is answered, its tracks are sources, its data channel takes messages.

Nothing that a peer sends is believed: descriptions and messages have a largest size, queues have
bounds, and what is too much is counted and thrown away. A peer that never connects, or is gone, is
an error of its sources within the time limits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.abc

from nnasync._core.arguments import check_kind, or_none
from nnasync.errors import BadState, DeviceUnavailable, InvalidArgument, NNError
from nnasync.hal import Struct
from nnasync.streaming.account import Outcome
from nnasync.streaming.item import Item
from nnasync.streaming.leaving import leave
from nnasync.streaming.sources.mailbox import Mailbox
from nnasync.streaming.sources.pictures import Pictures, PixelFormat, Size, check_picture
from nnasync.streaming.sources.source import LiveSource
from nnasync.streaming.webrtc.aiortc_package import (
    import_aiortc,
    limit_unfinished,
    outgoing_track,
)
from nnasync.streaming.webrtc.limits import PeerLimits, check_offer
from nnasync.streaming.webrtc.tracks import FramesOf, HopsOf, IncomingTrack

_CLOSE_S = 5.0
"""How long closing waits for aiortc."""


class PeerStatistics(Struct, frozen=True):
    """Counters of one peer: frames that arrived, and messages by what became of them."""

    video_frames: int
    audio_frames: int
    messages_received: int
    messages_refused: int
    messages_sent: int
    messages_dropped: int


def accept(offer: str, *, shows: bool = False, limits: PeerLimits | None = None) -> Peer:
    """Accepts the connection that a peer offers; entering the result makes the answer.

    `offer` is the session description (SDP) that the peer made. With `shows`, pictures may be sent
    back (`Peer.show`) to a peer that offers to receive some. Raises InvalidArgument for an offer
    that is too long, or has too much in it.
    """
    check_kind("offer", offer, str, "a session description, a str")
    or_none(check_kind, "limits", limits, PeerLimits, "PeerLimits")
    limits = limits or PeerLimits()
    check_offer(offer, limits)
    return Peer(offer, shows, limits)


class Peer:
    """A connected browser; made by `accept`, used inside its `async with` block.

    Entering raises InvalidArgument for an offer that cannot be answered, BadState on trio. Leaving
    the block closes the connection; sources of the peer are at their end then.
    """

    def __init__(self, offer: str, shows: bool, limits: PeerLimits) -> None:
        self.answer = ""
        """The session description (SDP) to send to the peer."""
        self._offer = offer
        self._limits = limits
        self._tracks = {kind: IncomingTrack(kind) for kind in ("video", "audio")}
        self._offered: set[str] = set()
        self._messages: Mailbox[str | bytes] = Mailbox(limits.messages_waiting)
        self._pictures: Mailbox[Item] | None = Mailbox(1) if shows else None
        self._channel: Any = None
        self._connection: Any = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._connected, self._closed = anyio.Event(), anyio.Event()
        self._channels = self._received = self._refused = self._sent = self._dropped = 0

    async def __aenter__(self) -> Self:
        if self._tasks is not None:
            raise BadState("a peer is entered once")
        aiortc = import_aiortc()
        configuration = aiortc.RTCConfiguration(iceServers=[])
        self._connection = connection = aiortc.RTCPeerConnection(configuration)
        self._tasks = await anyio.create_task_group().__aenter__()
        connection.on("track", self._begin_track)
        connection.on("datachannel", self._begin_channel)
        connection.on("connectionstatechange", self._follow_state)
        try:
            # Names of candidates are looked up in the network.
            with anyio.fail_after(self._limits.connect_timeout_s):
                await self._negotiate(aiortc)
        except BaseException as error:
            await self._close()
            await self._tasks.__aexit__(None, None, None)
            if not isinstance(error, Exception) or isinstance(error, NNError):
                raise
            # What aiortc raises for a bad description is of many kinds: ValueError, KeyError ...
            raise InvalidArgument(f"the offer cannot be answered: {error!r}") from error
        self._tasks.start_soon(self._limit_connecting)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if self._tasks is None:
            raise BadState("the peer was not entered")
        await self._close()
        return await leave(self._tasks, kind, error, trace)

    @property
    def state(self) -> str:
        """The state of the connection in WebRTC's words: "new", "connecting", "connected" ..."""
        state: str = "new" if self._connection is None else self._connection.connectionState
        return state

    @property
    def statistics(self) -> PeerStatistics:
        """Counters so far."""
        return PeerStatistics(
            self._tracks["video"].received,
            self._tracks["audio"].received,
            self._received,
            self._refused + self._messages.losses.get(Outcome.DROPPED, 0),
            self._sent,
            self._dropped,
        )

    def video(
        self,
        *,
        size: Size | None = None,
        pixels: PixelFormat = "gray",
        read_timeout_s: float | None = None,
    ) -> LiveSource:
        """The pictures that the peer sends, as `camera` has them; the newest where they wait.

        Reading raises DeviceUnavailable when nothing came for `read_timeout_s`. Raises
        InvalidArgument where the peer offers none, BadState when they are taken already.
        """
        track = self._track("video")
        pulled = FramesOf(track, Pictures(size, pixels), read_timeout_s)
        return LiveSource(pulled, track.mailbox.take_losses)

    def audio(
        self, *, rate_hz: int = 16000, hop: int = 160, read_timeout_s: float | None = None
    ) -> LiveSource:
        """The sound that the peer sends, as `microphone` has it; see `video`."""
        track = self._track("audio")
        pulled = HopsOf(track, rate_hz, hop, read_timeout_s)
        return LiveSource(pulled, pulled.take_losses)

    def show(self, item: Item) -> None:
        """Send a picture back, such as `video_recorder` takes; a sink.

        It is dropped when the next one comes before it could be sent. Raises BadState for a peer
        that was accepted without `shows`, InvalidArgument for what is no picture.
        """
        if self._pictures is None:
            raise BadState("this peer is shown nothing: accept(offer, shows=True)")
        check_picture(item.data)
        self._pictures.put(item)

    def send(self, message: str | bytes) -> bool:
        """Send a message over the data channel that the peer opened last.

        False, and counted as dropped, while there is no open one, or where too much waits already.
        """
        channel = self._channel
        fits = channel is not None and channel.readyState == "open"
        if not fits or channel.bufferedAmount > self._limits.bytes_to_send:
            self._dropped += 1
            return False
        try:
            channel.send(message)
        except ValueError as error:
            raise InvalidArgument(f"the message cannot be sent: {error}") from error
        self._sent += 1
        return True

    async def messages(self) -> AsyncIterator[str | bytes]:
        """Yields the messages that the peer sends over its data channels, until it is gone."""
        while True:
            try:
                message = await self._messages.take()
            except StopAsyncIteration:
                return
            yield message

    async def connected(self) -> None:
        """Wait until there is a connection; raises DeviceUnavailable where there will be none."""
        await self._connected.wait()
        if self._closed.is_set():
            raise DeviceUnavailable("the peer is gone")

    async def closed(self) -> None:
        """Wait until the peer is gone."""
        await self._closed.wait()

    # -- events of aiortc, which it emits on the loop

    def _begin_track(self, track: Any) -> None:
        if track.kind in self._offered or self._tasks is None:
            track.stop()
            return
        self._offered.add(track.kind)
        self._tasks.start_soon(self._pump, track)

    async def _pump(self, track: Any) -> None:
        error = await self._tracks[track.kind].pump(track, self._limits.picture_pixels)
        if error is not None:
            self._give_up(error)

    def _begin_channel(self, channel: Any) -> None:
        self._channels += 1
        if self._channels > self._limits.channels:
            channel.close()
            return
        self._channel = channel
        channel.on("message", self._take_message)

    def _take_message(self, message: str | bytes) -> None:
        self._received += 1
        length = len(message.encode()) if isinstance(message, str) else len(message)
        if length > self._limits.message_bytes:
            self._refused += 1
        else:
            self._messages.put(message)

    def _end_flood(self) -> None:
        self._give_up(
            DeviceUnavailable(
                "the peer sent more of messages that it does not finish than "
                f"{self._limits.unfinished_bytes} bytes (unfinished_bytes), or too many pieces"
            )
        )

    def _follow_state(self) -> None:
        state = self.state
        if state == "connected":
            self._connected.set()
        elif state in ("failed", "closed"):
            self._lose(DeviceUnavailable(f"the connection to the peer is {state}"))

    # -- the life of the connection

    async def _negotiate(self, aiortc: Any) -> None:
        connection = self._connection
        await connection.setRemoteDescription(aiortc.RTCSessionDescription(self._offer, "offer"))
        if connection.sctp is not None:
            limit_unfinished(connection.sctp, self._limits.unfinished_bytes, self._end_flood)
        if self._pictures is not None and "\nm=video" in self._offer:
            connection.addTrack(outgoing_track(self._pictures))
        await connection.setLocalDescription(await connection.createAnswer())
        self.answer = connection.localDescription.sdp

    async def _limit_connecting(self) -> None:
        """Gives the peer up if no connection is made in time."""
        limit_s = self._limits.connect_timeout_s
        with anyio.move_on_after(limit_s):
            await self._connected.wait()
            return
        self._lose(DeviceUnavailable(f"the peer did not connect within {limit_s:g} s"))

    def _lose(self, error: Exception | None) -> None:
        for track in self._tracks.values():
            track.mailbox.end(error)
        self._messages.end()
        if self._pictures is not None:
            self._pictures.end()
        self._closed.set()
        self._connected.set()

    def _give_up(self, error: Exception) -> None:
        """Closes the connection to a peer that sends what it must not."""
        if not self._closed.is_set() and self._tasks is not None:
            self._lose(error)
            self._tasks.start_soon(self._connection.close)

    def _track(self, kind: str) -> IncomingTrack:
        track = self._tracks[kind]
        if kind not in self._offered:
            raise InvalidArgument(f"the peer offers no {kind}")
        if track.is_wanted:
            raise BadState(f"the {kind} of this peer is taken already; several stages may share it")
        return track

    async def _close(self) -> None:
        self._lose(None)
        with anyio.move_on_after(_CLOSE_S, shield=True):
            await self._connection.close()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
