"""UNIDIRECTIONAL_SEQUENCE_LSTM of org.nnasync.tflite: 8-bit data, a 16-bit cell state.

The operands are those of QUANTIZED_LSTM, with a sequence as input, and time-major or not behind
them. Without layer norm TFLite's sums have a scale of 2**-12.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnasync.extensions import TfliteOperation
from nnasync.hal import HalVersion, OperandType
from nnasync.kernels.facts import Facts, matrices
from nnasync.kernels.movement.copying import like
from nnasync.kernels.operation import (
    Arguments,
    ArraySpec,
    Kernel,
    Parameter,
    Signature,
    Tensor,
)
from nnasync.kernels.recurrent.directions import named
from nnasync.kernels.recurrent.integer_lstm import (
    PLACES,
    Dialect,
    IntegerCell,
    parameters,
    require_quantization,
)
from nnasync.kernels.recurrent.lstm_sizes import CELL_STATE, INPUT, OUTPUT_STATE, LstmSizes
from nnasync.kernels.recurrent.walking import Stretch, TimeOrder, cell_calls, one_way
from nnasync.kernels.steps import Call
from nnasync.kernels.tflite.quantization import tflite_operation

_MAJOR = 32
_DIALECT = Dialect(bias_always=True, hidden_sign=1, clip_by_output=True, variance_per_scale=10_000)


def _signature() -> Signature:
    data, words = OperandType.TENSOR_QUANT8_ASYMM_SIGNED, OperandType.TENSOR_QUANT16_SYMM
    inputs = (*parameters(rank=3), Parameter("is_time_major", OperandType.BOOL))
    outputs = (
        *named(data, 3, "output"),
        *named(data, 2, "output_state"),
        *named(words, 2, "cell_state"),
    )
    return Signature(HalVersion.V1_3, inputs, outputs)


def _infer(arguments: Arguments) -> list[Tensor]:
    require_quantization(arguments)
    timeline, sizes = TimeOrder.of(arguments, _MAJOR), LstmSizes(arguments, PLACES)
    sizes.check_state(timeline.batches)
    state, cell = arguments.tensor(OUTPUT_STATE), arguments.tensor(CELL_STATE)
    sequence_shape = (*timeline.leading, sizes.output)
    return [like(state, sequence_shape), like(state, state.shape), like(cell, cell.shape)]


class _Walk:
    """The LSTM as it walks over a sequence."""

    sources = (INPUT,)
    states = (OUTPUT_STATE, CELL_STATE)
    backward = False

    def __init__(self, sizes: LstmSizes) -> None:
        self.cell = IntegerCell(sizes, _DIALECT)
        self.features = sizes.output

    def scratch(self, times: int, batches: int) -> list[ArraySpec]:
        """Scratch: inputs and sums of all steps, the work of one."""
        return [*self.cell.input_scratch(times * batches), *self.cell.scratch(batches)]

    def calls(self, stretch: Stretch) -> list[Call]:
        """Calls from the sequences of a stretch to its results and the states behind."""
        times, batches, _ = stretch.results.shape
        before = [array[: times * batches] for array in stretch.scratch[:2]]
        calls = self.cell.products(stretch.sources[0].reshape(times * batches, -1), before)
        sums = before[1].reshape(times, batches, -1)
        return calls + cell_calls(self.cell, sums, stretch, stretch.scratch[2:])


def _prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    timeline, sizes = TimeOrder.of(arguments, _MAJOR), LstmSizes(arguments, PLACES)
    if outputs[2].scale != arguments.tensor(CELL_STATE).scale:
        raise arguments.fail("output 2 must have the scale of the cell state that comes in")
    return one_way(_Walk(sizes), arguments, timeline)


UNIDIRECTIONAL_SEQUENCE_LSTM = tflite_operation(
    TfliteOperation.UNIDIRECTIONAL_SEQUENCE_LSTM,
    [_signature()],
    _infer,
    _prepare,
    facts=Facts(multiply_adds=matrices),
)
