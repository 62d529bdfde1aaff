"""Files that would end the process are refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnasync._core.drivers.onnxruntime import OnnxRuntimeEngine
from nnasync._core.drivers.onnxruntime.fatal_files import check_file, needs_numbers
from nnasync._core.importers.onnx import wrap
from nnasync.errors import GeneralFailure, InvalidArgument, ModelError
from nnasync.hal import ExecutionPreference
from tests.importers.onnx.files import BOOL, FLOAT, UINT8, message, node, onnx, run, written

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


CHANNELS = {
    "one": np.ones(2, np.float32),
    "zero": np.zeros(2, np.float32),
    "from": np.array([0, 0, 1, 0], np.int64),
    "to": np.array([9, 9, 9, 9], np.int64),
}
OPEN = ("n", "c", "h", "w")


def normalization(shape: Sequence[int | str], *, kind: str = "plain") -> Any:
    """A file that normalizes all rows but the first; within a branch or a function if wanted."""
    made = node("InstanceNormalization", ["r", "one", "zero"], ["y"])
    ports, result = [("x", FLOAT, shape)], [("y", FLOAT, OPEN)]
    before = node("Slice", ["x", "from", "to"], ["r"])
    if kind == "branch":
        inner = message([made], [], [("y", FLOAT, OPEN)])
        made = node("If", ["c"], ["y"], then_branch=inner.graph, else_branch=inner.graph)
        ports.append(("c", BOOL, ()))
    if kind != "function":
        return message([before, made], ports, result, CHANNELS)
    call = node("Normalize", ["r", "one", "zero"], ["y"], domain="mine")
    graph = message([before, call], ports, result, CHANNELS)
    opsets = [onnx.helper.make_opsetid("", 17)]
    graph.functions.append(
        onnx.helper.make_function("mine", "Normalize", ["r", "one", "zero"], ["y"], [made], opsets)
    )
    graph.opset_import.append(onnx.helper.make_opsetid("mine", 1))
    return graph


@pytest.mark.parametrize("kind", ["plain", "branch", "function"])
def test_a_call_without_numbers_would_end_the_process(kind: str, tmp_path: Path) -> None:
    model = wrap(written(tmp_path, normalization(OPEN, kind=kind)))
    plan = OnnxRuntimeEngine().compile(model, ExecutionPreference.SUSTAINED_SPEED)
    empty, more = np.zeros((1, 2, 0, 4), np.float32), [np.array([True])] * (kind == "branch")
    with pytest.raises(InvalidArgument, match="no elements, of which ONNX Runtime"):
        plan.bind([empty, *more], [np.zeros((1, 2, 0, 4), np.float32)])
    (result,) = run(OnnxRuntimeEngine(), model, [np.ones((1, 2, 3, 4), np.float32), *more])
    assert (result == 0).all()


@pytest.mark.parametrize("kind", ["plain", "branch"])
def test_a_file_that_normalizes_no_numbers_is_not_loaded(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"InstanceNormalization .* channels without numbers"):
        wrap(written(tmp_path, normalization((1, 2, 1, 4), kind=kind)))


def test_a_name_alone_is_no_operator() -> None:
    named = message([node("Relu", ["x"], ["InstanceNormalization"])], [], [])
    assert not needs_numbers(named.SerializeToString())
