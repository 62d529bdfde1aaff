"""RNN, UNIDIRECTIONAL_SEQUENCE_RNN and BIDIRECTIONAL_SEQUENCE_RNN.

One step is activation(input * weights + hidden * recurrent weights + bias). The products of all
inputs of a sequence are made at once, in the memory of the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, OperationType, Shape
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
from nnasync.kernels.recurrent import (
    FLOATS,
    Timeline,
    activation,
    activation_calls,
    all_or_none,
    bidirectional_results,
    bidirectional_signatures,
    named,
)
from nnasync.kernels.steps import Call, add_rows, copy, sequence

__all__ = [
    "BIDIRECTIONAL_SEQUENCE_RNN",
    "OPERATIONS",
    "RNN",
    "UNIDIRECTIONAL_SEQUENCE_RNN",
]

_ACTIVATION, _UNI_MAJOR = 5, 6
_AUX, _AUX_WEIGHTS, _BI_ACTIVATION, _MAJOR, _MERGE = 9, (10, 11), 12, 13, 14


def _cell_parameters(type: OperandType, prefix: str = "") -> tuple[Parameter, ...]:
    return (
        *named(type, 2, f"{prefix}weights", f"{prefix}recurrent_weights"),
        *named(type, 1, f"{prefix}bias"),
        *named(type, 2, f"{prefix}hidden_state_in"),
    )


def _check(arguments: Arguments, index: int, shape: Shape) -> None:
    given = arguments.tensor(index).shape
    if given != shape:
        raise arguments.error(index, f"has shape {given}, expected {shape}")


def _check_cell(arguments: Arguments, source: int, first: int, batches: int) -> int:
    """Number of units of a cell whose operands begin at `first`, checked."""
    units = arguments.tensor(first, 2).shape[0]
    features = arguments.tensor(source).shape[-1]
    shapes = ((units, features), (units, units), (units,), (batches, units))
    for index, shape in enumerate(shapes, first):
        _check(arguments, index, shape)
    return units


class _Direction:
    """One RNN that walks over a sequence; `direct` results are written where they belong."""

    def __init__(
        self,
        arguments: Arguments,
        source: int,
        first: int,
        kind: int,
        timeline: Timeline,
        *,
        aux_weights: int | None = None,
        backward: bool = False,
        direct: bool = True,
    ) -> None:
        value = arguments.value
        self.weights, self.recurrent = value(first).T, value(first + 1).T
        self.bias = value(first + 2).reshape(-1)
        self.aux_weights = None if aux_weights is None else value(aux_weights).T
        self.source, self.hidden = source, first + 3
        self.kind = activation(arguments, kind)
        self.timeline = timeline
        self.order = range(timeline.times)[:: -1 if backward else 1]
        self.direct = direct and not timeline.turned

    @property
    def units(self) -> int:
        """Features of the results."""
        return len(self.bias)

    def scratch(self) -> list[ArraySpec]:
        """Scratch of a whole walk, in the order in which `calls` takes it."""
        shape = self.timeline.shape
        specs = [ArraySpec((self.timeline.batches, self.units))]
        if self.timeline.turned:
            specs.append(ArraySpec(shape(len(self.weights))))
        if not self.direct:
            specs.append(ArraySpec(shape(self.units)))
        if self.aux_weights is not None:
            specs.append(ArraySpec(shape(self.units)))
            specs.append(ArraySpec(shape(len(self.aux_weights))))
        return specs

    def calls(
        self,
        inputs: Sequence[Any],
        target: Array,
        state: Sequence[Array],
        scratch: Iterator[Array],
    ) -> list[Call]:
        """Calls of the walk, to a view [times, batches, units] and the state, if wanted."""
        work = next(scratch)
        spare = next(scratch) if self.timeline.turned else None
        results = target if self.direct else next(scratch)
        sums = results.reshape(-1, self.units)
        rows, calls = self.timeline.rows(inputs[self.source], spare)
        calls.append((rows.dot, (self.weights, sums)))
        if self.aux_weights is not None:
            products = next(scratch).reshape(-1, self.units)
            rows, before = self.timeline.rows(inputs[_AUX], next(scratch))
            calls += [*before, (rows.dot, (self.aux_weights, products))]
            calls.append((np.add, (sums, products, sums)))
        calls.append(add_rows(np.add, sums, self.bias))
        hidden = inputs[self.hidden]
        for time in self.order:
            result = results[time]
            calls.append((hidden.dot, (self.recurrent, work)))
            calls.append((np.add, (result, work, result)))
            calls += activation_calls(self.kind, result, result)
            hidden = result
        if not self.direct:
            calls.append(copy(target, results))
        if state:
            calls.append(copy(state[0], hidden))
        return calls


def _rnn_signatures() -> list[Signature]:
    return [
        Signature(
            since,
            (
                *named(type, 2, "input"),
                *_cell_parameters(type),
                Parameter("activation", OperandType.INT32),
            ),
            named(type, 2, "hidden_state", "output"),
        )
        for type, _, since in FLOATS
    ]


def _infer_rnn(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0, 2)
    units = _check_cell(arguments, 0, 1, source.shape[0])
    return [Tensor(type=source.type, shape=(source.shape[0], units))] * 2


def _prepare_rnn(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    timeline = Timeline((1, *arguments.tensor(0).shape), major=True)
    walk = _Direction(arguments, 0, 1, _ACTIVATION, timeline)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        state, output = outputs
        return sequence(walk.calls(inputs, output[None], [state], iter(scratch)))

    return Kernel(bind, walk.scratch())


def _uni_signatures() -> list[Signature]:
    signatures = []
    for type, _, _ in FLOATS:
        options = (
            Parameter("activation", OperandType.INT32),
            Parameter("is_time_major", OperandType.INT32),
        )
        inputs = (*named(type, 3, "input"), *_cell_parameters(type), *options)
        outputs = (*named(type, 3, "output"), *named(type, 2, "hidden_state"))
        signatures.append(Signature(HalVersion.V1_2, inputs, outputs[:1]))
        signatures.append(Signature(HalVersion.V1_3, inputs, outputs))
    return signatures


def _uni_timeline(arguments: Arguments) -> Timeline:
    major = arguments.integer(_UNI_MAJOR)
    if major not in (0, 1):
        raise arguments.error(_UNI_MAJOR, f"is {major}, expected 0 or 1")
    return Timeline(arguments.tensor(0, 3).shape, major=major == 1)


def _infer_uni(arguments: Arguments) -> list[Tensor]:
    timeline = _uni_timeline(arguments)
    units = _check_cell(arguments, 0, 1, timeline.batches)
    shapes = ((*timeline.leading, units), (timeline.batches, units))
    count = len(arguments.signature.outputs)
    return [Tensor(type=arguments.tensor(0).type, shape=shape) for shape in shapes[:count]]


def _prepare_uni(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    timeline = _uni_timeline(arguments)
    walk = _Direction(arguments, 0, 1, _ACTIVATION, timeline)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        target = timeline.steps(outputs[0])
        return sequence(walk.calls(inputs, target, outputs[1:], iter(scratch)))

    return Kernel(bind, walk.scratch())


def _bi_signatures() -> list[Signature]:
    signatures: list[Signature] = []
    for type, _, _ in FLOATS:
        names = ("aux_input", "fw_aux_input_weights", "bw_aux_input_weights")
        inputs = (
            *named(type, 3, "input"),
            *_cell_parameters(type, "fw_"),
            *_cell_parameters(type, "bw_"),
            *(Parameter(name, type, optional=True) for name in names),
            Parameter("activation", OperandType.INT32),
            Parameter("is_time_major", OperandType.BOOL),
            Parameter("merge_outputs", OperandType.BOOL),
        )
        states = named(type, 2, "fw_hidden_state", "bw_hidden_state")
        signatures += bidirectional_signatures(type, inputs, states)
    return signatures


def _linked(arguments: Arguments) -> tuple[int, bool]:
    """The backward direction's input, and whether auxiliary weights link the directions."""
    linked = all_or_none(arguments, *_AUX_WEIGHTS)
    if not arguments.has(_AUX):
        if linked:
            raise arguments.error(_AUX, "must not be omitted where it has weights")
        return 0, False
    source, aux = arguments.tensor(0, 3), arguments.tensor(_AUX, 3)
    if aux.shape[:2] != source.shape[:2]:
        raise arguments.error(_AUX, f"has shape {aux.shape}, the input {source.shape}")
    return (0 if linked else _AUX), linked


