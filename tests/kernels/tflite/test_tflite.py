"""The operations of org.nnasync.tflite, to the bit, against TFLite's rules on single integers."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.extensions import TFLITE, TfliteOperation
from nnasync.hal import Array, OperandType
from nnasync.kernels import EXTENSION_OPERATIONS, Operation, Tensor
from tests.kernels.integer_rule import scaled
from tests.kernels.recurrent.integer_lstm_oracle import (
    BYTES,
    WEIGHTS,
    WORDS,
    Form,
    Oracle,
    Rule,
    make,
)
from tests.kernels.running import run, scalar, tensor
from tests.kernels.test_random_operands import attempt

QUANTIZE, DEQUANTIZE, SOFTMAX, SVDF, LSTM = (
    EXTENSION_OPERATIONS[TFLITE.name, type]
    for type in (
        TfliteOperation.QUANTIZE,
        TfliteOperation.DEQUANTIZE,
        TfliteOperation.SOFTMAX,
        TfliteOperation.SVDF,
        TfliteOperation.UNIDIRECTIONAL_SEQUENCE_LSTM,
    )
)
ASYMMETRIC_WORDS = OperandType.TENSOR_QUANT16_ASYMM
SEEDS = st.integers(0, 2**32 - 1)
INTEGERS: dict[OperandType, Any] = {
    OperandType.TENSOR_QUANT8_ASYMM: np.uint8,
    BYTES: np.int8,
    WORDS: np.int16,
    ASYMMETRIC_WORDS: np.uint16,
    OperandType.TENSOR_INT32: np.int32,
}
ZERO_POINTS = {OperandType.TENSOR_QUANT8_ASYMM: 100, BYTES: -30, ASYMMETRIC_WORDS: 40000}


@pytest.mark.parametrize(
    "operation", (QUANTIZE, DEQUANTIZE, SOFTMAX, SVDF, LSTM), ids=lambda each: each.name
)
def test_computes_or_says_what_is_wrong(operation: Operation) -> None:
    rng = random.Random(operation.type)
    done = [attempt(operation, rng.choice(operation.signatures), rng) for _ in range(300)]
    assert operation.name.startswith(TFLITE.name)
    assert not all(done)


def clamped(values: list[int], dtype: Any) -> list[int]:
    limits = np.iinfo(dtype)
    return [max(limits.min, min(limits.max, value)) for value in values]


@pytest.mark.parametrize("target", INTEGERS, ids=lambda type: type.name)
@pytest.mark.parametrize("source", INTEGERS, ids=lambda type: type.name)
def test_quantize_from_integers(source: OperandType, target: OperandType) -> None:
    rng = np.random.default_rng(int(source) * 20 + int(target))
    limits = np.iinfo(INTEGERS[source])
    largest = min(limits.max, 2**24)
    x = rng.integers(max(limits.min, -largest), largest + 1, (3, 40)).astype(INTEGERS[source])
    zero, new_zero = ZERO_POINTS.get(source, 0), ZERO_POINTS.get(target, 0)
    for scale, new_scale in ((0.000625, 0.0592), (0.07, 0.0312), (2.0**-16, 3.05e-5)):
        given_ = tensor(x, source, scale=scale, zero_point=zero)
        (got,) = run(QUANTIZE, given_, scale=new_scale, zero_point=new_zero, output_types=[target])
        real = float(np.float32(scale)) / float(np.float32(new_scale))
        wanted = [scaled(int(value) - zero, real) + new_zero for value in x.reshape(-1)]
        assert got.dtype == INTEGERS[target]
        assert got.reshape(-1).tolist() == clamped(wanted, INTEGERS[target])


@pytest.mark.parametrize(("target", "zero"), [(WORDS, 0), (ASYMMETRIC_WORDS, 1000)])
def test_quantize_from_floats_and_back(target: OperandType, zero: int) -> None:
    scale = 0.25
    x = np.array([[-1e9, -0.375, -0.125, 0.0, 0.124, 0.125, 0.375, 5.0, 1e9]], np.float32)
    (got,) = run(QUANTIZE, tensor(x), scale=scale, zero_point=zero, output_types=[target])
    wanted = [-(2**40), -2, -1, 0, 0, 1, 2, 20, 2**40]
    assert got[0].tolist() == clamped([value + zero for value in wanted], INTEGERS[target])
    (back,) = run(DEQUANTIZE, tensor(got, target, scale=scale, zero_point=zero))
    np.testing.assert_array_equal(back[0, 1:-1], [-0.5, -0.25, 0, 0, 0.25, 0.5, 5.0])


def softmax(x: Array, scale: float, beta: float) -> Array:
    powers = np.exp((x - x.max(-1, keepdims=True)) * scale * beta)
    return np.asarray(powers / powers.sum(-1, keepdims=True))


@given(st.booleans(), st.integers(1, 30), st.sampled_from([0.003, 0.07, 0.9]), SEEDS)
def test_softmax_of_bytes(signed: bool, width: int, scale: float, seed: int) -> None:
    x = np.random.default_rng(seed).integers(0, 256, (2, 3, width))
    type, shift = (BYTES, 128) if signed else (OperandType.TENSOR_QUANT8_ASYMM, 0)
    given_ = tensor((x - shift).astype(INTEGERS[type]), type, scale=scale, zero_point=3)
    (got,) = run(SOFTMAX, given_, scalar(1.5), scale=1 / 65535)
    assert got.dtype == np.uint16
    assert np.abs(got - softmax(x, scale, 1.5) * 2**16).max() <= 1.01


@given(st.integers(1, 30), st.sampled_from([1e-5, 1e-4, 4e-4]), SEEDS)
def test_softmax_of_words(width: int, scale: float, seed: int) -> None:
    x = np.random.default_rng(seed).integers(-(2**15), 2**15, (4, width)).astype(np.int16)
    (got,) = run(SOFTMAX, tensor(x, WORDS, scale=scale), scalar(1.0), scale=2.0**-15)
    assert got.dtype == np.int16
    assert np.abs(got - softmax(x.astype(np.int64), scale, 1.0) * 2**15).max() <= 13 + width


def test_softmax_refuses() -> None:
    x = tensor(np.zeros((1, 4), np.int8), scale=0.1)
    with pytest.raises(ModelError, match=r"SOFTMAX: input 1 \(beta\): is 0.0"):
        run(SOFTMAX, x, scalar(0.0), scale=2.0**-16)
    with pytest.raises(ModelError, match=r"SOFTMAX: output 0 has scale 0.1 and zero point 0"):
        run(SOFTMAX, x, scalar(1.0), scale=0.1)


def in_32_bits(value: int) -> int:
    """What 32 bits keep of a sum."""
    return (int(value) + 2**31) % 2**32 - 2**31


class Layer:
    """Random operands of an SVDF, and what they must give."""

    def __init__(self, state: OperandType, seed: int, *, rank: int = 2, bias: bool = True) -> None:
        rng = np.random.default_rng(seed)
        self.rank, self.batches, self.units, self.memory = rank, 2, 3, 4
        filters = self.units * rank
        words = state == WORDS
        self.x = rng.integers(-128, 128, (self.batches, 5)).astype(np.int8)
        self.by_feature = rng.integers(-128, 128, (filters, 5)).astype(np.int8)
        self.by_time = rng.integers(-128, 128, (filters, self.memory)).astype(INTEGERS[state])
        self.bias = rng.integers(-2000, 2000, self.units).astype(np.int32) if bias else None
        limits = np.iinfo(INTEGERS[state])
        shape = (self.batches, filters * self.memory)
        self.state = rng.integers(limits.min, limits.max + 1, shape).astype(INTEGERS[state])
        self.type, self.zero = state, 0 if words else -50
        self.state_scale = 0.0021 if words else 0.81

    def operands(self, activation: int) -> list[Tensor | None]:
        time = WORDS if self.type == WORDS else WEIGHTS
        bias = None if self.bias is None else tensor(self.bias)
        return [
            tensor(self.x, scale=0.059, zero_point=-100),
            tensor(self.by_feature, WEIGHTS, scale=0.0092),
            tensor(self.by_time, time, scale=0.0149),
            bias,
            tensor(self.state, self.type, scale=self.state_scale, zero_point=self.zero),
            scalar(self.rank),
            scalar(activation),
        ]

    def expected(self, output_scale: float, activation: int) -> tuple[list[Any], list[Any]]:
        first, second = (
            float(np.float32(a) * np.float32(b) / np.float32(c))
            for a, b, c in (
                (0.059, 0.0092, self.state_scale),
                (self.state_scale, 0.0149, output_scale),
            )
        )
        dtype = self.state.dtype
        after = np.roll(self.state.astype(object), -1, axis=1)
        after = after.reshape(self.batches, -1, self.memory)
        totals = [[0] * self.units for _ in range(self.batches)]
        for batch in range(self.batches):
            for filter, weights in enumerate(self.by_feature.tolist()):
                values = zip(weights, self.x[batch].tolist(), strict=True)
                feature = scaled(sum(w * (v + 100) for w, v in values), first) + self.zero
                after[batch, filter, -1] = clamped([feature], dtype)[0]
                moments = zip(self.by_time[filter].tolist(), after[batch, filter], strict=True)
                unit = filter // self.rank
                totals[batch][unit] += sum(w * (v - self.zero) for w, v in moments)
        biases = [0] * self.units if self.bias is None else self.bias.tolist()
        lowest, highest = {0: (-128, 127), 1: (-20, 127), 3: (-20, -20 + round(6 / output_scale))}[
            activation
        ]
        outputs = [
            [
                max(lowest, min(highest, scaled(in_32_bits(total + bias), second) - 20))
                for total, bias in zip(row, biases, strict=True)
            ]
            for row in totals
        ]
        return after.reshape(self.batches, -1).tolist(), outputs


@given(
    st.sampled_from([BYTES, WORDS]),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([0, 1, 3]),
    st.booleans(),
    SEEDS,
)
def test_svdf(
    state: OperandType, rank: int, bias: bool, activation: int, late: bool, seed: int
) -> None:
    layer = Layer(state, seed, rank=rank, bias=bias)
    runtime = range(7) if late else (0, 4)
    operands = layer.operands(activation)
    after, output = run(SVDF, *operands, runtime=runtime, scale=0.236, zero_point=-20)
    wanted_state, wanted = layer.expected(0.236, activation)
    assert after.tolist() == wanted_state
    assert output.tolist() == wanted


@settings(max_examples=20)
@given(st.sampled_from([BYTES, WORDS]), SEEDS)
def test_sums_of_an_svdf_have_32_bits(state: OperandType, seed: int) -> None:
    layer = Layer(state, seed)
    layer.bias = np.array([2**31 - 1, -(2**31), 2**31 - 1000], np.int32)
    operands = layer.operands(0)
    _, output = run(SVDF, *operands, runtime=(0, 4), scale=0.236, zero_point=-20)
    assert output.tolist() == layer.expected(0.236, 0)[1]


@pytest.mark.parametrize(
    ("index", "changes", "message"),
    [
        (1, {"scale": 0.0}, r"SVDF: input 1 \(weights_feature\): has scale 0.0"),
        (6, {"value": np.asarray(4, np.int32)}, r"SVDF: input 6 \(activation\): is 4"),
        (5, {"value": np.asarray(4, np.int32)}, r"SVDF: input 1 .*: has 6 filters, expected"),
    ],
)
def test_svdf_refuses(index: int, changes: dict[str, Any], message: str) -> None:
    operands: list[Any] = Layer(BYTES, 0).operands(0)
    operands[index] = msgspec.structs.replace(operands[index], **changes)
    with pytest.raises(ModelError, match=message):
        run(SVDF, *operands, scale=0.236, zero_point=-20)


FORMS = st.builds(
    Form,
    *[st.booleans()] * 5,
    st.sampled_from([0.0, 0.01, 10.0]),
    st.sampled_from([0.0, 0.3]),
    st.integers(-15, -9),
    st.integers(-20, 20),
)


@given(FORMS, st.integers(1, 2), st.integers(1, 3), st.booleans(), st.booleans(), SEEDS)
def test_lstm(form: Form, batches: int, times: int, major: bool, late: bool, seed: int) -> None:
    operands: list[Any] = make(form, batches, times, seed)
    x = operands[0].value
    if not major:
        turned = np.ascontiguousarray(x.transpose(1, 0, 2))
        operands[0] = msgspec.structs.replace(operands[0], value=turned, shape=turned.shape)
    runtime = range(33) if late else (0, 18, 19)
    output, state, cell = run(LSTM, *operands, scalar(major), runtime=runtime)
    outputs, last, cells = Oracle(operands, form, Rule(tflite=True)).walk(x)
    assert output.tolist() == (outputs if major else outputs.transpose(1, 0, 2)).tolist()
    assert state.tolist() == last.tolist()
    assert cell.tolist() == cells.tolist()


def test_lstm_refuses_a_cell_state_of_another_scale() -> None:
    operands: list[Any] = make(Form(), 2, 3, 0)
    operands[19] = msgspec.structs.replace(operands[19], scale=0.001)
    with pytest.raises(ModelError, match=r"LSTM: input 19 .*: has scale 0.001.*, expected a power"):
        run(LSTM, *operands, scalar(True))
