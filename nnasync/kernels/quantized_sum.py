"""Quantised ADD and SUB: the fixed-point rule to the bit, in float32 where that can be.

The rule scales both operands to 20 more bits, adds, scales the sum and rounds, halves away from
zero. x * scale_x + y * scale_y + shift, cut to an integer, is the same for almost all of the 65536
pairs of values. The others lie so close to where the result changes that float32 puts them on the
wrong side; small steps of the three weights towards the pair that is worst off bring most of them
over, as in the training of a perceptron. Weights are used only if all pairs come out right. Halves
want a start with larger scales, which carries them away from zero. Where neither succeeds, mostly
where scales are short decimals that make many near halves, and for few elements, the table of all
pairs is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, Shape, Struct
from nnasync.kernels.broadcast import Layout
from nnasync.kernels.byte_tables import all_values, pair_kernel
from nnasync.kernels.fixed_point import (
    multiply_by_quantized_multiplier,
    quantize_multiplier,
    quantize_multiplier_below_one,
    single,
)
from nnasync.kernels.operation import Arguments, ArraySpec, Kernel, Step, Tensor, quantized_range
from nnasync.kernels.rescale import store_quantized
from nnasync.kernels.steps import Call, clip, copy, quantized_bounds, sequence

__all__ = ["sum_kernel"]

_LEFT_SHIFT = 20
_FEW = 1 << 10
"""Elements for which the table is as fast."""
_NEAR = 1 / 256
_STEPS = 20
_STARTS = ((0.0, 2.0**-16), (2.0**-14, 2.0**-12))
"""How much larger than exact the scales start, and how far from a change all pairs shall be."""
_UNITS = np.asarray([1 / 128, 1 / 128, 1.0])
"""What makes steps of the three weights count alike."""


def sum_kernel(arguments: Arguments, output: Tensor, fused: int, sign: int) -> Kernel:
    """ADD, or SUB where `sign` is -1."""
    tensors = arguments.tensor(0), arguments.tensor(1)
    bounds = quantized_bounds(fused, output)
    table = np.clip(_sums(arguments, output, sign), *bounds)
    order = (1, 0) if tensors[0].size < tensors[1].size else (0, 1)
    x, y = (tensors[index] for index in order)
    signs = np.asarray([1, sign])[list(order)]
    found = None
    if output.size > _FEW:
        found = _fit(_Problem(x, y, signs, output, bounds), table.transpose(order))
    if found is None:
        return pair_kernel(*tensors, output.shape, table)
    return _affine_kernel(found, x, y, output.shape, order)


def _sums(arguments: Arguments, output: Tensor, sign: int) -> Array:
    """The rule for all values of both operands, not yet clamped."""
    a, b = arguments.tensor(0), arguments.tensor(1)
    twice = 2 * max(single(a.scale), single(b.scale))
    terms = []
    for tensor, factor in ((a, 1), (b, sign)):
        q, shift = quantize_multiplier(single(tensor.scale) / twice)
        wide = all_values(tensor) << _LEFT_SHIFT
        terms.append(multiply_by_quantized_multiplier(wide, factor * q, shift))
    multiplier = twice / (2**_LEFT_SHIFT * single(output.scale))
    pair = quantize_multiplier_below_one(arguments, multiplier)
    sums = np.add.outer(*terms)
    return multiply_by_quantized_multiplier(sums, *pair) + output.zero_point


class _Problem:
    """Which weights to look for: the exact ones, between which bounds, for which zero points."""

    __slots__ = ("bounds", "lowest", "weights", "x", "y", "zeros")

    def __init__(
        self, x: Tensor, y: Tensor, signs: Array, output: Tensor, bounds: tuple[int, int]
    ) -> None:
        self.lowest = quantized_range(output.type)[0]
        self.bounds = bounds[0] - self.lowest, bounds[1] - self.lowest
        self.zeros = x.zero_point, y.zero_point
        self.x, self.y = all_values(x)[:, None], all_values(y)[None]
        scales = np.asarray([single(x.scale), single(y.scale)]) / single(output.scale)
        self.weights = np.asarray([*(signs * scales), output.zero_point - self.lowest + 0.5])

    def affine(self, weights: Array) -> _Affine:
        """The float32 calls with these weights."""
        return _Affine(weights, self.zeros, self.bounds)


class _Affine:
    """x * weight + (y - zero) * weight + shift of raw values in float32, clamped, not yet cut."""

    __slots__ = ("_limits", "_shift", "_weights", "_zero")

    def __init__(self, weights: Array, zeros: tuple[int, int], bounds: tuple[int, int]) -> None:
        self._weights = [np.asarray(weight, np.float32) for weight in weights[:2]]
        self._zero = np.asarray(zeros[1], np.float32)
        self._shift = np.asarray(weights[2] - weights[0] * zeros[0], np.float32)
        self._limits = [np.asarray(bound, np.float32) for bound in (bounds[0], bounds[1] + 0.5)]

    def scale_second(self, target: Array, source: Array) -> list[Call]:
        """Calls from raw values of the second operand to its term."""
        calls = [copy(target, source)]
        if self._zero:
            calls.append((np.subtract, (target, self._zero, target)))
        calls.append((np.multiply, (target, self._weights[1], target)))
        return calls

    def add(self, term: Array, source: Array, second: Array, sums: Array) -> list[Call]:
        """Calls from raw values of the first operand and the second's term to clamped sums."""
        return [
            copy(term, source),
            (np.multiply, (term, self._weights[0], term)),
            (np.add, (term, second, sums)),
            (np.add, (sums, self._shift, sums)),
            (clip, (sums, *self._limits, sums)),
        ]

    def of(self, x: Array, y: Array) -> Array:
        """The clamped sums of raw values, by the calls that a kernel makes."""
        first, second = np.empty(x.shape, np.float32), np.empty(y.shape, np.float32)
        sums = np.empty(np.broadcast_shapes(x.shape, y.shape), np.float32)
        sequence([*self.scale_second(second, y), *self.add(first, x, second, sums)])()
        return sums


