"""An ONNX file as a model of one operation: GRAPH of the extension org.nnasync.onnx."""

from __future__ import annotations

import numpy as np

from nnasync.errors import ModelError
from nnasync.extensions import ONNX, OnnxOperation
from nnasync.formats.onnx import Element, element_of
from nnasync.hal import Model, OperandType
from nnasync.importers.onnx.reader import Graph, Port
from nnasync.kernels.operation import Tensor
from nnasync.memory import Pool
from nnasync.model import ModelBuilder, Value

__all__ = ["wrap"]


def wrap(graph: Graph, file: bytes | Pool, name: str, reason: str) -> Model:
    """The model that runs a file whole; `reason` becomes a part of the name of the file's operand.

    Raises ModelError for inputs or outputs that no operand can hold.
    """
    builder = ModelBuilder(name)
    inputs = [_input(builder, port) for port in graph.inputs]
    label = f"{name}.onnx, as it is: {reason}" if reason else f"{name}.onnx"
    outputs = [_tensor("output", port) for port in graph.outputs]
    if not outputs:
        raise ModelError("has no outputs")
    values = builder.operation_outputs(
        builder.extension_type(ONNX.name, OnnxOperation.GRAPH),
        *inputs,
        _file(builder, file, label),
        outputs=outputs,
    )
    for port, value in zip(graph.outputs, values, strict=True):
        builder.output(port.name, value)
    return builder.build()


def _input(builder: ModelBuilder, port: Port) -> Value:
    tensor = _tensor("input", port)
    return builder.input(port.name, tensor.shape, type=OperandType(tensor.type), scale=tensor.scale)


def _tensor(kind: str, port: Port) -> Tensor:
    element: Element | None = element_of(port.element)
    if element is None:
        raise ModelError(
            f'{kind} "{port.name}" has element type {port.element}, which no operand can hold'
        )
    shape = () if port.shape is None else tuple(n or 0 for n in port.shape) or (1,)
    return Tensor(type=element.operand, shape=shape, scale=element.scale)


def _file(builder: ModelBuilder, file: bytes | Pool, label: str) -> Value:
    type = OperandType.TENSOR_OEM_BYTE
    if isinstance(file, Pool):
        whole = Tensor(type=type, shape=(file.size,))
        return builder.mapped_constant(file, 0, whole, label)
    return builder.constant(np.frombuffer(file, np.uint8), type=type, name=label)
