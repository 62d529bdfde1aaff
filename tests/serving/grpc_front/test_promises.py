"""Deadlines, hang-ups and a full queue over gRPC, with a device that waits until it may go on."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

import nnasync as nn
from nnasync.serving import ModelServer, ModelSettings
from tests import rigs

pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")

import grpc
from tritonclient.grpc import aio
from tritonclient.utils import InferenceServerException

from nnasync.serving.grpc_front import open_grpc_front

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("grpc.aio runs on asyncio")]


HOUR_MS = 3_600_000
"""On a busy machine requests may wait at a gate for long, and are not to be old then."""


class Busy:
    """A server whose device waits at a gate, and a client."""

    def __init__(self, client: Any, server: ModelServer, engine: Any, runtime: Any) -> None:
        self.client = client
        self.server = server
        self.engine = engine
        self.runtime = runtime

    async def infer(self, **arguments: Any) -> list[float]:
        x = aio.InferInput("x", [1, 4], "FP32")
        x.set_data_from_numpy(rigs.ROW)
        answer = await self.client.infer("doubler", [x], **arguments)
        return list(answer.as_numpy("y")[0])

    def outcomes(self) -> dict[str, int]:
        (account,) = self.server.accounts.all()
        return {name: count for (name, _), count in account.tally.outcomes().items() if count}

    async def until_on_device(self, count: int) -> None:
        """Waits until so many requests run or are queued."""

        def are_there() -> bool:
            workers = self.runtime.statistics().workers
            return bool(workers.running + sum(workers.scheduler.queued) >= count)

        await rigs.until(are_there)

    async def until_running(self) -> None:
        await rigs.until(lambda: bool(self.runtime.statistics().workers.running))


@contextlib.asynccontextmanager
async def busy(cores: int = 2, **settings: Any) -> AsyncIterator[Busy]:
    engine = rigs.gated()
    options = nn.Options(cores=cores, inline_budget_us=0, competition_budget_ms=0, aging_ms=HOUR_MS)
    async with (
        rigs.runtime(engine, options=options) as runtime,
        ModelServer(runtime) as server,
        open_grpc_front(server, port=0) as front,
        aio.InferenceServerClient(f"127.0.0.1:{front.port}") as client,
    ):
        net = await runtime.compile(rigs.doubler())
        await server.add(net, ModelSettings(name="doubler", **settings))
        try:
            yield Busy(client, server, engine, runtime)
        finally:
            engine.gate.open_wide()


def refused(code: grpc.StatusCode, text: str) -> pytest.RaisesExc[Any]:
    return pytest.RaisesExc(
        InferenceServerException, match=text, check=lambda error: error.status() == str(code)
    )


async def test_a_timeout_is_kept_while_the_request_runs() -> None:
    async with busy() as rig:
        with refused(grpc.StatusCode.UNAVAILABLE, "Request timeout expired"):
            await rig.infer(timeout=50_000)
        assert rig.outcomes() == {"missed": 1}


async def test_a_timeout_is_kept_while_the_request_waits() -> None:
    async with busy() as rig, anyio.create_task_group() as tasks:
        tasks.start_soon(rig.infer)
        tasks.start_soon(rig.infer)
        await rig.until_running()
        with refused(grpc.StatusCode.UNAVAILABLE, "Request timeout expired"):
            await rig.infer(timeout=50_000)
        rig.engine.gate.open_wide()


async def test_a_deadline_of_grpc_is_a_deadline() -> None:
    async with busy() as rig:
        while not rig.server.accounts.all():  # On a busy machine it may end on its way.
            with refused(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline|timeout"):
                await rig.infer(client_timeout=0.05)
        await rigs.until(lambda: bool(rig.outcomes()))
        rig.engine.gate.open_wide()
        await rigs.free(rig.runtime)
        assert await rig.infer(client_timeout=20) == [2, 4, 6, 8]


async def test_who_cancels_frees_the_device_and_is_accounted() -> None:
    async with busy() as rig:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rig.infer)
            await rig.until_running()
            tasks.cancel_scope.cancel()
        await rigs.until(lambda: rig.outcomes() == {"cancelled": 1})
        rig.engine.gate.open_wide()
        await rigs.free(rig.runtime)
        assert await rig.infer() == [2, 4, 6, 8]


async def test_a_stream_that_is_cancelled_gives_its_requests_up() -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        x = aio.InferInput("x", [1, 4], "FP32")
        x.set_data_from_numpy(rigs.ROW)
        for _ in range(3):
            yield {"model_name": "doubler", "inputs": [x]}
        await anyio.sleep_forever()

    async with busy() as rig:
        answers = rig.client.stream_infer(requests())
        await rigs.until(lambda: bool(rig.server.accounts.all()))
        await rigs.until(lambda: rig.server.accounts.all()[0].tally.calls == 3)
        answers.cancel()
        await rigs.until(lambda: rig.outcomes() == {"cancelled": 3})


async def test_a_full_queue_is_told_at_once() -> None:
    async with busy(max_queue_size=2) as rig, anyio.create_task_group() as tasks:
        tasks.start_soon(rig.infer)
        tasks.start_soon(rig.infer)
        await rigs.until(lambda: rig.server.models.find("doubler").pending == 2)
        with refused(grpc.StatusCode.UNAVAILABLE, "Exceeds maximum queue size"):
            await rig.infer()
        rig.engine.gate.open_wide()


async def test_a_priority_counts() -> None:
    """The one with priority 1 runs ahead of those that have waited for longer."""
    order: list[int] = []

    async def send(rig: Busy, priority: int) -> None:
        await rig.infer(priority=priority)
        order.append(priority)

    async with busy(cores=1) as rig, anyio.create_task_group() as tasks:
        for sent, priority in enumerate((3, 3, 3, 3, 3, 1), 1):
            tasks.start_soon(send, rig, priority)
            await rig.until_on_device(sent)
        for answered in range(1, 5):
            rig.engine.gate.open()
            await rigs.until(lambda answered=answered: len(order) >= answered)  # type: ignore[misc]
        rig.engine.gate.open_wide()
    assert order.index(1) <= 1  # Behind the one that ran when it came.
