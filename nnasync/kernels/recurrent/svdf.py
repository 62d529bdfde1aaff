"""SVDF: a layer of filters over features in time, with their memory as state.

Each filter has one weight per feature and one per moment of its memory; `rank` filters make a unit.
The state that comes out is already moved by one moment, so that its last entry is free for the next
feature; what comes in there is not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, OperandType, OperationType, Shape, Struct
from nnasync.kernels.facts import Facts, matrices
from nnasync.kernels.operation import (
    Arguments,
    ArraySpec,
    Kernel,
    Operation,
    Parameter,
    Signature,
    Step,
    Tensor,
)
from nnasync.kernels.recurrent.directions import FLOATS, activation, activation_calls, named
from nnasync.kernels.steps import Call, add_rows, copy, sequence

_BIAS, _RANK, _ACTIVATION = 3, 5, 6


class SvdfSizes(Struct, frozen=True):
    """Sizes of an SVDF layer."""

    batches: int
    units: int
    rank: int
    memory: int

    @property
    def state(self) -> Shape:
        """The state as [batches, filters, memory]."""
        return (self.batches, self.units * self.rank, self.memory)


def svdf_parameters(
    data: OperandType,
    weights: OperandType,
    memory: OperandType,
    bias: OperandType,
    state: OperandType,
) -> tuple[Parameter, ...]:
    """The parameters: types of input, feature weights, time weights, bias and state."""
    return (
        *named(data, 2, "input"),
        *named(weights, 2, "weights_feature"),
        *named(memory, 2, "weights_time"),
        *named(bias, 1, "bias", optional=True),
        *named(state, 2, "state_in"),
        Parameter("rank", OperandType.INT32),
        Parameter("activation", OperandType.INT32),
    )


def svdf_sizes(arguments: Arguments) -> SvdfSizes:
    """The sizes, from operands whose shapes are checked."""
    batches, features = arguments.tensor(0, 2).shape
    filters, columns = arguments.tensor(1, 2).shape
    if columns != features:
        raise arguments.error(1, f"has {columns} columns, expected the input's {features}")
    rank = arguments.integer(_RANK, 1)
    if filters % rank:
        raise arguments.error(1, f"has {filters} filters, expected a multiple of the rank {rank}")
    rows, memory = arguments.tensor(2, 2).shape
    if rows != filters:
        raise arguments.error(2, f"has {rows} rows, expected one per filter, {filters}")
    sizes = SvdfSizes(batches, filters // rank, rank, memory)
    arguments.check_shape(_BIAS, (sizes.units,))
    arguments.check_shape(4, (batches, memory * filters))
    return sizes


def _signatures() -> list[Signature]:
    return [
        Signature(since, svdf_parameters(*[type] * 5), named(type, 2, "state", "output"))
        for type, _, since in FLOATS
    ]


def _infer(arguments: Arguments) -> list[Tensor]:
    sizes, type = svdf_sizes(arguments), arguments.tensor(0).type
    state = arguments.tensor(4).shape
    return [Tensor(type=type, shape=state), Tensor(type=type, shape=(sizes.batches, sizes.units))]


def _prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    sizes = svdf_sizes(arguments)
    by_feature, by_time = arguments.value(1).T, arguments.value(2)
    bias = arguments.value(_BIAS) if arguments.has(_BIAS) else None
    kind = activation(arguments, _ACTIVATION)
    specs = [ArraySpec(sizes.state[:2]), ArraySpec(sizes.state)]

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        features, products = scratch
        before, after = inputs[4].reshape(sizes.state), outputs[0].reshape(sizes.state)
        output = outputs[1]
        calls: list[Call] = [
            (inputs[0].dot, (by_feature, features)),
            (np.multiply, (before[..., :-1], by_time[:, :-1], products[..., :-1])),
            (np.multiply, (features, by_time[:, -1], products[..., -1])),
            (np.add.reduce, (products.reshape(*output.shape, -1), -1, None, output)),
            copy(after[..., -1], np.asarray(0.0, np.float32)),
        ]
        if sizes.memory > 1:
            calls.append(copy(after[..., :-2], before[..., 1:-1]))
            calls.append(copy(after[..., -2], features))
        if bias is not None:
            calls.append(add_rows(np.add, output, bias))
        return sequence([*calls, *activation_calls(kind, output, output)])

    return Kernel(bind, specs)


SVDF = Operation(
    OperationType.SVDF, _signatures(), _infer, _prepare, facts=Facts(multiply_adds=matrices)
)
