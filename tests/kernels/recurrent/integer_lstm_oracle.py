"""An LSTM cell in integers, on single Python integers as the rule writes it; and its operands."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nnasync.hal import Array, OperandType
from nnasync.kernels import Tensor
from nnasync.kernels.fixed_functions import inverse_root, logistic, tanh
from tests.kernels.integer_rule import (
    divided,
    high_mul,
    quantize_multiplier,
    saturated16,
    scaled,
)
from tests.kernels.running import scalar, tensor

BYTES, WEIGHTS = OperandType.TENSOR_QUANT8_ASYMM_SIGNED, OperandType.TENSOR_QUANT8_SYMM
WORDS = OperandType.TENSOR_QUANT16_SYMM


class Form(NamedTuple):
    cifg: bool = False
    peephole: bool = False
    projection: bool = False
    projection_bias: bool = False
    norm: bool = False
    cell_clip: float = 0.0
    projection_clip: float = 0.0
    cell_exponent: int = -11
    hidden_zero: int = 5


class Rule(NamedTuple):
    """Which of the two dialects."""

    tflite: bool


def words(rng: Any, *shape: int) -> Array:
    return np.asarray(rng.integers(-(2**15), 2**15, shape), np.int16)


def make(form: Form, batches: int, times: int | None, seed: int) -> list[Tensor | None]:
    """The 32 operands; `times` gives a sequence [times, batches, 5] as input."""
    rng = np.random.default_rng(seed)
    units, outputs = 4, 3 if form.projection else 4

    def some(present: bool, type: OperandType, scale: float, *shape: int) -> Tensor | None:
        if not present:
            return None
        array = words(rng, *shape) if type == WORDS else rng.integers(-128, 128, shape)
        return tensor(array.astype(np.int16 if type == WORDS else np.int8), type, scale=scale)

    def bias(present: bool, count: int) -> Tensor | None:
        return tensor(rng.integers(-3000, 3000, count).astype(np.int32)) if present else None

    full = not form.cifg
    lead = (batches,) if times is None else (times, batches)
    x = rng.integers(-128, 128, (*lead, 5)).astype(np.int8)
    state = rng.integers(-128, 128, (batches, outputs)).astype(np.int8)
    cells = tensor(words(rng, batches, units), WORDS, scale=2.0**form.cell_exponent)
    scales = [0.0079, 0.011, 0.0043, 0.0088]
    return [
        tensor(x, scale=0.0173, zero_point=7),
        *(some(full or n > 0, WEIGHTS, scales[n], units, 5) for n in range(4)),
        *(some(full or n > 0, WEIGHTS, scales[n] * 0.7, units, outputs) for n in range(4)),
        some(form.peephole and full, WORDS, 0.00013, units),
        some(form.peephole, WORDS, 0.00021, units),
        some(form.peephole, WORDS, 0.00007, units),
        *(bias(full or n > 0, units) for n in range(4)),
        some(form.projection, WEIGHTS, 0.0061, outputs, units),
        bias(form.projection and form.projection_bias, outputs),
        tensor(state, scale=0.0067, zero_point=-4),
        cells,
        *(some(form.norm and (full or n > 0), WORDS, 2e-5 + 1e-5 * n, units) for n in range(4)),
        scalar(form.cell_clip),
        scalar(form.projection_clip),
        *(scalar(scale) for scale in (0.00031, 0.00024, 0.00041, 0.00029)),
        scalar(form.hidden_zero),
        scalar(0.0071),
    ]


def sigmoid(gate: list[int]) -> list[int]:
    return [int(value) for value in logistic(np.asarray(gate, np.int64), 3)]


def hyperbolic(gate: list[int], bits: int) -> list[int]:
    return [int(value) for value in tanh(np.asarray(gate, np.int64), bits)]


class Oracle:
    """One step after the other, from operands as `make` gives them."""

    def __init__(self, operands: list[Any], form: Form, rule: Rule) -> None:
        self.operands, self.form, self.rule = operands, form, rule

    def value(self, index: int) -> Any:
        return self.operands[index].value.astype(object)

    def scale(self, index: int) -> Any:
        return np.float32(self.operands[index].scale)

    def gate(self, number: int, x: Any, h: Any, cell: Any, peephole: int | None) -> list[int]:
        """What logistic or tanh of a gate take, for one batch."""
        step = np.float32(self.operands[26 + number].value)
        norm = self.form.norm
        sums = []
        for source, at, vector in ((0, 1 + number, x), (18, 5 + number, h)):
            zero = self.operands[source].zero_point
            factor = float(self.scale(at) * self.scale(source) / step)
            bias = [0] * 4
            if source == 0 and self.rule.tflite and not norm:
                bias = list(self.value(12 + number))
            rows = self.value(at)
            totals = [sum(w * (v - zero) for w, v in zip(row, vector, strict=True)) for row in rows]
            sums.append([scaled(t + b, factor) for t, b in zip(totals, bias, strict=True)])
        gate = [saturated16(saturated16(a) + b) for a, b in zip(*sums, strict=True)]
        if peephole is not None and self.form.peephole:
            factor = float(
                np.float32(2.0**self.form.cell_exponent * float(self.scale(peephole)) / float(step))
            )
            products = [w * c for w, c in zip(self.value(peephole), cell, strict=True)]
            gate = [saturated16(g + scaled(p, factor)) for g, p in zip(gate, products, strict=True)]
        return self.normalized(gate, number) if norm else gate

    def normalized(self, gate: list[int], number: int) -> list[int]:
        count, scale = len(gate), float(self.scale(20 + number))
        mean = int(sum(gate) * 1024 / count)
        variance = sum(g * g for g in gate) * (2**20 // count) - mean * mean
        variance = int(variance / 2**20)
        if variance < 1:
            variance = max(1, int(10000 * scale)) if self.rule.tflite else 1
        q, shift = (int(each[0]) for each in inverse_root(np.asarray([variance])))
        found = []
        for g, w, b in zip(gate, self.value(20 + number), self.value(12 + number), strict=True):
            normal = divided(high_mul(1024 * g - mean, q, 32), -shift)
            weighted = normal * w + b
            rounded = int((weighted + (512 if weighted > 0 else -512)) / 1024)
            q_scale, exponent = quantize_multiplier(scale)
            exponent += 12
            left, right = max(exponent, 0), max(-exponent, 0)
            found.append(saturated16(divided(high_mul(rounded * 2**left, q_scale, 32), right)))
        return found

    def step(self, x: Any, h: Any, c: Any) -> tuple[list[int], list[int]]:
        """New output and cell state of one batch."""
        form = self.form
        forget = sigmoid(self.gate(1, x, h, c, 10))
        update = [2**15 - 1 - f for f in forget]
        if not form.cifg:
            update = sigmoid(self.gate(0, x, h, c, 9))
        candidate = hyperbolic(self.gate(2, x, h, c, None), 3)
        new = [
            saturated16(divided(f * old, 15) + divided(i * g, 30 + form.cell_exponent))
            for f, old, i, g in zip(forget, c, update, candidate, strict=True)
        ]
        if form.cell_clip:
            limit = min(2**15 - 1, int(form.cell_clip / 2.0**form.cell_exponent))
            new = [max(-limit, min(limit, value)) for value in new]
        out = sigmoid(self.gate(3, x, h, new, 11))
        seen = hyperbolic(new, 15 + form.cell_exponent)
        hidden_scale = np.float32(self.operands[31].value)
        factor = float(np.float32(2.0**-30 / float(hidden_scale)))
        zero = form.hidden_zero if self.rule.tflite else -form.hidden_zero
        hidden = [
            max(-128, min(127, scaled(o * t, factor) + zero))
            for o, t in zip(out, seen, strict=True)
        ]
        return (self.projected(hidden, zero, hidden_scale) if form.projection else hidden), new

    def projected(self, hidden: list[int], zero: int, hidden_scale: Any) -> list[int]:
        weights, form = self.value(16), self.form
        factor = float(self.scale(16) * hidden_scale / self.scale(18))
        bias = self.value(17) if form.projection_bias else [0] * len(weights)
        totals = [
            sum(w * (v - zero) for w, v in zip(row, hidden, strict=True)) + b
            for row, b in zip(weights, bias, strict=True)
        ]
        results = [scaled(t, factor) + self.operands[18].zero_point for t in totals]
        results = [max(-128, min(127, value)) for value in results]
        if form.projection_clip:
            scale = self.scale(18 if self.rule.tflite else 16)
            limit = min(127, int(np.float32(form.projection_clip) / scale))
            results = [max(-limit, min(limit, value)) for value in results] if limit else results
        return results

    def walk(self, x: Array) -> tuple[Array, Array, Array]:
        """Outputs [times, batches, outputs] and the last states."""
        h, c = self.value(18), self.value(19)
        outputs = []
        for values in x.astype(object):
            pairs = [self.step(*each) for each in zip(values, h, c, strict=True)]
            h = np.asarray([pair[0] for pair in pairs], object)
            c = np.asarray([pair[1] for pair in pairs], object)
            outputs.append(h)
        return np.stack(outputs).astype(np.int64), h.astype(np.int64), c.astype(np.int64)
