"""A server of small models, and clients of it that need no socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import msgspec

import nnasync as nn
from nnasync.serving import ModelServer, ModelSettings, ServeOptions, http_app
from tests.rigs import POOL, doubler, runtime

QUIET = ServeOptions(poll_s=0)
"""No folder is looked at."""
ROW_JSON = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
INFER = "/v2/models/doubler/infer"


def body(**fields: Any) -> dict[str, Any]:
    """A request for the doubler."""
    return {"inputs": [ROW_JSON], **fields}


@asynccontextmanager
async def serving(
    *devices: Any,
    models: tuple[nn.Model, ...] = (),
    runtime_options: nn.Options = POOL,
    options: ServeOptions = QUIET,
    **settings: Any,
) -> AsyncIterator[ModelServer]:
    """A server of models, by default of the doubler, on these devices."""
    async with (
        runtime(*devices, options=runtime_options) as rt,
        ModelServer(rt, options=options) as server,
    ):
        for model in models or (doubler(),):
            own = msgspec.convert({"name": model.name, **settings}, ModelSettings)
            net = await rt.compile(model, priority=own.level)
            await server.add(net, own)
        yield server


@asynccontextmanager
async def browsing(server: ModelServer) -> AsyncIterator[httpx.AsyncClient]:
    """A client that calls the application itself."""
    transport = httpx.ASGITransport(http_app(server))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


def outcomes(server: ModelServer, model: str = "doubler", version: str = "1") -> dict[str, int]:
    """What became of the requests for a model, by outcome; pending ones, too."""
    found: dict[str, int] = {}
    for (outcome, _), count in server.accounts.outcomes_of(model, version).items():
        found[outcome] = found.get(outcome, 0) + count
    pending = sum(each.pending for each in server.accounts.all() if each.model == model)
    submitted = sum(each.tally.calls for each in server.accounts.all() if each.model == model)
    assert submitted == sum(found.values()) + pending
    return {name: count for name, count in {**found, "pending": pending}.items() if count}


class RawClient:
    """A request at the level of ASGI, whose client can hang up."""

    def __init__(self, content: bytes, path: str = INFER, **headers: str) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self._scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("192.0.2.7", 9),
        }
        self._content = content
        self._left = anyio.Event()
        self.done = anyio.Event()

    def hang_up(self) -> None:
        """Close the connection."""
        self._left.set()

    async def run(self, server: ModelServer) -> None:
        """Send the request, and note what comes back."""
        parts = [self._content]

        async def receive() -> Any:
            if parts:
                return {"type": "http.request", "body": parts.pop(), "more_body": False}
            await self._left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                self.headers = {name.decode(): text.decode() for name, text in message["headers"]}
            else:
                self.body += message["body"]

        await http_app(server)(self._scope, receive, send)
        self.done.set()
