"""Real networks against their golden outputs, frame by frame, on the bare reference plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync import hal
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.cpu.plan import ReferencePlan
from nnasync._core.workers import StopFlag
from nnasync.hal import Array

STEPS = {"mobilenet_v2_1.0_224_quant": 4}
"""Steps that a quantized output may be off; LiteRT's own fixed-point kernels are off by as many."""
FOLDER = Path(__file__).resolve().parent.parent.parent / "shared" / "models"
INDEX = FOLDER / "index.json"
ENTRIES = json.loads(INDEX.read_text(encoding="utf-8")) if INDEX.is_file() else []
CASES = [
    pytest.param(entry, case, id=f"{entry['name']}-{number}")
    for entry in ENTRIES
    for number, case in enumerate(entry["cases"])
]


class Bound:
    """A golden model with arrays for its inputs and outputs, state among them."""

    def __init__(self, path: Path) -> None:
        self.model = nn.load(path)
        graph = self.model.main
        engine = ReferenceEngine()
        assert all(engine.supported_operations(self.model))
        self.inputs = [empty(graph.operands[i]) for i in graph.input_indexes]
        self.outputs = [empty(graph.operands[i]) for i in graph.output_indexes]
        plan = ReferencePlan(self.model)
        self.call = plan.bind(self.inputs, self.outputs)

    def step(self, frame: list[Array]) -> None:
        """Runs one frame and feeds the state back."""
        for target, source in zip(self.inputs, frame, strict=False):
            target.reshape(-1)[:] = source
        assert self.call.run(StopFlag())
        for pair in self.model.state:
            self.inputs[pair.input][...] = self.outputs[pair.output]


def empty(operand: hal.Operand) -> Array:
    """Zero, as a state is at first."""
    return np.full(operand.dimensions, operand.zero_point, hal.dtype_of(operand.type))


def frames(folder: Path, names: list[str], arrays: list[Array]) -> list[Array]:
    """The files of a case as [frames, elements]."""
    return [
        np.fromfile(folder / name, array.dtype).reshape(-1, array.size)
        for name, array in zip(names, arrays, strict=False)
    ]


def pictures(values: Array) -> Array:
    """Gray pictures of unsigned bytes as int8: the file of the person is such a one.

    The other file has signed bytes; there is nobody to be seen in either reading of it.
    """
    return values ^ np.int8(-128)


@pytest.mark.skipif(not ENTRIES, reason="needs the reference data in ../shared beside the checkout")
@pytest.mark.parametrize(("entry", "case"), CASES)
def test_golden(entry: dict[str, Any], case: dict[str, Any], shared: Path) -> None:
    folder = shared / "models"
    bound = Bound(folder / entry["file"])
    inputs = frames(folder, case["inputs"], bound.inputs)
    outputs = frames(folder, case.get("outputs", []), bound.outputs)
    if entry["name"] == "person_detect":
        inputs = [pictures(values) for values in inputs]
    assert len(inputs[0]) > 1 or not entry.get("sequence")
    for number in range(len(inputs[0])):
        bound.step([values[number] for values in inputs])
        for got, wanted in zip(bound.outputs, outputs, strict=False):
            compare(entry["name"], got.reshape(-1), wanted[number])
    if "expect_argmax" in case:
        assert bound.outputs[0].argmax() == case["expect_argmax"]
    else:
        assert outputs


def compare(name: str, got: Array, wanted: Array) -> None:
    if got.dtype == np.float32:
        np.testing.assert_allclose(got, wanted, rtol=5 * 1.1920928955078125e-7, atol=1e-5)
    else:
        difference = np.abs(got.astype(np.int64) - wanted.astype(np.int64))
        assert difference.max() <= STEPS.get(name, 1)
