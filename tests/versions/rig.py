"""Devices of older HAL versions over the kernels of the reference, which record what they hear.

They have nothing that their version does not have, and refuse what it does not allow.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import numpy as np

import nnasync as nn
from nnasync import hal
from nnasync._core.clock import Deadline
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.validation import minimum_version, validate_model, validate_request
from nnasync._core.versions import Errands, OlderDevice
from nnasync.device import DEFAULT_PREPARE, PrepareModelConfig
from nnasync.engine import OutputBuffer, StopFlag, Target
from nnasync.hal import (
    DEFAULT_CONFIG,
    Array,
    Capabilities,
    Capabilities10,
    Capabilities11,
    Capabilities12,
    DataLocation,
    DeviceStatus,
    DeviceType,
    ExecutionConfig,
    ExecutionPreference,
    ExecutionResult,
    HalVersion,
    Model,
    OutputShape,
    PerformanceInfo,
    Request,
    RequestArgument,
    Timing,
)
from nnasync.memory import Pool, layout
from tests.rigs import GUARD_S, ManualWatchdog

V1_0, V1_1, V1_2, V1_3 = HalVersion
FAST = ExecutionPreference.FAST_SINGLE_ANSWER
TIMING = Timing(5, 7)


def always(type: int) -> bool:
    """Support every operation."""
    return True


class Recorded:
    """What the devices of all versions here have; `heard` is each call with its arguments."""

    def __init__(
        self,
        name: str,
        takes: Callable[[int], bool] = always,
        speed: float = 1.0,
    ) -> None:
        self.name = name
        self.heard: list[tuple[Any, ...]] = []
        self.takes = takes
        self.info = PerformanceInfo(speed, speed)
        self.fault: BaseException | None = None
        self.answers: Callable[[list[bool]], Any] = lambda answers: answers
        self.result: Callable[[ExecutionResult], Any] = lambda result: result
        self.gate: anyio.Event | None = None
        self.ended = 0
        self.closed = 0

    async def get_status(self) -> DeviceStatus:
        return DeviceStatus.AVAILABLE

    async def get_supported_operations(self, model: Model) -> Sequence[bool]:
        self.heard.append(("supported", model))
        self.check(model)
        answers: Sequence[bool] = self.answers(
            [self.takes(each.type) for each in model.main.operations]
        )
        return answers

    async def close(self) -> None:
        self.closed += 1

    def check(self, model: Model) -> None:
        validate_model(model, self.feature_level)
        assert minimum_version(model) <= self.feature_level
        if self.fault is not None:
            raise self.fault

    feature_level = V1_0

    def runs(self) -> list[tuple[Any, ...]]:
        return [call for call in self.heard if call[0] in ("execute", "synchronously", "burst")]


class Prepared10:
    """A plan of the reference, executed on the loop."""

    def __init__(self, device: Recorded, model: Model) -> None:
        self.device = device
        self.model = model
        self.plan = ReferenceEngine().compile(model, FAST)

    async def execute(self, request: Request) -> object:
        self.device.heard.append(("execute", request))
        await self.run(request)
        return None

    async def run(self, request: Request) -> tuple[OutputShape, ...]:
        device = self.device
        validate_request(self.model, request, version=device.feature_level)
        try:
            if device.gate is not None:
                await device.gate.wait()
            if device.fault is not None:
                raise device.fault
            main = self.model.main
            inputs = [
                _array(request, argument, main.operands[index])
                for argument, index in zip(request.inputs, main.input_indexes, strict=True)
            ]
            outputs = [
                _target(request, argument, main.operands[index])
                for argument, index in zip(request.outputs, main.output_indexes, strict=True)
            ]
            assert self.plan.bind(inputs, outputs).run(StopFlag())
        finally:
            device.ended += 1
        return tuple(OutputShape(output.shape) for output in outputs)


class Fake10(Recorded):
    """A device of HAL 1.0."""

    async def get_capabilities(self) -> Capabilities10:
        self.heard.append(("capabilities",))
        return Capabilities10(self.info, self.info)

    async def prepare_model(self, model: Model) -> Prepared10:
        self.heard.append(("prepare", model))
        self.check(model)
        return Prepared10(self, model)


class Fake11(Recorded):
    """A device of HAL 1.1."""

    feature_level = V1_1

    async def get_capabilities(self) -> Capabilities11:
        self.heard.append(("capabilities",))
        return Capabilities11(self.info, self.info, self.info)

    async def prepare_model(self, model: Model, preference: ExecutionPreference) -> Prepared10:
        self.heard.append(("prepare", model, preference))
        self.check(model)
        return Prepared10(self, model)


class Prepared12(Prepared10):
    """With results."""

    async def execute(self, request: Request, *, measure: bool = False) -> ExecutionResult:
        self.device.heard.append(("execute", request, measure))
        return await self.told(request, measure=measure)

    async def execute_synchronously(
        self, request: Request, *, measure: bool = False
    ) -> ExecutionResult:
        self.device.heard.append(("synchronously", request, measure))
        return await self.told(request, measure=measure)

    async def told(self, request: Request, *, measure: bool) -> ExecutionResult:
        shapes = await self.run(request)
        result: ExecutionResult = self.device.result(
            ExecutionResult(shapes, TIMING if measure else Timing())
        )
        return result


class Fake12(Recorded):
    """A device of HAL 1.2."""

    feature_level = V1_2
    version = "12"
    type = DeviceType.ACCELERATOR
    cache_files = (1, 0)

    async def get_capabilities(self) -> Capabilities12:
        self.heard.append(("capabilities",))
        types = [type for type in hal.OperandType if type <= 13]
        return Capabilities12(self.info, self.info, hal.uniform_performance(self.info, types))

    async def get_supported_extensions(self) -> tuple[hal.Extension, ...]:
        return ()

    async def get_number_of_cache_files_needed(self) -> tuple[int, int]:
        return self.cache_files

    async def prepare_model(
        self,
        model: Model,
        preference: ExecutionPreference,
        *,
        model_cache: Sequence[int] = (),
        data_cache: Sequence[int] = (),
        token: bytes = b"",
    ) -> Prepared12:
        self.heard.append(("prepare", model, preference, model_cache, data_cache, token))
        self.check(model)
        return Prepared12(self, model)

    async def prepare_model_from_cache(
        self, model_cache: Sequence[int], data_cache: Sequence[int], token: bytes
    ) -> Prepared12:
        self.heard.append(("from_cache", model_cache, data_cache, token))
        raise nn.errors.GeneralFailure("nothing is cached")


class Fake13(Fake12):
    """A device of HAL 1.3 that is no engine; what it adds takes part in the calls."""

    feature_level = V1_3

    async def get_capabilities(self) -> Capabilities:  # type: ignore[override]
        return Capabilities(
            self.info,
            self.info,
            hal.uniform_performance(self.info),
            if_performance=self.info,
            while_performance=self.info,
        )

    async def prepare_model(  # type: ignore[override]  # that of 1.3
        self,
        model: Model,
        config: PrepareModelConfig = DEFAULT_PREPARE,
    ) -> Any:
        self.heard.append(("prepare", model, config.preference, config.priority, config.deadline))
        self.check(model)
        return _Prepared13(self, model)

    async def allocate(self, *arguments: Any) -> Any:
        raise nn.errors.GeneralFailure("no buffers")


class _Prepared13(Prepared12):
    async def execute(  # type: ignore[override]
        self, request: Request, config: ExecutionConfig = DEFAULT_CONFIG
    ) -> Any:
        return await super().execute(request, measure=config.measure)

    async def execute_synchronously(  # type: ignore[override]
        self, request: Request, config: ExecutionConfig = DEFAULT_CONFIG
    ) -> Any:
        return await super().execute_synchronously(request, measure=config.measure)

    async def close(self) -> None:
        pass


def _array(request: Request, argument: RequestArgument, operand: hal.Operand) -> Array | None:
    if argument.has_no_value:
        return None
    pool = request.pools[argument.location.pool_index]
    assert isinstance(pool, Pool)
    shape = argument.dimensions or operand.dimensions
    return pool.array(hal.dtype_of(operand.type), shape, argument.location.offset)


def _target(request: Request, argument: RequestArgument, operand: hal.Operand) -> Target:
    pool = request.pools[argument.location.pool_index]
    assert isinstance(pool, Pool)
    shape = argument.dimensions or operand.dimensions
    dtype, place = hal.dtype_of(operand.type), argument.location
    if hal.is_fully_specified(operand.type, shape):
        return pool.array(dtype, shape, place.offset)
    return OutputBuffer(pool.array(np.uint8, (place.length,), place.offset), dtype, shape)


class Memory:
    """Inputs and outputs of one request for a model."""

    def __init__(self, model: Model, *inputs: Any) -> None:
        main = model.main
        operands = [main.operands[index] for index in (*main.input_indexes, *main.output_indexes)]
        sizes = [hal.byte_size(operand.type, operand.dimensions) for operand in operands]
        offsets, total = layout(sizes)
        self.pool = Pool.allocate(total)
        arrays = [
            self.pool.array(hal.dtype_of(operand.type), operand.dimensions, offset)
            for operand, offset in zip(operands, offsets, strict=True)
        ]
        count = len(main.input_indexes)
        self.outputs = arrays[count:]
        for array, value in zip(arrays[:count], inputs, strict=True):
            array[...] = value
        arguments = [
            RequestArgument(location=DataLocation(0, offset, size))
            for offset, size in zip(offsets, sizes, strict=True)
        ]
        self.request = Request(tuple(arguments[:count]), tuple(arguments[count:]), (self.pool,))


@asynccontextmanager
async def errands() -> AsyncIterator[Errands]:
    """Errands of a task group that ends with the test; deadlines pass when it rings."""
    watchdog = ManualWatchdog()
    try:
        with anyio.fail_after(GUARD_S):
            async with anyio.create_task_group() as group:
                yield Errands(group.start_soon, watchdog)
                group.cancel_scope.cancel()
    finally:
        watchdog.close()


def ring(errands: Errands) -> None:
    """Let all deadlines pass that are waited for."""
    watchdog = errands.watchdog
    assert isinstance(watchdog, ManualWatchdog)
    for alarm in list(watchdog.alarms):
        watchdog.ring(Deadline(alarm.at_ns))


def ages() -> Model:
    """One operation of each HAL version, one after the other: MUL, SUB, MAXIMUM, ELU."""
    builder = nn.ModelBuilder("ages")
    x, y = builder.input("x", (1, 4)), builder.input("y", (1, 4))
    product = builder.mul(x, y)
    difference = builder.sub(product, x)
    larger = builder.operation(nn.OperationType.MAXIMUM, difference, y)
    builder.output("z", builder.operation(nn.OperationType.ELU, larger, 1.0))
    return builder.build()


def same(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether two results are equal bit by bit."""
    return all(
        np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(left, right, strict=True)
    )


def _conform(*fakes: Fake10 | Fake11 | Fake12) -> Sequence[OlderDevice]:
    """The type checker holds the fakes to the interface."""
    return fakes
