"""QUANTIZED_LSTM and QUANTIZED_16BIT_LSTM, to the bit, against the rule on single integers."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import Array, HalVersion, OperandType, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from nnasync.kernels.fixed_functions import logistic, tanh
from tests.kernels.integer_rule import divided, high_mul, saturated16, scaled
from tests.kernels.recurrent.integer_lstm_oracle import Form, Oracle, Rule, make, words
from tests.kernels.running import run, tensor

LSTM, LSTM16 = OperationType.QUANTIZED_LSTM, OperationType.QUANTIZED_16BIT_LSTM
FORMS = st.builds(
    Form,
    *[st.booleans()] * 5,
    st.sampled_from([0.0, 0.01, 3.0, 1e6]),
    st.sampled_from([0.0, 0.3, 1e6]),
    st.integers(-15, -9),
    st.integers(-20, 20),
)
SEEDS = st.integers(0, 2**32 - 1)


@given(FORMS, st.integers(1, 3), st.booleans(), SEEDS)
def test_lstm(form: Form, batches: int, late: bool, seed: int) -> None:
    operands = make(form, batches, None, seed)
    runtime = range(len(operands)) if late else (0, 18, 19)
    state, cell, output = run(LSTM, *operands, runtime=runtime, scale=0.0067, zero_point=-4)
    source = operands[0]
    assert source is not None
    assert source.value is not None
    outputs, last, cells = Oracle(operands, form, Rule(tflite=False)).walk(source.value[None])
    assert output.tolist() == outputs[0].tolist()
    assert state.tolist() == last.tolist()
    assert cell.tolist() == cells.tolist()


def test_biases_count_only_in_layer_norm() -> None:
    for norm in (False, True):
        operands = make(Form(norm=norm), 2, None, 3)
        changed: list[Any] = list(operands)
        for index in range(12, 16):
            changed[index] = tensor(np.full(4, 2_000_000, np.int32))
        one, other = (
            run(LSTM, *each, scale=0.0067, zero_point=-4)[1] for each in (operands, changed)
        )
        assert np.array_equal(one, other) is not norm


@pytest.mark.parametrize(
    ("index", "changes", "message"),
    [
        (19, {"scale": 2.0**-11 * 1.01}, r"input 19 .*: has scale .*expected a power of two"),
        (19, {"scale": 2.0**-8}, r"input 19 .*: has scale .*expected a power of two"),
        (3, {"scale": 0.0}, r"input 3 .*: has scale 0.0, expected a positive one"),
        (26, {"value": np.asarray(0, np.float32)}, r"input 26 .*: is 0.0, expected a positive"),
        (0, {"shape": (2, 6)}, r"input 0 \(input\): has 6 features, expected the weights' 5"),
    ],
)
def test_operands_that_do_not_fit(index: int, changes: dict[str, Any], message: str) -> None:
    operands: list[Any] = make(Form(), 2, None, 0)
    if "shape" in changes:
        changes["value"] = np.zeros(changes["shape"], np.int8)
    operands[index] = msgspec.structs.replace(operands[index], **changes)
    with pytest.raises(ModelError, match="QUANTIZED_LSTM: " + message):
        run(LSTM, *operands, scale=0.0067, zero_point=-4)


def test_version_of_the_lstm() -> None:
    operands = make(Form(), 2, None, 0)
    operation = OPERATIONS[LSTM]
    assert operation.minimum_version(operands, operation.infer(operands)) == HalVersion.V1_3


class Cell16:
    """Random operands of QUANTIZED_16BIT_LSTM, and what it must give."""

    def __init__(self, batches: int, seed: int, zero: int = 100) -> None:
        rng = np.random.default_rng(seed)
        self.zero, self.scale = zero, float(np.float32(0.00408))
        features, units = 3, 4

        def data(*shape: int) -> Array:
            return np.asarray(rng.integers(0, 256, shape), np.uint8)

        self.x, self.h = data(batches, features), data(batches, units)
        self.weights = [data(units, features) for _ in range(4)]
        self.recurrent = [data(units, units) for _ in range(4)]
        self.biases = [rng.integers(-20000, 20000, units).astype(np.int32) for _ in range(4)]
        self.cell = words(rng, batches, units)

    def operands(self) -> list[Tensor]:
        weights = (*self.weights, *self.recurrent)
        return [
            tensor(self.x, scale=1 / 128, zero_point=128),
            *(tensor(each, scale=self.scale, zero_point=self.zero) for each in weights),
            *(tensor(each, scale=self.scale / 128) for each in self.biases),
            tensor(self.cell, OperandType.TENSOR_QUANT16_SYMM, scale=2.0**-11),
            tensor(self.h, scale=1 / 128, zero_point=128),
        ]

    def gate(self, number: int, batch: int) -> Array:
        """What a gate's function takes: data and weights are joined in opposite orders."""
        rows = np.concatenate([self.recurrent[number], self.weights[number]], 1).astype(object)
        data = np.concatenate([self.x[batch], self.h[batch]]).astype(object)
        sums = ((rows - self.zero) * (data - 128)).sum(axis=1) + self.biases[number]
        found = [saturated16(scaled(int(s), 4096 * self.scale / 128)) for s in sums]
        return np.asarray(found, np.int64)

    def expected(self) -> tuple[list[Any], list[Any]]:
        cells, outputs = [], []
        for batch in range(len(self.x)):
            i, f, o = (logistic(self.gate(number, batch), 3) for number in (0, 1, 3))
            g = tanh(self.gate(2, batch), 3)
            quads = zip(i, g, f, self.cell[batch], strict=True)
            new = [
                saturated16(divided(high_mul(int(a), int(b), 16), 4) + high_mul(int(c), int(d), 16))
                for a, b, c, d in quads
            ]
            seen = tanh(np.asarray([saturated16(2 * value) for value in new]), 3)
            out = [high_mul(int(a), int(b), 16) for a, b in zip(o, seen, strict=True)]
            cells.append(new)
            outputs.append([128 + max(-128, min(127, divided(value, 8))) for value in out])
        return cells, outputs


