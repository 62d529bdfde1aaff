"""float16 is rounded where a function jumps, though the engines compute it in float32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.model import Value
from nnasync.hal import Model, OperandType, OperationType
from nnasync.kernels import Tensor
from nnasync.suites.fuzz.samples import FuzzSample
from tests.drivers.test_common_operations import ENGINES, FAST, outputs_of

X = np.array([[0, 9], [9.5, 1], [3, 3]], np.float16)
"""Its softmax is 0.9999 and 0.9998 in float32, and 1 in float16."""
Jump = Callable[[nn.ModelBuilder, Value, Value], Value]
JUMPS: dict[str, Jump] = {
    "floor": lambda m, x, ones: m.operation(OperationType.FLOOR, x),
    "equal": lambda m, x, ones: m.operation(OperationType.EQUAL, x, ones),
    "greater or equal": lambda m, x, ones: m.operation(OperationType.GREATER_EQUAL, x, ones),
    "cast to whole numbers": lambda m, x, ones: m.operation(
        OperationType.CAST, x, output=Tensor(type=OperandType.TENSOR_INT32, shape=X.shape)
    ),
}


def jumping(jump: Jump) -> Model:
    m = nn.ModelBuilder("jumping")
    x = m.softmax(m.input("x", X.shape, type=OperandType.TENSOR_FLOAT16))
    m.output("y", jump(m, x, m.constant(np.ones_like(X))))
    return m.build()


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("jump", JUMPS)
def test_what_jumps_sees_what_is_stored(jump: str, name: str) -> None:
    package, make, way = ENGINES[name]
    pytest.importorskip(package)
    sample = FuzzSample(jumping(JUMPS[jump]), {0: X})
    engine = make()
    assert all(engine.supported_operations(sample.model))
    (wanted,) = outputs_of(ReferenceEngine().compile(sample.model, FAST), sample)
    assert wanted.any()
    (given,) = outputs_of(engine.compile(sample.model, FAST, way), sample)
    np.testing.assert_array_equal(given, wanted)


@pytest.mark.parametrize("name", ENGINES)
def test_what_is_no_number_or_infinite_stays_so(name: str) -> None:
    package, make, way = ENGINES[name]
    pytest.importorskip(package)
    m = nn.ModelBuilder("floor of a sum")
    x = m.input("x", (4,), type=OperandType.TENSOR_FLOAT16)
    m.output("y", m.operation(OperationType.FLOOR, m.add(x, x)))
    values = np.array([np.nan, np.inf, -np.inf, 0.75], np.float16)
    sample = FuzzSample(m.build(), {0: values})
    (given,) = outputs_of(make().compile(sample.model, FAST, way), sample)
    np.testing.assert_array_equal(given, np.array([np.nan, np.inf, -np.inf, 1], np.float16))
