"""Who may open the page: by the name of the server, by a token, by the page that opens a socket."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from nnasync.cli.live.guard import COOKIE, Guard

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("nothing is waited for")]

TOKEN = "a-token-of-the-test"


async def page(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "welcome"})


async def answer(
    token: str = "", kind: str = "http", query: bytes = b"", scheme: str = "ws", **headers: str
) -> str:
    """What a request gets: "welcome", or the reason why not."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    headers = {"host": "127.0.0.1:8765"} | headers
    scope: dict[str, Any] = {
        "type": kind,
        "scheme": scheme,
        "path": "/",
        "query_string": query,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    await Guard(page, {"127.0.0.1", "localhost", "::1"}, token)(scope, receive, send)
    if sent[0]["type"] == "websocket.close":
        assert sent[0]["code"] == 1008
        return str(sent[0]["reason"])
    if sent[0]["type"] == "http.response.start":
        assert sent[0]["status"] == 403
        return bytes(sent[1]["body"]).decode().strip()
    return str(sent[0]["type"])


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost", "[::1]:80"])
async def test_names_of_this_server(host: str) -> None:
    assert await answer(host=host) == "welcome"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[::1", "a@b:c"])
async def test_other_names_are_refused(host: str) -> None:
    assert await answer(host=host) == "this server is not known by that name"


@pytest.mark.parametrize("origin", ["", "http://evil.example", "null", "http://127.0.0.1:9", "[:"])
async def test_a_socket_of_another_page_is_refused(origin: str) -> None:
    told = await answer(kind="websocket", origin=origin)
    assert told == "a socket is opened by a page of this server only"


async def test_a_socket_of_this_page_is_opened() -> None:
    assert await answer(kind="websocket", origin="http://127.0.0.1:8765") == "welcome"


async def test_over_https_only_a_page_that_came_over_it_opens_a_socket() -> None:
    async def opened(scheme: str, origin: str) -> str:
        return await answer(kind="websocket", scheme=scheme, origin=origin, host="localhost")

    assert await opened("wss", "https://localhost") == "welcome"
    assert await opened("wss", "http://localhost") == (
        "a socket is opened by a page of this server only"
    )
    # Another server speaks HTTPS to the browser, and has this one answer.
    assert await opened("ws", "https://localhost") == "welcome"


@pytest.mark.parametrize("query", [b"", b"token=", b"token=another", b"token=%ff", b"tok\xff"])
@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_a_token_is_needed_where_there_is_one(query: bytes, kind: str) -> None:
    told = await answer(TOKEN, kind, query, origin="http://127.0.0.1:8765")
    assert told == "this page needs the token that the server printed with its address"


async def test_the_token_opens_the_page_by_any_name_as_address_or_cookie() -> None:
    host = "a.phone.sees.this"
    assert await answer(TOKEN, query=f"token={TOKEN}".encode(), host=host) == "welcome"
    assert await answer(TOKEN, host=host, cookie=f"{COOKIE}={TOKEN}") == "welcome"
