"""Quantized networks give what ONNX Runtime makes of them, to a step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.onnxruntime import OnnxRuntimeEngine
from nnasync._core.importers.onnx import translate
from nnasync.hal import OperationType
from tests.importers.onnx.files import compared, run, samples, written
from tests.importers.onnx.quantized_cases import DYNAMIC, STATIC


@pytest.mark.parametrize("name", STATIC)
def test_quantized_networks_agree_to_a_step(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, STATIC[name])
    for seed in range(3):
        for got, wanted in compared(path, seed):
            assert np.abs(got.astype(np.float64) - wanted).max() <= 1
            assert len(np.unique(wanted)) > 1


@pytest.mark.parametrize("name", DYNAMIC)
def test_networks_that_quantize_as_they_run_agree(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, DYNAMIC[name])
    for seed in range(3):
        for got, wanted in compared(path, seed):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("QLinearConv", "CONV_2D"),
        ("QLinearConv per channel", "CONV_2D"),
        ("QGemm", "FULLY_CONNECTED"),
        ("QGemm per channel", "CONV_2D"),
        ("QLinearMatMul per channel", "CONV_2D"),
        ("QLinearAdd", "ADD"),
        ("QLinearMul", "MUL"),
        ("conv with a bias of floats", "CONV_2D"),
        ("conv of unsigned weights per channel", "CONV_2D"),
        ("conv of depth with asymmetric weights", "DEPTHWISE_CONV_2D"),
        ("transposed conv", "TRANSPOSE_CONV_2D"),
    ],
)
def test_integers_are_computed_where_the_hal_can(name: str, operation: str, tmp_path: Path) -> None:
    for kind in ("uint8", "int8"):
        main = translate(written(tmp_path, STATIC[f"{name} {kind}"])).main
        types = [OperationType(each.type).name for each in main.operations]
        assert operation in types
        assert {"QUANTIZE", "DEQUANTIZE"}.isdisjoint(types)


@pytest.mark.parametrize("name", [*STATIC, *DYNAMIC])
def test_onnx_runtime_takes_the_operations_too(name: str, tmp_path: Path) -> None:
    translated = translate(written(tmp_path, {**STATIC, **DYNAMIC}[name]))
    engine, inputs = OnnxRuntimeEngine(), samples(translated)
    if all(engine.supported_operations(translated)):
        wanted = run(ReferenceEngine(), translated, inputs)
        for got, expected in zip(run(engine, translated, inputs), wanted, strict=True):
            difference = np.abs(got.astype(np.float64) - expected).max()
            assert difference <= (1e-3 if got.dtype.kind == "f" else 1)
