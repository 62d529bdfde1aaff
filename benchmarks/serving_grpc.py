"""Serving over gRPC: processor time of the server for a request, beside an empty method.

Servers run in processes of their own, on uvloop: one with a method of `grpc.aio` that gives the
same bytes each time, one with the gRPC front and networks of one small operation, on the
reference. A client sends messages that were made before, one after the other, to each in turn: as
calls, on a stream, and with 600 kB as they are and in shared memory. Processor time is that of all
threads of the server's process; ratios are of rounds in one run. A third server calls the network,
besides doing nothing: the last column is without what that takes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np

import nnasync as nn
from benchmarks._report import arguments, publish
from benchmarks._served import cpu_us, server_process
from benchmarks.serving import (
    DEVICES,
    LARGE_SHAPE,
    SMALL_SHAPE,
    compared,
    model,
)
from nnasync.serving import ModelServer, ModelSettings, ServeOptions
from nnasync.serving.grpc_front import open_grpc_front
from nnasync.serving.grpc_front.descriptors import message_class
from nnasync.serving.process_memory import keep_memory

SERVICE = "inference.GRPCInferenceService"
NETWORK = "empty method, and the network"
EMPTY, LARGE_EMPTY = "empty method", "empty method, 600 kB"
SMALL, STREAM = "inference", "inference on a stream"
LARGE, SHARED = "inference, 600 kB", "inference, 600 kB in shared memory"
REGION_BYTES = 2 * 4 * LARGE_SHAPE[1]
FOLDER = Path("/dev/shm")


async def serve(kind: str) -> None:
    """Serves until the process is ended, and prints the port."""
    keep_memory()
    if kind == "empty":
        await _serve_bytes(None)
        return
    if kind == "network":
        async with nn.open_runtime(devices=DEVICES) as runtime:
            await _serve_bytes(await runtime.compile(model("small", SMALL_SHAPE)))
        return
    async with (
        nn.open_runtime(devices=DEVICES) as runtime,
        ModelServer(runtime, options=ServeOptions(poll_s=0)) as server,
        open_grpc_front(server, port=0) as front,
    ):
        for name, shape in (("small", SMALL_SHAPE), ("large", LARGE_SHAPE)):
            await server.add(await runtime.compile(model(name, shape)), ModelSettings(name=name))
        print(front.port, flush=True)
        await asyncio.Event().wait()


async def _serve_bytes(net: Any) -> None:
    """Serve a method that gives the same bytes each time, and calls a network if there is one."""
    x = np.zeros(SMALL_SHAPE, np.float32)
    response = message_class("ModelInferResponse")(model_name="small", model_version="1")
    response.outputs.add(name="y", datatype="FP32", shape=SMALL_SHAPE)
    head = bytes(response.SerializeToString())
    small, large = (head + _raw_output(bytes(4 * shape[1])) for shape in (SMALL_SHAPE, LARGE_SHAPE))

    async def answer(message: bytes, context: Any) -> bytes:
        if net is not None:
            await net(x)
        return large if len(message) > 10_000 else small

    method = grpc.unary_unary_rpc_method_handler(answer)
    handler = grpc.method_handlers_generic_handler(SERVICE, {"ModelInfer": method})
    listener = grpc.aio.server(handlers=[handler])
    print(listener.add_insecure_port("127.0.0.1:0"), flush=True)
    await listener.start()
    await asyncio.Event().wait()


def _raw_output(data: bytes) -> bytes:
    response = message_class("ModelInferResponse")(raw_output_contents=[data])
    return bytes(response.SerializeToString())


class Served:
    """A server in a process of its own, and a channel to it."""

    def __init__(self, pid: int, port: int) -> None:
        self._pid = pid
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self.infer = self.channel.unary_unary(f"/{SERVICE}/ModelInfer")

    def stream(self) -> Callable[[bytes], bytes]:
        """Opens a stream; returns a function that sends a message and waits for one."""
        messages: SimpleQueue[bytes] = SimpleQueue()
        call = self.channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
        answers = call(iter(messages.get, b""))

        def ask(message: bytes) -> bytes:
            messages.put(message)
            return bytes(next(answers))

        return ask

    def register(self, key: str) -> None:
        """Has the server map a region."""
        request = message_class("SystemSharedMemoryRegisterRequest")(
            name="region", key=key, byte_size=REGION_BYTES
        )
        register = self.channel.unary_unary(f"/{SERVICE}/SystemSharedMemoryRegister")
        register(request.SerializeToString())

    def cpu_us(self, ask: Callable[[bytes], bytes], request: bytes, times: int) -> float:
        """Returns the microseconds of processor time of one request."""
        return cpu_us(self._pid, ask, request, times)


@contextlib.contextmanager
def served(kind: str) -> Iterator[Served]:
    """Runs a server while the block runs."""
    with server_process(__file__, kind) as (pid, port):
        yield Served(pid, port)


@contextlib.contextmanager
def region() -> Iterator[str]:
    """Makes a file of shared memory while the block runs; yields its key."""
    file = FOLDER / f"nnasync_benchmark_{secrets.token_hex(8)}"
    file.touch(mode=0o600)
    file.write_bytes(bytes(REGION_BYTES))
    try:
        yield f"/{file.name}"
    finally:
        file.unlink()


def message(name: str, shape: tuple[int, ...], *, is_shared: bool = False) -> bytes:
    """Returns a request; in shared memory the output lies behind the input."""
    request = message_class("ModelInferRequest")(model_name=name)
    tensor = request.inputs.add(name="x", datatype="FP32", shape=shape)
    array = np.arange(np.prod(shape), dtype=np.float32)
    if not is_shared:
        request.raw_input_contents.append(array.tobytes())
        return bytes(request.SerializeToString())
    output = request.outputs.add(name="y")
    for each, offset in ((tensor, 0), (output, array.nbytes)):
        each.parameters["shared_memory_region"].string_param = "region"
        each.parameters["shared_memory_byte_size"].int64_param = array.nbytes
        each.parameters["shared_memory_offset"].int64_param = offset
    return bytes(request.SerializeToString())


def measured(rounds: int, requests: int) -> dict[str, list[float]]:
    """Returns the processor time of a request in microseconds, in each round."""
    small, large = message("small", SMALL_SHAPE), message("large", LARGE_SHAPE)
    shared, few = message("large", LARGE_SHAPE, is_shared=True), max(1, requests // 10)
    with (
        served("empty") as nothing,
        served("network") as network,
        served("models") as models,
        region() as key,
    ):
        models.register(key)
        turns: dict[str, tuple[Served, Callable[[bytes], bytes], bytes, int]] = {
            EMPTY: (nothing, nothing.infer, small, requests),
            NETWORK: (network, network.infer, small, requests),
            SMALL: (models, models.infer, small, requests),
            STREAM: (models, models.stream(), small, requests),
            LARGE_EMPTY: (nothing, nothing.infer, large, few),
            LARGE: (models, models.infer, large, few),
            SHARED: (models, models.infer, shared, few),
        }
        for server, ask, request, times in turns.values():
            server.cpu_us(ask, request, max(1, times // 2))
        found: dict[str, list[float]] = {name: [] for name in turns}
        for _ in range(rounds):
            for name, (server, ask, request, times) in turns.items():
                found[name].append(server.cpu_us(ask, request, times))
    return found


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=9)
    parser.add_argument("--requests", type=int, default=500, help="in a round (%(default)s)")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        nn.run(serve, options.serve)
        return
    found = measured(options.rounds, options.requests)
    large = (LARGE_EMPTY, LARGE, SHARED)
    publish(
        "Serving over gRPC",
        compared(found, EMPTY, NETWORK, dict.fromkeys(large, LARGE_EMPTY)),
        {"cpu_us": found},
        options,
    )


if __name__ == "__main__":
    main()
