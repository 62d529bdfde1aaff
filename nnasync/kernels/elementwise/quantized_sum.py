"""Quantized ADD and SUB: the fixed-point rule to the bit, in float32 where that can be.

The rule scales both operands to 20 more bits, adds, scales the sum and rounds, halves away from
zero. x * scale_x + y * scale_y + shift, cut to an integer, is the same for almost all of the 65536
pairs of values. The others lie so close to where the result changes that float32 puts them on the
wrong side; small steps of the three weights towards the pair that is worst off bring most of them
over, as in the training of a perceptron. Halves want a start with larger scales, which carries them
away from zero.

Weights are used only if all pairs come out right. Where rule and float32 together cannot stray from
the exact sum as far as a pair that is not near a change, the near pairs are the proof; otherwise
all are compared. Where no weights are found, mostly where scales are short decimals that make many
near halves, and for few elements, the table of all pairs is used.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, Shape, Struct
from nnasync.kernels.broadcast import BroadcastLayout
from nnasync.kernels.byte_tables import all_values, pair_kernel
from nnasync.kernels.fixed_point import (
    multiply_by_quantized_multiplier,
    quantize_multiplier,
    quantize_multiplier_below_one,
    single,
)
from nnasync.kernels.operation import Arguments, ArraySpec, Kernel, Step, Tensor, quantized_range
from nnasync.kernels.steps import Call, clip, copy, quantized_bounds, sequence
from nnasync.kernels.windows.rescale import store_quantized

_LEFT_SHIFT = 20
_FEW = 1 << 10
"""Elements for which the table is as fast."""
_NEAR = 1 / 256
_STEPS = 20
_STARTS = ((0.0, 2.0**-16), (2.0**-14, 2.0**-12))
"""How much larger than exact the scales start, and how far from a change all pairs shall be."""
_UNITS = np.asarray([1 / 128, 1 / 128, 1.0])
"""What makes steps of the three weights count alike."""
_LARGEST = np.asarray([255.0, 255.0, 1.0])
"""The largest values that the three weights are multiplied with."""
_REMEMBERED = 256


def sum_kernel(arguments: Arguments, output: Tensor, fused: int, sign: int) -> Kernel:
    """ADD, or SUB where `sign` is -1."""
    tensors = arguments.tensor(0), arguments.tensor(1)
    sides = _side(tensors[0], 1), _side(tensors[1], sign)
    twice = 2 * max(side.scale for side in sides)
    multiplier = twice / (2**_LEFT_SHIFT * single(output.scale))
    pair = quantize_multiplier_below_one(arguments, multiplier)
    order = (1, 0) if tensors[0].size < tensors[1].size else (0, 1)
    x, y = (sides[index] for index in order)
    problem = _Problem(x, y, _side(output, 1), twice, pair, quantized_bounds(fused, output))
    found = _fit(problem) if output.size > _FEW else None
    if found is None:
        return pair_kernel(*tensors, output.shape, problem.table().transpose(order))
    a, b = (tensors[index] for index in order)
    return _affine_kernel(found, a, b, output.shape, order)


class _SumOperand(Struct, frozen=True):
    """An operand or the result, as far as the values of a sum depend on it."""

    type: int
    scale: float
    zero_point: int
    sign: int

    def values(self) -> Array:
        """Returns all values in ascending order, less the zero point."""
        return all_values(Tensor(type=self.type, zero_point=self.zero_point))

    def term(self, twice: float) -> Array:
        """Returns the rule's summand for each value, divided by `twice`, with 20 more bits."""
        q, shift = quantize_multiplier(self.scale / twice)
        wide = self.values() << _LEFT_SHIFT
        return multiply_by_quantized_multiplier(wide, self.sign * q, shift)


def _side(tensor: Tensor, sign: int) -> _SumOperand:
    return _SumOperand(tensor.type, single(tensor.scale), tensor.zero_point, sign)


