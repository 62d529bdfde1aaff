"""Requests end when their clients hang up, and not otherwise."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio
import uvloop

from nnasync.asgi import HangUps
from nnasync.asgi.hang_ups import ARRIVED
from tests.asgi.rigs import Client
from tests.rigs import GUARD_S

pytestmark = pytest.mark.anyio


async def answer(send: Any, body: bytes = b"done") -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def read(receive: Any) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def test_an_answer_gets_through_and_the_body_in_all_its_parts() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope[ARRIVED] > 0
        await answer(send, await read(receive))

    client = Client("/", body=b"0123456789", parts=5)
    with anyio.fail_after(GUARD_S):
        await client.ask(HangUps(app))
    assert (client.status, client.answer) == (200, b"0123456789")


async def test_a_body_is_not_read_further_than_one_part_ahead() -> None:
    client = Client("/", body=b"0123456789", parts=10)
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            seen.append(client.read)
            await receive()
        await answer(send)

    with anyio.fail_after(GUARD_S):
        await client.ask(HangUps(app))
    assert all(ahead - number <= 1 for number, ahead in enumerate(seen))
    assert seen[-1] >= 9


async def test_a_hang_up_while_the_application_reads_cancels_it() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        client.hang_up()
        await receive()
        await anyio.sleep_forever()

    client = Client("/", body=b"x")
    with anyio.fail_after(GUARD_S):
        await client.ask(HangUps(app))
    assert client.sent == []


async def test_a_body_that_comes_slowly_is_read_by_one_at_a_time() -> None:
    """The application waits for a part when the watching begins: it reads that part itself."""
    reading = 0
    parts = [b"a", b"b", b"c"]

    async def receive() -> Any:
        nonlocal reading
        reading += 1
        assert reading == 1
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        reading -= 1
        if not parts:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, await read(receive))

    with anyio.fail_after(GUARD_S):
        await HangUps(app)({"type": "http"}, receive, send)
    assert sent[-1]["body"] == b"abc"


async def test_a_hang_up_cancels_what_waits() -> None:
    cancelled = anyio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert await read(receive) == b"x"
        client.hang_up()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    client = Client("/", body=b"x")
    with anyio.fail_after(GUARD_S):
        await client.ask(HangUps(app))
    assert cancelled.is_set()
    assert client.sent == []


async def test_a_hang_up_behind_a_body_that_nobody_reads_is_seen_too() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        client.hang_up()
        await anyio.sleep_forever()

    client = Client("/", body=b"x")
    with anyio.fail_after(GUARD_S):
        await client.ask(HangUps(app))


async def test_work_behind_an_answer_goes_on() -> None:
    done = False

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal done
        await answer(send)
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"
        assert (await receive())["type"] == "http.disconnect"
        done = True

    with anyio.fail_after(GUARD_S):
        await Client("/").ask(HangUps(app))
    assert done


async def test_an_error_is_raised_by_itself() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError

    with anyio.fail_after(GUARD_S), pytest.raises(ZeroDivisionError):
        await Client("/").ask(HangUps(app))


async def test_cancelling_the_server_cancels_the_request() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["begun"].set()
        await anyio.sleep_forever()

    client = Client("/")
    client.scope["begun"] = anyio.Event()
    with anyio.fail_after(GUARD_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.ask, HangUps(app))
            await client.scope["begun"].wait()
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run, trio.run])
def test_servers_run_plain_loops(run: Any) -> None:
    """Unlike tests, in which anyio knows in every callback which loop it is on."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await anyio.sleep(0.01)
        scope["client"].hang_up()
        await anyio.sleep_forever()

    async def main() -> list[Any]:
        client = Client("/", body=b"x")
        client.scope["client"] = client
        with anyio.fail_after(GUARD_S):
            await client.ask(HangUps(app))
        return client.sent

    assert run(main if run is trio.run else main()) == []


async def test_an_error_of_the_server_is_raised() -> None:
    async def receive() -> Any:
        await anyio.lowlevel.checkpoint()
        raise ZeroDivisionError

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await anyio.sleep_forever()

    nothing: Any = None
    with anyio.fail_after(GUARD_S), pytest.raises(ZeroDivisionError):
        await HangUps(app)({"type": "http"}, receive, nothing)


async def test_others_than_requests_are_passed_on() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, receive, send))

    arguments: Any = ({"type": "websocket"}, "receive", "send")
    await HangUps(app)(*arguments)
    assert seen == [arguments]
