"""Quantized MobileNets on OpenVINO: no farther from the golden outputs than LiteRT with XNNPACK."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.openvino import OpenVinoEngine
from tests.drivers.openvino.rig import FAST, results

FOLDER = Path(__file__).resolve().parents[4] / "shared" / "models"
INDEX = FOLDER / "index.json"
STEPS = {
    "mobilenet_v1_0.25_128_quant": 7,
    "mobilenet_v1_0.5_160_quant": 3,
    "mobilenet_v2_1.0_224_quant": 7,
    "mobilenet_v3-small_224_1.0_uint8": 59,
}
"""How far XNNPACK is from the golden data."""
ENTRIES = [
    entry
    for entry in (json.loads(INDEX.read_text(encoding="utf-8")) if INDEX.is_file() else [])
    if entry["name"] in STEPS
]


@pytest.mark.skipif(not ENTRIES, reason="needs the reference data in ../shared beside the checkout")
@pytest.mark.parametrize("entry", ENTRIES, ids=[entry["name"] for entry in ENTRIES])
def test_golden(entry: dict[str, Any]) -> None:
    """In every way that is offered for the network."""
    model = nn.load(FOLDER / entry["file"])
    engine = OpenVinoEngine()
    lowerings = engine.lowerings(model, FAST)
    for lowering in lowerings:
        plan = engine.compile(model, FAST, lowering)
        for case in entry["cases"]:
            image = np.fromfile(FOLDER / case["inputs"][0], np.uint8)
            shape = model.main.operands[model.main.input_indexes[0]].dimensions
            (found,) = results(plan, model, [image.reshape(shape)])
            if "expect_argmax" in case:
                assert found.argmax() == case["expect_argmax"]
            if "outputs" in case:
                golden = np.fromfile(FOLDER / case["outputs"][0], np.uint8)
                difference = np.abs(found.reshape(-1).astype(int) - golden.astype(int))
                assert difference.max() <= STEPS[entry["name"]], lowering.name
