"""UNIDIRECTIONAL_SEQUENCE_LSTM of org.nnasync.tflite: 8-bit data, a 16-bit cell state.

The operands are those of QUANTIZED_LSTM, with a sequence as input, and time-major or not behind
them. Without layer norm TFLite's sums have a scale of 2**-12.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

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
from nnasync.kernels.recurrent import Timeline, named
from nnasync.kernels.steps import copy, sequence
from nnasync.kernels.tflite_quantization import tflite_operation

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


def _prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    timeline, sizes = _timeline(arguments), LstmSizes(arguments, PLACES)
    if outputs[2].scale != arguments.tensor(CELL_STATE).scale:
        raise arguments.fail("output 2 must have the scale of the cell state that comes in")
    cell = IntegerCell(sizes, _DIALECT)
    rows = timeline.times * timeline.batches
    specs = [*cell.input_scratch(rows), *cell.scratch(timeline.batches)]
    if timeline.turned:
        specs.append(ArraySpec(timeline.shape(sizes.input), np.int8))
        specs.append(ArraySpec(timeline.shape(sizes.output), np.int8))

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        target = timeline.steps(outputs[0])
        results, spare = (scratch[-1], scratch[-2]) if timeline.turned else (target, None)
        flat, calls = timeline.rows(inputs[INPUT], spare)
        calls += cell.products(flat, scratch[:2])
        sums = scratch[1].reshape(timeline.times, timeline.batches, -1)
        last = inputs[OUTPUT_STATE], inputs[CELL_STATE]
        work = scratch[2 : len(specs) - (2 if timeline.turned else 0)]
        for time in range(timeline.times):
            new = results[time], outputs[2]
            calls += cell.step(sums[time], last, new, work)
            last = new
        if timeline.turned:
            calls.append(copy(target, results))
        return sequence([*calls, copy(outputs[1], last[0])])

    return Kernel(bind, specs)


UNIDIRECTIONAL_SEQUENCE_LSTM = tflite_operation(
    TfliteOperation.UNIDIRECTIONAL_SEQUENCE_LSTM, [_signature()], _infer, _prepare
)

OPERATIONS: tuple[Operation, ...] = (UNIDIRECTIONAL_SEQUENCE_LSTM,)
