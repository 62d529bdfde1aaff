"""The aiortc package: imported when it is first needed, and what is made of its classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import anyio.to_thread

from nnasync._core.wakeup import Wakeup
from nnasync.errors import BadState, InvalidArgument
from nnasync.streaming.item import Item
from nnasync.streaming.sources.mailbox import Mailbox
from nnasync.streaming.sources.pictures import frame_of

_CLOCK_HZ = 90_000
_MOST_PIECES = 8192


def import_aiortc() -> Any:
    """Returns the aiortc package; raises InvalidArgument where it is missing, BadState on trio."""
    if Wakeup.current().is_trio:
        raise BadState("WebRTC needs asyncio or uvloop: aiortc does not run on trio")
    try:
        import aiortc
    except ImportError as error:
        raise InvalidArgument(
            "WebRTC needs aiortc, which is not installed: pip install 'nnasync[webrtc]'"
        ) from error
    return aiortc


def limit_unfinished(sctp: Any, most_bytes: int, flooded: Callable[[], object]) -> None:
    """Calls `flooded` where a peer has sent more than `most_bytes` of messages that are incomplete.

    aiortc keeps whatever comes. It knows how much that is by the window that it tells the peer,
    which a peer may ignore; it has no public way to either of them. How many pieces it keeps is
    bounded, too: each takes more memory than its bytes, and all are gone through for each.
    """
    whole_window = sctp._advertised_rwnd
    receive = sctp._receive_data_chunk

    pieces = 0  # Those that were kept when they were counted, and those that came since.

    def has_too_many() -> bool:
        nonlocal pieces
        pieces += 1
        if pieces <= _MOST_PIECES:
            return False
        kept = sum(len(stream.reassembly) for stream in sctp._inbound_streams.values())
        pieces = max(kept, len(sctp._sack_misordered))
        return pieces > _MOST_PIECES // 2

    async def limited(chunk: Any) -> None:
        unfinished = whole_window - sctp._advertised_rwnd + len(chunk.user_data)
        if unfinished > most_bytes or has_too_many():
            flooded()
        else:
            await receive(chunk)

    sctp._receive_data_chunk = limited


def outgoing_track(pictures: Mailbox[Item]) -> Any:
    """A track of aiortc that sends what is put into `pictures`: arrays, gray or RGB."""
    aiortc = import_aiortc()

    base: Any = aiortc.MediaStreamTrack

    def encodable(item: Item) -> Any:
        frame = frame_of(item.data).reformat(format="yuv420p")
        frame.pts = math.floor(item.captured_ns * _CLOCK_HZ / 1e9)
        frame.time_base = Fraction(1, _CLOCK_HZ)
        return frame

    class OutgoingTrack(base):  # type: ignore[misc]  # aiortc is imported late.
        kind = "video"

        async def recv(self) -> Any:
            try:
                item = await pictures.take()
            except StopAsyncIteration:
                self.stop()
                raise aiortc.mediastreams.MediaStreamError from None
            return await anyio.to_thread.run_sync(encodable, item)

    return OutgoingTrack()
