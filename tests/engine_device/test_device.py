"""A device made of an engine: its answers, how it prepares models, and its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import anyio
import pytest

from nnasync import hal
from nnasync._core.clock import within
from nnasync._core.drivers.null import NullEngine
from nnasync.device import PrepareModelConfig
from nnasync.engine import Engine, Plan
from nnasync.errors import (
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    ModelError,
    NNError,
    ResourceExhaustedPersistent,
)
from tests.engine_device.rig import PATIENCE_S, Rig, Row, finished, null, reached
from tests.rigs import HOUR, ManualWatchdog, calculator, doubler, until

pytestmark = pytest.mark.anyio

Rigs = Callable[..., Rig]
NOTHING = hal.Model(hal.Subgraph((), (), (), ()))


class Slow(NullEngine):
    """Compiles when it is let, and raises what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.compiling = threading.Event()
        self.go_on = threading.Event()
        self.error: BaseException | None = None

    def compile(self, model: hal.Model, preference: hal.ExecutionPreference) -> Plan:  # type: ignore[override]
        self.compiling.set()
        assert self.go_on.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        return super().compile(model, preference)


async def test_answers_of_the_engine(rigs: Rigs) -> None:
    engine = NullEngine("null-7")
    device = rigs(engine).device
    assert (device.name, device.version) == ("null-7", engine.version)
    assert device.type is engine.type
    assert device.feature_level is hal.HalVersion.V1_3
    assert await device.get_status() is hal.DeviceStatus.AVAILABLE
    assert await device.get_capabilities() is engine.capabilities
    assert await device.get_supported_extensions() == ()
    assert await device.get_number_of_cache_files_needed() == (0, 0)


async def test_supported_operations(rigs: Rigs) -> None:
    add, mul = hal.OperationType.ADD, hal.OperationType.MUL
    device = rigs(NullEngine(operation_types={add})).device
    model = calculator()
    assert [operation.type for operation in model.main.operations] == [add, mul]
    assert await device.get_supported_operations(model) == (True, False)
    with pytest.raises(ModelError):
        await device.get_supported_operations(NOTHING)


async def test_wrong_number_of_answers_is_no_support(rigs: Rigs) -> None:
    class Talkative(NullEngine):
        def supported_operations(self, model: hal.Model) -> list[bool]:
            return [True] * 7

    assert await rigs(Talkative()).device.get_supported_operations(doubler()) == (False,)


async def test_illegal_model_does_not_reach_the_engine(rigs: Rigs) -> None:
    engine = null()
    with pytest.raises(ModelError):
        await rigs(engine).device.prepare_model(NOTHING)
    assert engine.counters.compile == 0


@pytest.mark.parametrize(
    "error", [InvalidArgument("operation 3"), ResourceExhaustedPersistent("no room")]
)
async def test_typed_error_of_compile_stays_itself(rigs: Rigs, error: NNError) -> None:
    engine = null()
    engine.fail("compile", error)
    with pytest.raises(type(error), match=str(error)):
        await rigs(engine).device.prepare_model(doubler())


@pytest.mark.parametrize(
    "error",
    [KeyError("weights"), TimeoutError("its own"), SystemExit(3), StopIteration(), MemoryError()],
)
@pytest.mark.parametrize("deadline", [None, 60])
async def test_whatever_compile_raises_is_contained(
    rigs: Rigs, error: BaseException, deadline: int | None
) -> None:
    engine = Slow()
    engine.error = error
    engine.go_on.set()
    with pytest.raises(GeneralFailure, match=type(error).__name__) as caught:
        await rigs(engine).device.prepare_model(
            doubler(), PrepareModelConfig(deadline=None if deadline is None else within(s=deadline))
        )
    assert caught.value.__cause__ is error


async def test_prepare_is_answered_at_the_deadline_though_the_engine_is_not(rigs: Rigs) -> None:
    engine, watchdog, deadline = Slow(), ManualWatchdog(), within(**HOUR)
    rig = rigs(engine, watchdog=watchdog)
    rig.at_end.append(engine.go_on.set)

    async def prepare() -> None:
        with pytest.raises(MissedDeadlineTransient):
            await rig.device.prepare_model(doubler(), PrepareModelConfig(deadline=deadline))

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(prepare)
            await until(engine.compiling.is_set)
            watchdog.ring(deadline)
    assert not engine.go_on.is_set()