def _bi_timeline(arguments: Arguments) -> Timeline:
    return Timeline(arguments.tensor(0, 3).shape, major=arguments.flag(_MAJOR))


def _infer_bi(arguments: Arguments) -> list[Tensor]:
    timeline = _bi_timeline(arguments)
    source, linked = _linked(arguments)
    units = (
        _check_cell(arguments, 0, 1, timeline.batches),
        _check_cell(arguments, source, 5, timeline.batches),
    )
    if linked:
        for index, count in zip(_AUX_WEIGHTS, units, strict=True):
            _check(arguments, index, (count, arguments.tensor(_AUX).shape[2]))
    states = [(timeline.batches, count) for count in units]
    return bidirectional_results(arguments, _MERGE, timeline, units, states)


def _prepare_bi(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    timeline, merged = _bi_timeline(arguments), arguments.flag(_MERGE)
    source, linked = _linked(arguments)
    walks = [
        _Direction(
            arguments,
            (0, source)[backward],
            (1, 5)[backward],
            _BI_ACTIVATION,
            timeline,
            aux_weights=_AUX_WEIGHTS[backward] if linked else None,
            backward=bool(backward),
            direct=not merged,
        )
        for backward in (0, 1)
    ]

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        targets, states = timeline.split(outputs, walks[0].units, merged=merged)
        pieces = iter(scratch)
        calls: list[Call] = []
        for index, walk in enumerate(walks):
            calls += walk.calls(inputs, targets[index], states[index : index + 1], pieces)
        return sequence(calls)

    return Kernel(bind, [spec for walk in walks for spec in walk.scratch()])


RNN = Operation(OperationType.RNN, _rnn_signatures(), _infer_rnn, _prepare_rnn)
UNIDIRECTIONAL_SEQUENCE_RNN = Operation(
    OperationType.UNIDIRECTIONAL_SEQUENCE_RNN, _uni_signatures(), _infer_uni, _prepare_uni
)
BIDIRECTIONAL_SEQUENCE_RNN = Operation(
    OperationType.BIDIRECTIONAL_SEQUENCE_RNN, _bi_signatures(), _infer_bi, _prepare_bi
)

OPERATIONS: tuple[Operation, ...] = (
    BIDIRECTIONAL_SEQUENCE_RNN,
    RNN,
    UNIDIRECTIONAL_SEQUENCE_RNN,
)
