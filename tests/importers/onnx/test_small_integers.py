"""Inputs and outputs of 4 bits: bytes outside, what ONNX Runtime makes of them inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnasync._core.drivers.onnxruntime import OnnxRuntimeEngine
from nnasync._core.importers.onnx import load, wrap
from nnasync.errors import ModelError
from nnasync.hal import Array, OperandType
from tests.importers.onnx.files import BOOL, FLOAT, message, node, onnx, run, written

INT4, UINT4 = onnx.TensorProto.INT4, onnx.TensorProto.UINT4
STEP = {"scale": np.array(0.5, np.float32)}


@pytest.mark.parametrize(
    ("element", "type", "dtype", "numbers"),
    [
        (INT4, OperandType.TENSOR_QUANT8_ASYMM_SIGNED, np.int8, [-8, -1, 0, 7, 3]),
        (UINT4, OperandType.TENSOR_QUANT8_ASYMM, np.uint8, [0, 1, 8, 15, 3]),
    ],
)
def test_in_and_out(
    element: int, type: OperandType, dtype: type[np.generic], numbers: list[int], tmp_path: Path
) -> None:
    file = message(
        [node("DequantizeLinear", ["x", "scale"], ["r"]), node("Identity", ["x"], ["y"])],
        [("x", element, (5,))],
        [("r", FLOAT, (5,)), ("y", element, (5,))],
        STEP,
        opset=21,
    )
    file.ir_version = 10
    model = load(written(tmp_path, file))
    assert [model.main.operands[index].type for index in model.main.input_indexes] == [type]
    assert [model.main.operands[index].name for index in model.main.input_indexes] == ["x"]
    reals, same = run(OnnxRuntimeEngine(), model, [np.array(numbers, dtype)])
    assert reals.tolist() == [number / 2 for number in numbers]
    assert same.dtype == dtype
    assert same.tolist() == numbers


def test_a_subgraph_reads_one_from_around_it(tmp_path: Path) -> None:
    def branch(result: str, scale: float) -> onnx.GraphProto:
        nodes = [node("DequantizeLinear", ["x", f"{result}/scale"], [result])]
        constants = {f"{result}/scale": np.array(scale, np.float32)}
        return message(nodes, [], [(result, FLOAT, (2,))], constants, opset=21).graph

    file = message(
        [node("If", ["c"], ["y"], then_branch=branch("a", 2), else_branch=branch("b", 0.5))],
        [("c", BOOL, ()), ("x", INT4, (2,))],
        [("y", FLOAT, (2,))],
        opset=21,
    )
    file.ir_version = 10
    model = wrap(written(tmp_path, file))
    x = np.array([3, -2], np.int8)

    def told(condition: bool) -> Array:
        (y,) = run(OnnxRuntimeEngine(), model, [np.array([condition]), x])
        return y

    assert told(True).tolist() == [6, -4]
    assert told(False).tolist() == [1.5, -1]


def test_a_list_longer_than_any_shape_is_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX would write down each of its entries, as the cast of an input of 4 bits has it do."""
    size = 1 << 40
    file = message(
        [node("DequantizeLinear", ["x", "scale"], ["r"])],
        [("x", INT4, (size,))],
        [("r", FLOAT, (5,))],
        STEP,
        opset=21,
    )
    file.ir_version = 10
    infer = onnx.shape_inference.infer_shapes

    def inferred(message: Any, *, data_prop: bool = False) -> Any:
        assert not data_prop
        return infer(message)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", inferred)
    with pytest.raises(ModelError, match=str(size)):
        load(written(tmp_path, file))
