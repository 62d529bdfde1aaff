"""Agreement with the reference: how far is still the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync.compilation.agreement import Judgement, judge
from nnasync.hal import Array
from tests.compilation.rig import chain
from tests.rigs import calculator, doubler, quantized

SIGNED = nn.OperandType.TENSOR_QUANT8_ASYMM_SIGNED


def judged(model: nn.Model, expected: Any, actual: Any, *, reduced: bool = False) -> Judgement:
    """One run with one output."""
    return judge(model, [[expected]], [[actual]], is_reduced=reduced)


def deep(size: int = 30) -> nn.Model:
    """A quantised network of that many operations and 1000 classes."""
    builder = nn.ModelBuilder("deep")
    x = builder.input("x", (1, 1000), type=SIGNED, scale=0.5)
    value = x
    for _ in range(size):
        value = builder.relu(value)
    builder.output("y", value)
    return builder.build()


def row(*values: float, dtype: Any = np.float32) -> Array:
    return np.array([values], dtype)


@pytest.mark.parametrize(
    ("model", "allowed", "forbidden"),
    [
        pytest.param(doubler(), 1e-4, 5e-4, id="one operation"),
        pytest.param(chain(5), 1e-3, 3e-3, id="a few"),
        pytest.param(chain(30), 9e-3, 2e-2, id="many"),
    ],
)
def test_floats_by_a_share_of_the_largest(
    model: nn.Model, allowed: float, forbidden: float
) -> None:
    expected = row(10, -1, 0.5, 0)
    assert judged(model, expected, expected + np.float32(allowed)).agrees
    found = judged(model, expected, expected + np.float32(forbidden))
    assert not found.agrees
    assert found.text.startswith("disagrees")


def test_relaxed_models_by_the_tolerance_of_half() -> None:
    builder = nn.ModelBuilder("relaxed", relaxed=True)
    x = builder.input("x", (1, 4))
    builder.output("y", builder.add(x, x))
    model, expected = builder.build(), row(1, 1, 1, 1)
    assert judged(model, expected, expected + np.float32(0.009)).agrees
    assert not judged(model, expected, expected + np.float32(0.011)).agrees
    assert judged(model, expected, expected + np.float32(0.04), reduced=True).agrees


def test_reduced_precision_by_a_twentieth() -> None:
    expected = row(10, -1, 0.5, 0)
    assert judged(chain(30), expected, expected + np.float32(0.4), reduced=True).agrees
    assert not judged(chain(30), expected, expected + np.float32(0.6), reduced=True).agrees


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_disagrees(value: float) -> None:
    expected = row(1, 2, 3, 4)
    assert not judged(chain(30), expected, row(1, 2, value, 4), reduced=True).agrees


@pytest.mark.parametrize(("steps", "agrees"), [(0, True), (1, True), (2, False)])
def test_one_quantised_operation_by_one_step(steps: int, agrees: bool) -> None:
    expected = row(10, 20, 30, 40, dtype=np.uint8)
    assert judged(quantized(), expected, expected + np.uint8(steps)).agrees is agrees


@pytest.mark.parametrize(("steps", "agrees"), [(3, True), (4, False)])
def test_a_few_quantised_operations_by_three(steps: int, agrees: bool) -> None:
    expected = np.zeros((1, 1000), np.int8)
    actual = expected.copy()
    actual[0, 7] = steps
    assert judged(deep(5), expected, actual).agrees is agrees


def scores(**changes: int) -> Array:
    """Scores of 1000 classes: number 3 is the best with 100, number 5 has 90, number 9 has 50."""
    values = np.full((1, 1000), -128, np.int8)
    values[0, [3, 5, 9]] = 100, 90, 50
    for name, value in changes.items():
        values[0, int(name[1:])] = value
    return values


@pytest.mark.parametrize(
    ("changes", "agrees", "text"),
    [
        ({}, True, "max 0 steps, same top class"),
        ({"c3": 93}, True, "max 7 steps, same top class"),
        ({"c5": 110}, True, "max 20 steps, nearly the same top class"),
        ({"c9": 110}, False, "disagrees: another top class, 60 steps at most from the reference"),
        ({"c20": -60}, False, "disagrees: 68 steps"),
    ],
)
def test_a_quantised_network_by_distance_and_class(
    changes: dict[str, int], agrees: bool, text: str
) -> None:
    found = judged(deep(), scores(), scores(**changes))
    assert found.agrees is agrees
    assert found.text.startswith(text)


def test_a_quantised_network_that_is_off_everywhere_disagrees() -> None:
    actual = scores() + np.int8(5)
    found = judged(deep(), scores(), actual)
    assert not found.agrees
    assert "mean square" in found.text


def test_truth_and_integers_must_be_the_same() -> None:
    builder = nn.ModelBuilder("greater")
    x = builder.input("x", (1, 4))
    builder.output("y", builder.operation(nn.OperationType.GREATER, x, x))
    model = builder.build()
    expected = np.array([[True, False, True, False]])
    assert judged(model, expected, expected).text == "equal"
    assert not judged(model, expected, ~expected).agrees


def test_every_run_and_every_output_counts() -> None:
    good, bad = row(1, 2, 3, 4), row(1, 2, 3, 5)
    runs = [[good, good], [good, good]]
    assert judge(calculator(), runs, runs, is_reduced=False).agrees
    for spoilt in ([[good, good], [good, bad]], [[good, bad], [good, good]]):
        found = judge(calculator(), runs, spoilt, is_reduced=False)
        assert not found.agrees
        assert found.text.startswith("output 1")


def test_another_shape_disagrees() -> None:
    assert not judged(doubler(), row(1, 2, 3, 4), row(1, 2, 3)).agrees
