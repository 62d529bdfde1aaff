"""Real networks on LiteRT against their golden outputs, no farther off than LiteRT itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.litert import LiteRTEngine
from nnasync.engine import Lowering, StopFlag
from tests.drivers.litert.rig import BUILTIN, PRODUCTS, XNNPACK, empty, need_litert, plan

need_litert()

FOLDER = Path(__file__).resolve().parents[4] / "shared" / "models"
INDEX = FOLDER / "index.json"
ENTRIES = json.loads(INDEX.read_text(encoding="utf-8")) if INDEX.is_file() else []
STEPS = {
    "mobilenet_v1_0.25_128_quant": 7,
    "mobilenet_v1_0.5_160_quant": 3,
    "mobilenet_v2_1.0_224_quant": 7,
    "mobilenet_v3-small_224_1.0_uint8": 59,
    "hello_world_int8": 1,
}
"""How far XNNPACK is from the golden data where it is not exact; LiteRT's own kernels are."""
BUILTIN_STEPS = {"mobilenet_v2_1.0_224_quant": 4}
IN_PARTS = ("keyword_scrambled_8bit",)
WITH_PRODUCTS = ("micro_speech_quantized", "tts_float")


def _cases() -> Iterator[Any]:
    for entry in ENTRIES:
        more = [PRODUCTS] if entry["name"] in WITH_PRODUCTS else []
        for lowering in (XNNPACK, BUILTIN, *more):
            yield pytest.param(entry, lowering, id=f"{entry['name']}-{lowering.name}")


@pytest.mark.skipif(not ENTRIES, reason="needs the reference data in ../shared beside the checkout")
@pytest.mark.parametrize(("entry", "lowering"), [*_cases()])
def test_golden(entry: dict[str, Any], lowering: Lowering) -> None:
    model = nn.load(FOLDER / entry["file"])
    if entry["name"] in IN_PARTS:
        assert 0 < sum(LiteRTEngine().supported_operations(model)) < len(model.main.operations)
        return
    main = model.main
    inputs = [empty(main.operands[index]) for index in main.input_indexes]
    outputs = [empty(main.operands[index]) for index in main.output_indexes]
    call = plan(model, lowering).bind(inputs, outputs)
    allowed = (STEPS if lowering is XNNPACK else BUILTIN_STEPS).get(entry["name"], 0)
    for case in entry["cases"]:
        for pair in model.state:
            inputs[pair.input][...] = main.operands[main.input_indexes[pair.input]].zero_point
        frames = read(case["inputs"], inputs)
        if entry["name"] == "person_detect":
            frames = [values ^ np.int8(-128) for values in frames]
        wanted = read(case.get("outputs", []), outputs)
        for number in range(len(frames[0])):
            for array, values in zip(inputs, frames, strict=False):
                array.reshape(-1)[:] = values[number]
            assert call.run(StopFlag())
            for pair in model.state:
                inputs[pair.input][...] = outputs[pair.output]
            for found, values in zip(outputs, wanted, strict=False):
                compare(found.reshape(-1), values[number], allowed)
        if "expect_argmax" in case:
            assert outputs[0].argmax() == case["expect_argmax"]


def read(names: list[str], arrays: list[Any]) -> list[Any]:
    """The files of a case as [frames, elements]."""
    return [
        np.fromfile(FOLDER / name, array.dtype).reshape(-1, array.size)
        for name, array in zip(names, arrays, strict=False)
    ]


def compare(found: Any, wanted: Any, steps: int) -> None:
    if found.dtype == np.float32:
        np.testing.assert_allclose(found, wanted, rtol=5e-6, atol=1e-5)
    else:
        assert np.abs(found.astype(np.int64) - wanted.astype(np.int64)).max() <= steps
