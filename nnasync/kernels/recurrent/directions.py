"""What the recurrent operations share: activations by number, parameters, two directions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, Shape
from nnasync.kernels.elementwise.activation import logistic
from nnasync.kernels.operation import Arguments, Parameter, Signature, Tensor
from nnasync.kernels.recurrent.walking import TimeOrder
from nnasync.kernels.steps import Call, clip, copy

_F32, _F16 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16

FLOATS: tuple[tuple[OperandType, OperandType, HalVersion], ...] = (
    (_F32, OperandType.FLOAT32, HalVersion.V1_0),
    (_F16, OperandType.FLOAT16, HalVersion.V1_2),
)
"""Tensor types, the scalars that go with them, and the version that has them since 1.0."""

_TANH, _SIGMOID = 4, 6
_BOUNDS = {1: (0.0, np.inf), 2: (-1.0, 1.0), 3: (0.0, 6.0)}


def named(
    type: OperandType, rank: int, *names: str, optional: bool = False
) -> tuple[Parameter, ...]:
    """Parameters of one type and rank."""
    return tuple(Parameter(name, type, optional, (rank,)) for name in names)


def activation(arguments: Arguments, index: int) -> int:
    """The activation's number at an argument position, checked."""
    value = arguments.integer(index)
    if value not in (0, _TANH, _SIGMOID, *_BOUNDS):
        raise arguments.error(
            index,
            f"is {value}, expected 0 (none), 1 (relu), 2 (relu1), 3 (relu6), 4 (tanh), 6 (sigmoid)",
        )
    return value


def activation_calls(kind: int, source: Array, target: Array) -> list[Call]:
    """Calls of an activation by its number in recurrent operations."""
    if kind == _TANH:
        return [(np.tanh, (source, target))]
    if kind == _SIGMOID:
        return logistic(source, target)
    if kind in _BOUNDS:
        lower, upper = (np.asarray(bound, np.float32) for bound in _BOUNDS[kind])
        return [(clip, (source, lower, upper, target))]
    return [] if source is target else [copy(target, source)]


def all_or_none(arguments: Arguments, *indices: int) -> bool:
    """Returns whether these arguments are there; ModelError unless all are or none is."""
    given = [index for index in indices if arguments.has(index)]
    for index in indices:
        if given and index not in given:
            raise arguments.error(index, f"must not be omitted where input {given[0]} is given")
    return bool(given)


def bidirectional_signatures(
    type: OperandType, inputs: tuple[Parameter, ...], states: tuple[Parameter, ...]
) -> list[Signature]:
    """Two outputs or a merged one, since 1.3 also with the states behind."""
    return [
        Signature(since, inputs, (*named(type, 3, *results), *more))
        for since, more in ((HalVersion.V1_2, ()), (HalVersion.V1_3, states))
        for results in (("fw_output", "bw_output"), ("output",))
    ]


def bidirectional_results(
    arguments: Arguments,
    merge: int,
    timeline: TimeOrder,
    features: tuple[int, int],
    states: Sequence[Shape],
) -> list[Tensor]:
    """The outputs of two directions, merged if argument `merge` says so, and the states if wanted.

    Raises ModelError where the number of outputs does not fit the flag.
    """
    merged, count = arguments.flag(merge), len(arguments.signature.outputs)
    widths = (sum(features),) if merged else features
    shapes = [(*timeline.leading, width) for width in widths]
    if count > 2:
        shapes += states
    if count != len(shapes):
        results = len(widths), len(widths) + len(states)
        raise arguments.error(
            merge, f"is {merged}: there must be {results[0]} or {results[1]} outputs, not {count}"
        )
    type = arguments.tensor(0).type
    return [Tensor(type=type, shape=shape) for shape in shapes]
