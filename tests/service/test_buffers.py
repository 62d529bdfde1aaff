"""Buffers in a service: many readers, races of writers, tokens of this client and of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.service import ServiceDevice
from nnasync.burst import BurstController, LocalChannel, Outcome
from nnasync.errors import DeviceUnavailable, GeneralFailure, InvalidArgument, NNError
from nnasync.errors import ResourceExhaustedTransient as Busy
from nnasync.hal import BufferDesc, BufferRole, DataLocation, Request, RequestArgument
from nnasync.memory import Pool
from tests import rigs
from tests.rigs import REFERENCE, ROW, doubler
from tests.service.rig import served

pytestmark = pytest.mark.anyio

WIDE = (1, 1 << 16)
"""256 KB: copies of it are made on threads."""
READERS = 8


def wide_doubler() -> nn.Model:
    builder = nn.ModelBuilder("wide")
    x = builder.input("x", WIDE)
    builder.output("y", builder.add(x, x))
    return builder.build()


@asynccontextmanager
async def opened(place: str) -> AsyncIterator[nn.Runtime]:
    """A runtime with a device here, behind a socket, or in another process."""
    options = nn.Options(cores=2, competition_budget_ms=0)
    with anyio.fail_after(rigs.GUARD_S):
        if place == "socket":
            async with served() as it, rigs.runtime(it.device) as rt:
                yield rt
        else:
            isolate = [REFERENCE] if place == "process" else []
            async with nn.open_runtime(devices=[REFERENCE], isolate=isolate, options=options) as rt:
                yield rt


places = pytest.mark.parametrize("place", ["here", "socket", "process"])


def one_value(array: Any) -> float:
    """What all elements are; a torn read has several values."""
    values = np.unique(array)
    assert len(values) == 1, f"a torn read: {values}"
    return float(values[0])


@places
async def test_eight_readers_at_a_time(place: str) -> None:
    async with opened(place) as rt:
        net = await rt.compile(wide_doubler())
        async with await rt.allocate(net.input_role()) as x:
            assert not x.is_shared
            await x.write(np.full(WIDE, 3, np.float32))
            found: list[float] = []

            async def read(how: int) -> None:
                for _ in range(4):
                    if how % 2:
                        found.append(one_value(await net(x)))
                    else:
                        found.append(2 * one_value(await x.read()))

            async with anyio.create_task_group() as group:
                for how in range(READERS):
                    group.start_soon(read, how)
            assert found == [6.0] * (4 * READERS)


@places
async def test_writers_that_race(place: str) -> None:
    """Whoever comes in between is refused; nobody reads a mixture, or what nobody wrote."""
    async with opened(place) as rt:
        net = await rt.compile(wide_doubler())
        roles = net.input_role(), net.output_role()
        async with await rt.allocate(*roles) as shared, await rt.allocate(*roles) as other:
            await shared.write(np.full(WIDE, 1, np.float32))
            legal = {2.0**n for n in range(20)}
            outcomes: Counter[str] = Counter()

            async def attempt(what: str, call: Callable[[], Any]) -> None:
                for _ in range(6):
                    try:
                        found = await call()
                    except Busy:
                        outcomes["busy"] += 1
                    except GeneralFailure as error:
                        # `other` has no contents before it was first written, or where the run
                        # that was to write it was refused.
                        assert "not initialized" in str(error)
                        outcomes["empty"] += 1
                    else:
                        outcomes[what] += 1
                        if isinstance(found, np.ndarray):
                            assert one_value(found) in legal

            async with anyio.create_task_group() as group:
                for n in range(READERS):
                    group.start_soon(attempt, "read", shared.read)
                    group.start_soon(attempt, "ran", lambda: net(shared))
                    value = np.full(WIDE, 2**n, np.float32)
                    group.start_soon(attempt, "written", lambda value=value: shared.write(value))
                    group.start_soon(attempt, "handed", lambda: net(shared, out=other))
                    group.start_soon(attempt, "read other", other.read)
            assert sum(outcomes.values()) == 5 * 6 * READERS
            await shared.write(np.full(WIDE, 5, np.float32))
            assert one_value(await net(shared)) == 10


class Stream:
    """A burst and what it was answered."""

    def __init__(self) -> None:
        self.channels = LocalChannel(), LocalChannel()
        self.controller = BurstController(*self.channels)
        self.outcomes: list[Outcome] = []

    async def open(self, prepared: Any) -> Stream:
        self.controller.attach(
            await prepared.configure_execution_burst(self.controller, *self.channels)
        )
        return self

    async def outcome(self, request: Request) -> Outcome:
        """Send a request; what it is answered."""
        count = len(self.outcomes)
        self.controller.send(self.controller.encode(request), self.outcomes.append)
        await rigs.until(lambda: len(self.outcomes) > count)
        return self.outcomes[-1]


async def test_tokens_over_a_burst() -> None:
    async with served() as it:
        first = await it.device.prepare_model(doubler())
        role = [BufferRole(0, 0)]
        buffer = await it.device.allocate(BufferDesc(), [first], role, role)
        pool = Pool.allocate(16)
        pool.array(np.float32, rigs.SHAPE)[...] = ROW
        await buffer.copy_from(pool)
        whole = RequestArgument(location=DataLocation(0, 0, 0))
        place = RequestArgument(location=DataLocation(1, 0, 16))

        def request(token: int) -> Request:
            return Request((whole,), (place,), (token, pool))

        mine = await Stream().open(first)
        assert not isinstance(await mine.outcome(request(buffer.token)), NNError)
        assert pool.array(np.float32, rigs.SHAPE).tolist() == (2 * ROW).tolist()
        unknown = await mine.outcome(request(buffer.token ^ 1))
        assert isinstance(unknown, InvalidArgument)
        second = await Stream().open(await it.device.prepare_model(doubler()))
        refused = await second.outcome(request(buffer.token))
        assert isinstance(refused, InvalidArgument)
        assert "no role" in str(refused), "each prepared model has roles of its own"
        await buffer.close()
        gone = await mine.outcome(request(buffer.token))
        assert isinstance(gone, InvalidArgument)
        for each in (mine, second):
            each.controller.close(DeviceUnavailable("closed by the test"))


@pytest.mark.parametrize("way", ["execute", "execute_synchronously", "execute_fenced", "burst"])
async def test_tokens_of_another_client_are_none(way: str) -> None:
    """Two connections, one device: a token counts for the client whose buffer it is."""
    async with served(connections=2) as it:
        other = await ServiceDevice.open(it.source, "other")
        try:
            mine, theirs = [await each.prepare_model(doubler()) for each in (it.device, other)]
            role = [BufferRole(0, 0)]
            buffer = await it.device.allocate(BufferDesc(), [mine], role, role)
            pool = Pool.allocate(16)
            pool.array(np.float32, rigs.SHAPE)[...] = ROW
            await buffer.copy_from(pool)
            whole = RequestArgument(location=DataLocation(0, 0, 0))
            place = RequestArgument(location=DataLocation(1, 0, 16))
            request = Request((whole,), (place,), (buffer.token, pool))
            assert await answer(way, mine, request) is None
            assert pool.array(np.float32, rigs.SHAPE).tolist() == (2 * ROW).tolist()
            refused = await answer(way, theirs, request)
            made_up = msgspec.structs.replace(request, pools=(buffer.token ^ 1, pool))
            unknown = await answer(way, theirs, made_up)
            assert isinstance(refused, InvalidArgument)
            assert str(refused) == str(unknown), "nobody learns which tokens there are"
            assert await answer(way, mine, request) is None
            await buffer.close()
            assert isinstance(await answer(way, mine, request), InvalidArgument)
        finally:
            await other.close()


async def answer(way: str, prepared: Any, request: Request) -> Exception | None:
    """What comes of a request on one of the ways; None where it succeeds."""
    if way == "burst":
        stream = await Stream().open(prepared)
        outcome = await stream.outcome(request)
        stream.controller.close(DeviceUnavailable("closed by the test"))
        return outcome if isinstance(outcome, NNError) else None
    try:
        found = await getattr(prepared, way)(request)
        if way == "execute_fenced":
            await found.fence
    except NNError as error:
        return error.with_traceback(None)
    return None
