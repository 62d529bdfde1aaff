"""Streams whose client is gone, or sends more than it takes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

pytest.importorskip("grpc", reason="the extra serve is not installed")

from nnasync.serving import ModelServer
from nnasync.serving.grpc_front.descriptors import message_class
from nnasync.serving.grpc_front.stream import IN_FLIGHT, InferStream
from tests.rigs import until
from tests.serving.small_models import ident, served

pytestmark = pytest.mark.anyio


def message(model: str = "ident") -> bytes:
    request = message_class("ModelInferRequest")(model_name=model)
    request.inputs.add(name="x", datatype="FP32", shape=[1, 3])
    request.raw_input_contents.append(bytes(12))
    return bytes(request.SerializeToString())


class Gone(Exception):
    """What writing to a client raises that hung up."""


def counts(server: ModelServer) -> tuple[int, int]:
    """Requests so far, and those that have not ended."""
    accounts = server.accounts.all()
    return sum(each.tally.calls for each in accounts), sum(each.pending for each in accounts)


@pytest.mark.parametrize("model", ["ident", "nope"])
async def test_a_client_that_hung_up_ends_its_stream_and_nobody_complains(
    model: str, caplog: pytest.LogCaptureFixture
) -> None:
    is_ended = False

    async def requests() -> AsyncIterator[bytes]:
        nonlocal is_ended
        try:
            yield message(model)
            await anyio.sleep_forever()
        finally:
            is_ended = True

    async def write(answer: bytes) -> None:
        raise Gone

    async with served(ident()) as server:
        stream = InferStream(server, "me", None, write, ends_at_error=False)
        with anyio.fail_after(20):
            await stream.answer(requests())
        assert is_ended
        assert counts(server) == (1, 0)
    assert caplog.records == []


async def test_no_more_is_read_than_the_client_takes() -> None:
    read, taking = 0, anyio.Event()

    async def requests() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(3 * IN_FLIGHT):
            read += 1
            yield message()

    async def write(answer: bytes) -> None:
        await taking.wait()

    async with served(ident()) as server:
        stream = InferStream(server, "me", None, write, ends_at_error=False)
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stream.answer, requests())
                await until(lambda: read > IN_FLIGHT)
                for _ in range(100):
                    await anyio.lowlevel.checkpoint()
                assert read == IN_FLIGHT + 1
                taking.set()
        assert read == 3 * IN_FLIGHT
        assert counts(server) == (3 * IN_FLIGHT, 0)
