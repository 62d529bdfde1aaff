"""Models are exchanged and drivers killed under load: every request is answered, and once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync.serving import ModelServer, ModelSettings, ServeOptions

pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")

from tritonclient.grpc import aio
from tritonclient.utils import InferenceServerException

from nnasync.serving.grpc_front import open_grpc_front
from tests.service.siege import PACE_S

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("grpc.aio runs on asyncio")]

CLIENTS = 6
LIMIT_S = 300


def adder(number: int, *, is_stateful: bool = False) -> nn.Model:
    """y = x + number, or the sum of all x so far + number."""
    builder = nn.ModelBuilder("adder")
    x = builder.input("x", (1, 4))
    if is_stateful:
        total = builder.state("total", (1, 4))
        x = builder.add(x, total)
        builder.update(total, x)
    builder.output("y", builder.add(x, builder.constant(np.full((1, 4), number, np.float32))))
    return builder.build()


class Load:
    """Clients that send one request after the other, and count what they get."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.sent = 0
        self.answers: Counter[Any] = Counter()
        self.errors: Counter[str] = Counter()
        self.is_over = False

    async def send(self, **arguments: Any) -> Any:
        """Send one: its answer, or None."""
        x = aio.InferInput("x", [1, 4], "FP32")
        x.set_data_from_numpy(np.zeros((1, 4), np.float32))
        self.sent += 1
        try:
            answer = await self.client.infer("adder", [x], **arguments)
        except InferenceServerException as error:
            self.errors[f"{error.status()} {error.message()}"] += 1
            return None
        found = float(answer.as_numpy("y")[0, 0])
        self.answers[found] += 1
        return found

    async def go_on(self) -> None:
        while not self.is_over:
            await self.send()

    async def until(self, answer: float) -> None:
        """Wait until this is what clients get."""
        before = self.answers[answer]
        while self.answers[answer] < before + 2 * CLIENTS:
            await anyio.lowlevel.checkpoint()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            for _ in range(CLIENTS):
                tasks.start_soon(self.go_on)
            try:
                with anyio.fail_after(LIMIT_S):
                    yield
            finally:
                self.is_over = True


async def test_versions_are_exchanged_without_a_failed_request(tmp_path: Path) -> None:
    def write(number: int) -> None:
        new = tmp_path / "new"
        nn.save(adder(number), new)
        new.rename(tmp_path / "adder.nnm")

    write(0)
    async with (
        nn.open_runtime(devices=["nnasync-reference"]) as runtime,
        ModelServer(
            runtime, folder=tmp_path, options=ServeOptions(poll_s=0, allow_load=True)
        ) as server,
        open_grpc_front(server, port=0) as front,
        aio.InferenceServerClient(f"127.0.0.1:{front.port}") as client,
    ):
        load = Load(client)
        async with load.running():
            await load.until(0)
            for number in range(1, 6):
                write(number)
                await client.load_model("adder")
                await load.until(number)
        assert not load.errors
        assert load.sent == load.answers.total()
        assert set(load.answers) == {0, 1, 2, 3, 4, 5}
        (account,) = server.accounts.all()
        assert account.tally.calls == account.tally.completed == load.sent


async def test_a_sequence_goes_on_with_the_version_it_began_with(tmp_path: Path) -> None:
    path = tmp_path / "adder.nnm"
    nn.save(adder(0, is_stateful=True), path)
    async with (
        nn.open_runtime(devices=["nnasync-reference"]) as runtime,
        ModelServer(
            runtime, folder=tmp_path, options=ServeOptions(poll_s=0, allow_load=True)
        ) as server,
        open_grpc_front(server, port=0) as front,
        aio.InferenceServerClient(f"127.0.0.1:{front.port}") as client,
    ):
        load = Load(client)
        assert await load.send(sequence_id=1, sequence_start=True) == 0
        nn.save(adder(100, is_stateful=True), path)
        await client.load_model("adder")
        assert await load.send(sequence_id=1) == 0
        assert await load.send(sequence_id=2, sequence_start=True, sequence_end=True) == 100
        assert await load.send(sequence_id=1, sequence_end=True) == 0
        assert await load.send(sequence_id=2, sequence_start=True) == 100
        await client.unload_model("adder")
        assert await load.send(sequence_id=2) is None
        assert list(load.errors) == [
            "StatusCode.NOT_FOUND Request for unknown model: 'adder' is not found"
        ]
        assert len(server.sequences) == 0


async def test_a_sequence_ends_with_its_device() -> None:
    name = "nnasync-reference"
    options = nn.Options(competition_budget_ms=0, revive=True)
    async with (
        nn.open_runtime(devices=[name], isolate=[name], options=options) as runtime,
        ModelServer(runtime) as server,
        open_grpc_front(server, port=0) as front,
        aio.InferenceServerClient(f"127.0.0.1:{front.port}") as client,
    ):
        net = await runtime.compile(adder(1, is_stateful=True))
        await server.add(net, ModelSettings(name="adder"))
        load = Load(client)
        assert await load.send(sequence_id=1, sequence_start=True) == 1
        os.kill(runtime.device(name).pid, signal.SIGKILL)  # type: ignore[attr-defined]
        with anyio.fail_after(LIMIT_S):
            while len(server.sequences):
                await load.send(sequence_id=1)
            assert await load.send(sequence_id=1) is None
            assert any("START flag" in text for text in load.errors), load.errors
            while await load.send(sequence_id=1, sequence_start=True) is None:
                pass
        assert await load.send(sequence_id=1, sequence_end=True) == 1


@pytest.mark.parametrize(
    "kills, pace_s",
    [(2, 0), pytest.param(100, PACE_S, marks=pytest.mark.slow)],
    ids=["short", "long"],
)
async def test_a_killed_driver_costs_no_answer(kills: int, pace_s: float) -> None:
    """Every request has one answer: the result, or that the device died."""
    name = "nnasync-reference"
    options = nn.Options(competition_budget_ms=0, revive=True)
    async with (
        nn.open_runtime(devices=[name], isolate=[name], options=options) as runtime,
        ModelServer(runtime) as server,
        open_grpc_front(server, port=0) as front,
        aio.InferenceServerClient(f"127.0.0.1:{front.port}") as client,
    ):
        await server.add(await runtime.compile(adder(1)), ModelSettings(name="adder"))
        load = Load(client)
        async with load.running():
            for _ in range(kills):
                await load.until(1)
                os.kill(runtime.device(name).pid, signal.SIGKILL)  # type: ignore[attr-defined]
                await anyio.sleep(pace_s)
            await load.until(1)
        assert load.sent == load.answers.total() + load.errors.total()
        assert set(load.answers) == {1}
        assert all(text.startswith("StatusCode.UNAVAILABLE") for text in load.errors), load.errors
        (account,) = server.accounts.all()
        assert account.pending == 0
        assert account.tally.calls == load.sent
        assert account.tally.completed == load.answers.total()