class _Near(Struct, frozen=True, eq=False):
    """The pairs of raw values at which the exact sum is near a change of the result."""

    x: Array
    y: Array
    change: Array
    above: Array
    terms: Array

    def worst(self, values: Array) -> tuple[Array, float]:
        """Terms and distance of the pair that is least on its side of the change."""
        distance = np.where(self.above, values - self.change, self.change - values)
        index = int(np.argmin(distance))
        return self.terms[index], float(distance[index])


def _near(problem: _Problem, expected: Array) -> _Near:
    weights = problem.weights
    exact = problem.x * weights[0] + problem.y * weights[1] + weights[2]
    change = np.rint(exact)
    lower, upper = problem.bounds
    near = (np.abs(exact - change) < _NEAR) & (change > lower) & (change <= upper)
    rows, columns = np.nonzero(near)
    x, y, change = problem.x[rows, 0], problem.y[0, columns], change[near]
    above = expected[near] >= change
    terms = np.stack([x, y, np.ones(x.size)], axis=1) * _UNITS
    terms[~above] *= -1
    return _Near(x + problem.zeros[0], y + problem.zeros[1], change, above, terms)


def _fit(problem: _Problem, table: Array) -> _Affine | None:
    """Weights with which float32 gives the table, if they are found."""
    expected = table - problem.lowest
    near = _near(problem, expected)
    x, y = problem.x + problem.zeros[0], problem.y + problem.zeros[1]
    for growth, margin in _STARTS:
        found = _descend(problem, near, problem.weights * (1 + growth, 1 + growth, 1), margin)
        if found is not None and np.array_equal(found.of(x, y).astype(np.int64), expected):
            return found
    return None


def _descend(problem: _Problem, near: _Near, weights: Array, margin: float) -> _Affine | None:
    """Weights with which all near pairs come out right, some steps from the given ones."""
    for _ in range(_STEPS):
        affine = problem.affine(weights)
        values = affine.of(near.x, near.y)
        if np.array_equal(values >= near.change, near.above):
            return affine
        term, distance = near.worst(values)
        weights = weights + (margin - distance) / (term @ term) * term * _UNITS
    return None


def _affine_kernel(
    affine: _Affine, a: Tensor, b: Tensor, shape: Shape, order: tuple[int, int]
) -> Kernel:
    """Blocks of the output's rows; a second operand that broadcasts over them is converted once."""
    layout = Layout(a.shape, b.shape, shape)
    specs = [ArraySpec(layout.largest(part)) for part in (layout.a, layout.b, layout.output)]

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        first = inputs[order[0]].reshape(layout.a)
        second = inputs[order[1]].reshape(layout.b)
        target = outputs[0].reshape(layout.output)
        calls: list[Call] = []
        if layout.is_row(layout.b):
            calls += affine.scale_second(scratch[1], second)
        for part in layout.parts:
            x, y, sums = (array[: part.stop - part.start] for array in scratch)
            if not layout.is_row(layout.b):
                calls += affine.scale_second(y, second[part])
            source = first if layout.is_row(layout.a) else first[part]
            calls += affine.add(x, source, y, sums)
            calls += store_quantized(sums, target[part])
        return sequence(calls)

    return Kernel(bind, specs)
