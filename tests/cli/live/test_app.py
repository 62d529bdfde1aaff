"""The socket of a page whose reader has stopped, and of one that is gone."""

from __future__ import annotations

from typing import Any, cast

import anyio
import pytest
from starlette.types import Message
from starlette.websockets import WebSocket

from nnasync.cli.live import app
from nnasync.cli.live.studio import Studio, Viewer

pytestmark = pytest.mark.anyio


class OneViewer:
    """As much of a studio as a socket needs."""

    def __init__(self) -> None:
        self.viewer = Viewer()
        self.refused = 0
        self.has_left = False

    def admit(self) -> Viewer:
        return self.viewer

    def leave(self, viewer: Viewer) -> None:
        self.has_left = viewer is self.viewer


def socket(stuck_at: int, sent: list[Message]) -> WebSocket:
    """A connection whose other end says nothing, and takes so many messages."""

    async def receive() -> Message:
        if not sent:
            return {"type": "websocket.connect"}
        await anyio.sleep_forever()
        raise AssertionError("unreachable")

    async def send(message: Message) -> None:
        if len(sent) >= stuck_at:
            await anyio.sleep_forever()
        sent.append(message)

    scope: dict[str, Any] = {"type": "websocket", "headers": []}
    return WebSocket(scope, receive, send)


async def test_a_viewer_who_does_not_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "SEND_TIMEOUT_S", 0.01)
    studio, sent = OneViewer(), cast(list[Message], [])
    studio.viewer.tell("first")
    studio.viewer.tell("second")
    studio.viewer.tell(b"picture", key="picture")
    with anyio.fail_after(10):
        await app._Socket(socket(2, sent), cast(Studio, studio)).serve()
    assert [message["type"] for message in sent] == ["websocket.accept", "websocket.send"]
    assert sent[1]["text"] == "first"
    assert studio.has_left
