"""Networks as exporters write them are translated, and agree with ONNX Runtime on every engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.litert import LiteRTEngine
from nnasync._core.drivers.onnxruntime import OnnxRuntimeEngine
from nnasync._core.drivers.openvino import OpenVinoEngine
from nnasync._core.importers.onnx import translate
from nnasync.engine import Engine
from nnasync.extensions import operation_label
from nnasync.hal import Array, Model
from tests.importers.onnx.files import run, run_whole, samples, written
from tests.importers.onnx.networks import NETWORKS

FASTER: tuple[Callable[[], Engine], ...] = (OnnxRuntimeEngine, OpenVinoEngine, LiteRTEngine)


def inputs_of(model: Model) -> list[Array]:
    """Random inputs; the last place of a mask is 0."""
    found = samples(model)
    for place, index in enumerate(model.main.input_indexes):
        name = model.main.operands[index].name
        if name == "mask":
            found[place] = np.ones_like(found[place])
            found[place][..., -1] = 0
        elif name == "ids":
            found[place] %= 50
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_agree_with_onnx_runtime(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, NETWORKS[name]())
    translated = translate(path)
    inputs = inputs_of(translated)
    wanted = run_whole(path, inputs)
    for make in (ReferenceEngine, *FASTER):
        engine = make()
        if not all(engine.supported_operations(translated)):
            assert engine.name != "nnasync-reference"
            continue
        for got, each in zip(run(engine, translated, inputs), wanted, strict=True):
            np.testing.assert_allclose(got, each, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_nearly_all_of_a_network_runs_on_some_faster_engine(name: str, tmp_path: Path) -> None:
    model = translate(written(tmp_path, NETWORKS[name]()))
    taken = [engine().supported_operations(model) for engine in FASTER]
    left = [
        operation_label(model.extension_name_to_prefix, operation.type)
        for place, operation in enumerate(model.main.operations)
        if not any(each[place] for each in taken)
    ]
    assert left == []


def test_attention_is_few_operations(tmp_path: Path) -> None:
    """The error function and its surroundings are one operation, arithmetic of shapes is gone."""
    model = translate(written(tmp_path, NETWORKS["bert"]()))
    labels = [
        operation_label(model.extension_name_to_prefix, operation.type)
        for operation in model.main.operations
    ]
    assert labels.count("org.nnasync.common.GELU") == 1
    assert labels.count("org.nnasync.common.BATCH_MATMUL") == 2
    assert len(labels) < 80
