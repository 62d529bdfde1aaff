"""Group "basics": what a device says of itself, and that it refuses graphs with cycles."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from nnasync._core.validation import validate_extension
from nnasync.conformance.hal_suite.check import Check, Skipped, refused
from nnasync.conformance.hal_suite.fixture import Bench
from nnasync.conformance.trial import Fault
from nnasync.device import Device
from nnasync.errors import InvalidArgument
from nnasync.hal import (
    MAX_NUMBER_OF_CACHE_FILES,
    DataLocation,
    DeviceStatus,
    DeviceType,
    HalVersion,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    PerformanceInfo,
    Subgraph,
)

GROUP = "basics"


def basics(bench: Bench) -> Iterator[Check]:
    """The checks of the group."""
    device = bench.device
    yield Check(GROUP, "status", lambda: _status(device))
    yield Check(GROUP, "identity", lambda: _identity(device))
    yield Check(GROUP, "capabilities", lambda: _capabilities(device))
    yield Check(GROUP, "extensions", lambda: _extensions(device))
    yield Check(GROUP, "numbers of cache files", lambda: _cache_files(device))
    yield Check(GROUP, "cycle of operations", lambda: _refused(device, _cyclic()))
    for case in bench.legal_subjects:
        model = case.model

        async def consistent(model: Model = model) -> None:
            await _consistent(bench, model)

        yield Check(GROUP, f"supported operations of {case.name}", consistent)
        if model.referenced:

            async def nested(model: Model = model) -> None:
                await _refused(device, _nested_in_itself(model))

            yield Check(GROUP, f"cycle of subgraphs of {case.name}", nested)


async def _status(device: Device) -> None:
    status = await device.get_status()
    if status != DeviceStatus.AVAILABLE:
        raise Fault(f"the status is {status!r}, expected AVAILABLE")


async def _identity(device: Device) -> None:
    if not device.name or not device.version:
        raise Fault(f"name {device.name!r} and version {device.version!r} must not be empty")
    if device.type not in list(DeviceType) or device.feature_level not in list(HalVersion):
        raise Fault(f"type {device.type!r} or feature level {device.feature_level!r} is none")
    first = (device.name, device.version, device.type, device.feature_level)
    if first != (device.name, device.version, device.type, device.feature_level):
        raise Fault("name, version, type or feature level are not the same when asked again")


async def _capabilities(device: Device) -> None:
    capabilities = await device.get_capabilities()
    types = [entry.type for entry in capabilities.operand_performance]
    if types != sorted(set(types)):
        raise Fault(f"operand_performance is not sorted by type, each once: {types}")
    if OperandType.SUBGRAPH in types:
        raise Fault("operand_performance has an entry for SUBGRAPH")
    _check_figures("relaxed scalar", capabilities.relaxed_float32_to_float16_performance_scalar)
    _check_figures("relaxed tensor", capabilities.relaxed_float32_to_float16_performance_tensor)
    _check_figures("IF", capabilities.if_performance)
    _check_figures("WHILE", capabilities.while_performance)
    for entry in capabilities.operand_performance:
        _check_figures(OperandType(entry.type).name, entry.info)
    if await device.get_capabilities() != capabilities:
        raise Fault("the capabilities are not the same when asked again")


def _check_figures(name: str, info: PerformanceInfo) -> None:
    if not (info.exec_time > 0 and info.power_usage > 0):
        raise Fault(f"figures of {name} must be above 0: {info.exec_time}, {info.power_usage}")


async def _extensions(device: Device) -> None:
    extensions = await device.get_supported_extensions()
    for extension in extensions:
        validate_extension(extension)
    names = [extension.name for extension in extensions]
    if len(set(names)) < len(names):
        raise Fault(f"an extension is listed twice: {names}")


async def _cache_files(device: Device) -> None:
    numbers = await device.get_number_of_cache_files_needed()
    if len(numbers) != 2 or not all(0 <= n <= MAX_NUMBER_OF_CACHE_FILES for n in numbers):
        raise Fault(f"{numbers} is no pair of numbers from 0 to {MAX_NUMBER_OF_CACHE_FILES}")
    if await device.get_number_of_cache_files_needed() != numbers:
        raise Fault("the numbers are not the same when asked again")


async def _refused(device: Device, model: Model) -> None:
    await refused(device.get_supported_operations(model), InvalidArgument)
    await refused(device.prepare_model(model), InvalidArgument)


async def _consistent(bench: Bench, model: Model) -> None:
    """One answer for each operation, the same each time; all of them true means it prepares."""
    answers = await bench.device.get_supported_operations(model)
    if len(answers) != len(model.main.operations):
        raise Fault(f"{len(answers)} answers for {len(model.main.operations)} operations")
    if await bench.device.get_supported_operations(model) != answers:
        raise Fault("the answers are not the same when asked again")
    if not all(answers):
        raise Skipped("the device does not support it all, so that it need not prepare it")
    prepared = await bench.device.prepare_model(model)
    await prepared.close()


def _cyclic() -> Model:
    """Three ADDs, the first of which reads what the last one writes."""
    tensor, given = OperandType.TENSOR_FLOAT32, OperandLifeTime.SUBGRAPH_INPUT
    operands = (
        Operand(tensor, (1,), number_of_consumers=3, lifetime=given),
        Operand(
            OperandType.INT32,
            number_of_consumers=3,
            lifetime=OperandLifeTime.CONSTANT_COPY,
            location=DataLocation(length=4),
        ),
        Operand(tensor, (1,), number_of_consumers=1),
        Operand(tensor, (1,), number_of_consumers=1),
        Operand(tensor, (1,), number_of_consumers=1, lifetime=OperandLifeTime.SUBGRAPH_OUTPUT),
    )
    operations = (
        Operation(OperationType.ADD, (0, 4, 1), (2,)),
        Operation(OperationType.ADD, (0, 2, 1), (3,)),
        Operation(OperationType.ADD, (0, 3, 1), (4,)),
    )
    return Model(main=Subgraph(operands, operations, (0,), (4,)), operand_values=bytes(4))


def _nested_in_itself(model: Model) -> Model:
    """A model whose first referenced subgraph refers to itself."""
    inner = model.referenced[0]
    itself = Operand(OperandType.SUBGRAPH, lifetime=OperandLifeTime.SUBGRAPH)
    inner = msgspec.structs.replace(inner, operands=(*inner.operands, itself))
    return msgspec.structs.replace(model, referenced=(inner, *model.referenced[1:]))