@given(st.integers(1, 3), st.booleans(), SEEDS)
def test_lstm_of_16_bits(batches: int, late: bool, seed: int) -> None:
    case = Cell16(batches, seed, zero=seed % 256)
    cell, output = run(LSTM16, *case.operands(), runtime=range(15) if late else (0, 13, 14))
    cells, outputs = case.expected()
    assert cell.tolist() == cells
    assert output.tolist() == outputs


@pytest.mark.parametrize(
    ("index", "changes", "message"),
    [
        (0, {"scale": 1 / 64}, r"input 0 \(input\): has scale 0.015625 and zero point 128"),
        (14, {"zero_point": 127}, r"input 14 \(output_in\): has scale .* zero point 127"),
        (1, {"scale": 0.0}, r"input 1 .*: has scale 0.0, expected a positive one"),
        (5, {"zero_point": 99}, r"input 5 \(recurrent_to_input_weights\): has scale"),
        (9, {"scale": 0.1}, r"input 9 \(input_gate_bias\): has scale 0.1, expected"),
        (11, {"scale": 0.1}, r"input 11 \(cell_bias\): has scale 0.1"),
        (13, {"scale": 2.0**-10}, r"input 13 .*: has scale 2\*\*-10, expected 2\*\*-11"),
        (13, {"shape": (2, 5)}, r"input 13 .*: has shape \(2, 5\), expected \(2, 4\)"),
    ],
)
def test_operands_of_16_bits_that_do_not_fit(
    index: int, changes: dict[str, Any], message: str
) -> None:
    operands = Cell16(2, 0).operands()
    if "shape" in changes:
        changes["value"] = np.zeros(changes["shape"], np.int16)
    operands[index] = msgspec.structs.replace(operands[index], **changes)
    with pytest.raises(ModelError, match="QUANTIZED_16BIT_LSTM: " + message):
        run(LSTM16, *operands)


def test_the_quantization_counts_for_the_version() -> None:
    operation, operands = OPERATIONS[LSTM16], Cell16(1, 0).operands()
    outputs = operation.infer(operands)
    assert operation.minimum_version(operands, outputs) == HalVersion.V1_2
    operands[0] = msgspec.structs.replace(operands[0], scale=0.5)
    with pytest.raises(ModelError, match=r"input 0 .*has scale 0.5"):
        operation.minimum_version(operands, outputs)
