"""Files that would end the process of ONNX Runtime; found by fuzzing, refused before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nnasync._core.drivers.onnxruntime.lowering.emitter import package
from nnasync.errors import GeneralFailure

_INPUTS = {"QLinearSigmoid": 5, "QLinearLeakyRelu": 5}
"""Operators of which ONNX Runtime reads the last input without looking whether it is there."""
_NEEDS_NUMBERS = "InstanceNormalization"
"""An operator that reads the first number of each channel without looking whether there is one."""


def check_file(file: bytes) -> None:
    """Raise GeneralFailure for a file that ONNX Runtime would not survive."""
    if not any(name.encode() in file for name in _INPUTS):
        return
    for node in _nodes(file):
        wanted = _INPUTS.get(node.op_type, 0)
        if len(node.input) < wanted:
            raise GeneralFailure(
                f"{node.op_type} that makes {list(node.output)} has {len(node.input)} inputs;"
                f" ONNX Runtime ends the process unless there are {wanted}"
            )


def needs_numbers(file: bytes) -> bool:
    """Returns whether ONNX Runtime may crash on an input without elements.

    Raises GeneralFailure.
    """
    if _NEEDS_NUMBERS.encode() not in file:
        return False
    return any(node.op_type == _NEEDS_NUMBERS for node in _nodes(file))


def _nodes(file: bytes) -> Iterator[Any]:
    """The nodes of a file, of its functions, and of all graphs in it."""
    try:
        message = package().load_model_from_string(file)
    except Exception as error:
        raise GeneralFailure(f"ONNX Runtime refuses the model: {error}") from error
    pending: list[Any] = [message.graph, *message.functions]
    while pending:
        for node in pending.pop().node:
            yield node
            for attribute in node.attribute:
                pending += [attribute.g, *attribute.graphs]
