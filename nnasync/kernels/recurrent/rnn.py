"""RNN, UNIDIRECTIONAL_SEQUENCE_RNN and BIDIRECTIONAL_SEQUENCE_RNN.

One step is activation(input * weights + hidden * recurrent weights + bias). The products of all
inputs of a sequence are made at once, in the memory of the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, OperationType
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
from nnasync.kernels.recurrent.directions import (
    FLOATS,
    activation,
    activation_calls,
    all_or_none,
    bidirectional_results,
    bidirectional_signatures,
    named,
)
from nnasync.kernels.recurrent.walking import Stretch, TimeOrder, both_ways, one_way
from nnasync.kernels.steps import Call, add_rows, copy, sequence

_ACTIVATION, _UNI_MAJOR = 5, 6
_AUX, _AUX_WEIGHTS, _BI_ACTIVATION, _MAJOR, _MERGE = 9, (10, 11), 12, 13, 14


def _cell_parameters(type: OperandType, prefix: str = "") -> tuple[Parameter, ...]:
    return (
        *named(type, 2, f"{prefix}weights", f"{prefix}recurrent_weights"),
        *named(type, 1, f"{prefix}bias"),
        *named(type, 2, f"{prefix}hidden_state_in"),
    )


def _check_cell(arguments: Arguments, source: int, first: int, batches: int) -> int:
    """Number of units of a cell whose operands begin at `first`, checked."""
    units = arguments.tensor(first, 2).shape[0]
    features = arguments.tensor(source).shape[-1]
    shapes = ((units, features), (units, units), (units,), (batches, units))
    for index, shape in enumerate(shapes, first):
        arguments.check_shape(index, shape)
    return units


class _Direction:
    """One RNN that walks over a sequence; its operands begin at `first`."""

    def __init__(
        self,
        arguments: Arguments,
        source: int,
        first: int,
        kind: int,
        *,
        aux_weights: int | None = None,
        backward: bool = False,
    ) -> None:
        value = arguments.value
        self.weights, self.recurrent = value(first).T, value(first + 1).T
        self.bias = value(first + 2).reshape(-1)
        self.features = len(self.bias)
        self.aux_weights = None if aux_weights is None else value(aux_weights).T
        self.sources = (source,) if aux_weights is None else (source, _AUX)
        self.states = (first + 3,)
        self.kind = activation(arguments, kind)
        self.backward = backward

    def scratch(self, times: int, batches: int) -> list[ArraySpec]:
        """Scratch: the work of one step, the sums of the auxiliary input."""
        specs = [ArraySpec((batches, self.features))]
        if self.aux_weights is not None:
            specs.append(ArraySpec((times, batches, self.features)))
        return specs

    def calls(self, stretch: Stretch) -> list[Call]:
        """Calls from the sequences of a stretch to its results and the states behind."""
        results, scratch = stretch.results, stretch.scratch
        sums = results.reshape(-1, self.features)
        rows = [source.reshape(len(sums), -1) for source in stretch.sources]
        calls: list[Call] = [(rows[0].dot, (self.weights, sums))]
        if self.aux_weights is not None:
            more = scratch[1][: len(results)].reshape(sums.shape)
            calls += [(rows[1].dot, (self.aux_weights, more)), (np.add, (sums, more, sums))]
        calls.append(add_rows(np.add, sums, self.bias))
        hidden = stretch.states[0]
        for time in stretch.order(backward=self.backward):
            result = results[time]
            calls.append((hidden.dot, (self.recurrent, scratch[0])))
            calls.append((np.add, (result, scratch[0], result)))
            calls += activation_calls(self.kind, result, result)
            hidden = result
        return [*calls, copy(stretch.after[0], hidden)]


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
    walk = _Direction(arguments, 0, 1, _ACTIVATION)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        state, output = outputs
        sources, states = [inputs[0][None]], [inputs[index] for index in walk.states]
        return sequence(walk.calls(Stretch(sources, output[None], states, [state], scratch)))

    return Kernel(bind, walk.scratch(1, arguments.tensor(0).shape[0]))


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


def _uni_timeline(arguments: Arguments) -> TimeOrder:
    major = arguments.integer(_UNI_MAJOR)
    if major not in (0, 1):
        raise arguments.error(_UNI_MAJOR, f"is {major}, expected 0 or 1")
    return TimeOrder(arguments.tensor(0, 3).shape, major=major == 1)


def _infer_uni(arguments: Arguments) -> list[Tensor]:
    timeline = _uni_timeline(arguments)
    units = _check_cell(arguments, 0, 1, timeline.batches)
    shapes = ((*timeline.leading, units), (timeline.batches, units))
    count = len(arguments.signature.outputs)
    return [Tensor(type=arguments.tensor(0).type, shape=shape) for shape in shapes[:count]]


def _prepare_uni(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    timeline = _uni_timeline(arguments)
    return one_way(_Direction(arguments, 0, 1, _ACTIVATION), arguments, timeline)


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


def _infer_bi(arguments: Arguments) -> list[Tensor]:
    timeline = TimeOrder.of(arguments, _MAJOR)
    source, linked = _linked(arguments)
    units = (
        _check_cell(arguments, 0, 1, timeline.batches),
        _check_cell(arguments, source, 5, timeline.batches),
    )
    if linked:
        for index, count in zip(_AUX_WEIGHTS, units, strict=True):
            arguments.check_shape(index, (count, arguments.tensor(_AUX).shape[2]))
    states = [(timeline.batches, count) for count in units]
    return bidirectional_results(arguments, _MERGE, timeline, units, states)


def _prepare_bi(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    timeline, merged = TimeOrder.of(arguments, _MAJOR), arguments.flag(_MERGE)
    source, linked = _linked(arguments)
    walks = [
        _Direction(
            arguments,
            (0, source)[backward],
            (1, 5)[backward],
            _BI_ACTIVATION,
            aux_weights=_AUX_WEIGHTS[backward] if linked else None,
            backward=backward,
        )
        for backward in (False, True)
    ]
    return both_ways(walks, arguments, timeline, merged=merged)


RNN = Operation(
    OperationType.RNN,
    _rnn_signatures(),
    _infer_rnn,
    _prepare_rnn,
    facts=Facts(multiply_adds=matrices),
)
UNIDIRECTIONAL_SEQUENCE_RNN = Operation(
    OperationType.UNIDIRECTIONAL_SEQUENCE_RNN,
    _uni_signatures(),
    _infer_uni,
    _prepare_uni,
    facts=Facts(multiply_adds=matrices),
)
BIDIRECTIONAL_SEQUENCE_RNN = Operation(
    OperationType.BIDIRECTIONAL_SEQUENCE_RNN,
    _bi_signatures(),
    _infer_bi,
    _prepare_bi,
    facts=Facts(multiply_adds=matrices),
)
