"""Spoken words over a websocket: sound goes in as it is recorded, words come out as they are said.

    uvicorn app:app

A client sends binary messages of 16-bit samples, little-endian, mono, 16,000 a second, of any
length, and gets a JSON message for each word: {"word": "seven", "at_s": 1.52, "score": 0.98}.
"""

from __future__ import annotations

from typing import Any

import anyio
import anyio.abc
import numpy as np
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

import nnasync as nn
from nnasync import asgi
from nnasync.cli import demo_data
from nnasync.cli.recognition import HOP_SAMPLES, Word, WordDecoder
from nnasync.hal import Array

RATE_HZ = 16_000
MAX_MESSAGE_BYTES = 64 << 10
MAX_CONNECTIONS = 64
AHEAD = 8
"""So many messages may wait: a client that sends faster than it is heard has to wait then."""

_UNSUPPORTED, _TOO_LONG, _TRY_AGAIN_LATER = 1003, 1009, 1013


async def words_network(runtime: nn.Runtime) -> nn.Net:
    """The network; its calls are short and urgent, and each stream has a burst of its own."""
    model = demo_data.path("words.nnm")
    return await runtime.compile(model, priority=nn.Priority.HIGH, name="words")


def make_app(runtime: Any = nn.open_runtime) -> Starlette:
    """The application; `runtime` makes its runtime."""
    networks = asgi.Networks({"words": words_network}, runtime=runtime)
    limits = asgi.Limits(timeout_s=0.1, max_timeout_s=1.0)
    call_of = networks.call("words", limits=limits)
    names = demo_data.words_truth().names
    places = anyio.CapacityLimiter(MAX_CONNECTIONS)

    async def listen(socket: WebSocket) -> None:
        call = await call_of(socket)
        await socket.accept()
        try:
            places.acquire_on_behalf_of_nowait(socket)
        except anyio.WouldBlock:
            await socket.close(_TRY_AGAIN_LATER, "too many are listened to already")
            return
        try:
            await Stream(socket, call, names).serve()
        finally:
            places.release_on_behalf_of(socket)

    app = Starlette(routes=[WebSocketRoute("/listen", listen)], lifespan=networks.lifespan)
    networks.install(app)
    return app


class Stream:
    """One client: what it says is read by one task and heard by another."""

    def __init__(self, socket: WebSocket, call: asgi.Call, names: tuple[str, ...]) -> None:
        self._socket = socket
        self._call = call
        self._names = names
        self._decoder = WordDecoder()
        self._hop = 0
        self._error: nn.NNError | None = None

    async def serve(self) -> None:
        """Listen until the client is gone, which ends what is being computed for it."""
        send, receive = anyio.create_memory_object_stream[bytes](AHEAD)
        problem: tuple[int, str] | None = None
        async with anyio.create_task_group() as tasks, send, receive:
            tasks.start_soon(self._hear_until_gone, receive, tasks.cancel_scope)
            problem = await self._read(send)
            tasks.cancel_scope.cancel()
        # Errors, and ends that are told, come behind the tasks: by themselves, not in a group.
        if self._error is not None:
            raise self._error
        if problem is not None:
            await self._socket.close(*problem)

    async def _read(self, messages: anyio.abc.ObjectSendStream[bytes]) -> tuple[int, str] | None:
        """Read until the client is gone, or is to be: why, then."""
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return None
            data = message.get("bytes")
            if data is None or len(data) % 2:
                return _UNSUPPORTED, "samples are 16-bit numbers, in bytes"
            if len(data) > MAX_MESSAGE_BYTES:
                return _TOO_LONG, f"at most {MAX_MESSAGE_BYTES} bytes"
            await messages.send(data)

    async def _hear_until_gone(
        self, messages: anyio.abc.ObjectReceiveStream[bytes], scope: anyio.CancelScope
    ) -> None:
        """Hear, and end the reading where nobody can be told any more, or the network fails."""
        try:
            await self._hear(messages)
        except WebSocketDisconnect:
            scope.cancel()
        except nn.NNError as error:
            self._error = error
            scope.cancel()

    async def _hear(self, messages: anyio.abc.ObjectReceiveStream[bytes]) -> None:
        """Hear hop after hop; a hop that is late is left out, and the state is as before."""
        rest = np.empty(0, np.float32)
        async with self._call.net.burst(priority=self._call.priority) as burst:
            async for data in messages:
                samples = np.frombuffer(data, "<i2").astype(np.float32) / 32768
                rest = np.concatenate([rest, samples])
                whole = len(rest) - len(rest) % HOP_SAMPLES
                for hop in rest[:whole].reshape(-1, 1, HOP_SAMPLES):
                    await self._hear_hop(burst, hop)
                rest = rest[whole:]

    async def _hear_hop(self, burst: nn.Burst, hop: Array) -> None:
        number, self._hop = self._hop, self._hop + 1
        try:
            scores = await burst(hop, deadline=self._call.deadline)
        except nn.Refused:
            return
        word = self._decoder.feed(number, scores)
        if word is not None:
            await self._socket.send_json(self._told(word))

    def _told(self, word: Word) -> dict[str, Any]:
        at_s = (word.hop + 1) * HOP_SAMPLES / RATE_HZ
        return {
            "word": self._names[word.label],
            "at_s": round(at_s, 2),
            "score": round(word.score, 3),
        }


app = make_app()
