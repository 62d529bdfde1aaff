"""What must be true of a file before anything is made of it, also before LiteRT runs it whole."""

from __future__ import annotations

import math

from nnasync._core.importers.tflite.tflite_file import File, Graph, TensorInfo, labeled
from nnasync.errors import ModelError

_BYTES = {
    **dict.fromkeys(("BOOL", "INT8", "UINT8"), 1),
    **dict.fromkeys(("FLOAT16", "INT16", "UINT16", "BFLOAT16"), 2),
    **dict.fromkeys(("FLOAT32", "INT32", "UINT32"), 4),
    **dict.fromkeys(("FLOAT64", "INT64", "UINT64", "COMPLEX64"), 8),
    "COMPLEX128": 16,
}
"""Bytes of an element of each type whose constants have a size that is known."""


def check(file: File) -> None:
    """Raise ModelError where a constant has the wrong size, or tensors are not written in order."""
    for graph in file.graphs:
        for index, info in enumerate(graph.tensors):
            _check_constant(index, info)
        _check_order(graph)


def _check_constant(index: int, info: TensorInfo) -> None:
    size = _BYTES.get(info.type)
    if not info.length or info.is_sparse or size is None:
        return
    needed = size * math.prod(info.shape)
    if info.length != needed:
        raise ModelError(
            f"{labeled(index, info)} of {info.type} {list(info.shape)} takes {needed} bytes, "
            f"its buffer has {info.length}"
        )


def _check_order(graph: Graph) -> None:
    known = {
        index
        for index, info in enumerate(graph.tensors)
        if info.length or info.is_variable or 0 in info.shape
    }
    written = known | set(graph.inputs)
    for operator in graph.operators:
        where = f"operator {operator.index} ({operator.name})"
        for index in operator.inputs:
            if index >= 0 and index not in written:
                tensor = labeled(index, graph.tensors[index])
                raise ModelError(f"{where}: {tensor} is used before an operator writes it")
        for index in operator.outputs:
            if index in written and 0 not in graph.tensors[index].shape:
                tensor = labeled(index, graph.tensors[index])
                raise ModelError(f"{where}: {tensor} is written twice")
        written.update(operator.outputs)
    for index in graph.outputs:
        if index not in written:
            raise ModelError(f"{labeled(index, graph.tensors[index])} is an output nobody writes")
