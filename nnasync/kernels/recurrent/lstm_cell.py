"""One time step of an LSTM in float32.

The weights of all gates stand side by side, so that one step is a product with the input, one with
the last output, and elementwise work; a sequence multiplies all its inputs at once beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnasync.hal import Array
from nnasync.kernels.elementwise.activation import logistic
from nnasync.kernels.operation import Arguments, ArraySpec
from nnasync.kernels.recurrent.directions import activation, activation_calls
from nnasync.kernels.recurrent.lstm_sizes import PROJECTION, PROJECTION_BIAS, LstmSizes
from nnasync.kernels.steps import Call, add_rows, clip

_ONE = np.asarray(1.0, np.float32)
_EPSILON = np.asarray(1e-8, np.float32)


class Cell:
    """A prepared LSTM cell; gates stand in the order [input,] forget, output, cell.

    Activation, cell clip and projection clip are the arguments from `options` on.
    """

    def __init__(self, sizes: LstmSizes, options: int) -> None:
        self.sizes = sizes
        arguments, places = sizes.arguments, sizes.places
        value = arguments.value
        roles = places.roles
        gates = (1, 3, 2) if sizes.cifg else (0, 1, 3, 2)
        self.from_input = np.concatenate([value(roles[1 + gate]) for gate in gates]).T.copy()
        self.from_output = np.concatenate([value(roles[5 + gate]) for gate in gates]).T.copy()
        self.from_aux = None
        if sizes.aux:
            self.from_aux = np.concatenate([value(places.aux[gate]) for gate in gates]).T.copy()
        biases = [value(roles[12 + gate]).reshape(-1) for gate in gates]
        self.bias = None if sizes.norm else np.concatenate(biases)
        self.norms = [
            (value(places.norms[gate]), bias) if sizes.norm else None
            for gate, bias in zip(gates, biases, strict=True)
        ]
        self.peepholes = [
            value(roles[role]).reshape(-1) if sizes.peephole else None
            for role in ((10, 11) if sizes.cifg else (9, 10, 11))
        ]
        self.projection = value(roles[PROJECTION]).T.copy() if sizes.projection else None
        has_bias = sizes.has(PROJECTION_BIAS)
        self.projection_bias = value(roles[PROJECTION_BIAS]).reshape(-1) if has_bias else None
        self.kind = activation(arguments, options)
        self.clips = [_clip(arguments, options + index) for index in (1, 2)]

    @property
    def width(self) -> int:
        """Columns of the sums of all gates."""
        return len(self.sizes.gates) * self.sizes.units

    def scratch(self, batches: int) -> list[ArraySpec]:
        """Scratch of one time step besides the sums of the gates."""
        shapes = ((batches, self.width), (batches, self.sizes.units), (batches, 1))
        return [ArraySpec(shape) for shape in shapes]

    def products(self, rows: Array, sums: Array) -> list[Call]:
        """Calls from inputs [rows, features] to sums [rows, width], with bias."""
        calls: list[Call] = [(rows.dot, (self.from_input, sums))]
        if self.bias is not None:
            calls.append(add_rows(np.add, sums, self.bias))
        return calls

    def aux_products(self, rows: Array, sums: Array, work: Array) -> list[Call]:
        """Calls that add what auxiliary inputs [rows, features] contribute to the sums."""
        if self.from_aux is None:
            return []
        return [(rows.dot, (self.from_aux, work)), (np.add, (sums, work, sums))]

    def step(
        self,
        sums: Array,
        states: tuple[Array, Array],
        targets: tuple[Array, Array],
        scratch: Sequence[Array],
    ) -> list[Call]:
        """Calls of one time step from the input's sums; states and targets are (output, cell)."""
        (last_output, last_cell), (output, cell) = states, targets
        recurrent, work, one = scratch
        units = self.sizes.units
        calls: list[Call] = [
            (last_output.dot, (self.from_output, recurrent)),
            (np.add, (sums, recurrent, sums)),
        ]
        parts = [sums[:, i : i + units] for i in range(0, self.width, units)]
        *before, out_gate, candidate = parts
        for part, peephole, norm in zip(before, self.peepholes, self.norms, strict=False):
            calls += self._gate(part, last_cell, peephole, norm, work, one)
        calls += self._gate(candidate, last_cell, None, self.norms[-1], work, one)
        early = sums[:, : len(before) * units]
        calls += logistic(early, early)
        calls += activation_calls(self.kind, candidate, candidate)
        calls += self._new_cell(before, candidate, last_cell, cell, work)
        calls += self._gate(out_gate, cell, self.peepholes[-1], self.norms[-2], work, one)
        calls += logistic(out_gate, out_gate)
        calls += activation_calls(self.kind, cell, work)
        return calls + self._new_output(out_gate, work, output)

    def _gate(
        self,
        part: Array,
        cell: Array,
        peephole: Array | None,
        norm: tuple[Array, Array] | None,
        work: Array,
        one: Array,
    ) -> list[Call]:
        """Calls of peephole and layer norm on the sums of one gate."""
        calls: list[Call] = []
        if peephole is not None:
            calls += [(np.multiply, (cell, peephole, work)), (np.add, (part, work, part))]
        if norm is not None:
            calls += _layer_norm(part, *norm, work, one)
        return calls

    def _new_cell(
        self, gates: Sequence[Array], candidate: Array, last: Array, cell: Array, work: Array
    ) -> list[Call]:
        forget = gates[-1]
        calls: list[Call] = []
        if self.sizes.cifg:
            calls.append((np.subtract, (_ONE, forget, work)))
            calls.append((np.multiply, (work, candidate, candidate)))
        else:
            calls.append((np.multiply, (gates[0], candidate, candidate)))
        calls.append((np.multiply, (forget, last, forget)))
        calls.append((np.add, (forget, candidate, cell)))
        if self.clips[0] is not None:
            calls.append((clip, (cell, *self.clips[0], cell)))
        return calls

    def _new_output(self, gate: Array, active: Array, output: Array) -> list[Call]:
        if self.projection is None:
            return [(np.multiply, (gate, active, output))]
        calls: list[Call] = [
            (np.multiply, (gate, active, active)),
            (active.dot, (self.projection, output)),
        ]
        if self.projection_bias is not None:
            calls.append(add_rows(np.add, output, self.projection_bias))
        if self.clips[1] is not None:
            calls.append((clip, (output, *self.clips[1], output)))
        return calls


def _clip(arguments: Arguments, index: int) -> tuple[Array, Array] | None:
    """Bounds of a clip at an argument position, None for no clip."""
    limit = arguments.number(index)
    if not limit >= 0:
        raise arguments.error(index, f"is {limit}, expected at least 0 (0: no clipping)")
    if limit == 0:
        return None
    return np.asarray(-limit, np.float32), np.asarray(limit, np.float32)


def _layer_norm(x: Array, weights: Array, bias: Array, work: Array, one: Array) -> list[Call]:
    """Calls of (x - mean) / deviation * weights + bias over the last dimension, in place."""
    share = np.asarray(1 / x.shape[-1], np.float32)
    return [
        (np.add.reduce, (x, -1, None, one, True)),
        (np.multiply, (one, share, one)),
        (np.subtract, (x, one, x)),
        (np.multiply, (x, x, work)),
        (np.add.reduce, (work, -1, None, one, True)),
        (np.multiply, (one, share, one)),
        (np.add, (one, _EPSILON, one)),
        (np.sqrt, (one, one)),
        (np.divide, (x, one, x)),
        (np.multiply, (x, weights, x)),
        (np.add, (x, bias, x)),
    ]
