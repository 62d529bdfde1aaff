"""UNIDIRECTIONAL_SEQUENCE_LSTM and BIDIRECTIONAL_SEQUENCE_LSTM.

The two directions are two LSTMs; the backward one walks from the last time step to the first. An
auxiliary input either adds to every gate of both directions (cross-linking, where it has weights)
or takes the input's place in the backward direction (parallel linking, where it has none).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from nnasync.hal import Array, HalVersion, OperandType, OperationType
from nnasync.kernels.lstm import options
from nnasync.kernels.lstm_cell import Cell
from nnasync.kernels.lstm_sizes import (
    CELL_STATE,
    GATES,
    INPUT,
    OUTPUT_STATE,
    LstmSizes,
    Places,
    cell_parameters,
    norm_parameters,
)
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
    bidirectional_results,
    bidirectional_signatures,
    named,
)
from nnasync.kernels.steps import Call, copy, sequence

__all__ = ["BIDIRECTIONAL_SEQUENCE_LSTM", "OPERATIONS", "UNIDIRECTIONAL_SEQUENCE_LSTM"]

_UNI_PLACES = Places(tuple(range(20)), (24, 25, 26, 27))
_UNI_OPTIONS, _UNI_MAJOR = 20, 23
_FORWARD = Places((*range(18), 35, 36), (53, 54, 55, 56), (40, 41, 42, 43))
_BACKWARD = Places((0, *range(18, 35), 37, 38), (57, 58, 59, 60), (44, 45, 46, 47))
_AUX, _OPTIONS, _MERGE, _MAJOR = 39, 48, 51, 52


class _Direction:
    """One LSTM that walks over a sequence; `direct` results are written where they belong."""

    def __init__(
        self, sizes: LstmSizes, options: int, timeline: Timeline, *, backward: bool, direct: bool
    ) -> None:
        self.sizes = sizes
        self.cell = Cell(sizes, options)
        self.timeline = timeline
        self.order = range(timeline.times)[:: -1 if backward else 1]
        self.direct = direct and not timeline.turned

    def scratch(self) -> list[ArraySpec]:
        """Scratch of a whole walk, in the order in which `calls` takes it."""
        shape, batches = self.timeline.shape, self.timeline.batches
        specs = [ArraySpec(shape(self.cell.width)), *self.cell.scratch(batches)]
        specs.append(ArraySpec((batches, self.sizes.units)))
        if self.timeline.turned:
            specs.append(ArraySpec(shape(self.sizes.input)))
        if not self.direct:
            specs.append(ArraySpec(shape(self.sizes.output)))
        if self.cell.from_aux is not None:
            specs.append(ArraySpec(shape(self.cell.width)))
            specs.append(ArraySpec(shape(len(self.cell.from_aux))))
        return specs

    def calls(
        self,
        inputs: Sequence[Any],
        target: Array,
        states: Sequence[Array],
        scratch: Iterator[Array],
    ) -> list[Call]:
        """Calls of the walk, to a view [times, batches, outputs] and the states, if wanted."""
        roles, timeline = self.sizes.places.roles, self.timeline
        sums = next(scratch)
        work = [next(scratch) for _ in range(3)]
        spare_cell = next(scratch)
        cell = states[1] if states else spare_cell
        spare = next(scratch) if timeline.turned else None
        results = target if self.direct else next(scratch)
        flat_sums = sums.reshape(-1, self.cell.width)
        rows, calls = timeline.rows(inputs[roles[INPUT]], spare)
        calls += self.cell.products(rows, flat_sums)
        if self.cell.from_aux is not None:
            aux_sums = next(scratch).reshape(-1, self.cell.width)
            rows, before = timeline.rows(inputs[_AUX], next(scratch))
            calls += [*before, *self.cell.aux_products(rows, flat_sums, aux_sums)]
        last = inputs[roles[OUTPUT_STATE]], inputs[roles[CELL_STATE]]
        for time in self.order:
            calls += self.cell.step(sums[time], last, (results[time], cell), work)
            last = results[time], cell
        if not self.direct:
            calls.append(copy(target, results))
        if states:
            calls.append(copy(states[0], last[0]))
        return calls


def _uni_signatures() -> list[Signature]:
    signatures = []
    for type, scalar, _ in FLOATS:
        major = Parameter("is_time_major", OperandType.BOOL)
        inputs = (*cell_parameters([type] * 20, rank=3), *options(scalar), major)
        inputs += norm_parameters(type)
        outputs = (*named(type, 3, "output"), *named(type, 2, "output_state", "cell_state"))
        signatures.append(Signature(HalVersion.V1_3, inputs, outputs))
        signatures.append(Signature(HalVersion.V1_2, inputs, outputs[:1]))
    return signatures


def _uni_timeline(arguments: Arguments) -> Timeline:
    return Timeline(arguments.tensor(0, 3).shape, major=arguments.flag(_UNI_MAJOR))


def _infer_uni(arguments: Arguments) -> list[Tensor]:
    source, timeline = arguments.tensor(0, 3), _uni_timeline(arguments)
    sizes = LstmSizes(arguments, _UNI_PLACES)
    sizes.check_state(timeline.batches)
    shapes = (
        (*timeline.leading, sizes.output),
        (timeline.batches, sizes.output),
        (timeline.batches, sizes.units),
    )
    count = len(arguments.signature.outputs)
    return [Tensor(type=source.type, shape=shape) for shape in shapes[:count]]


def _prepare_uni(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    sizes, timeline = LstmSizes(arguments, _UNI_PLACES), _uni_timeline(arguments)
    walk = _Direction(sizes, _UNI_OPTIONS, timeline, backward=False, direct=True)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        target = timeline.steps(outputs[0])
        return sequence(walk.calls(inputs, target, outputs[1:], iter(scratch)))

    return Kernel(bind, walk.scratch())


def _bi_signatures() -> list[Signature]:
    signatures: list[Signature] = []
    for type, scalar, _ in FLOATS:
        types = [type] * 20
        forward = cell_parameters(types, prefix="fw_", rank=3)
        backward = cell_parameters(types, prefix="bw_", rank=3)
        source = Parameter("input", type, ranks=(3,))
        flags = (
            Parameter("merge_outputs", OperandType.BOOL),
            Parameter("is_time_major", OperandType.BOOL),
        )
        inputs = (source, *forward[1:18], *backward[1:18], *forward[18:], *backward[18:])
        inputs += (Parameter("aux_input", type, optional=True), *_aux_parameters(type))
        inputs += (*options(scalar), *flags)
        inputs += (*norm_parameters(type, "fw_"), *norm_parameters(type, "bw_"))
        names = ("fw_output_state", "fw_cell_state", "bw_output_state", "bw_cell_state")
        states = named(type, 2, *names)
        signatures += bidirectional_signatures(type, inputs, states)
    return signatures


def _aux_parameters(type: OperandType) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(f"{direction}_aux_input_to_{gate}_weights", type, optional=True)
        for direction in ("fw", "bw")
        for gate in GATES
    )


def _directions(arguments: Arguments) -> tuple[LstmSizes, LstmSizes]:
    """Both LSTMs, checked against each other and against the auxiliary input."""
    source = arguments.tensor(0, 3)
    forward = LstmSizes(arguments, _FORWARD)
    places = _BACKWARD
    if arguments.has(_AUX):
        aux = arguments.tensor(_AUX, 3)
        if aux.shape[:2] != source.shape[:2]:
            raise arguments.error(_AUX, f"has shape {aux.shape}, the input {source.shape}")
        if not forward.aux and not arguments.has(_BACKWARD.aux[1]):
            places = Places((_AUX, *places.roles[1:]), places.norms, places.aux)
    backward = LstmSizes(arguments, places)
    if forward.aux != backward.aux:
        missing = (_BACKWARD if forward.aux else _FORWARD).aux[1]
        raise arguments.error(missing, "must not be omitted: the other direction has such weights")
    if forward.aux:
        for sizes in (forward, backward):
            sizes.check_aux(arguments.tensor(_AUX, 3).shape[2])
    if forward.features != backward.features:
        raise arguments.fail(
            "both directions must have input gate, peepholes, projection and layer norm, or neither"
        )
    return forward, backward


def _bi_timeline(arguments: Arguments) -> Timeline:
    return Timeline(arguments.tensor(0, 3).shape, major=arguments.flag(_MAJOR))


def _infer_bi(arguments: Arguments) -> list[Tensor]:
    timeline = _bi_timeline(arguments)
    directions = _directions(arguments)
    states = []
    for sizes in directions:
        sizes.check_state(timeline.batches)
        states += [(timeline.batches, sizes.output), (timeline.batches, sizes.units)]
    forward, backward = (sizes.output for sizes in directions)
    return bidirectional_results(arguments, _MERGE, timeline, (forward, backward), states)


def _prepare_bi(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    timeline, merged = _bi_timeline(arguments), arguments.flag(_MERGE)
    walks = [
        _Direction(sizes, _OPTIONS, timeline, backward=backward, direct=not merged)
        for backward, sizes in zip((False, True), _directions(arguments), strict=True)
    ]

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        targets, states = timeline.split(outputs, walks[0].sizes.output, merged=merged)
        pieces = iter(scratch)
        calls: list[Call] = []
        for index, walk in enumerate(walks):
            mine = states[2 * index : 2 * index + 2]
            calls += walk.calls(inputs, targets[index], mine, pieces)
        return sequence(calls)

    return Kernel(bind, [spec for walk in walks for spec in walk.scratch()])


UNIDIRECTIONAL_SEQUENCE_LSTM = Operation(
    OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM, _uni_signatures(), _infer_uni, _prepare_uni
)
BIDIRECTIONAL_SEQUENCE_LSTM = Operation(
    OperationType.BIDIRECTIONAL_SEQUENCE_LSTM, _bi_signatures(), _infer_bi, _prepare_bi
)

OPERATIONS: tuple[Operation, ...] = (BIDIRECTIONAL_SEQUENCE_LSTM, UNIDIRECTIONAL_SEQUENCE_LSTM)
