"""Tolerances, and comparison against a plain definition of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnasync as nn
from nnasync._core.accuracy import (
    Criterion,
    compare,
    compare_distribution,
    computes_in_half,
    golden_criterion,
)
from nnasync.hal import OperandType

HALF = 5 * 0.0009765625


@pytest.mark.parametrize(
    ("type", "half", "test", "suite", "atol", "rtol"),
    [
        (OperandType.TENSOR_FLOAT32, False, "", "", 1e-5, 5 * 1.1920928955078125e-7),
        (OperandType.FLOAT32, False, "", "", 1e-5, 5 * 1.1920928955078125e-7),
        (OperandType.TENSOR_FLOAT32, True, "", "", HALF, HALF),
        (OperandType.TENSOR_FLOAT16, False, "", "", HALF, HALF),
        (OperandType.TENSOR_INT32, True, "mobilenet", "", 1, 0),
        (OperandType.INT32, False, "", "", 1, 0),
        (OperandType.TENSOR_QUANT8_ASYMM, False, "add", "", 1, 0),
        (OperandType.TENSOR_QUANT8_ASYMM, False, "a_mobilenet_case", "", 3, 0),
        (OperandType.TENSOR_QUANT8_ASYMM_SIGNED, False, "x", "CompilationCachingTest", 3, 0),
        (OperandType.TENSOR_QUANT8_SYMM, False, "TOCTOU", "CompilationCachingTest", 1, 0),
        (OperandType.TENSOR_QUANT16_SYMM, False, "mobilenet", "", 1, 0),
        (OperandType.TENSOR_QUANT16_ASYMM, False, "", "", 1, 0),
        (OperandType.TENSOR_BOOL8, True, "mobilenet", "", 0, 0),
    ],
)
def test_golden_tolerances(
    type: OperandType, half: bool, test: str, suite: str, atol: float, rtol: float
) -> None:
    criterion = golden_criterion(type, half=half, test=test, suite=suite)
    assert criterion == Criterion(atol, rtol)


def test_half_is_seen_in_the_model() -> None:
    def model(type: OperandType, *, relaxed: bool = False) -> nn.Model:
        builder = nn.ModelBuilder(relaxed=relaxed)
        builder.output("y", builder.relu(builder.input("x", (1,), type=type)))
        return builder.build()

    assert not computes_in_half(model(OperandType.TENSOR_FLOAT32))
    assert computes_in_half(model(OperandType.TENSOR_FLOAT16))
    assert computes_in_half(model(OperandType.TENSOR_FLOAT32, relaxed=True))


@given(
    st.lists(
        st.tuples(
            st.floats(width=32, allow_subnormal=False), st.floats(width=32, allow_subnormal=False)
        ),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([(0.0, 0.0), (1e-5, 1e-6), (1.0, 0.0), (0.0, 0.5), (10.0, 1.0)]),
)
def test_comparison_is_the_definition(
    pairs: list[tuple[float, float]], tolerance: tuple[float, float]
) -> None:
    atol, rtol = tolerance
    actual, expected = (np.array(side, np.float32) for side in zip(*pairs, strict=True))
    agreement = compare(actual, expected, OperandType.TENSOR_FLOAT32, Criterion(atol, rtol))
    wrong = [
        not (a == e or (math.isfinite(e) and abs(a - e) <= atol + rtol * abs(e)))
        for a, e in zip(actual.tolist(), expected.tolist(), strict=True)
    ]
    assert agreement.differing == sum(wrong)
    assert bool(agreement.fault) == any(wrong)
    if any(wrong):
        assert f"the first at [{wrong.index(True)}]" in agreement.fault
    assert agreement.elements == agreement.compared == len(pairs)


def test_edge_of_the_tolerance() -> None:
    criterion = golden_criterion(OperandType.TENSOR_QUANT8_ASYMM)
    expected = np.array([[0, 255, 7]], np.uint8)
    near = np.array([[1, 254, 6]], np.uint8)
    assert compare(near, expected, OperandType.TENSOR_QUANT8_ASYMM, criterion).fault == ""
    far = np.array([[0, 253, 255]], np.uint8)
    agreement = compare(far, expected, OperandType.TENSOR_QUANT8_ASYMM, criterion)
    assert agreement.fault == "2 of 3 differ, the first at [0, 1]: 253, expected 255 within 1"
    assert agreement.largest == 248


def test_shapes_must_be_the_same() -> None:
    agreement = compare(np.zeros((2, 1)), np.zeros(2), OperandType.TENSOR_FLOAT32, Criterion(9))
    assert agreement.fault == "has shape [2, 1], expected [2]"


def test_scalars_and_empty_tensors() -> None:
    type = OperandType.TENSOR_FLOAT32
    assert not compare(np.zeros((0, 3)), np.zeros((0, 3)), type, Criterion()).fault
    assert compare(np.ones(()), np.zeros(()), type, Criterion()).differing == 1


def test_booleans_are_compared_by_truth() -> None:
    some = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
    other = np.array([0, 1, 1, 1], np.uint8).view(np.bool_)
    type = OperandType.TENSOR_BOOL8
    assert compare(some, other, type, Criterion()).fault == ""
    agreement = compare(some, np.zeros(4, np.bool_), type, Criterion())
    assert (agreement.differing, agreement.elements) == (3, 4)
    assert "the first at [1]: True" in agreement.fault


def test_bias_and_mean_square_need_ten_elements() -> None:
    criterion = Criterion(1, bias=0.1, mse=0.02)
    for count, fault in ((9, ""), (10, "the mean deviation is 0.5, beyond 0.1")):
        expected = np.zeros(count, np.float32)
        agreement = compare(expected + 0.5, expected, OperandType.TENSOR_FLOAT32, criterion)
        assert agreement.fault == fault
        assert (agreement.bias, agreement.mse) == (0.5, 0.25)
    swings = np.tile([0.5, -0.5], 5)
    agreement = compare(swings, np.zeros(10), OperandType.TENSOR_FLOAT32, criterion)
    assert agreement.fault == "the mean square deviation is 0.25, beyond 0.02"


def test_means_of_floats_are_relative_to_large_values() -> None:
    expected = np.full(10, 100, np.float32)
    floats = compare(expected + 10, expected, OperandType.TENSOR_FLOAT32, Criterion(20))
    assert floats.bias == pytest.approx(0.1)
    integers = compare(expected + 10, expected, OperandType.TENSOR_INT32, Criterion(20))
    assert integers.bias == 10


def test_invalid_values_are_left_out_where_allowed() -> None:
    expected = np.array([np.inf, np.nan, 2000, 500, 1], np.float32)
    actual = np.array([1, 2, 3, 500, 1], np.float32)
    type = OperandType.TENSOR_FLOAT32
    agreement = compare(actual, expected, type, Criterion(1, allows_invalid=True))
    assert (agreement.fault, agreement.compared, agreement.elements) == ("", 2, 5)
    assert compare(actual, expected, type, Criterion(1)).differing == 3
    half = compare(actual, expected, OperandType.TENSOR_FLOAT16, Criterion(1, allows_invalid=True))
    assert half.compared == 1


# -- distributions


def test_drawn_classes_have_the_frequencies_of_softmax() -> None:
    generator = np.random.default_rng(1)
    logits = np.array([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]], np.float32)
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    drawn = np.stack([generator.choice(3, 20000, p=row / row.sum()) for row in chances])
    agreement = compare_distribution(drawn.astype(np.int32), logits, 0.02)
    assert agreement.fault == ""
    assert 0 < agreement.largest < 0.02
    swapped = compare_distribution(drawn[::-1].astype(np.int32), logits, 0.02)
    assert "differ" in swapped.fault


@pytest.mark.parametrize(
    "drawn", [np.zeros((1, 0), np.int32), np.array([[0, 3]]), np.array([[-1, 0]]), np.zeros(4)]
)
def test_what_is_no_sample_of_the_classes(drawn: nn.hal.Array) -> None:
    assert compare_distribution(drawn, np.zeros((1, 3)), 1.0).fault
