"""The operations of org.nnasync.common on every engine, in all types, against the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from nnasync import hal
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.litert import LiteRTEngine
from nnasync._core.drivers.onnxruntime import OnnxRuntimeEngine
from nnasync._core.drivers.openvino import OpenVinoEngine
from nnasync.engine import Lowering, LoweringEngine, Plan, StopFlag
from nnasync.extensions import COMMON, CommonOperation
from nnasync.hal import Array, ExecutionPreference
from nnasync.kernels import EXTENSION_OPERATIONS
from nnasync.suites.fuzz.samples import FuzzSample, samples_of

FAST = ExecutionPreference.FAST_SINGLE_ANSWER
ENGINES: Mapping[
    str,
    tuple[str, Callable[[], LoweringEngine], Lowering | None],
] = {
    "litert": ("ai_edge_litert", LiteRTEngine, Lowering("builtin", is_exact=True)),
    "litert with xnnpack": ("ai_edge_litert", LiteRTEngine, Lowering("xnnpack")),
    "onnxruntime": ("onnxruntime", OnnxRuntimeEngine, None),
    "openvino": ("openvino", OpenVinoEngine, Lowering("f32")),
}
LEFT_OUT: Mapping[str, set[str]] = {"litert": set(), "onnxruntime": set(), "openvino": set()}
"""Operations that an engine takes in no type."""


def outputs_of(plan: Plan, sample: FuzzSample) -> list[Array]:
    """What a plan computes."""
    main = sample.model.main
    inputs = [sample.feeds[index] for index in main.input_indexes]
    outputs = [
        np.zeros(operand.dimensions, hal.dtype_of(operand.type))
        for operand in (main.operands[index] for index in main.output_indexes)
    ]
    assert plan.bind(inputs, outputs).run(StopFlag())
    return outputs


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("type", CommonOperation, ids=lambda type: type.name)
def test_it_agrees_with_the_reference(type: CommonOperation, name: str) -> None:
    package, make, way = ENGINES[name]
    pytest.importorskip(package)
    engine, taken = make(), 0
    for sample in samples_of(EXTENSION_OPERATIONS[COMMON.name, type]):
        if not all(engine.supported_operations(sample.model)):
            continue
        taken += 1
        plan = engine.compile(sample.model, FAST, way)
        wanted = outputs_of(ReferenceEngine().compile(sample.model, FAST), sample)
        for one, other in zip(outputs_of(plan, sample), wanted, strict=True):
            slack = 5e-3 if one.dtype == np.float16 else 1e-5 if one.dtype.kind == "f" else 0
            steps = slack or (one.dtype.itemsize == 1 and one.dtype.kind != "b")
            one, other = (array.astype(np.float64) for array in (one, other))
            np.testing.assert_allclose(one, other, rtol=slack, atol=steps)
    assert bool(taken) == (type.name not in LEFT_OUT[name.split()[0]])
