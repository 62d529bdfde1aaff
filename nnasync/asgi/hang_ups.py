"""Requests end when their clients hang up: middleware of ASGI, for any application.

A server tells a hang-up only to who asks for the next message, and an application that awaits a
network asks for none. So somebody else does, who keeps one message ahead of the application: as
soon as the client is gone the request is cancelled, its execution is withdrawn or stopped between
two operations, and the device is free. What the application reads is what the server said. Once
the answer is complete nothing is cancelled any more: work may follow it in the background.

A task for that costs more than a short execution. So on asyncio and uvloop there is none until the
request has waited for something: one that is answered in the turn of the loop in which it came has
no time to be hung up on.

Websockets are passed on as they are, for there it is usual to wait for messages.
"""

from __future__ import annotations

import asyncio
from collections import deque

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nnasync._core.clock import now_ns
from nnasync._core.wakeup import Wakeup

ARRIVED = "nnasync.arrived_ns"
"""Where a request's scope has the time of its arrival."""

_DISCONNECT: Message = {"type": "http.disconnect"}
_BODIES = ("http.response.body", "http.response.pathsend")


class HangUps:
    """An ASGI application around another one, whose requests end with their clients."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on until it is answered, or its client is gone."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[ARRIVED] = now_ns()
        with anyio.CancelScope() as cancel_scope:
            exchange = _Exchange(receive, send, cancel_scope)
            if Wakeup.current().is_trio:
                await self._watched(scope, exchange)
            else:
                await self._watched_later(scope, exchange)
        if exchange.failure is not None:
            raise exchange.failure

    async def _watched(self, scope: Scope, exchange: _Exchange) -> None:
        """Serve a request that is watched from its beginning."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(exchange.read_ahead)
            exchange.is_watched = True
            try:
                await self._app(scope, exchange.receive, exchange.send)
            except Exception as error:
                # It goes on by itself, not inside an exception group.
                exchange.failure = error
            tasks.cancel_scope.cancel()

    async def _watched_later(self, scope: Scope, exchange: _Exchange) -> None:
        """Serve a request that is watched once it has waited for something."""
        handle = asyncio.get_running_loop().call_soon(exchange.watch)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        finally:
            handle.cancel()
            await exchange.watched_no_more()


class _Exchange:
    """The messages of one request, of which the next one is read ahead once it is watched."""

    def __init__(self, receive: Receive, send: Send, scope: anyio.CancelScope) -> None:
        self.is_watched = False
        self.failure: Exception | None = None
        self._receive = receive
        self._send = send
        self._scope = scope
        self._read: deque[Message] = deque()
        self._came: anyio.Event | None = None
        self._taken: anyio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_gone = self._is_answered = False
        self._is_reading = self._is_wanted = False

    def watch(self) -> None:
        """Begin to read ahead, or have it begun when the application has read its message.

        With a task of asyncio: outside of a task, anyio does not know where it is.
        """
        if self._is_reading:
            self._is_wanted = True
        elif not self._is_gone:
            self.is_watched = True
            self._task = asyncio.get_running_loop().create_task(self.read_ahead())

    async def watched_no_more(self) -> None:
        """End the reading ahead, and wait for that."""
        if self._task is not None:
            self._task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([self._task])

    async def read_ahead(self) -> None:
        """Read until the client is gone; what the server raises ends the request."""
        try:
            await self._ahead()
        except Exception as error:
            self.failure = error
            self._scope.cancel()

    async def _ahead(self) -> None:
        while True:
            message = await self._receive()
            if self._came is not None:
                self._came.set()
            if message["type"] == "http.disconnect":
                self._hung_up()
                return
            self._read.append(message)
            if message.get("more_body", False):
                await self._all_taken()

    async def receive(self) -> Message:
        """The next message for the application."""
        if not self.is_watched and not self._is_gone:
            return await self._receive_unwatched()
        while not self._read:
            if self._is_gone:
                return _DISCONNECT
            self._came = anyio.Event()
            await self._came.wait()
        if self._taken is not None:
            self._taken.set()
        return self._read.popleft()

    async def _receive_unwatched(self) -> Message:
        self._is_reading = True
        try:
            message = await self._receive()
        finally:
            self._is_reading = False
        if message["type"] == "http.disconnect":
            self._hung_up()
        elif self._is_wanted:
            self.watch()
        return message

    def _hung_up(self) -> None:
        self._is_gone = True
        if not self._is_answered:
            self._scope.cancel()

    async def send(self, message: Message) -> None:
        """Send a message of the application; notes the one that completes the answer."""
        # Before it is sent: servers say that the client is gone once they have sent it.
        if message["type"] in _BODIES and not message.get("more_body", False):
            self._is_answered = True
        await self._send(message)

    async def _all_taken(self) -> None:
        while self._read:
            self._taken = anyio.Event()
            await self._taken.wait()
