"""One time step of an LSTM in integers: 8-bit data and weights, a 16-bit cell state.

Sums of each gate become 16-bit numbers with 3 integer bits, the sums of the input and of the last
output each for itself; logistic and tanh come from tables of all such numbers. The gates' arrays
are [gates, batches, units], in the order [input,] forget, output, cell.

There are two dialects of this arithmetic, that of the HAL and that of TFLite: `Dialect` names the
points in which they differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, Struct
from nnasync.kernels.fixed_functions import inverse_root, logistic_table, tanh_table
from nnasync.kernels.fixed_point import quantize_multiplier, single
from nnasync.kernels.operation import Arguments, ArraySpec, Parameter, Tensor
from nnasync.kernels.recurrent.integer_steps import (
    INT8,
    INT16,
    Multiplier,
    exact_dtype,
    lookup,
    multiplied,
    product,
    ratio,
    round_shift,
    saturate,
    scale_of,
    state_exponent,
)
from nnasync.kernels.recurrent.lstm_sizes import (
    CELL_STATE,
    INPUT,
    OUTPUT_STATE,
    PROJECTION,
    PROJECTION_BIAS,
    LstmSizes,
    Places,
    cell_parameters,
    norm_parameters,
)
from nnasync.kernels.steps import Call, copy

PLACES = Places(tuple(range(20)), (20, 21, 22, 23))
_CLIPS, _SCALES, _HIDDEN_ZERO, _HIDDEN_SCALE = (24, 25), (26, 27, 28, 29), 30, 31
_LARGEST = np.asarray(2**15 - 1, np.int16)


def require_quantization(arguments: Arguments, outputs: Sequence[Tensor] = ()) -> HalVersion:
    """Raises ModelError unless all scales that count are positive and the cell state's is legal."""
    roles = PLACES.roles
    for index in (*roles[:12], roles[PROJECTION], roles[OUTPUT_STATE], *PLACES.norms):
        if arguments.has(index):
            scale_of(arguments, index)
    state_exponent(arguments, roles[CELL_STATE])
    return HalVersion.V1_3


class Dialect(Struct, frozen=True):
    """What the two rules have differently.

    `bias_always`: the gates' biases count without layer norm too. `hidden_sign`: how the hidden
    state's zero point is added. `clip_by_output`: the projection clip is in steps of the output,
    not of the projection weights. `variance_per_scale`: a variance of 0 counts as that many times
    the scale of the layer norm weights, and at least as 1.
    """

    bias_always: bool
    hidden_sign: int
    clip_by_output: bool
    variance_per_scale: int


def parameters(*, rank: int = 2) -> tuple[Parameter, ...]:
    """The 32 parameters; `rank` is that of the input."""
    data, weights = OperandType.TENSOR_QUANT8_ASYMM_SIGNED, OperandType.TENSOR_QUANT8_SYMM
    words, bias = OperandType.TENSOR_QUANT16_SYMM, OperandType.TENSOR_INT32
    types = [data, *[weights] * 8, *[words] * 3, *[bias] * 4, weights, bias, data, words]
    scalars = (
        "cell_clip",
        "projection_clip",
        "input_intermediate_scale",
        "forget_intermediate_scale",
        "cell_intermediate_scale",
        "output_intermediate_scale",
    )
    return (
        *cell_parameters(types, rank=rank),
        *norm_parameters(words),
        *(Parameter(name, OperandType.FLOAT32) for name in scalars),
        Parameter("hidden_state_zero_point", OperandType.INT32),
        Parameter("hidden_state_scale", OperandType.FLOAT32),
    )


