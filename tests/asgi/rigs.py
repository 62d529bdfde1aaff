"""A client that speaks ASGI itself, so that it can hang up when a test says so."""

from __future__ import annotations

import json
from typing import Any

import anyio
import anyio.lowlevel


class Client:
    """One request, and what came back."""

    def __init__(
        self, path: str, *, headers: dict[str, str] | None = None, body: bytes = b"", parts: int = 1
    ) -> None:
        given = [(name.lower().encode(), text.encode()) for name, text in (headers or {}).items()]
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST" if body else "GET",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [*given, (b"host", b"here"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        size = -(-len(body) // parts)
        self._parts = [body[at : at + size] for at in range(0, len(body), size or 1)] or [b""]
        self._gone = anyio.Event()
        self.read = 0
        self.sent: list[Any] = []

    def hang_up(self) -> None:
        """Be gone."""
        self._gone.set()

    @property
    def status(self) -> int:
        """The status of the answer; 0 where there is none."""
        return next((m["status"] for m in self.sent if m["type"] == "http.response.start"), 0)

    @property
    def answer(self) -> bytes:
        """The body of the answer."""
        return b"".join(m.get("body", b"") for m in self.sent if m["type"] == "http.response.body")

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        start = next(m for m in self.sent if m["type"] == "http.response.start")
        return {name.decode(): text.decode() for name, text in start["headers"]}

    @property
    def text(self) -> str:
        """The body of the answer as text."""
        return self.answer.decode()

    def json(self) -> Any:
        """What the answer says."""
        return json.loads(self.answer)

    async def ask(self, app: Any) -> None:
        """Send the request to an application, and wait until that returns."""
        await app(self.scope, self._receive, self._send)

    async def _receive(self) -> Any:
        if self.read < len(self._parts):
            part = self._parts[self.read]
            self.read += 1
            more = self.read < len(self._parts)
            return {"type": "http.request", "body": part, "more_body": more}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self._gone.set()  # As uvicorn has it: who was answered is gone.
            await anyio.lowlevel.checkpoint()


class Caller:
    """Asks one application."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def get(self, path: str, headers: dict[str, str] | None = None) -> Client:
        """The answered request."""
        client = Client(path, headers=headers)
        await client.ask(self._app)
        return client

    async def post(self, path: str, json: Any, headers: dict[str, str] | None = None) -> Client:
        """The answered request."""
        client = Client(path, headers=headers, body=_encoded(json))
        await client.ask(self._app)
        return client


def _encoded(value: Any) -> bytes:
    return json.dumps(value).encode()