class _Problem(Struct, frozen=True):
    """A sum of x and y: what the rule divides scales by, its multiplier, the clamp."""

    x: _SumOperand
    y: _SumOperand
    output: _SumOperand
    twice: float
    multiplier: tuple[int, int]
    bounds: tuple[int, int]

    @property
    def lowest(self) -> int:
        """The smallest value of the output's type, from which raw results count."""
        return quantized_range(self.output.type)[0]

    @property
    def raw_bounds(self) -> tuple[int, int]:
        """The clamp of raw results."""
        return self.bounds[0] - self.lowest, self.bounds[1] - self.lowest

    @property
    def weights(self) -> Array:
        """Returns weights that make x * weight + y * weight + weight the exact sum to be cut."""
        scales = [side.sign * side.scale / self.output.scale for side in (self.x, self.y)]
        return np.asarray([*scales, self.output.zero_point - self.lowest + 0.5])

    def terms(self) -> tuple[Array, Array]:
        """Returns the rule's summands for each value of x and of y."""
        return self.x.term(self.twice), self.y.term(self.twice)

    def rounded(self, sums: Array) -> Array:
        """The raw results, not clamped, of sums of terms."""
        zero = self.output.zero_point - self.lowest
        result: Array = multiply_by_quantized_multiplier(sums, *self.multiplier) + zero
        return result

    def table(self) -> Array:
        """The results of all pairs of values."""
        sums = np.add.outer(*self.terms())
        table: Array = np.clip(self.rounded(sums) + self.lowest, *self.bounds)
        return table

    def affine(self, weights: Array) -> _Affine:
        """The float32 calls with these weights."""
        return _Affine(weights, (self.x.zero_point, self.y.zero_point), self.raw_bounds)

    def stray(self, weights: Array) -> float:
        """Returns how far the rule's sums, or those with float32 weights, may be from exact.

        The rule rounds each term twice and the sum once more, by half a unit of its shift at most;
        float32 makes four errors of 2**-24 for each term, and two for what is added.
        """
        q, shift = self.multiplier
        rule = 3 * 2.0**shift if q else np.inf
        shifted = abs(weights[2] - weights[0] * self.x.zero_point)
        largest = np.abs(weights) * _LARGEST
        rounding = (largest[0] + largest[1] + shifted) * 2.0**-22 + 2.0**-16
        drift = np.abs(weights - self.weights) * _LARGEST
        return max(rule, float(drift.sum())) + float(rounding)


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


def _near(problem: _Problem) -> _Near:
    x, y = problem.x.values(), problem.y.values()
    weights = problem.weights
    exact = np.add.outer(x * weights[0] + weights[2], y * weights[1])
    distance = np.rint(exact)
    np.abs(np.subtract(exact, distance, distance), distance)
    rows, columns = np.divmod(np.flatnonzero(distance < _NEAR), y.size)
    change = np.rint(exact[rows, columns])
    lower, upper = problem.raw_bounds
    inside = (change > lower) & (change <= upper)
    rows, columns, change = rows[inside], columns[inside], change[inside]
    first, second = problem.terms()
    above = problem.rounded(first[rows] + second[columns]) >= change
    x, y = x[rows], y[columns]
    terms = np.stack([x, y, np.ones(x.size)], axis=1) * _UNITS
    terms[~above] *= -1
    return _Near(x + problem.x.zero_point, y + problem.y.zero_point, change, above, terms)


@functools.lru_cache(_REMEMBERED)
def _fit(problem: _Problem) -> _Affine | None:
    """Weights with which float32 gives the results of the rule, if they are found."""
    near = _near(problem)
    for growth, margin in _STARTS:
        found = _descend(problem, near, problem.weights * (1 + growth, 1 + growth, 1), margin)
        if found is not None and _is_exact(problem, *found):
            return found[1]
    return None


def _is_exact(problem: _Problem, weights: Array, affine: _Affine) -> bool:
    """Returns whether all pairs come out right, given that the near ones do."""
    if problem.stray(weights) < _NEAR:
        return True
    x = problem.x.values()[:, None] + problem.x.zero_point
    y = problem.y.values()[None] + problem.y.zero_point
    found = affine.of(x, y).astype(np.int64) + problem.lowest
    return np.array_equal(found, problem.table())


def _descend(
    problem: _Problem, near: _Near, weights: Array, margin: float
) -> tuple[Array, _Affine] | None:
    """Weights with which all near pairs come out right, some steps from the given ones."""
    for _ in range(_STEPS):
        affine = problem.affine(weights)
        values = affine.of(near.x, near.y)
        if np.array_equal(values >= near.change, near.above):
            return weights, affine
        term, distance = near.worst(values)
        weights = weights + (margin - distance) / (term @ term) * term * _UNITS
    return None


def _affine_kernel(
    affine: _Affine, a: Tensor, b: Tensor, shape: Shape, order: tuple[int, int]
) -> Kernel:
    """Blocks of the output's rows; a second operand that broadcasts over them is converted once."""
    layout = BroadcastLayout(a.shape, b.shape, shape)
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
