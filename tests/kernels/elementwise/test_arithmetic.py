"""ADD, DIV, MUL, SUB and POW: broadcasting, activations, the fixed-point rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import Array, HalVersion, OperandType, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from nnasync.kernels.steps import float_bounds, quantized_bounds
from tests.kernels.integer_rule import on_pairs, scaled
from tests.kernels.running import run, scalar, tensor, without_value

Op = OperationType
ADD, DIV, MUL, SUB = Op.ADD, Op.DIV, Op.MUL, Op.SUB
FUNCTIONS: dict[OperationType, Callable[..., Any]] = {
    ADD: np.add,
    DIV: np.divide,
    MUL: np.multiply,
    SUB: np.subtract,
}
QUANTIZED = (ADD, MUL, SUB)
FLOAT_MAX = float(np.finfo(np.float32).max)
SHAPES = [
    ((3, 4), (3, 4)),
    ((2, 3, 4, 5), (4, 1)),
    ((5, 1), (1, 7)),
    ((1, 7), (5, 1)),
    ((1,), (2, 1, 3)),
    ((2, 1, 3, 1), (1, 4, 1, 5)),
    ((1, 6, 1), (1, 6, 1)),
]


@st.composite
def shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    full = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    pair = []
    for _ in range(2):
        start = draw(st.integers(0, len(full)))
        kept = [draw(st.sampled_from([size, size, 1])) for size in full[start:]]
        pair.append(tuple(kept) or (1,))
    return pair[0], pair[1]


@given(st.sampled_from(list(FUNCTIONS)), shapes(), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_float(
    operation: OperationType, pair: tuple[tuple[int, ...], tuple[int, ...]], fused: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a, b = (rng.normal(size=shape).astype(np.float32) * 3 for shape in pair)
    (got,) = run(operation, tensor(a), tensor(b), scalar(fused), runtime=(0, 1))
    np.testing.assert_array_equal(got, FUNCTIONS[operation](a, b).clip(*float_bounds(fused)))


@pytest.mark.parametrize("operation", FUNCTIONS, ids=lambda op: op.name)
@pytest.mark.parametrize("fused", range(4))
def test_halves_are_computed_in_float32(operation: OperationType, fused: int) -> None:
    rng = np.random.default_rng(fused)
    a, b = rng.normal(size=(4, 6)).astype(np.float16), rng.normal(size=6).astype(np.float16)
    (got,) = run(operation, tensor(a), tensor(b), scalar(fused), runtime=(0, 1))
    exact = FUNCTIONS[operation](a.astype(np.float32), b.astype(np.float32))
    np.testing.assert_array_equal(got, exact.clip(*float_bounds(fused)).astype(np.float16))


def test_quotients_stay_finite() -> None:
    x, y = np.asarray([1, -1, 6, 2], np.float32), np.asarray([0, 0, 2, -0.0], np.float32)
    with np.errstate(all="ignore"):
        (got,) = run(DIV, tensor(x), tensor(y), scalar(0))
        (bounded,) = run(DIV, tensor(x), tensor(y), scalar(3))
    assert got.tolist() == [FLOAT_MAX, -FLOAT_MAX, 3, -FLOAT_MAX]
    assert bounded.tolist() == [6, 0, 3, 0]


def integer_quotient(x: int, y: int) -> int:
    return x // y if y else 0


def wrapped(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize("pair", SHAPES)
def test_integers_wrap_and_quotients_are_floors(pair: tuple[Any, Any]) -> None:
    rng = np.random.default_rng(7)
    a, b = (rng.integers(-(2**31), 2**31, shape) for shape in pair)
    small = rng.integers(-3, 4, pair[1])
    rules: list[tuple[OperationType, Array, Any]] = [
        (ADD, b, lambda x, y: wrapped(x + y)),
        (SUB, b, lambda x, y: wrapped(x - y)),
        (MUL, b, lambda x, y: wrapped(x * y)),
        (DIV, small, integer_quotient),
    ]
    for operation, second, rule in rules:
        left, right = a.astype(np.int32), second.astype(np.int32)
        with np.errstate(all="ignore"):
            (got,) = run(operation, tensor(left), tensor(right), scalar(0), runtime=(0, 1))
        expected = on_pairs(rule, left, right)
        np.testing.assert_array_equal(got, expected)


def test_integers_take_no_activation() -> None:
    a, b = np.asarray([2**31 - 1, 5], np.int32), np.asarray([1, -7], np.int32)
    (got,) = run(ADD, tensor(a), tensor(b), scalar(0))
    assert got.tolist() == [-(2**31), -2]
    for operation in FUNCTIONS:
        with pytest.raises(ModelError, match=r"input 2 \(activation\): is 1, expected 0"):
            run(operation, tensor(a), tensor(b), scalar(1))


def rule(operation: OperationType, a: Tensor, b: Tensor, output: Tensor) -> Callable[..., int]:
    """The fixed-point arithmetic of one pair of raw values, not yet clamped."""
    s1, s2, so = (float(np.float32(t.scale)) for t in (a, b, output))
    twice = 2 * max(s1, s2)

    def product(x: int, y: int) -> int:
        multiplier = float(np.float32(s1 * s2)) / so
        return scaled((x - a.zero_point) * (y - b.zero_point), multiplier) + output.zero_point

    def sums(x: int, y: int) -> int:
        left = scaled((x - a.zero_point) * 2**20, s1 / twice)
        right = scaled((y - b.zero_point) * 2**20, s2 / twice, -1 if operation is SUB else 1)
        return scaled(left + right, twice / (2**20 * so)) + output.zero_point

    return product if operation is MUL else sums


def quantized_pair(
    rng: np.random.Generator, dtype: str, pair: tuple[Any, Any], scales: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    low = 0 if dtype == "uint8" else -128
    a, b = (
        tensor(
            rng.integers(low, low + 256, shape).astype(dtype),
            scale=scale,
            zero_point=int(rng.integers(low, low + 256)),
        )
        for shape, scale in zip(pair, scales, strict=True)
    )
    return a, b


@given(
    st.sampled_from(QUANTIZED),
    shapes(),
    st.integers(0, 3),
    st.sampled_from(["uint8", "int8"]),
    st.tuples(*[st.one_of(st.floats(0.01, 0.2), st.sampled_from([0.5, 0.25, 0.1]))] * 2),
    st.integers(0, 2**32 - 1),
)
def test_quantized(
    operation: OperationType,
    pair: tuple[tuple[int, ...], tuple[int, ...]],
    fused: int,
    dtype: str,
    scales: tuple[float, float],
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    a, b = quantized_pair(rng, dtype, pair, scales)
    scale, zero = float(rng.choice([rng.uniform(0.05, 0.5), 0.5, 1.0])), a.zero_point
    inputs = a, b, scalar(fused)
    if operation is MUL and scales[0] * scales[1] >= scale:
        with pytest.raises(ModelError, match="expected less than 1"):
            run(operation, *inputs, runtime=(0, 1), scale=scale, zero_point=zero)
        return
    (got,) = run(operation, *inputs, runtime=(0, 1), scale=scale, zero_point=zero)
    output = Tensor(type=a.type, scale=scale, zero_point=zero)
    assert a.value is not None
    assert b.value is not None
    expected = on_pairs(rule(operation, a, b, output), a.value, b.value)
    np.testing.assert_array_equal(got, expected.clip(*quantized_bounds(fused, output)))


def all_pairs(
    operation: OperationType,
    dtype: str,
    scales: tuple[float, float, float],
    zeros: tuple[int, int, int],
    *,
    turned: bool = False,
) -> tuple[Array, Array]:
    """What the kernel makes of all pairs of values, and the rule for some thousands of them."""
    low = 0 if dtype == "uint8" else -128
    x, y = np.mgrid[low : low + 256, low : low + 256].astype(dtype)
    if turned:
        x, y = x[:, :1], y
    a, b = (
        tensor(value, scale=scale, zero_point=zero + low)
        for value, scale, zero in zip((x, y), scales, zeros, strict=False)
    )
    output = Tensor(type=a.type, scale=scales[2], zero_point=zeros[2] + low)
    (got,) = run(
        operation,
        a,
        b,
        scalar(0),
        runtime=(0, 1),
        scale=output.scale,
        zero_point=output.zero_point,
    )
    picks = np.random.default_rng(1).integers(0, 256, (2, 1500))
    left, right = np.broadcast_arrays(x, y)
    expected = on_pairs(
        rule(operation, a, b, output), left[*picks].astype(int), right[*picks].astype(int)
    )
    np.testing.assert_array_equal(got[*picks], expected.clip(low, low + 255))
    return got, x


@pytest.mark.parametrize("operation", QUANTIZED, ids=lambda op: op.name)
@pytest.mark.parametrize(
    "scales",
    [
        (0.0213, 0.0478, 0.0561),
        (0.5, 0.5, 1.0),
        (0.1, 0.05, 0.2),
        (0.03, 0.07, 0.11),
        (1 / 128, 0.9, 0.25),
        (2.0, 0.3, 0.7),
    ],
)
def test_signed_values_are_unsigned_ones_less_128(
    operation: OperationType, scales: tuple[float, float, float]
) -> None:
    zeros = (3, 128, 100)
    unsigned, _ = all_pairs(operation, "uint8", scales, zeros)
    signed, _ = all_pairs(operation, "int8", scales, zeros, turned=True)
    np.testing.assert_array_equal(unsigned.astype(int) - 128, signed)


def test_large_quantized_operands_are_computed_in_blocks() -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(0, 256, (1, 60, 120, 60)).astype(np.uint8)
    for scales in ((0.0213, 0.0478, 0.0561), (0.03, 0.07, 0.11)):
        for shape in (a.shape, (1, 1, 1, 60), (60, 1, 1), (1,)):
            b = rng.integers(0, 256, shape).astype(np.uint8)
            ts = tensor(a, scale=scales[0], zero_point=3), tensor(b, scale=scales[1])
            for operation in QUANTIZED:
                (got,) = run(
                    operation, *ts, scalar(0), runtime=(0, 1), scale=scales[2], zero_point=90
                )
                (turned,) = run(
                    operation, *ts[::-1], scalar(0), runtime=(0, 1), scale=scales[2], zero_point=90
                )
                output = Tensor(type=ts[0].type, scale=scales[2], zero_point=90)
                picks = tuple(rng.integers(0, size, 40) for size in a.shape)
                pair = a[picks].astype(int), np.broadcast_to(b, a.shape)[picks].astype(int)
                expected = on_pairs(rule(operation, *ts, output), *pair)
                np.testing.assert_array_equal(got[picks], expected.clip(0, 255))
                expected = on_pairs(rule(operation, *ts[::-1], output), *pair[::-1])
                np.testing.assert_array_equal(turned[picks], expected.clip(0, 255))


def adds_in_float32(scales: tuple[float, float, float]) -> bool:
    a, b, output = (
        Tensor(type=OperandType.TENSOR_QUANT8_ASYMM, shape=(64, 64), scale=scale, zero_point=100)
        for scale in scales
    )
    kernel = OPERATIONS[ADD].prepare([a, b, scalar(0)], [output])
    return kernel.scratch[0].dtype is np.float32


def test_usual_scales_are_added_in_float32() -> None:
    rng = np.random.default_rng(3)
    found = [
        adds_in_float32((*rng.uniform(0.01, 0.1, 2).tolist(), float(rng.uniform(0.05, 0.2))))
        for _ in range(20)
    ]
    assert found.count(True) >= 18
    assert adds_in_float32((0.5, 0.5, 1.0))


def test_scales_that_the_rule_refuses() -> None:
    q = np.zeros((2, 2), np.uint8)
    one, tiny = tensor(q, scale=0.5), tensor(q, scale=1e-3)
    with pytest.raises(ModelError, match="MUL: the scale of the inputs is 1 times"):
        run(MUL, one, one, scalar(0), scale=0.25)
    with pytest.raises(ModelError, match="ADD: the scale of the inputs is .* less than 1"):
        run(ADD, one, tiny, scalar(0), scale=1e-7)
    for operation in QUANTIZED:
        with pytest.raises(ModelError, match=r"input 1 \(b\): has scale 0.0, expected a positive"):
            run(operation, one, tensor(q), scalar(0), scale=0.5)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_products_of_unsigned_values_need_a_larger_scale(dtype: str) -> None:
    given = without_value(tensor(np.zeros(3, dtype), scale=0.5))
    inputs = [given, given, without_value(scalar(0))]

    def version(scale: float) -> HalVersion:
        output = Tensor(type=given.type, shape=(3,), scale=scale)
        return OPERATIONS[MUL].minimum_version(inputs, [output])

    since = HalVersion.V1_0 if dtype == "uint8" else HalVersion.V1_3
    assert version(0.26) == since
    if dtype == "int8":
        assert version(0.25) == since
    else:
        with pytest.raises(ModelError, match="MUL: output 0: has scale 0.25, expected more than"):
            version(0.25)


@pytest.mark.parametrize("operation", FUNCTIONS, ids=lambda op: op.name)
def test_operands_without_elements(operation: OperationType) -> None:
    empty, row = np.zeros((0, 3), np.float32), np.ones((1, 3), np.float32)
    for pair in ((empty, row), (row, empty), (empty, empty)):
        (got,) = run(operation, tensor(pair[0]), tensor(pair[1]), scalar(0), runtime=(0, 1))
        assert got.shape == (0, 3)
    with pytest.raises(ModelError, match="does not broadcast"):
        run(operation, tensor(empty), tensor(np.ones((2, 3), np.float32)), scalar(0))


def test_activation_that_is_only_known_at_the_run() -> None:
    x = np.asarray([-2, 0.5, 9], np.float32)
    (got,) = run(ADD, tensor(x), tensor(x[:1]), scalar(3), runtime=(0, 1, 2))
    assert got.tolist() == [0, 0, 6]
    with pytest.raises(ModelError, match=r"input 2 \(activation\): is 4, expected 0 to 3"):
        run(ADD, tensor(x), tensor(x), scalar(4))


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(ModelError, match=r"input 1 \(b\): has shape \(2,\)"):
        run(ADD, tensor(np.zeros(3, np.float32)), tensor(np.zeros(2, np.float32)), scalar(0))
    with pytest.raises(ModelError, match=r"input 0 \(a\): has shape .* expected rank 1 or 2"):
        OPERATIONS[ADD].infer([*[tensor(np.zeros((1,) * 5, np.float32))] * 2, scalar(0)])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("pair", [*SHAPES, ((2, 1, 2, 1, 2), (3, 1, 1, 2))])
def test_pow(dtype: type, pair: tuple[Any, Any]) -> None:
    rng = np.random.default_rng(2)
    base = rng.uniform(0.1, 3, pair[0]).astype(dtype)
    exponent = rng.uniform(-2, 3, pair[1]).astype(dtype)
    (got,) = run(Op.POW, tensor(base), tensor(exponent), runtime=(0, 1))
    expected = base.astype(np.float64) ** exponent.astype(np.float64)
    np.testing.assert_allclose(got, expected, rtol=2e-3 if dtype is np.float16 else 1e-5)


def test_pow_of_negative_numbers() -> None:
    base, exponent = np.asarray([-2, -2, 0], np.float32), np.asarray([3, 0.5, 0], np.float32)
    with np.errstate(all="ignore"):
        (got,) = run(Op.POW, tensor(base), tensor(exponent))
    np.testing.assert_array_equal(got, np.asarray([-8, np.nan, 1], np.float32))
