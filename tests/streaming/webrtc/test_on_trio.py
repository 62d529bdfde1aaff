"""WebRTC on a loop that aiortc does not run on."""

from __future__ import annotations

import pytest
import trio

from nnasync.errors import BadState
from nnasync.streaming import webrtc

OFFER = "v=0\r\nm=video 9 UDP/TLS/RTP/SAVPF 96\r\n"


def test_it_is_refused() -> None:
    async def enter() -> None:
        async with webrtc.accept(OFFER):
            pass

    with pytest.raises(BadState, match="aiortc does not run on trio"):
        trio.run(enter)
