"""The clients of the goodput benchmark: what comes when, and what counts as answered."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from benchmarks.goodput.clients import KINDS, Arrival, Kind, arrivals, offered

pytestmark = pytest.mark.one_loop("the benchmark's clients are of asyncio")

SOON = (Kind("soon", 1.0, 30_000, 1),)
AT_ONCE = (Kind("at once", 1.0, 20, 1),)
REQUEST = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}"

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[int]:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def answering(response: bytes) -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readexactly(len(REQUEST))
                writer.write(response)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    return answer


def test_arrivals_are_those_of_the_seed_and_come_at_their_rate_by_their_shares() -> None:
    plan = arrivals(1000, 20, seed=3)
    assert plan == arrivals(1000, 20, seed=3) != arrivals(1000, 20, seed=4)
    assert len(plan) == pytest.approx(20_000, rel=0.03)
    assert [each.at_s for each in plan] == sorted(each.at_s for each in plan)
    counts = Counter(each.kind for each in plan)
    for number, kind in enumerate(KINDS):
        assert counts[number] / len(plan) == pytest.approx(kind.share, abs=0.02)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "body",
    [b"content-length: 2\r\n\r\nok", b"transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"],
    ids=["whole", "chunked"],
)
async def test_answers_in_time_count(body: bytes) -> None:
    plan = [Arrival(0.0, 0)] * 5
    async with serving(answering(b"HTTP/1.1 200 OK\r\n" + body)) as port:
        (tally,) = await offered(port, [REQUEST], plan, SOON)
    assert (tally.submitted, tally.good) == (5, 5)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("status", "field"), [(503, "refused"), (504, "refused"), (500, "failed"), (404, "failed")]
)
async def test_other_answers_are_refusals_and_failures(status: int, field: str) -> None:
    response = b"HTTP/1.1 %d Nope\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % status
    async with serving(answering(response)) as port:
        (tally,) = await offered(port, [REQUEST], [Arrival(0.0, 0)] * 3, SOON)
    assert (tally.submitted, getattr(tally, field), tally.good) == (3, 3, 0)


@pytest.mark.anyio
async def test_who_is_not_answered_by_the_deadline_hangs_up_and_is_late() -> None:
    hung_up = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        hung_up.set()

    async with serving(silent) as port:
        (tally,) = await offered(port, [REQUEST], [Arrival(0.0, 0)], AT_ONCE)
        await hung_up.wait()
    assert (tally.submitted, tally.late) == (1, 1)


@pytest.mark.anyio
async def test_a_server_that_is_not_there_fails() -> None:
    async with serving(answering(b"")) as port:
        pass
    (tally,) = await offered(port, [REQUEST], [Arrival(0.0, 0)], SOON)
    assert (tally.submitted, tally.failed) == (1, 1)
