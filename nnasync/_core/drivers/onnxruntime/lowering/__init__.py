"""Models of the HAL as ONNX files: one place for each operation, by family.

Whether an operation is taken is found by translating it alone: what its translation refuses, and
why, is the answer.
"""

from __future__ import annotations

import importlib.util

from nnasync import hal
from nnasync._core.drivers.onnxruntime.lowering import (
    common_operations,
    elementwise,
    movement,
    recurrent,
    windows,
)
from nnasync._core.drivers.onnxruntime.lowering.call import (
    OperationCall,
    OrtUnsupported,
    read_calls,
)
from nnasync._core.drivers.onnxruntime.lowering.emitter import Emitter
from nnasync._core.drivers.onnxruntime.lowering.windows import Lower
from nnasync._core.formats.onnx import ELEMENTS
from nnasync.errors import ModelError
from nnasync.hal import Model, OperandType
from nnasync.kernels import NotConstant, Tensor

__all__ = ["LOWERINGS", "OrtUnsupported", "lower", "reason", "reasons"]

LOWERINGS: dict[int | tuple[str, int], Lower] = {
    **windows.LOWERINGS,
    **elementwise.LOWERINGS,
    **movement.LOWERINGS,
    **recurrent.LOWERINGS,
    **common_operations.LOWERINGS,
}
"""How each operation becomes nodes."""

_NUMBERS = {
    element.operand: element.number
    for element in ELEMENTS
    if element.operand is not None and element.own is None
}
_NUMBERS[OperandType.TENSOR_QUANT8_SYMM] = _NUMBERS[OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL] = 3


def reasons(model: Model) -> list[str | None]:
    """Returns for each operation of the main subgraph why it is not taken, or None."""
    if importlib.util.find_spec("onnx") is None:
        missing = "needs the package onnx: pip install 'nnasync[onnxruntime]'"
        return [missing] * len(model.main.operations)
    calls, tensors = read_calls(model)
    return [call if isinstance(call, str) else _reason(call, tensors) for call in calls]


def reason(model: Model, index: int) -> str | None:
    """Returns why an operation of the main subgraph is not taken, or None."""
    return reasons(model)[index]


def lower(model: Model) -> bytes:
    """The model as an ONNX file; raises ModelError for an operation that is not taken."""
    calls, tensors = read_calls(model)
    emitter = Emitter(tensors)
    main = model.main
    for place, index in enumerate(main.input_indexes):
        emitter.add_input(index, f"input{place}")
    for position, call in enumerate(calls):
        try:
            if isinstance(call, str):
                raise OrtUnsupported(call)
            LOWERINGS[call.key](emitter, call)
        except OrtUnsupported as error:
            raise ModelError(f"operation {position}: {error}") from error
    names = [f"output{place}" for place in range(len(main.output_indexes))]
    for name, index in zip(names, main.output_indexes, strict=True):
        emitter.nodes_to(name, emitter.whole(index))
    inputs = [_port(f"input{p}", emitter.tensor(i)) for p, i in enumerate(main.input_indexes)]
    outputs = [
        _port(name, emitter.tensor(i)) for name, i in zip(names, main.output_indexes, strict=True)
    ]
    return emitter.finish(inputs, outputs, model.name)


def _reason(call: OperationCall, tensors: list[Tensor | None]) -> str | None:
    """Returns why a call is not taken; its inputs are taken to be at hand."""
    name = call.arguments.operation
    if call.key not in LOWERINGS:
        return f"{name} is not translated to ONNX"
    emitter = Emitter(tensors)
    for index in call.inputs:
        given = tensors[index]
        if given is not None and given.value is None:
            emitter.add_input(index, f"operand{index}")
    try:
        LOWERINGS[call.key](emitter, call)
    except (OrtUnsupported, ModelError, NotConstant) as error:
        return f"{name}: {error}"
    return None


def _port(name: str, tensor: Tensor) -> tuple[str, int, tuple[int, ...]]:
    number = _NUMBERS.get(OperandType(tensor.type))
    if number is None:
        raise ModelError(f"{name} has type {hal.type_name(tensor.type)}")
    return name, number, tensor.shape
