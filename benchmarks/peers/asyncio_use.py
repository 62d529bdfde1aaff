"""The peers as programs under asyncio use them, and nnasync: one inference as a coroutine.

Each is made from a model inside the running loop and has `infer`, which awaits one inference that
writes its inputs and reads fresh outputs. Worker threads have an interpreter each, as LiteRT's is
not to be shared; ONNX Runtime's session may be.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from benchmarks._report import cores
from benchmarks.peers.catalog import Entry
from benchmarks.peers.engines import LiteRT, OnnxRuntime, OpenVino
from nnasync.hal import Array

__all__ = ["FLIGHT", "USES", "Use"]

FLIGHT = 8
"""The most inferences in flight at once."""


class Use(Protocol):
    """One way to use one engine from coroutines."""

    def infer(self) -> Awaitable[object]:
        """Runs one inference."""

    def close(self) -> None:
        """Ends the threads."""


class LiteRTExecutor:
    """`loop.run_in_executor` on as many threads as there are cores."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.local = threading.local()
        self.loop = asyncio.get_running_loop()
        self.pool = ThreadPoolExecutor(len(cores()))
        self.inputs = LiteRT(entry).inputs

    def infer(self) -> Awaitable[object]:
        return self.loop.run_in_executor(self.pool, self.work)

    def work(self) -> Array:
        engine = getattr(self.local, "engine", None)
        if engine is None:
            engine = self.local.engine = LiteRT(self.entry)
        result: Array = engine.run(self.inputs)
        return result

    def close(self) -> None:
        self.pool.shutdown()


class LiteRTToThread(LiteRTExecutor):
    """`asyncio.to_thread`."""

    def infer(self) -> Awaitable[object]:
        return asyncio.to_thread(self.work)


class OpenVinoQueue:
    """AsyncInferQueue with one stream per core; its callback wakes the loop."""

    def __init__(self, entry: Entry, streams: int = 0) -> None:
        package: Any = importlib.import_module("openvino")
        streams = streams or len(cores())
        self.loop = asyncio.get_running_loop()
        self.engine = OpenVino(entry, streams, streams)
        self.queue = package.AsyncInferQueue(self.engine.compiled, FLIGHT + 1)
        self.queue.set_callback(self.done)

    def done(self, request: Any, future: asyncio.Future[Array]) -> None:
        result = request.get_output_tensor(0).data.copy()
        self.loop.call_soon_threadsafe(future.set_result, result)

    def infer(self) -> Awaitable[object]:
        future: asyncio.Future[Array] = self.loop.create_future()
        inputs = dict(enumerate(self.engine.inputs))
        self.queue.start_async(inputs, future, share_inputs=True)
        return future

    def close(self) -> None:
        self.queue.wait_all()


class OpenVinoStart:
    """`InferRequest.start_async` on requests of a pool of our own."""

    def __init__(self, entry: Entry) -> None:
        self.loop = asyncio.get_running_loop()
        streams = len(cores())
        self.engine = OpenVino(entry, streams, streams)
        self.free: list[Any] = []
        self.futures: dict[int, asyncio.Future[None]] = {}
        for number in range(FLIGHT):
            request = self.engine.compiled.create_infer_request()
            request.set_callback(self.done, number)
            self.free.append((number, request))

    def done(self, number: int) -> None:
        self.loop.call_soon_threadsafe(self.futures[number].set_result, None)

    async def infer(self) -> object:
        number, request = self.free.pop()
        self.futures[number] = self.loop.create_future()
        for position, array in enumerate(self.engine.inputs):
            request.get_input_tensor(position).data[...] = array
        request.start_async()
        await self.futures[number]
        result = request.get_output_tensor(0).data.copy()
        # A request is busy until its callback has returned.
        request.wait()
        self.free.append((number, request))
        return result

    def close(self) -> None:
        for _, request in self.free:
            request.wait()


class OnnxRuntimeRunAsync:
    """`run_async`, which runs on the pool of intra-operation threads; that needs two."""

    def __init__(self, entry: Entry, threads: int = 0) -> None:
        self.loop = asyncio.get_running_loop()
        self.engine = OnnxRuntime(entry, threads or max(2, len(cores())))

    def done(self, results: Any, future: asyncio.Future[Any], error: str) -> None:
        self.loop.call_soon_threadsafe(future.set_result, error or results[0])

    def infer(self) -> Awaitable[object]:
        future: asyncio.Future[Any] = self.loop.create_future()
        feed = {"input": self.engine.inputs[0]}
        self.engine.session.run_async(None, feed, self.done, future)
        return future

    def close(self) -> None:
        """Does nothing, since nothing is in flight."""


class OnnxRuntimeExecutor:
    """One session of one thread, called through `loop.run_in_executor`."""

    def __init__(self, entry: Entry) -> None:
        self.engine = OnnxRuntime(entry)
        self.loop = asyncio.get_running_loop()
        self.pool = ThreadPoolExecutor(len(cores()))

    def infer(self) -> Awaitable[object]:
        return self.loop.run_in_executor(self.pool, self.engine.run, self.engine.inputs)

    def close(self) -> None:
        self.pool.shutdown()


USES: dict[str, Callable[[Entry], Use]] = {
    "LiteRT, run_in_executor": LiteRTExecutor,
    "LiteRT, to_thread": LiteRTToThread,
    "OpenVINO, AsyncInferQueue": OpenVinoQueue,
    "OpenVINO, start_async": OpenVinoStart,
    "ONNX Runtime, run_async": OnnxRuntimeRunAsync,
    "ONNX Runtime, run_in_executor": OnnxRuntimeExecutor,
}
