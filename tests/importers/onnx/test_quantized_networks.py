"""A network as ONNX Runtime's own tools quantize it, in each of their notations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.importers.onnx import translate
from nnasync.hal import Array
from tests.importers.onnx.files import FLOAT, message, node, run, run_whole, written

quantization = pytest.importorskip(
    "onnxruntime.quantization", reason="needs the tools of onnxruntime that quantize"
)
RNG = np.random.default_rng(8)
SHAPE = (1, 3, 16, 16)


def numbers(*shape: int) -> Array:
    return (RNG.standard_normal(shape) * 0.3).astype(np.float32)


def network() -> Any:
    """Convolutions, one of depth, a sum, pools, a joint, a gate, dense layers."""
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2", "b2"], ["c2"], group=8, pads=[1, 1, 1, 1]),
        node("Clip", ["c2", "low", "high"], ["r2"]),
        node("Conv", ["r2", "w3"], ["c3"]),
        node("Add", ["c3", "r1"], ["a"]),
        node("MaxPool", ["a"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Concat", ["p", "p"], ["j"], axis=1),
        node("Sigmoid", ["j"], ["s"]),
        node("Mul", ["j", "s"], ["m"]),
        node("GlobalAveragePool", ["m"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("Gemm", ["f", "wg", "bg"], ["d"], transB=1),
        node("MatMul", ["d", "wm"], ["e"]),
        node("Softmax", ["e"], ["y"], axis=-1),
    ]
    constants = {
        "w1": numbers(8, 3, 3, 3),
        "b1": numbers(8),
        "w2": numbers(8, 1, 3, 3),
        "b2": numbers(8),
        "w3": numbers(8, 8, 1, 1),
        "wg": numbers(10, 16),
        "bg": numbers(10),
        "wm": numbers(10, 7),
        "low": np.float32(0),
        "high": np.float32(6),
    }
    return message(nodes, [("x", FLOAT, SHAPE)], [("y", FLOAT, (1, 7))], constants)


class Samples:
    """What the ranges of values are measured on."""

    def __init__(self) -> None:
        self._left: Iterator[dict[str, Array]] = iter([{"x": numbers(*SHAPE) * 3}] * 5)

    def get_next(self) -> dict[str, Array] | None:
        return next(self._left, None)


def agree(path: Path, most: float) -> None:
    """The translated network gives what ONNX Runtime makes of the file, but for so much."""
    translated = translate(path)
    for _ in range(3):
        x = numbers(*SHAPE) * 3
        (got,) = run(ReferenceEngine(), translated, [x])
        (wanted,) = run_whole(path, [x])
        assert np.abs(got - wanted).max() <= most


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("notation", ["QDQ", "QOperator"])
@pytest.mark.parametrize(
    ("activations", "weights"), [("QUInt8", "QInt8"), ("QInt8", "QInt8"), ("QUInt8", "QUInt8")]
)
def test_static(
    notation: str, per_channel: bool, activations: str, weights: str, tmp_path: Path
) -> None:
    quantization.quantize_static(
        written(tmp_path, network(), "floats.onnx"),
        tmp_path / "net.onnx",
        Samples(),
        quant_format=quantization.QuantFormat[notation],
        per_channel=per_channel,
        activation_type=quantization.QuantType[activations],
        weight_type=quantization.QuantType[weights],
    )
    agree(tmp_path / "net.onnx", 1.01 / 255)


@pytest.mark.parametrize("weights", ["QInt8", "QUInt8"])
def test_dynamic(weights: str, tmp_path: Path) -> None:
    quantization.quantize_dynamic(
        written(tmp_path, network(), "floats.onnx"),
        tmp_path / "net.onnx",
        weight_type=quantization.QuantType[weights],
    )
    agree(tmp_path / "net.onnx", 1e-5)
