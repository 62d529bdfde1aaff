"""Files that would end the process are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnasync._core.drivers.onnxruntime import OnnxRuntimeEngine
from nnasync._core.drivers.onnxruntime.fatal_files import check_file
from nnasync._core.importers.onnx import wrap
from nnasync.errors import GeneralFailure
from nnasync.hal import ExecutionPreference
from tests.importers.onnx.files import BOOL, UINT8, message, node, onnx, run, written

VENDOR = "com.microsoft"
CONSTANTS = {"s": np.float32(0.1), "z": np.uint8(3)}


def sigmoid(inputs: list[str], *, inside: bool = False) -> Any:
    """A file with a quantized sigmoid, if wanted within a branch."""
    nodes = [node("QLinearSigmoid", inputs, ["y"], domain=VENDOR)]
    ports, result = [("x", UINT8, (4,))], [("y", UINT8, (4,))]
    graph = message(nodes, ports, result, CONSTANTS)
    if inside:
        branch = message(
            [node("QLinearSigmoid", inputs, ["v"], domain=VENDOR)], [], [("v", UINT8, (4,))]
        )
        choice = node("If", ["c"], ["y"], then_branch=branch.graph, else_branch=branch.graph)
        graph = message([choice], [*ports, ("c", BOOL, ())], result, CONSTANTS)
    graph.opset_import.append(onnx.helper.make_opsetid(VENDOR, 1))
    return graph


@pytest.mark.parametrize("inside", [False, True])
def test_a_missing_zero_point_would_end_the_process(inside: bool, tmp_path: Path) -> None:
    model = wrap(written(tmp_path, sigmoid(["x", "s", "z", "s"], inside=inside)))
    with pytest.raises(GeneralFailure, match="QLinearSigmoid .* has 4 inputs; .* there are 5"):
        OnnxRuntimeEngine().compile(model, ExecutionPreference.SUSTAINED_SPEED)


def test_others_are_not_touched(tmp_path: Path) -> None:
    model = wrap(written(tmp_path, sigmoid(["x", "s", "z", "s", "z"])))
    (result,) = run(OnnxRuntimeEngine(), model, [np.array([3, 3, 3, 3], np.uint8)])
    assert (result == 8).all()


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(GeneralFailure, match="refuses"):
        check_file(b"\x08\x09\x12QLinearSigmoid")
