"""Models of one operation, made from its signature."""

from __future__ import annotations

from collections.abc import Sequence

from nnasync import hal
from nnasync.hal import ChannelQuant, Model, Operand, OperandType, Operation, Subgraph
from nnasync.hal import OperationType as O
from nnasync.kernels import OPERATIONS, Parameter, Signature
from tests.validation.models import INPUT, OUTPUT, replace

T = OperandType

CASES = [
    (type, number)
    for type, operation in OPERATIONS.items()
    for number in range(len(operation.signatures))
]
"""Each signature of each operation."""

_WEIGHT_CHANNELS = {O.DEPTHWISE_CONV_2D: 3}
_FIXED: dict[tuple[int, str], tuple[float, int]] = {
    (O.QUANTIZED_16BIT_LSTM, "input"): (1 / 128, 128),
    (O.QUANTIZED_16BIT_LSTM, "output_in"): (1 / 128, 128),
    (O.QUANTIZED_16BIT_LSTM, "cell_state_in"): (2**-11, 0),
    (O.QUANTIZED_LSTM, "cell_state_in"): (2**-11, 0),
    **{
        (O.QUANTIZED_16BIT_LSTM, name): (0.5 / 128, 0)
        for name in ("input_gate_bias", "forget_gate_bias", "cell_bias", "output_gate_bias")
    },
}
"""Quantization of operands where the operation takes only one."""


def operand(parameter: Parameter, type: int, operation: int, *, is_output: bool = False) -> Operand:
    """An operand of unknown shape for a parameter, with a type that may be another."""
    scalar = hal.is_scalar(type)
    rank = parameter.ranks[-1] if parameter.ranks else 2
    dimensions = () if scalar else (0,) * rank
    extra = None
    if type == T.TENSOR_QUANT8_SYMM_PER_CHANNEL:
        channel = min(_WEIGHT_CHANNELS.get(O(operation), 0), rank - 1)
        dimensions = tuple(int(axis == channel) for axis in range(rank))
        extra = ChannelQuant((0.5,), channel)
    scale, zero_point = 0.0, 0
    if type == parameter.type and (operation, parameter.name) in _FIXED:
        scale, zero_point = _FIXED[operation, parameter.name]
    elif hal.zero_points(type) is not None:
        scale = 1.0 if is_output else 0.5
    return Operand(
        type=type,
        dimensions=dimensions,
        scale=scale,
        zero_point=zero_point,
        extra_params=extra,
        lifetime=OUTPUT if is_output else INPUT,
        number_of_consumers=int(not is_output),
    )


def model_of(
    operation: int,
    inputs: Sequence[tuple[Parameter, int]],
    outputs: Sequence[tuple[Parameter, int]],
) -> Model:
    """One operation whose operands are all inputs and outputs of the model."""
    operands = [operand(parameter, type, operation) for parameter, type in inputs]
    if not any(type == T.TENSOR_QUANT8_SYMM_PER_CHANNEL for _, type in inputs):
        operands = [
            replace(each, scale=0.5 * 0.5)
            if parameter.name == "bias" and type == parameter.type == T.TENSOR_INT32
            else each
            for each, (parameter, type) in zip(operands, inputs, strict=True)
        ]
    operands += [operand(p, type, operation, is_output=True) for p, type in outputs]
    ins = tuple(range(len(inputs)))
    outs = tuple(range(len(inputs), len(operands)))
    return Model(Subgraph(tuple(operands), (Operation(operation, ins, outs),), ins, outs))


def typed(parameters: Sequence[Parameter]) -> list[tuple[Parameter, int]]:
    """Each parameter with the type that it asks for."""
    return [(parameter, parameter.type) for parameter in parameters]


def of_signature(type: int, signature: Signature) -> Model:
    """One operation with the operands of a signature."""
    return model_of(type, typed(signature.inputs), typed(signature.outputs))
