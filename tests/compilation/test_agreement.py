"""Agreement with the reference: how far is still the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.compilation.agreement import Judgment, judge, wants_moved
from nnasync.hal import Array
from tests.compilation.rig import chain
from tests.rigs import calculator, doubler, quantized

SIGNED = nn.OperandType.TENSOR_QUANT8_ASYMM_SIGNED


def judged(model: nn.Model, expected: Any, actual: Any, *, reduced: bool = False) -> Judgment:
    """One run with one output."""
    return judge(model, [[expected]], [[actual]], is_reduced=reduced)


def deep(size: int = 30) -> nn.Model:
    """A quantized network of that many operations and 1000 classes."""
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
def test_one_quantized_operation_by_one_step(steps: int, agrees: bool) -> None:
    expected = row(10, 20, 30, 40, dtype=np.uint8)
    assert judged(quantized(), expected, expected + np.uint8(steps)).agrees is agrees


@pytest.mark.parametrize(("steps", "agrees"), [(3, True), (4, False)])
def test_a_few_quantized_operations_by_three(steps: int, agrees: bool) -> None:
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


def moved(by: float, seed: int = 0) -> Array:
    """The scores with each of them moved by about so many steps, as moved inputs would do it."""
    noise = np.random.default_rng(seed).normal(0, by, scores().shape)
    return np.clip(np.rint(scores() + noise), -128, 127).astype(np.int8)


@pytest.mark.parametrize(
    ("changes", "noise", "agrees", "text"),
    [
        ({}, 0, True, "max 0 steps, same top class"),
        ({"c3": 93}, 0, True, "max 7 steps, same top class"),
        ({"c5": 110}, 0, False, "disagrees: another top class, 10 steps worse"),
        ({"c5": 110}, 4, True, "max 20 steps, nearly the same top class"),
        ({"c9": 110}, 4, False, "disagrees: another top class, 50 steps worse"),
        ({"c20": -60}, 0, False, "disagrees: 2.2 steps"),
        ({"c20": -60}, 4, True, "max 68 steps, same top class"),
    ],
)
def test_a_quantized_network_by_what_moved_inputs_do(
    changes: dict[str, int], noise: float, agrees: bool, text: str
) -> None:
    found = judge(
        deep(), [[scores()]], [[scores(**changes)]], is_reduced=False, moved=[[moved(noise)]]
    )
    assert found.agrees is agrees
    assert found.text.startswith(text)


@pytest.mark.parametrize(("noise", "agrees"), [(2.0, False), (6.0, True)])
def test_a_sensitive_network_may_be_farther_off(noise: float, agrees: bool) -> None:
    actual = scores() + np.int8(5)
    found = judge(deep(), [[scores()]], [[actual]], is_reduced=False, moved=[[moved(noise)]])
    assert found.agrees is agrees
    assert agrees or "root mean square" in found.text


@pytest.mark.parametrize("edge", [False, True])
def test_an_edge_counts_by_itself(edge: bool) -> None:
    """What one sample may be off does not make room for the others."""
    off = scores() + np.int8(20)
    expected, actual = [[scores()]] * 4, [[off], *[[scores()]] * 3]
    noise = [[moved(30 if edge else 1)], *[[moved(1, seed)] for seed in (1, 2, 3)]]
    found = judge(deep(), expected, actual, is_reduced=False, moved=noise, edges=1)
    assert found.agrees is edge
    assert edge or "at an edge" in found.text


def test_which_models_want_moved_inputs() -> None:
    assert wants_moved(deep())
    assert not any(wants_moved(model) for model in (deep(5), chain(30), quantized()))


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
