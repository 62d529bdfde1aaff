"""UNIDIRECTIONAL_SEQUENCE_LSTM and BIDIRECTIONAL_SEQUENCE_LSTM.

The two directions are two LSTMs; the backward one walks from the last time step to the first. An
auxiliary input either adds to every gate of both directions (cross-linking, where it has weights)
or takes the input's place in the backward direction (parallel linking, where it has none).
"""

from __future__ import annotations

from collections.abc import Sequence

from nnasync.hal import HalVersion, OperandType, OperationType
from nnasync.kernels.facts import Facts, matrices
from nnasync.kernels.operation import (
    Arguments,
    ArraySpec,
    Kernel,
    Operation,
    Parameter,
    Signature,
    Tensor,
)
from nnasync.kernels.recurrent.directions import (
    FLOATS,
    bidirectional_results,
    bidirectional_signatures,
    named,
)
from nnasync.kernels.recurrent.lstm import options
from nnasync.kernels.recurrent.lstm_cell import Cell
from nnasync.kernels.recurrent.lstm_sizes import (
    CELL_STATE,
    GATES,
    INPUT,
    OUTPUT_STATE,
    LstmSizes,
    Places,
    cell_parameters,
    norm_parameters,
)
from nnasync.kernels.recurrent.walking import Stretch, TimeOrder, both_ways, cell_calls, one_way
from nnasync.kernels.steps import Call

_UNI_PLACES = Places(tuple(range(20)), (24, 25, 26, 27))
_UNI_OPTIONS, _UNI_MAJOR = 20, 23
_FORWARD = Places((*range(18), 35, 36), (53, 54, 55, 56), (40, 41, 42, 43))
_BACKWARD = Places((0, *range(18, 35), 37, 38), (57, 58, 59, 60), (44, 45, 46, 47))
_AUX, _OPTIONS, _MERGE, _MAJOR = 39, 48, 51, 52


class _LstmDirection:
    """One LSTM that walks over a sequence."""

    def __init__(self, sizes: LstmSizes, options: int, *, backward: bool = False) -> None:
        self.cell = Cell(sizes, options)
        self.features = sizes.output
        self.backward = backward
        roles = sizes.places.roles
        self.sources = (roles[INPUT], _AUX) if sizes.aux else (roles[INPUT],)
        self.states = roles[OUTPUT_STATE], roles[CELL_STATE]

    def scratch(self, times: int, batches: int) -> list[ArraySpec]:
        """Scratch: the work of one step, the sums of all, those of the auxiliary input."""
        sums = [ArraySpec((times, batches, self.cell.width))] * len(self.sources)
        return [*self.cell.scratch(batches), *sums]

    def calls(self, stretch: Stretch) -> list[Call]:
        """Calls from the sequences of a stretch to its results and the states behind."""
        times, sources, width = len(stretch.results), stretch.sources, self.cell.width
        work, all_sums = stretch.scratch[: -len(sources)], stretch.scratch[-len(sources) :]
        sums, *more = (array[:times].reshape(-1, width) for array in all_sums)
        rows = [source.reshape(len(sums), -1) for source in sources]
        calls = self.cell.products(rows[0], sums)
        if more:
            calls += self.cell.aux_products(rows[1], sums, more[0])
        by_time = sums.reshape(times, -1, width)
        return calls + cell_calls(self.cell, by_time, stretch, work, backward=self.backward)


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


def _infer_uni(arguments: Arguments) -> list[Tensor]:
    source, timeline = arguments.tensor(0, 3), TimeOrder.of(arguments, _UNI_MAJOR)
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
    timeline = TimeOrder.of(arguments, _UNI_MAJOR)
    walk = _LstmDirection(LstmSizes(arguments, _UNI_PLACES), _UNI_OPTIONS)
    return one_way(walk, arguments, timeline)


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


def _infer_bi(arguments: Arguments) -> list[Tensor]:
    timeline = TimeOrder.of(arguments, _MAJOR)
    directions = _directions(arguments)
    states = []
    for sizes in directions:
        sizes.check_state(timeline.batches)
        states += [(timeline.batches, sizes.output), (timeline.batches, sizes.units)]
    forward, backward = (sizes.output for sizes in directions)
    return bidirectional_results(arguments, _MERGE, timeline, (forward, backward), states)


def _prepare_bi(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    timeline, merged = TimeOrder.of(arguments, _MAJOR), arguments.flag(_MERGE)
    walks = [
        _LstmDirection(sizes, _OPTIONS, backward=backward)
        for backward, sizes in zip((False, True), _directions(arguments), strict=True)
    ]
    return both_ways(walks, arguments, timeline, merged=merged)


UNIDIRECTIONAL_SEQUENCE_LSTM = Operation(
    OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM,
    _uni_signatures(),
    _infer_uni,
    _prepare_uni,
    facts=Facts(multiply_adds=matrices),
)
BIDIRECTIONAL_SEQUENCE_LSTM = Operation(
    OperationType.BIDIRECTIONAL_SEQUENCE_LSTM,
    _bi_signatures(),
    _infer_bi,
    _prepare_bi,
    facts=Facts(multiply_adds=matrices),
)