class _Products:
    """The weights of some gates side by side, and the way from their sums to 16-bit numbers."""

    def __init__(
        self,
        arguments: Arguments,
        source: int,
        weights: Sequence[int],
        scales: Sequence[float],
        biases: Sequence[int] = (),
    ) -> None:
        given = arguments.tensor(source)
        stacked = np.concatenate([arguments.value(index) for index in weights]).astype(np.int64).T
        self.weights = np.ascontiguousarray(stacked, exact_dtype(stacked, 128))
        offset = -given.zero_point * stacked.sum(axis=0)
        if biases:
            offset = offset + np.concatenate([arguments.value(index) for index in biases])
        count = len(weights)
        self.bias = offset.reshape(count, 1, -1)
        factors = [
            ratio(scale_of(arguments, index), scale_of(arguments, source), scale)
            for index, scale in zip(weights, scales, strict=True)
        ]
        self.multiplier = Multiplier(factors, (count, 1, 1))

    def finish(self, sums: Array, wide: Array, work: Array) -> list[Call]:
        """Calls from float sums [batches, columns] to scaled integers [gates, batches, units]."""
        gates, batches, units = wide.shape
        return [
            copy(wide, sums.reshape(batches, gates, units).transpose(1, 0, 2)),
            (np.add, (wide, self.bias, wide)),
            *self.multiplier.calls(wide, work),
        ]


