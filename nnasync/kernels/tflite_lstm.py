"""UNIDIRECTIONAL_SEQUENCE_LSTM of org.nnasync.tflite: 8-bit data, a 16-bit cell state.

The operands are those of QUANTIZED_LSTM, with a sequence as input, and time-major or not behind
them. Without layer norm TFLite's sums have a scale of 2**-12.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnasync.extensions import TfliteOperation
from nnasync.hal import Array, HalVersion, OperandType
from nnasync.kernels.integer_lstm import (
    PLACES,
    Dialect,
    IntegerCell,
    parameters,
    require_quantization,
)
from nnasync.kernels.lstm_sizes import CELL_STATE, INPUT, OUTPUT_STATE, LstmSizes
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
from nnasync.kernels.recurrent import named
from nnasync.kernels.steps import Call, copy, sequence
from nnasync.kernels.tflite_quantization import tflite_operation
from nnasync.kernels.walking import Rounds, Timeline

__all__ = ["OPERATIONS", "UNIDIRECTIONAL_SEQUENCE_LSTM"]

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


def _timeline(arguments: Arguments) -> Timeline:
    return Timeline(arguments.tensor(INPUT, 3).shape, major=arguments.flag(_MAJOR))


def _infer(arguments: Arguments) -> list[Tensor]:
    require_quantization(arguments)
    timeline, sizes = _timeline(arguments), LstmSizes(arguments, PLACES)
    sizes.check_state(timeline.batches)
    state, cell = arguments.tensor(OUTPUT_STATE), arguments.tensor(CELL_STATE)
    results = [
        Tensor(type=state.type, shape=shape, scale=state.scale, zero_point=state.zero_point)
        for shape in ((*timeline.leading, sizes.output), state.shape)
    ]
    return [*results, Tensor(type=cell.type, shape=cell.shape, scale=cell.scale)]


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

    def calls(
        self,
        sources: Sequence[Array],
        results: Array,
        states: Sequence[Array],
        after: Sequence[Array],
        scratch: Sequence[Array],
    ) -> list[Call]:
        """Calls from a sequence [times, batches, features] to results of that form."""
        times, batches, _ = results.shape
        before = [array[: times * batches] for array in scratch[:2]]
        calls = self.cell.products(sources[0].reshape(times * batches, -1), before)
        sums = before[1].reshape(times, batches, -1)
        last = states[0], states[1]
        for time in range(times):
            new = results[time], after[1]
            calls += self.cell.step(sums[time], last, new, scratch[2:])
            last = new
        return [*calls, copy(after[0], last[0])]


def _prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    timeline, sizes = _timeline(arguments), LstmSizes(arguments, PLACES)
    if outputs[2].scale != arguments.tensor(CELL_STATE).scale:
        raise arguments.fail("output 2 must have the scale of the cell state that comes in")
    rounds = Rounds(_Walk(sizes), arguments, timeline)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        target = timeline.steps(outputs[0])
        return sequence(rounds.calls(inputs, target, outputs[1:], iter(scratch)))

    return Kernel(bind, rounds.scratch())


UNIDIRECTIONAL_SEQUENCE_LSTM = tflite_operation(
    TfliteOperation.UNIDIRECTIONAL_SEQUENCE_LSTM, [_signature()], _infer, _prepare
)

OPERATIONS: tuple[Operation, ...] = (UNIDIRECTIONAL_SEQUENCE_LSTM,)
