"""Files that end the process in which ONNX Runtime opens them; found by fuzzing, refused before."""

from __future__ import annotations

from typing import Any

from nnasync._core.drivers.onnxruntime.lowering.emitter import package
from nnasync.errors import GeneralFailure

_INPUTS = {"QLinearSigmoid": 5, "QLinearLeakyRelu": 5}
"""Operators of which ONNX Runtime reads the last input without looking whether it is there."""


def check_file(file: bytes) -> None:
    """Raise GeneralFailure for a file that ONNX Runtime would not survive."""
    if not any(name.encode() in file for name in _INPUTS):
        return
    try:
        message = package().load_model_from_string(file)
    except Exception as error:
        raise GeneralFailure(f"ONNX Runtime refuses the model: {error}") from error
    pending: list[Any] = [message.graph, *message.functions]
    while pending:
        for node in pending.pop().node:
            wanted = _INPUTS.get(node.op_type, 0)
            if len(node.input) < wanted:
                raise GeneralFailure(
                    f"{node.op_type} that makes {list(node.output)} has {len(node.input)} inputs;"
                    f" ONNX Runtime ends the process unless there are {wanted}"
                )
            for attribute in node.attribute:
                pending += [attribute.g, *attribute.graphs]
