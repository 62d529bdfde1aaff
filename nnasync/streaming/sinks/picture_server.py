"""The newest picture of a stream for browsers: JPEG after JPEG in one answer of HTTP.

Each picture is encoded once, and only while somebody looks. A viewer that reads slowly misses
pictures; it delays nobody, and nothing is kept for it.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import aclosing
from typing import Any

import anyio
import anyio.to_thread

from nnasync._core.arguments import check_function, check_whole, or_none
from nnasync.streaming.graph.node import Signal
from nnasync.streaming.item import Item
from nnasync.streaming.sinks.jpeg import JpegWriter

SEND_TIMEOUT_S = 10.0
"""A viewer who takes no part of an answer for so long makes room for another one."""

_BOUNDARY = b"next"
_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]

_HEADERS = [
    (b"content-type", b"multipart/x-mixed-replace; boundary=" + _BOUNDARY),
    (b"cache-control", b"no-store"),
]


class PictureServer:
    """A sink for pictures whose `app` shows them; mount it in any server of ASGI.

        pictures = PictureServer()
        stream.sink(pictures)
        Starlette(routes=[Mount("/pictures", pictures.app)])

    Items are pictures as `video_recorder` takes them; `draw` makes such a picture of others, on a
    thread. At most `viewers` are shown it at a time, others are answered 503.
    `quality` is FFmpeg's, from 2 (best) to 31. Raises InvalidArgument for numbers out of range.
    """

    def __init__(
        self,
        *,
        draw: Callable[[Item], Any] | None = None,
        viewers: int = 16,
        quality: int = 5,
    ) -> None:
        check_whole("viewers", viewers, 1)
        or_none(check_function, "draw", draw, "a function of an Item that returns a picture")
        self.name = "pictures"
        self.viewing = 0
        """How many look at it now."""
        self.refused = 0
        """How many were one too many."""
        self._draw = draw
        self._viewers = viewers
        self._jpegs = JpegWriter(quality)
        self._jpeg = b""
        self._number = 0
        self._is_over = False
        self._came = Signal()
        self._lock = threading.Lock()

    async def __call__(self, item: Item) -> None:
        """Show a picture; raises InvalidArgument for what is none."""
        if not self.viewing:
            return
        self._jpeg = await anyio.to_thread.run_sync(self._encoded, item, abandon_on_cancel=True)
        self._number += 1
        self._came.notify()

    async def aclose(self) -> None:
        """End the answers to all viewers."""
        self._is_over = True
        self._came.notify()

    async def app(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """The application: an answer without an end to each GET.

        It returns in the middle of the answer to a viewer who does not read; servers of ASGI close
        the connection then.
        """
        if scope["type"] != "http":
            return
        if scope["method"] not in ("GET", "HEAD"):
            await _answer(send, 405, b"only GET is answered")
        elif self.viewing >= self._viewers:
            self.refused += 1
            await _answer(send, 503, b"too many look at this")
        elif scope["method"] == "HEAD":
            await send(_start(200, _HEADERS))
            await send({"type": "http.response.body", "body": b""})
        else:
            self.viewing += 1
            try:
                await self._show(receive, send)
            finally:
                self.viewing -= 1

    async def _show(self, receive: _Receive, send: _Send) -> None:
        async with aclosing(self._parts()) as parts, anyio.create_task_group() as tasks:
            tasks.start_soon(self._until_left, receive, tasks.cancel_scope)
            async for message in parts:
                with anyio.move_on_after(SEND_TIMEOUT_S) as limit:
                    await send(message)
                if limit.cancelled_caught:
                    break
            tasks.cancel_scope.cancel()

    async def _parts(self) -> AsyncGenerator[_Message, None]:
        yield _start(200, _HEADERS)
        shown = self._number
        while not self._is_over:
            if shown == self._number:
                await self._came.wait()
                continue
            shown, jpeg = self._number, self._jpeg
            head = b"--%s\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n"
            body = head % (_BOUNDARY, len(jpeg)) + jpeg + b"\r\n"
            yield {"type": "http.response.body", "body": body, "more_body": True}
        yield {"type": "http.response.body", "body": b"--%s--\r\n" % _BOUNDARY}

    async def _until_left(self, receive: _Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    def _encoded(self, item: Item) -> bytes:
        # Several streams may end here, and an encoder works for one thread at a time.
        with self._lock:
            return self._jpegs.encode(item.data if self._draw is None else self._draw(item))


def _start(status: int, headers: list[tuple[bytes, bytes]]) -> _Message:
    return {"type": "http.response.start", "status": status, "headers": headers}


async def _answer(send: _Send, status: int, text: bytes) -> None:
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(text))]
    await send(_start(status, headers))
    await send({"type": "http.response.body", "body": text})
