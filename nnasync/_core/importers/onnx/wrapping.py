"""An ONNX file as a model of one operation: GRAPH of the extension org.nnasync.onnx."""

from __future__ import annotations

from nnasync._core.formats.onnx import element_name, element_of
from nnasync._core.formats.whole import WholePort as WholePort
from nnasync._core.formats.whole import own_type, whole
from nnasync._core.importers.onnx.onnx_file import OnnxGraph, OnnxPort
from nnasync.errors import ModelError
from nnasync.extensions import ONNX
from nnasync.hal import Model
from nnasync.kernels.tensor import Tensor
from nnasync.memory import Pool


def wrap(graph: OnnxGraph, file: bytes | Pool, name: str, reason: str) -> Model:
    """The model that runs a file whole; `reason` becomes a part of the name of the file's operand.

    Raises ModelError for inputs or outputs that no operand can hold, and for outputs that ONNX
    Runtime leaves unwritten: one that is an input as it is, and one that is stated twice.
    """
    given, stated = {port.name for port in graph.inputs}, set[str]()
    for port in graph.outputs:
        if port.name in given:
            raise ModelError(f'output "{port.name}" is an input, and computed by no node')
        if port.name in stated:
            raise ModelError(f'output "{port.name}" is stated twice')
        stated.add(port.name)
    return whole(
        ONNX.name,
        file,
        f"{name}.onnx, as it is: {reason}" if reason else f"{name}.onnx",
        name=name,
        inputs=[_port("input", port) for port in graph.inputs],
        outputs=[_port("output", port) for port in graph.outputs],
    )


def _port(kind: str, port: OnnxPort) -> WholePort:
    element = element_of(port.element)
    shape = () if port.shape is None else tuple(n or 0 for n in port.shape) or (1,)
    if element is not None:
        if element.operand is not None and element.own is None:
            return WholePort(port.name, Tensor(element.operand, shape, element.scale))
        if element.own is not None:
            return WholePort(port.name, Tensor(own_type(element.own), shape))
    raise ModelError(
        f'{kind} "{port.name}" is {element_name(port.element)}, which no operand can hold'
    )