class _Norm:
    """Layer norm of one gate in fixed point."""

    def __init__(self, weights: Array, bias: Array, scale: float, limit: int) -> None:
        self.weights = weights.astype(np.int64)
        self.bias = bias.astype(np.int64)
        q, shift = quantize_multiplier(scale)
        self.q, self.shift = q, shift + 12
        self.limit = limit

    def apply(self, part: Array) -> None:
        """Normalizes [batches, units] in place."""
        units = part.shape[-1]
        total = part.sum(axis=-1, keepdims=True)
        squares = (part * part).sum(axis=-1, keepdims=True)
        mean = _truncated(total * 1024, units)
        variance = _truncated(squares * (2**20 // units) - mean * mean, 2**20)
        variance = np.where(variance < 1, self.limit, variance)
        normal = multiplied(1024 * part - mean, *inverse_root(variance))
        weighted = normal * self.weights + self.bias
        rounded = _truncated(weighted + np.where(weighted > 0, 512, -512), 1024)
        np.clip(multiplied(rounded, self.q, self.shift), *INT16, out=part)


def _truncated(x: Array, divisor: int) -> Array:
    """x / divisor, cut towards zero."""
    magnitude: Array = np.abs(x) // divisor
    return np.where(x < 0, -magnitude, magnitude)


def _positive(arguments: Arguments, index: int) -> float:
    """The value of a scale that is an argument."""
    value = arguments.number(index)
    if not value > 0:
        raise arguments.error(index, f"is {value}, expected a positive scale")
    return single(value)


def _clip(arguments: Arguments, index: int, scale: float, largest: int) -> int:
    """A clip in steps of `scale`; 0 for none."""
    limit = arguments.number(index)
    return int(np.float32(min(single(limit) / scale, largest))) if limit > 0 else 0


class IntegerCell:
    """A prepared cell of either dialect."""

    def __init__(self, sizes: LstmSizes, dialect: Dialect) -> None:
        self.sizes = sizes
        arguments, roles = sizes.arguments, sizes.places.roles
        gates = (1, 3, 2) if sizes.cifg else (0, 1, 3, 2)
        scales = [_positive(arguments, _SCALES[gate]) for gate in gates]
        biases = [roles[12 + gate] for gate in gates]
        counted = biases if dialect.bias_always and not sizes.norm else []
        weights = [roles[1 + gate] for gate in gates], [roles[5 + gate] for gate in gates]
        self.from_input = _Products(arguments, roles[INPUT], weights[0], scales, counted)
        self.from_output = _Products(arguments, roles[OUTPUT_STATE], weights[1], scales)
        self.count = len(gates)
        self.exponent = state_exponent(arguments, roles[CELL_STATE])
        self.peepholes = self._peepholes(scales) if sizes.peephole else [None] * self.count
        self.norms = [
            self._norm(sizes.places.norms[gate], bias, dialect.variance_per_scale)
            for gate, bias in zip(gates, biases, strict=True)
        ]
        cell_scale = scale_of(arguments, roles[CELL_STATE])
        self.cell_clip = _clip(arguments, _CLIPS[0], cell_scale, 2**15 - 1)
        self._set_output(arguments, dialect)

    def _peepholes(self, scales: Sequence[float]) -> list[tuple[Array, Multiplier] | None]:
        """Weights and multipliers of [input,] forget and output gate."""
        arguments, roles = self.sizes.arguments, self.sizes.places.roles
        indices = [roles[role] for role in ((10, 11) if self.sizes.cifg else (9, 10, 11))]
        found: list[tuple[Array, Multiplier] | None] = []
        for index, scale in zip(indices, scales, strict=False):
            step = 2.0**self.exponent * scale_of(arguments, index)
            multiplier = Multiplier([single(step / scale)])
            found.append((arguments.value(index).reshape(-1), multiplier))
        return found

    def _norm(self, weights: int, bias: int, variance_per_scale: int) -> _Norm | None:
        if not self.sizes.norm:
            return None
        arguments, scale = self.sizes.arguments, scale_of(self.sizes.arguments, weights)
        limit = min(max(1, int(single(variance_per_scale * scale))), 2**31 - 1)
        return _Norm(
            arguments.value(weights).reshape(-1), arguments.value(bias).reshape(-1), scale, limit
        )

    def _set_output(self, arguments: Arguments, dialect: Dialect) -> None:
        """Prepares what follows the cell state: the hidden state and its projection."""
        scale = _positive(arguments, _HIDDEN_SCALE)
        zero = arguments.integer(_HIDDEN_ZERO) * dialect.hidden_sign
        self.hidden = Multiplier([single(2.0**-30 / scale)])
        self.hidden_zero = np.asarray(zero)
        projects = self.sizes.projection
        self.projection = _Projection(self.sizes, scale, zero, dialect) if projects else None

    @property
    def width(self) -> int:
        """Columns of the sums of all gates."""
        return self.count * self.sizes.units

    def input_scratch(self, rows: int) -> list[ArraySpec]:
        """Scratch for the products of all inputs: as floats, and their sums."""
        dtype = self.from_input.weights.dtype
        return [ArraySpec((rows, self.sizes.input), dtype), ArraySpec((rows, self.width), dtype)]

    def scratch(self, batches: int) -> list[ArraySpec]:
        """Scratch of one time step."""
        gates = (self.count, batches, self.sizes.units)
        dtype = self.from_output.weights.dtype
        specs = [
            ArraySpec((batches, self.sizes.output), dtype),
            ArraySpec((batches, self.width), dtype),
            *[ArraySpec(gates, np.int64)] * 3,
            *[ArraySpec(gates, np.int16)] * 2,
        ]
        return specs if self.projection is None else specs + self.projection.scratch(batches)

    def products(self, rows: Array, scratch: Sequence[Array]) -> list[Call]:
        """Calls from inputs [rows, features] to their sums in the second scratch array."""
        wide, sums = scratch
        return [copy(wide, rows), (wide.dot, (self.from_input.weights, sums))]

    def step(
        self,
        sums: Array,
        states: tuple[Array, Array],
        targets: tuple[Array, Array],
        scratch: Sequence[Array],
    ) -> list[Call]:
        """Calls of one time step from the input's sums; states and targets are (output, cell)."""
        (last_output, last_cell), (output, cell) = states, targets
        rows, more, base, gates, work, words, active, *rest = scratch
        early = self.count - (2 if self.sizes.peephole else 1)
        calls: list[Call] = [
            *self.from_input.finish(sums, base, work),
            saturate(base, INT16),
            copy(rows, last_output),
            (rows.dot, (self.from_output.weights, more)),
            *self.from_output.finish(more, gates, work),
            (np.add, (gates, base, gates)),
            saturate(gates, INT16),
        ]
        for index in (*range(early), self.count - 1):
            calls += self._gate(index, gates, last_cell, work)
        calls.append(copy(words, gates))
        calls.append(lookup(logistic_table(), words[:early], active[:early]))
        calls.append(lookup(tanh_table(3), words[-1], active[-1]))
        calls += self._new_cell(active, words[0], last_cell, cell, (base, work))
        if self.sizes.peephole:
            calls += self._gate(early, gates, cell, work)
            calls.append(copy(words[-2], gates[-2]))
            calls.append(lookup(logistic_table(), words[-2], active[-2]))
        calls.append(lookup(tanh_table(15 + self.exponent), cell, words[0]))
        calls.append(product(active[-2], words[0], base[0]))
        calls += self.hidden.calls(base[0], work[0])
        calls.append((np.add, (base[0], self.hidden_zero, base[0])))
        calls.append(saturate(base[0], INT8))
        if self.projection is None:
            return [*calls, copy(output, base[0])]
        return calls + self.projection.calls(base[0], output, rest)

    def _gate(self, index: int, gates: Array, cell: Array, work: Array) -> list[Call]:
        """Calls of peephole and layer norm on one gate."""
        gate = gates[index]
        calls: list[Call] = []
        peephole = self.peepholes[index] if index < self.count - 1 else None
        if peephole is not None:
            weights, multiplier = peephole
            calls.append(product(cell, weights, work[0]))
            calls += multiplier.calls(work[0], work[1])
            calls += [(np.add, (gate, work[0], gate)), saturate(gate, INT16)]
        norm = self.norms[index]
        return calls if norm is None else [*calls, (norm.apply, (gate,))]

    def _new_cell(
        self,
        active: Array,
        spare: Array,
        last: Array,
        cell: Array,
        wide: tuple[Array, Array],
    ) -> list[Call]:
        """Calls of forget * last cell + input * candidate."""
        kept, added = (array[0] for array in wide)
        work = wide[1][1]
        forget, update = active[-3], active[0]
        calls: list[Call] = []
        if self.sizes.cifg:
            update = spare
            calls.append((np.subtract, (_LARGEST, forget, update)))
        calls += [
            product(forget, last, kept),
            *round_shift(kept, 15, work),
            product(update, active[-1], added),
            *round_shift(added, 30 + self.exponent, work),
            (np.add, (kept, added, kept)),
            saturate(kept, INT16),
        ]
        if self.cell_clip:
            calls.append(saturate(kept, _within(self.cell_clip)))
        return [*calls, copy(cell, kept)]


class _Projection:
    """From the 8-bit hidden state to the output."""

    def __init__(self, sizes: LstmSizes, scale: float, zero: int, dialect: Dialect) -> None:
        arguments, roles = sizes.arguments, sizes.places.roles
        weights = arguments.value(roles[PROJECTION]).astype(np.int64).T
        self.weights = np.ascontiguousarray(weights, exact_dtype(weights, 128))
        self.bias = -zero * weights.sum(axis=0)
        if sizes.has(PROJECTION_BIAS):
            self.bias = self.bias + arguments.value(roles[PROJECTION_BIAS])
        state, step = roles[OUTPUT_STATE], scale_of(arguments, roles[PROJECTION])
        self.multiplier = Multiplier([ratio(step, scale, scale_of(arguments, state))])
        self.zero = np.asarray(arguments.tensor(state).zero_point)
        clip_scale = scale_of(arguments, state) if dialect.clip_by_output else step
        self.clip = _clip(arguments, _CLIPS[1], clip_scale, 127)

    def scratch(self, batches: int) -> list[ArraySpec]:
        """Scratch: the hidden state and the sums as floats, the sums as integers."""
        units, outputs = self.weights.shape
        dtype = self.weights.dtype
        return [
            ArraySpec((batches, units), dtype),
            ArraySpec((batches, outputs), dtype),
            *[ArraySpec((batches, outputs), np.int64)] * 2,
        ]

    def calls(self, hidden: Array, output: Array, scratch: Sequence[Array]) -> list[Call]:
        """Calls from the hidden state to the output."""
        rows, sums, wide, work = scratch
        calls: list[Call] = [
            copy(rows, hidden),
            (rows.dot, (self.weights, sums)),
            copy(wide, sums),
            (np.add, (wide, self.bias, wide)),
            *self.multiplier.calls(wide, work),
            (np.add, (wide, self.zero, wide)),
            saturate(wide, INT8),
        ]
        if self.clip:
            calls.append(saturate(wide, _within(self.clip)))
        return [*calls, copy(output, wide)]


def _within(limit: int) -> tuple[Array, Array]:
    return np.asarray(-limit), np.asarray(limit)
