"""The words of models: types, versions, sizes, figures, extensions of vendors."""

from __future__ import annotations

import numpy as np

import nnasync as nn
from nnasync import extensions, hal
from nnasync.extensions import COMMON, LITERT, TFLITE, CommonOperation, Registry, TfliteOperation
from nnasync.hal import (
    Capabilities11,
    Capabilities12,
    DataLocation,
    ExecutionResult,
    Extension,
    ExtensionNameAndPrefix,
    ExtensionOperandType,
    Memory,
    OperandPerformance,
    OperandType,
    OperationType,
    OutputShape,
    PerformanceInfo,
    RequestArgument,
    SizedType,
    StatePair,
    Subgraph,
    Timing,
)
from nnasync.memory import Pool

NPU = Extension(
    "org.acme.npu", (ExtensionOperandType(1, is_tensor=True, byte_size=2, dtype="float16"),)
)
WHOLE = (extensions.GraphOperation, extensions.FileOperand)
"""What models with a file in them are made of."""


def counter() -> nn.Model:
    """A network whose sum is carried from run to run."""
    builder = nn.ModelBuilder("counter")
    x, total = builder.input("x", (1, 4)), builder.input("total", (1, 4))
    new = builder.add(x, total)
    builder.output("y", builder.mul(new, 2.0))
    builder.output("new", new)
    return builder.build()


def types() -> None:
    tensor = OperandType.TENSOR_QUANT8_ASYMM
    print(hal.byte_size(tensor, (1, 8, 8, 3)), "of", hal.MAX_TENSOR_BYTES, "bytes at most")
    print(hal.has_dtype(tensor), hal.zero_points(tensor), hal.operand_type_since(tensor))
    print(hal.is_scalar(tensor), hal.is_quantized(tensor), hal.is_fully_specified(tensor, (1, 0)))
    print(hal.PaddingScheme.SAME.name, hal.version_name(hal.HalVersion.V1_3))
    main: Subgraph = counter().main
    print([hal.is_constant(operand) for operand in main.operands])
    print([hal.operation_name(operation.type) for operation in main.operations])
    print(hal.operation_since(OperationType.QUANTIZED_LSTM))
    print(hal.number_dtype("float16"), hal.number_size("float16"))
    print(hal.combine_dimensions((0, 8), (4, 0)), hal.has_dimensions((4, 8), (0, 8)))


def limits() -> None:
    print(hal.BYTE_SIZE_OF_CACHE_TOKEN, hal.MAX_NUMBER_OF_CACHE_FILES)
    print(hal.DEFAULT_LOOP_TIMEOUT_NS, "to", hal.MAXIMUM_LOOP_TIMEOUT_NS)
    print(hal.DEFAULT_CONFIG.measure)


def answers() -> None:
    """What an execution gives besides its outputs."""
    result = ExecutionResult((OutputShape((1, 4)),), Timing())
    print(result.output_shapes[0].is_sufficient, result.timing == Timing())
    print(StatePair(input=1, output=1))


def memory() -> None:
    """An input and an output in one place, which no request may have."""
    with Pool.allocate(64) as pool:
        shared: Memory = pool
        argument = RequestArgument(location=DataLocation(0, 0, 16))
        print(shared.size, hal.shares_memory([shared], [argument], [argument]))


def figures() -> None:
    """How fast a device says that it is, by the type of an operation's first input."""
    info = PerformanceInfo(exec_time=0.5, power_usage=1.0)
    table: tuple[OperandPerformance, ...] = hal.update((), OperandType.TENSOR_FLOAT32, info)
    print(hal.lookup(table, OperandType.TENSOR_FLOAT32).exec_time)
    capabilities = hal.Capabilities(info, info, table, info, info)
    model = counter()
    print(hal.type_performance(capabilities, OperandType.TENSOR_FLOAT32))
    print(hal.operation_performance(capabilities, model, model.main.operations[0]))
    print(hal.subgraph_performance(capabilities, model, model.main))
    print(Capabilities11(info, info, info).float32_performance)
    print(len(Capabilities12(info, info, table).operand_performance))


def of_vendors() -> None:
    registry = Registry([COMMON, TFLITE])
    registry.add(NPU, device="acme-npu")
    prefix = registry.prefix(NPU.name)
    entry = ExtensionNameAndPrefix(NPU.name, prefix)
    type = extensions.encode(prefix, 1)
    print(hal.is_extension(type), type >> hal.EXTENSION_PREFIX_SHIFT == prefix)
    print(extensions.prefix_of(type) <= extensions.MAX_PREFIX, extensions.type_within(type))
    print(extensions.extension_of([entry], type), extensions.operation_key([entry], type))
    print(extensions.operand_type_label([entry], type), registry.byte_size(type, (2, 3)))
    sized = SizedType(type, 2, is_tensor=True, dtype=np.dtype(np.float16))
    print(sized == type)
    print(CommonOperation.GELU.name, len(TfliteOperation), len(WHOLE))
    print({LITERT.name, extensions.ONNX.name} <= extensions.WHOLE_FILES)


def checks() -> None:
    """What a driver's author is told of names and types that are not legal."""
    print(extensions.is_legal_name("org.acme.npu"), extensions.is_legal_name("Acme NPU"))
    extensions.validate_extension_name(NPU.name)
    extensions.validate_operand_types(NPU)
    model = extensions.sized(counter(), [NPU], "acme-npu")
    print(extensions.plain(model).name, extensions.operation_label([], OperationType.ADD))


def main() -> None:
    for part in (types, limits, answers, memory, figures, of_vendors, checks):
        part()


if __name__ == "__main__":
    main()
