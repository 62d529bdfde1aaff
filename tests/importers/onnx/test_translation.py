"""ONNX graphs in operations of the HAL give what ONNX Runtime makes of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.onnxruntime import OnnxRuntimeEngine
from nnasync._core.importers.onnx import translate
from nnasync.errors import ModelError
from nnasync.hal import Model, OperationType
from tests.importers.onnx.cases import CASES, QUANTIZED
from tests.importers.onnx.files import (
    FLOAT,
    INT64,
    Port,
    compared,
    message,
    node,
    run,
    run_whole,
    samples,
    written,
)

CONSTANT = np.ones((2, 2), np.float32)


def operations(model: Model) -> list[str]:
    return [OperationType(operation.type).name for operation in model.main.operations]


@pytest.mark.parametrize("name", CASES)
def test_translated_and_wrapped_agree(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, CASES[name])
    for got, wanted in compared(path):
        tolerance = 1e-2 if got.dtype == np.float16 else 2e-5
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_graphs_agree_to_a_step(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, QUANTIZED[name])
    translated = translate(path)
    assert not {"DEPTHWISE_CONV_2D", "MUL"} & set(operations(translated))
    inputs = samples(translated)
    (got,), (wanted,) = run(ReferenceEngine(), translated, inputs), run_whole(path, inputs)
    step = 1 if got.dtype != np.float32 else 0.0501
    assert np.abs(got.astype(np.float64) - wanted).max() <= step


@pytest.mark.parametrize("name", [*CASES, *QUANTIZED])
def test_there_and_back_again(name: str, tmp_path: Path) -> None:
    """What ONNX Runtime makes of the operations is what it makes of the file."""
    path = written(tmp_path, {**CASES, **QUANTIZED}[name])
    translated = translate(path)
    engine = OnnxRuntimeEngine()
    assert all(engine.supported_operations(translated))
    inputs = samples(translated)
    results = run(engine, translated, inputs)
    for got, wanted in zip(results, run_whole(path, inputs), strict=True):
        tolerance = 1e-2 if got.dtype == np.float16 else 2e-5
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


def test_quantized_layers_become_quantized_operations(tmp_path: Path) -> None:
    model = translate(written(tmp_path, QUANTIZED["conv uint8 per channel"]))
    wanted = ["QUANTIZE", "CONV_2D", "MAX_POOL_2D", "RESHAPE", "DEQUANTIZE"]
    assert operations(model) == wanted
    assert operations(translate(written(tmp_path, QUANTIZED["gemm int8"]))) == ["FULLY_CONNECTED"]


def test_normalization_and_activation_join_a_convolution(tmp_path: Path) -> None:
    model = translate(written(tmp_path, CASES["conv with a normalization and an activation"]))
    assert operations(model) == ["CONV_2D"]


def test_what_is_seen_outside_does_not_join(tmp_path: Path) -> None:
    graph = message(
        [node("Gemm", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])],
        [("x", FLOAT, (2, 2))],
        [("m", FLOAT, (2, 2)), ("y", FLOAT, (2, 2))],
        {"w": CONSTANT},
    )
    model = translate(written(tmp_path, graph))
    assert operations(model) == ["FULLY_CONNECTED", "RELU"]


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([node("Det", ["x"], ["y"])], "1 x Det, first node 0"),
        ([node("MatMul", ["x", "x4"], ["y"])], "output .y. would have shape .1, 1, 2, 2."),
        ([node("Einsum", ["x"], ["y"], equation="ii->i")], "an operand with axes .ii."),
        ([node("Softmax", ["x"], ["y"], axis=5)], "axis 5"),
        (
            [node("Resize", ["x4", "", "s"], ["y"], coordinate_transformation_mode="asymmetric")],
            "resizes",
        ),
        ([node("Add", ["x", "nobody"], ["y"])], "nobody"),
    ],
)
def test_what_is_not_translated_says_why(nodes: list[Any], reason: str, tmp_path: Path) -> None:
    huge = np.array([1, 1, 2.0**40, 2.0**40], np.float32)
    ports: list[Port] = [("x", FLOAT, (2, 2)), ("x4", FLOAT, (1, 1, 2, 2))]
    graph = message(nodes, ports, [("y", FLOAT, (2, 2))], {"s": huge})
    with pytest.raises(ModelError, match=rf"net\.onnx: .*{reason}"):
        translate(written(tmp_path, graph))


@pytest.mark.parametrize(
    ("port", "reason"),
    [
        (("x", FLOAT, ("batch", 2)), "open dimensions"),
        (("x", 11, (2, 2)), 'input "x" is double'),
    ],
)
def test_inputs_that_are_not_translated(port: Any, reason: str, tmp_path: Path) -> None:
    graph = message([node("Identity", ["x"], ["y"])], [port], [("y", *port[1:])])
    with pytest.raises(ModelError, match=reason):
        translate(written(tmp_path, graph))


def test_an_image_of_bytes_is_made_one_of_floats(tmp_path: Path) -> None:
    graph = message(
        [node("Cast", ["x"], ["f"], to=FLOAT), node("Mul", ["f", "c"], ["y"])],
        [("x", 2, (1, 3, 2, 2))],
        [("y", FLOAT, (1, 3, 2, 2))],
        {"c": np.float32(1 / 255)},
    )
    pixels = np.arange(240, 252, dtype=np.uint8).reshape(1, 3, 2, 2)
    (result,) = run(ReferenceEngine(), translate(written(tmp_path, graph)), [pixels])
    np.testing.assert_allclose(result, pixels / 255, rtol=1e-6)


def test_old_files_are_raised_before_they_are_translated(tmp_path: Path) -> None:
    bounds = {"min": 0.0, "max": 6.0}
    graph = message(
        [node("Clip", ["x"], ["c"], **bounds), node("Slice", ["c"], ["y"], starts=[1], ends=[9])],
        [("x", FLOAT, (4,))],
        [("y", FLOAT, (3,))],
        opset=7,
    )
    (result,) = run(
        ReferenceEngine(), translate(written(tmp_path, graph)), [np.arange(4, dtype=np.float32) * 3]
    )
    assert result.tolist() == [3, 6, 6]


def test_files_that_are_older_still_are_not_translated(tmp_path: Path) -> None:
    graph = message(
        [node("Relu", ["x"], ["y"])], [("x", FLOAT, (2,))], [("y", FLOAT, (2,))], opset=6
    )
    with pytest.raises(ModelError, match="has opset 6, the oldest that is translated is 7"):
        translate(written(tmp_path, graph))


def test_integers_stay_integers(tmp_path: Path) -> None:
    graph = message(
        [node("Add", ["x", "c"], ["y"])],
        [("x", INT64, (3,))],
        [("y", INT64, (3,))],
        {"c": np.array([7], np.int64)},
    )
    path = written(tmp_path, graph)
    inputs = [np.array([1, -2, 3], np.int32)]
    for (result,) in (run(ReferenceEngine(), translate(path), inputs), run_whole(path, inputs)):
        assert result.tolist() == [8, 5, 10]
