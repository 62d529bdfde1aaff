"""The server without a front."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import anyio
import pytest

import nnasync as nn
from nnasync.serving import ModelSettings, ServeOptions, ServingError
from nnasync.serving.messages import InferAnswer, InferRequest, InputTensor
from nnasync.serving.model_settings import BatchingSettings
from nnasync.serving.problems import invalid
from tests.rigs import until
from tests.serving.rig import outcomes
from tests.serving.small_models import accumulator, ident, served

pytestmark = pytest.mark.anyio


async def test_a_request_that_is_refused_is_let_go_of() -> None:
    """Without a collection: bodies may be large."""
    async with served(ident()) as server:
        request = InferRequest("ident", inputs=(InputTensor("x", "FP32", (1, 3), b"short"),))
        collects = gc.isenabled()
        gc.disable()
        try:
            gone: list[weakref.ref[BaseException]] = []
            for _ in range(2):
                try:
                    await server.infer(request)
                except ServingError as error:
                    gone.append(weakref.ref(error))
                    assert error.__cause__ is not error
            assert [each() for each in gone] == [None, None]
        finally:
            if collects:
                gc.enable()


def row(**fields: Any) -> InferRequest:
    """A request for the identity."""
    values = InputTensor("x", "FP32", (1, 3), values=[1, 2, 3])
    return InferRequest("ident", inputs=(values,), **fields)


def step(flags: str = "") -> InferRequest:
    """A request of a sequence of the accumulator."""
    return InferRequest(
        "acc",
        inputs=(InputTensor("x", "FP32", (1, 1), values=[1]),),
        sequence_id=7,
        sequence_start="s" in flags,
        sequence_end="e" in flags,
    )


async def test_the_longest_time_out_is_none() -> None:
    async with served(ident()) as server:
        answer = await server.infer(row(timeout_us=2**63 - 1))
        assert answer.outputs[0].shape == (1, 3)
        assert outcomes(server, "ident") == {"completed": 1}


async def test_a_time_out_counts_from_the_arrival_and_while_the_one_before_runs() -> None:
    async with served(ident()) as server:
        waiting = server.start(row(timeout_us=1000), behind=anyio.Event())
        assert outcomes(server, "ident") == {"pending": 1}
        with pytest.raises(ServingError, match="Request timeout expired"):
            await waiting
        with pytest.raises(ServingError, match="Request timeout expired"):
            late = server.start(row(timeout_us=1000), arrived_ns=1)
            await late
        assert outcomes(server, "ident") == {"missed": 2}


async def test_what_cannot_be_sent_is_not_completed() -> None:
    def refuse(answer: InferAnswer) -> bytes:
        raise invalid("this cannot be said")

    async with served(ident()) as server:
        with pytest.raises(ServingError, match="cannot be said"):
            found = server.start(row(), finish=refuse)
            await found
        assert outcomes(server, "ident") == {"failed": 1}


async def test_open_sequences_are_finished_at_the_end_and_nothing_else_is_begun() -> None:
    options = ServeOptions(poll_s=0, allow_load=True)
    async with served(accumulator(), ident(), options=options) as server:
        await server.infer(step("s"))
        drained: list[bool] = []

        async def drain() -> None:
            drained.append(await server.drain())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drain)
            await until(lambda: not server.is_ready)
            assert (await server.infer(step())).outputs[0].shape == (1, 1)
            for refused in (server.infer(row()), server.load("acc"), server.unload("acc")):
                with pytest.raises(ServingError, match="about to end"):
                    await refused
            assert drained == []
            await server.infer(step("e"))
        assert drained == [True]
        with pytest.raises(ServingError, match="about to end"):
            await server.infer(step("s"))


async def test_what_cannot_be_measured_is_served_without_joining() -> None:
    builder = nn.ModelBuilder("open")
    x = builder.input("x", (0, 0))
    builder.output("y", builder.add(x, x))
    batching = ModelSettings(batching=BatchingSettings())
    async with served(builder.build(), settings=batching) as server:
        (entry,) = server.index()
        assert (entry.state, entry.reason[:27]) == ("READY", "requests are not joined: th")
        values = InputTensor("x", "FP32", (1, 3), values=[1, 2, 3])
        assert (await server.infer(InferRequest("open", inputs=(values,)))).outputs
        assert server.repository.problems_of("open") == ""
