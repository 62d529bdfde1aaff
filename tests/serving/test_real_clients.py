"""Clients as programs have them, over loopback: tritonclient's four, and that of KServe."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import importlib.util
import secrets
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import numpy as np
import pytest

pytest.importorskip("grpc", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

from nnasync.hal import Array
from nnasync.serving.grpc_front import open_grpc_front
from nnasync.serving.http_server import Place, listening
from tests.serving.small_models import accumulator, ident, served

LIMIT_S = 30
X = np.array([[1, -2, 3]], np.float32)
KINDS = ("http", "http.aio", "grpc", "grpc.aio")


class Ports:
    """Where a server listens that runs on a thread of its own."""

    def __init__(self) -> None:
        self.http = self.grpc = 0
        self.ready = threading.Event()
        self.stop: Callable[[], object] = lambda: None

    async def serve(self) -> None:
        async with (
            served(ident(), accumulator()) as server,
            open_grpc_front(server, port=0) as front,
            listening(server, Place(port=0)) as address,
        ):
            self.http, self.grpc = int(address.rpartition(":")[2]), front.port
            stopped, loop = asyncio.Event(), asyncio.get_running_loop()
            self.stop = functools.partial(loop.call_soon_threadsafe, stopped.set)
            self.ready.set()
            await stopped.wait()


@pytest.fixture(scope="module")
def ports() -> Iterator[Ports]:
    found = Ports()
    thread = threading.Thread(target=lambda: asyncio.run(found.serve()), daemon=True)
    thread.start()
    assert found.ready.wait(LIMIT_S)
    yield found
    found.stop()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


class Waiting:
    """A client that blocks, with methods to be awaited: the server has a loop of its own."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **named: Any) -> Any:
            return getattr(self._client, name)(*arguments, **named)

        return call


class Triton:
    """One of tritonclient's four, with what makes its inputs and outputs."""

    def __init__(self, kind: str, ports: Ports) -> None:
        pytest.importorskip(f"tritonclient.{kind}", reason="tritonclient is not installed")
        self.module = importlib.import_module(f"tritonclient.{kind}")
        port = ports.http if kind.startswith("http") else ports.grpc
        self.has_streams = kind.startswith("grpc")
        client = self.module.InferenceServerClient(f"127.0.0.1:{port}")
        self.client: Any = client if kind.endswith("aio") else Waiting(client)

    def input(self, array: Array, name: str = "x") -> Any:
        found = self.module.InferInput(name, list(array.shape), "FP32")
        found.set_data_from_numpy(array)
        return found

    def in_memory(self, region: str, size: int, offset: int = 0) -> Any:
        found = self.module.InferInput("x", [1, 3], "FP32")
        found.set_shared_memory(region, size, offset)
        return found

    def output_to(self, region: str, size: int, offset: int = 0) -> Any:
        found = self.module.InferRequestedOutput("y")
        found.set_shared_memory(region, size, offset)
        return found


def with_each(scenario: Callable[[Triton], Any]) -> Callable[[Ports, str], None]:
    """A test that runs a scenario with each of the four clients."""

    @pytest.mark.parametrize("kind", KINDS)
    def test(ports: Ports, kind: str) -> None:
        async def run() -> None:
            triton = Triton(kind, ports)
            try:
                with anyio.fail_after(LIMIT_S):
                    await scenario(triton)
            finally:
                await triton.client.close()

        asyncio.run(run())

    test.__doc__ = scenario.__doc__
    return test


@with_each
async def test_it_sees_what_there_is(triton: Triton) -> None:
    client = triton.client
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready("ident")
    for ask in (client.get_server_metadata, client.get_inference_statistics):
        assert await ask()
    for ask in (client.get_model_metadata, client.get_model_config):
        assert await ask("ident")
    assert await client.get_model_repository_index()
    assert await client.get_log_settings()
    assert await client.get_trace_settings()


@with_each
async def test_it_infers(triton: Triton) -> None:
    answer = await triton.client.infer(
        "ident", [triton.input(X)], request_id="7", priority=1, timeout=LIMIT_S * 1_000_000
    )
    assert answer.as_numpy("y").tolist() == X.tolist()


@with_each
async def test_it_has_sequences(triton: Triton) -> None:
    for name in (secrets.randbits(31), secrets.token_hex(8)):
        sums = []
        for value, first, last in ((1, True, False), (2, False, False), (3, False, True)):
            answer = await triton.client.infer(
                "acc",
                [triton.input(np.array([[value]], np.float32))],
                sequence_id=name,
                sequence_start=first,
                sequence_end=last,
            )
            sums.append(float(answer.as_numpy("y")[0, 0]))
        assert sums == [1, 3, 6]


@with_each
async def test_it_takes_a_state_from_one_sequence_to_another(triton: Triton) -> None:
    client, one, other = triton.client, secrets.randbits(31), secrets.randbits(31)
    five, seven = (triton.input(np.array([[value]], np.float32)) for value in (5, 7))
    answer = await client.infer(
        "acc",
        [five],
        sequence_id=one,
        sequence_start=True,
        sequence_end=True,
        parameters={"export_state": True},
    )
    total = answer.as_numpy("total")
    assert total.tolist() == [[5]]
    answer = await client.infer(
        "acc",
        [seven, triton.input(total, "total")],
        sequence_id=other,
        sequence_start=True,
        sequence_end=True,
    )
    assert answer.as_numpy("y").tolist() == [[12]]
    assert answer.as_numpy("total") is None


