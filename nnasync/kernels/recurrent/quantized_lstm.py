"""QUANTIZED_LSTM: one time step with 8-bit data and weights and a 16-bit cell state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnasync.hal import Array, HalVersion, OperandType, OperationType
from nnasync.kernels.facts import Facts, matrices
from nnasync.kernels.operation import Arguments, Kernel, Operation, Signature, Step, Tensor
from nnasync.kernels.recurrent.directions import named
from nnasync.kernels.recurrent.integer_lstm import (
    PLACES,
    Dialect,
    IntegerCell,
    parameters,
    require_quantization,
)
from nnasync.kernels.recurrent.lstm_sizes import CELL_STATE, INPUT, OUTPUT_STATE, LstmSizes
from nnasync.kernels.steps import copy, sequence

_DIALECT = Dialect(bias_always=False, hidden_sign=-1, clip_by_output=False, variance_per_scale=0)


def _signature() -> Signature:
    data, words = OperandType.TENSOR_QUANT8_ASYMM_SIGNED, OperandType.TENSOR_QUANT16_SYMM
    outputs = (
        *named(data, 2, "output_state"),
        *named(words, 2, "cell_state"),
        *named(data, 2, "output"),
    )
    return Signature(HalVersion.V1_3, parameters(), outputs)


def _infer(arguments: Arguments) -> list[Tensor]:
    require_quantization(arguments)
    sizes = LstmSizes(arguments, PLACES)
    batches = arguments.tensor(INPUT, 2).shape[0]
    sizes.check_state(batches)
    state, cell = arguments.tensor(OUTPUT_STATE), arguments.tensor(CELL_STATE)
    output = Tensor(type=state.type, shape=state.shape)
    return [output, Tensor(type=cell.type, shape=cell.shape), output]


def _prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    cell = IntegerCell(LstmSizes(arguments, PLACES), _DIALECT)
    batches = outputs[0].shape[0]

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        states = inputs[OUTPUT_STATE], inputs[CELL_STATE]
        output_state, cell_state, output = outputs
        calls = cell.products(inputs[INPUT], scratch[:2])
        calls += cell.step(scratch[1], states, (output, cell_state), scratch[2:])
        return sequence([*calls, copy(output_state, output)])

    return Kernel(bind, [*cell.input_scratch(batches), *cell.scratch(batches)])


QUANTIZED_LSTM = Operation(
    OperationType.QUANTIZED_LSTM,
    [_signature()],
    _infer,
    _prepare,
    requires=require_quantization,
    facts=Facts(multiply_adds=matrices),
)