async def test_prepare_after_the_deadline_does_not_begin(rigs: Rigs) -> None:
    engine = null()
    with pytest.raises(MissedDeadlinePersistent):
        await rigs(engine).device.prepare_model(
            doubler(), PrepareModelConfig(deadline=within(ms=-1))
        )
    assert engine.counters.compile == 0


async def test_device_that_closes_while_it_compiles(rigs: Rigs) -> None:
    engine = Slow()
    rig = rigs(engine)
    failures: list[NNError] = []

    async def prepare() -> None:
        with pytest.raises(DeviceUnavailable) as caught:
            await rig.device.prepare_model(doubler())
        failures.append(caught.value)

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as group:
            group.start_soon(prepare)
            await anyio.to_thread.run_sync(engine.compiling.wait)
            await rig.device.close()
            engine.go_on.set()
    assert len(failures) == 1


async def test_values_that_are_no_preference_or_priority(rigs: Rigs) -> None:
    device, config = rigs(null()).device, cast(Any, PrepareModelConfig)
    with pytest.raises(InvalidArgument, match="preference 3 must be one of"):
        await device.prepare_model(doubler(), config(preference=3))
    with pytest.raises(InvalidArgument, match="priority -1 must be one of"):
        await device.prepare_model(
            doubler(), config(preference=hal.ExecutionPreference.LOW_POWER, priority=-1)
        )


async def test_there_is_no_compilation_cache(rigs: Rigs) -> None:
    device = rigs(null()).device
    assert await device.get_number_of_cache_files_needed() == (0, 0)
    with pytest.raises(GeneralFailure, match="no compilation cache"):
        await device.prepare_model_from_cache(PrepareModelConfig(token=bytes(32)))


async def test_closed_device(rigs: Rigs) -> None:
    rig = rigs(null())
    prepared, row = await rig.prepare(), Row()
    await prepared.execute(row.request)
    await rig.device.close()
    await rig.device.close()
    assert await rig.device.get_status() is hal.DeviceStatus.OFFLINE
    for call in (
        lambda: rig.device.prepare_model(doubler()),
        lambda: rig.device.get_supported_operations(doubler()),
        lambda: prepared.execute(row.request),
        lambda: prepared.execute_synchronously(row.request),
        lambda: prepared.execute_fenced(row.request),
        lambda: prepared.execute(Row().request),
    ):
        with pytest.raises(DeviceUnavailable):
            await call()


async def test_closing_ends_what_is_in_flight_and_nothing_else(rigs: Rigs) -> None:
    engine, other = null(gated=True), null()
    rig = rigs(engine, cores=1)
    neighbor = Rig(other)
    rig.at_end.append(neighbor.close)
    prepared, kept, rows = await rig.prepare(), await rig.prepare(), [Row() for _ in range(4)]
    running = await prepared.execute_fenced(rows[0].request)
    await reached(engine, lambda now: now.waiting == 1)
    queued = await prepared.execute_fenced(rows[1].request)
    held = await prepared.execute_fenced(rows[2].request, [queued.fence])
    unharmed = await kept.execute_fenced(rows[3].request)
    await prepared.close()
    for launched in (running, queued, held):
        assert launched.fence.done
        assert isinstance(await finished(launched.fence), NNError)
    assert isinstance(running.fence.error, DeviceUnavailable)
    assert isinstance(queued.fence.error, DeviceUnavailable)
    assert engine.gate is not None
    engine.gate.open_wide()
    assert await finished(unharmed.fence) is None
    assert rows[3].is_right
    assert rows[1].is_untouched


async def test_trim_reaches_only_what_is_idle(rigs: Rigs) -> None:
    engine = null()
    rig = rigs(engine)
    prepared, row = await rig.prepare(), Row()
    await prepared.execute(row.request)
    rig.device.trim()
    assert engine.counters.trim == 0
    rig.device.trim()
    assert engine.counters.trim == 1


@pytest.mark.one_loop("It is called on a thread of its own.")
async def test_trim_while_models_are_prepared(rigs: Rigs) -> None:
    device = rigs(null()).device
    prepared = [await device.prepare_model(doubler()) for _ in range(200)]
    stop = threading.Event()
    errors: list[Exception] = []

    def trim() -> None:
        while not stop.is_set():
            try:
                device.trim()
            except Exception as error:
                errors.append(error)
                return

    thread = threading.Thread(target=trim)
    thread.start()
    try:
        prepared += [await device.prepare_model(doubler()) for _ in range(300)]
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    assert errors == []


def test_the_contract_is_checked_at_runtime() -> None:
    assert isinstance(NullEngine(), Engine)
    assert not isinstance(object(), Engine)