@contextlib.contextmanager
def region(size: int) -> Iterator[Any]:
    """A piece of shared memory that a client made: its handle, and its key."""
    memory = pytest.importorskip("tritonclient.utils.shared_memory")
    key = f"/nnasync_test_{secrets.token_hex(8)}"
    handle = memory.create_shared_memory_region("region", key, size)
    try:
        yield memory, handle, key
    finally:
        memory.destroy_shared_memory_region(handle)


@with_each
async def test_it_shares_memory(triton: Triton) -> None:
    client, name = triton.client, f"r_{secrets.token_hex(4)}"
    with region(64) as (memory, handle, key):
        await client.register_system_shared_memory(name, key, 64)
        assert name in str(await client.get_system_shared_memory_status())
        for value in (X, X + 1):
            memory.set_shared_memory_region(handle, [value])
            await client.infer(
                "ident",
                [triton.in_memory(name, 12)],
                outputs=[triton.output_to(name, 12, 32)],
            )
            found = memory.get_contents_as_numpy(handle, np.float32, [1, 3], 32)
            assert found.tolist() == value.tolist()
        await client.unregister_system_shared_memory(name)
        with pytest.raises(Exception, match="Unable to find shared memory region"):
            await client.infer("ident", [triton.in_memory(name, 12)])


@with_each
async def test_memory_that_is_too_small(triton: Triton) -> None:
    client, name = triton.client, f"r_{secrets.token_hex(4)}"
    with region(64) as (_, _, key):
        with pytest.raises(Exception, match="Invalid offset"):
            await client.register_system_shared_memory(name, key, 65)
        await client.register_system_shared_memory(name, key, 64)
        with pytest.raises(Exception, match="Invalid offset"):
            await client.infer("ident", [triton.in_memory(name, 12, 60)])
        with pytest.raises(Exception, match="should be at least 12 bytes to hold the results"):
            await client.infer("ident", [triton.input(X)], outputs=[triton.output_to(name, 4)])
        await client.unregister_system_shared_memory(name)


def test_a_stream_of_the_client_that_blocks(ports: Ports) -> None:
    triton = Triton("grpc", ports)
    client: Any = triton.client._client
    found: list[Any] = []
    is_done = threading.Event()

    def take(result: Any, error: Any) -> None:
        found.append(error or float(result.as_numpy("y")[0, 0]))
        if len(found) == 5:
            is_done.set()

    client.start_stream(take)
    for value in range(1, 6):
        x = triton.input(np.array([[value]], np.float32))
        flags = {"sequence_start": value == 1, "sequence_end": value == 5}
        client.async_stream_infer("acc", [x], sequence_id=99, **flags)
    assert is_done.wait(LIMIT_S)
    client.stop_stream()
    client.close()
    assert found == [1, 3, 6, 10, 15]


def test_a_stream_of_the_client_that_does_not(ports: Ports) -> None:
    async def run() -> None:
        triton = Triton("grpc.aio", ports)

        async def requests() -> AsyncIterator[dict[str, Any]]:
            for number in range(20):
                inputs = [triton.input(X + number)]
                yield {"model_name": "ident", "inputs": inputs, "request_id": str(number)}

        found = {}
        async with triton.client as client:
            async for result, error in client.stream_infer(requests()):
                assert error is None
                found[int(result.get_response().id)] = result.as_numpy("y").tolist()
        assert found == {number: (X + number).tolist() for number in range(20)}

    asyncio.run(run())


KSERVE = """
import asyncio, sys
import kserve, numpy as np

protocol, port, limit_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])

async def main():
    tensor = kserve.InferInput("x", [1, 3], "FP32")
    tensor.set_data_from_numpy(np.array([[1, -2, 3]], np.float32), binary_data=protocol == "http")
    request = kserve.InferRequest(model_name="ident", infer_inputs=[tensor])
    if protocol == "http":
        settings = kserve.RESTConfig(protocol="v2", timeout=limit_s, retries=0)
        client, base = kserve.InferenceRESTClient(settings), [f"http://127.0.0.1:{port}"]
        answer = await client.infer(*base, request, model_name="ident")
    else:
        client, base = kserve.InferenceGRPCClient(f"127.0.0.1:{port}", retries=0), []
        answer = await client.infer(request)
    assert await client.is_server_live(*base) is True
    assert await client.is_server_ready(*base) is True
    assert await client.is_model_ready(*base, "ident") is True
    assert answer.outputs[0].as_numpy().tolist() == [[1, -2, 3]]

asyncio.run(main())
"""
"""In a process of its own: its messages and those of tritonclient exclude each other."""


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_client_of_kserve(ports: Ports, protocol: str) -> None:
    if importlib.util.find_spec("kserve") is None:
        pytest.skip("kserve is not installed")
    port = ports.http if protocol == "http" else ports.grpc
    command = [sys.executable, "-c", KSERVE, protocol, str(port), str(LIMIT_S)]
    subprocess.run(command, check=True, timeout=2 * LIMIT_S)
