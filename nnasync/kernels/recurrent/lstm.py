"""LSTM: one time step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnasync.hal import Array, HalVersion, OperandType, OperationType
from nnasync.kernels.facts import Facts, matrices
from nnasync.kernels.operation import (
    Arguments,
    Kernel,
    Operation,
    Parameter,
    Signature,
    Step,
    Tensor,
)
from nnasync.kernels.recurrent.directions import FLOATS, named
from nnasync.kernels.recurrent.lstm_cell import Cell
from nnasync.kernels.recurrent.lstm_sizes import (
    CELL_STATE,
    OUTPUT_STATE,
    LstmSizes,
    Places,
    cell_parameters,
    norm_parameters,
)
from nnasync.kernels.steps import copy, sequence

_PLACES = Places(tuple(range(20)), (23, 24, 25, 26))
_OPTIONS = 20


def options(scalar: OperandType) -> tuple[Parameter, ...]:
    """The parameters of activation and clips."""
    return (
        Parameter("activation", OperandType.INT32),
        Parameter("cell_clip", scalar),
        Parameter("projection_clip", scalar),
    )


def _signatures() -> list[Signature]:
    signatures = []
    for type, scalar, since in FLOATS:
        inputs = (*cell_parameters([type] * 20), *options(scalar))
        outputs = named(type, 2, "scratch", "output_state", "cell_state", "output")
        signatures.append(Signature(since, inputs, outputs))
        inputs += norm_parameters(type)
        signatures.append(Signature(HalVersion.V1_2, inputs, outputs))
    return signatures


def _infer(arguments: Arguments) -> list[Tensor]:
    source = arguments.tensor(0, 2)
    sizes = LstmSizes(arguments, _PLACES)
    batches = source.shape[0]
    sizes.check_state(batches)
    widths = (len(sizes.gates) * sizes.units, sizes.output, sizes.units, sizes.output)
    return [Tensor(type=source.type, shape=(batches, width)) for width in widths]


def _prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    cell = Cell(LstmSizes(arguments, _PLACES), _OPTIONS)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        states = inputs[OUTPUT_STATE], inputs[CELL_STATE]
        sums, output_state, cell_state, output = outputs
        calls = cell.products(inputs[0], sums)
        calls += cell.step(sums, states, (output, cell_state), scratch)
        return sequence([*calls, copy(output_state, output)])

    return Kernel(bind, cell.scratch(outputs[0].shape[0]))


LSTM = Operation(
    OperationType.LSTM, _signatures(), _infer, _prepare, facts=Facts(multiply_adds=matrices)
)
