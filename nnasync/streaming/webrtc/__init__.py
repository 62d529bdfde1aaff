"""A browser as source and as sink: pictures, sound and messages by WebRTC.

Whoever offers a connection (a page, OBS, GStreamer) sends its description by any means, such as an
HTTP request, and is sent the answer:

    async with webrtc.accept(offer) as peer:
        reply(peer.answer)
        graph = Graph()
        frames = graph.source(peer.video(size=(224, 224), pixels="rgb24"))
        frames.map(net).sink(lambda item: peer.send(text_of(item.data)))
        await graph.run()

It needs aiortc (`nnasync[webrtc]`) and asyncio or uvloop, as aiortc does not run on trio.
"""

from __future__ import annotations

from nnasync.streaming.webrtc.limits import PeerLimits
from nnasync.streaming.webrtc.peer import Peer, PeerStatistics, accept

__all__ = ["Peer", "PeerLimits", "PeerStatistics", "accept"]
