"""A device over an engine that is made when it is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nnasync._core.clock import Watchdog
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.null import NullEngine
from nnasync._core.engine_device import EngineDevice
from nnasync._core.engine_device.late import LateEngine
from nnasync._core.workers import Workers
from nnasync.engine import Engine, Lowering
from nnasync.hal import DeviceType, ExecutionPreference, Model
from nnasync.tracing import Tracer
from tests.engine_device.rig import PATIENCE_S
from tests.rigs import doubler

pytestmark = pytest.mark.anyio


class Maker:
    """Counts how often it made an engine."""

    def __init__(self, engine: Engine) -> None:
        self.calls = 0
        self.engine = engine

    def __call__(self) -> Engine:
        self.calls += 1
        return self.engine


@pytest.fixture
def workers() -> Iterator[Workers]:
    watchdog = Watchdog()
    made = Workers(
        cores=3,
        inline_budget_ns=10**9,
        stall_budget_ns=10**9,
        queue_limit=10,
        watchdog=watchdog,
        tracer=Tracer(),
    )
    yield made
    made.close()
    assert made.join(PATIENCE_S) == 0
    watchdog.close()


async def test_what_is_known_needs_no_engine(workers: Workers, tmp_path: Path) -> None:
    make = Maker(ReferenceEngine())
    known = LateEngine("late", "1.5", DeviceType.OTHER, make)
    device = EngineDevice(known, workers, state_directory=tmp_path)
    assert (device.name, device.version, device.type) == ("late", "1.5", DeviceType.OTHER)
    assert not device.is_calibrated
    assert make.calls == 0
    assert device.cache_files == (2, 1)
    assert await device.get_capabilities() == make.engine.capabilities
    assert await device.get_supported_operations(doubler()) == (True,)
    assert device.engine is make.engine
    assert make.calls == 1
    await device.close()


async def test_closing_a_device_makes_no_engine(workers: Workers) -> None:
    make = Maker(NullEngine())
    device = EngineDevice(LateEngine("null", "1", DeviceType.CPU, make), workers)
    device.trim()
    await device.close()
    assert make.calls == 0


async def test_threads_make_one_engine(workers: Workers) -> None:
    make = Maker(NullEngine())
    device = EngineDevice(LateEngine("null", "1", DeviceType.CPU, make), workers)
    start = threading.Barrier(8)

    def ask(_: int) -> Engine:
        start.wait(PATIENCE_S)
        return device.engine

    with ThreadPoolExecutor(8) as pool:
        engines = set(map(id, pool.map(ask, range(8))))
    assert engines == {id(make.engine)}
    assert make.calls == 1
    await device.close()


def test_an_engine_that_is_late_gets_the_cores(workers: Workers) -> None:
    class Several(NullEngine):
        cores = 1

        def lowerings(self, model: Model, preference: ExecutionPreference) -> list[Lowering]:
            return [Lowering("one")]

    engine = Several()
    device = EngineDevice(LateEngine("null", "1", DeviceType.CPU, lambda: engine), workers)
    assert engine.cores == 1
    assert device.engine is engine
    assert engine.cores == 3


def test_making_an_engine_holds_up_no_other_device(workers: Workers) -> None:
    is_made, let_go = threading.Event(), threading.Event()

    def slow() -> Engine:
        is_made.set()
        let_go.wait()
        return ReferenceEngine()

    def device(make: Callable[[], Engine]) -> EngineDevice:
        return EngineDevice(LateEngine("late", "1", DeviceType.CPU, make), workers)

    held, free = device(slow), device(ReferenceEngine)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(lambda: held.engine)
        is_made.wait()
        second = threads.submit(lambda: free.engine)
        try:
            assert isinstance(second.result(PATIENCE_S), ReferenceEngine)
        finally:
            let_go.set()
        assert first.result(PATIENCE_S) is held.engine
