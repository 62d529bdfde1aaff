"""Requests that come whether or not the server keeps up, and what becomes of each.

Two kinds of clients send the same network: urgent ones, whose answer is of use for a short while,
and patient ones. Both come at random (Poisson). The plan of all arrivals is made beforehand, and a
request counts from its planned arrival, so a server that is slow meets as many requests as one that
is quick. At its deadline a client hangs up, as clients do. An answer counts if it is there by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator, Sequence

import msgspec

__all__ = [
    "KINDS",
    "REFUSALS",
    "Answer",
    "Arrival",
    "Kind",
    "Tally",
    "answers",
    "arrivals",
    "offered",
]

REFUSALS = (408, 429, 503, 504)
"""What servers say that have no time for a request."""
_MOST_AT_ONCE = 1000
"""Connections; a request that finds no free one is refused by the client itself."""


class Kind(msgspec.Struct, frozen=True):
    """A kind of client: its share of the requests, its deadline, its priority (1 is highest)."""

    name: str
    share: float
    deadline_ms: int
    priority: int


KINDS = (Kind("urgent", 0.3, 50, 1), Kind("patient", 0.7, 250, 3))


class Arrival(msgspec.Struct, frozen=True):
    """One request: when it comes, in seconds from the beginning, and the number of its kind."""

    at_s: float
    kind: int


class Tally(msgspec.Struct):
    """Counts the outcomes of the requests of one kind."""

    submitted: int = 0
    good: int = 0
    late: int = 0
    refused: int = 0
    failed: int = 0


def arrivals(
    rate_hz: float, duration_s: float, seed: int, kinds: Sequence[Kind] = KINDS
) -> list[Arrival]:
    """Returns a plan of Poisson arrivals at this mean rate; kinds are drawn by their shares."""
    chance = random.Random(seed)
    found = []
    at_s = chance.expovariate(rate_hz)
    while at_s < duration_s:
        kind = chance.choices(range(len(kinds)), [each.share for each in kinds])[0]
        found.append(Arrival(at_s, kind))
        at_s += chance.expovariate(rate_hz)
    return found


class _Connections:
    """Keeps connections alive, as many as requests are under way at once."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._open = 0

    async def ask(self, request: bytes) -> int:
        """Sends a request and returns the answer's status; closes the connection after an error."""
        if not self._idle and self._open >= _MOST_AT_ONCE:
            raise ConnectionError("too many connections")
        self._open += not self._idle
        pair = self._idle.pop() if self._idle else None
        try:
            if pair is None:
                pair = await asyncio.open_connection("127.0.0.1", self._port)
            status, is_kept = await _asked(*pair, request)
        except BaseException:
            self._drop(pair)
            raise
        if is_kept:
            self._idle.append(pair)
        else:
            self._drop(pair)
        return status

    def _drop(self, pair: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None) -> None:
        self._open -= 1
        if pair is not None:
            pair[1].transport.abort()

    def close(self) -> None:
        while self._idle:
            self._drop(self._idle.pop())


async def _asked(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[int, bool]:
    """Returns the status of the answer, and whether the connection may be used again."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
    fields = dict(line.split(":", 1) for line in head[1:] if ":" in line)
    if "chunked" in fields.get("transfer-encoding", ""):
        while size := int(await reader.readline(), 16):
            await reader.readexactly(size + 2)
        await reader.readline()
    else:
        await reader.readexactly(int(fields.get("content-length", "0")))
    return int(head[0].split()[1]), "close" not in fields.get("connection", "")


@contextlib.contextmanager
def _connections(port: int) -> Iterator[_Connections]:
    found = _Connections(port)
    try:
        yield found
    finally:
        found.close()


class Answer(msgspec.Struct, frozen=True):
    """The outcome of one request: its kind, milliseconds from its planned arrival, and the status.

    The status is 0 where there was no answer in time, and -1 where the connection failed. `sent_ms`
    is when the client began to send it, from the planned arrival on, too.
    """

    kind: int
    after_ms: float
    status: int
    sent_ms: float


async def answers(
    port: int,
    requests: Sequence[bytes],
    plan: Sequence[Arrival],
    kinds: Sequence[Kind] = KINDS,
    *,
    patience_s: float = 0.0,
) -> list[Answer]:
    """Sends the planned requests to a local server; `requests` has one for each kind.

    Clients hang up so long after their deadlines.
    """
    found: list[Answer] = []
    loop = asyncio.get_running_loop()
    begin_s = loop.time()  # Of the same clock as `time.monotonic`, in whole milliseconds.

    async def one(arrival: Arrival) -> None:
        planned_s = begin_s + arrival.at_s
        sent_ms = (time.monotonic() - planned_s) * 1000
        try:
            limit_s = planned_s + kinds[arrival.kind].deadline_ms / 1000 + patience_s
            async with asyncio.timeout_at(limit_s):
                status = await connections.ask(requests[arrival.kind])
        except TimeoutError:
            status = 0
        except (OSError, ValueError, asyncio.IncompleteReadError):
            status = -1
        after_ms = (time.monotonic() - planned_s) * 1000
        found.append(Answer(arrival.kind, after_ms, status, sent_ms))

    with _connections(port) as connections:
        async with asyncio.TaskGroup() as tasks:
            for arrival in plan:
                pause_s = begin_s + arrival.at_s - loop.time()
                if pause_s > 0:
                    await asyncio.sleep(pause_s)
                tasks.create_task(one(arrival))
    return found


async def offered(
    port: int,
    requests: Sequence[bytes],
    plan: Sequence[Arrival],
    kinds: Sequence[Kind] = KINDS,
) -> list[Tally]:
    """Sends the planned requests; clients hang up at their deadlines. Returns their tallies."""
    tallies = [Tally() for _ in kinds]
    for answer in await answers(port, requests, plan, kinds):
        tally = tallies[answer.kind]
        tally.submitted += 1
        if answer.status == 200:
            tally.good += 1
        elif answer.status == 0:
            tally.late += 1
        elif answer.status in REFUSALS:
            tally.refused += 1
        else:
            tally.failed += 1
    return tallies
