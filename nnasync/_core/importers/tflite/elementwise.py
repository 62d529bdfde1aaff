"""Operators that compute each number alone: arithmetic, activations, comparisons, logic."""

from __future__ import annotations

import math

import numpy as np

from nnasync._core.importers.tflite.converter import (
    BOOLEANS,
    FLOATS,
    NUMBERS,
    PLAIN,
    Convert,
    Converter,
    Kinds,
    define_rescaled,
    dequantized,
    fused,
    option,
    refuse_fused,
)
from nnasync._core.importers.tflite.tensor_values import Tensors
from nnasync._core.importers.tflite.tflite_file import Graph, OperatorInfo
from nnasync._core.model import Value
from nnasync._core.model.broadcasting import (
    booleans_of,
    broadcast,
    numbers_of,
    shape_of_all,
)
from nnasync._core.model.graph import Input
from nnasync.errors import ModelError
from nnasync.hal import Array, OperandType, OperationType

_T = OperationType
_INTEGERS: Kinds = (("INT32",),)
_ANY: Kinds = (*NUMBERS, *BOOLEANS)


def _number(number: float) -> Array:
    """A number that is broadcast."""
    return np.asarray([number], np.float32)


def _plain(type: OperationType, *further: Input) -> Convert:
    """Returns a converter that passes all inputs as they are, and then these parameters."""

    def convert(tensors: Tensors, operator: OperatorInfo) -> None:
        values = [tensors.input(operator, place) for place in range(len(operator.inputs))]
        tensors.emit(operator, type, [*values, *further])

    return convert


def _arithmetic(type: OperationType) -> Convert:
    def convert(tensors: Tensors, operator: OperatorInfo) -> None:
        a, b = tensors.input(operator, 0), tensors.input(operator, 1)
        tensors.emit(operator, type, [a, b, fused(operator)])

    return convert


def _refuse_wide(graph: Graph, operator: OperatorInfo) -> str | None:
    """Sums of INT64 need not fit in the HAL's integers, which only an input could tell."""
    for index in (*operator.inputs, *operator.outputs):
        if index >= 0 and graph.tensors[index].type == "INT64":
            return "of INT64"
    return refuse_fused(graph, operator)


def _clamp(type: OperationType) -> Convert:
    """The rectifiers, whose result the HAL wants quantized like the input."""

    def convert(tensors: Tensors, operator: OperatorInfo) -> None:
        x = tensors.input(operator, 0)
        define_rescaled(tensors, operator, tensors.builder.operation(type, x, like=x))

    return convert


def _clamp_to_one(tensors: Tensors, operator: OperatorInfo) -> None:
    x = tensors.builder.operation(_T.MAXIMUM, tensors.input(operator, 0), _number(0))
    tensors.emit(operator, _T.MINIMUM, [x, _number(1)])


def _leaky(tensors: Tensors, operator: OperatorInfo) -> None:
    alpha = _number(option(operator, "Alpha"))
    tensors.emit(operator, _T.PRELU, [tensors.input(operator, 0), alpha])


def _through_floats(type: OperationType, *further: Input) -> Convert:
    """A function of bytes that the HAL has for floats only."""

    def convert(tensors: Tensors, operator: OperatorInfo) -> None:
        x = dequantized(tensors, tensors.input(operator, 0))
        y = tensors.builder.operation(type, x, *further)
        tensors.emit(operator, _T.QUANTIZE, [y])

    return convert


def _square(tensors: Tensors, operator: OperatorInfo) -> None:
    x = tensors.input(operator, 0)
    tensors.emit(operator, _T.MUL, [x, x, 0])


def _squared_difference(tensors: Tensors, operator: OperatorInfo) -> None:
    a, b = tensors.input(operator, 0), tensors.input(operator, 1)
    x = tensors.builder.operation(_T.SUB, a, b, 0)
    tensors.emit(operator, _T.MUL, [x, x, 0])


def _sum_of_all(tensors: Tensors, operator: OperatorInfo) -> None:
    """The sum of any number of tensors of one shape, in the order in which they come."""
    values = [tensors.input(operator, place) for place in range(len(operator.inputs))]
    if len(values) < 2:
        raise ModelError(f"adds {len(values)} tensors")
    total = values[0]
    for value in values[1:-1]:
        total = tensors.builder.operation(_T.ADD, total, value, 0)
    tensors.emit(operator, _T.ADD, [total, values[-1], 0])


def _cosine(tensors: Tensors, operator: OperatorInfo) -> None:
    x = tensors.input(operator, 0)
    turned = tensors.builder.operation(_T.ADD, x, _number(math.pi / 2), 0)
    tensors.emit(operator, _T.SIN, [turned])


def _ceiling(tensors: Tensors, operator: OperatorInfo) -> None:
    x = tensors.builder.operation(_T.NEG, tensors.input(operator, 0))
    tensors.emit(operator, _T.NEG, [tensors.builder.operation(_T.FLOOR, x)])


def _floor_division(tensors: Tensors, operator: OperatorInfo) -> None:
    a, b = tensors.input(operator, 0), tensors.input(operator, 1)
    if a.type == OperandType.TENSOR_INT32:
        tensors.emit(operator, _T.DIV, [a, b, 0])
    else:
        tensors.emit(operator, _T.FLOOR, [tensors.builder.operation(_T.DIV, a, b, 0)])


def _remainder(tensors: Tensors, operator: OperatorInfo) -> None:
    """Converts FLOOR_MOD of integers: the remainder of a division that rounds down."""
    a, b = tensors.input(operator, 0), tensors.input(operator, 1)
    quotient = tensors.builder.operation(_T.DIV, a, b, 0)
    product = tensors.builder.operation(_T.MUL, quotient, b, 0)
    tensors.emit(operator, _T.SUB, [a, product, 0])


def _sign(tensors: Tensors, operator: OperatorInfo) -> None:
    """1, -1 or 0: whether x is above 0 less whether it is below."""
    x, build = tensors.input(operator, 0), tensors.builder.operation
    above, below = (
        numbers_of(tensors, build(type, x, _number(0)), x.tensor) for type in (_T.GREATER, _T.LESS)
    )
    tensors.emit(operator, _T.SUB, [above, below, 0])


def _select(tensors: Tensors, operator: OperatorInfo) -> None:
    """Numbers of one of two tensors, which are brought to one shape first."""
    values = [tensors.input(operator, place) for place in range(3)]
    if operator.name == "SELECT" and len(values[0].shape) < len(values[1].shape):
        count = len(values[1].shape) - len(values[0].shape)
        shape = (*values[0].shape, *[1] * count) if values[0].shape != (1,) else (1,)
        if shape != (1,):
            values[0] = _with_shape(tensors, values[0], shape)
    shape = shape_of_all(values)
    condition, a, b = (broadcast(tensors, value, shape) for value in values)
    tensors.emit(operator, _T.SELECT, [condition, a, b])


def _with_shape(tensors: Tensors, condition: Value, shape: tuple[int, ...]) -> Value:
    return broadcast(tensors, condition, shape, leading=False)


def _cast(tensors: Tensors, operator: OperatorInfo) -> None:
    x, result = tensors.input(operator, 0), tensors.described(tensors.result(operator))
    if x.type == result.type:
        tensors.define(operator, x)
    elif x.type == OperandType.TENSOR_BOOL8:
        tensors.define(operator, numbers_of(tensors, x, result))
    elif result.type == OperandType.TENSOR_BOOL8:
        tensors.define(operator, booleans_of(tensors, x))
    else:
        tensors.emit(operator, _T.CAST, [x])


def _one(kinds: Kinds, convert: Convert, outputs: tuple[str, ...] = ()) -> tuple[Converter, ...]:
    return (Converter(kinds, convert, outputs=outputs),)


def _either(type: OperationType, kinds: Kinds, *further: Input) -> tuple[Converter, ...]:
    """A function that the HAL has for floats, of bytes through floats."""
    return (
        Converter(kinds, _plain(type, *further)),
        Converter((("INT8",),), _through_floats(type, *further)),
    )


def _comparison(type: OperationType, kinds: Kinds = NUMBERS) -> tuple[Converter, ...]:
    return _one(kinds, _plain(type), outputs=("BOOL",))


CONVERTERS: dict[str, tuple[Converter, ...]] = {
    "ADD": (Converter(NUMBERS, _arithmetic(_T.ADD), _refuse_wide),),
    "SUB": (Converter(NUMBERS, _arithmetic(_T.SUB), _refuse_wide),),
    "MUL": (Converter(NUMBERS, _arithmetic(_T.MUL), _refuse_wide),),
    "DIV": _one(FLOATS, _arithmetic(_T.DIV)),
    "FLOOR_DIV": (Converter((*FLOATS, *_INTEGERS), _floor_division, _refuse_wide),),
    "FLOOR_MOD": (Converter(_INTEGERS, _remainder, _refuse_wide),),
    "ADD_N": (Converter((*FLOATS, *_INTEGERS), _sum_of_all, _refuse_wide),),
    "SQUARE": _one(FLOATS, _square),
    "SQUARED_DIFFERENCE": (Converter((*FLOATS, *_INTEGERS), _squared_difference, _refuse_wide),),
    "MAXIMUM": _one(NUMBERS, _plain(_T.MAXIMUM)),
    "MINIMUM": _one(NUMBERS, _plain(_T.MINIMUM)),
    "POW": _one(FLOATS, _plain(_T.POW)),
    "ABS": (Converter((*FLOATS, *_INTEGERS), _plain(_T.ABS), _refuse_wide),),
    "NEG": (Converter((*FLOATS, *_INTEGERS), _plain(_T.NEG), _refuse_wide),),
    "EXP": _either(_T.EXP, FLOATS),
    "LOG": _one(FLOATS, _plain(_T.LOG)),
    "SQRT": _one(FLOATS, _plain(_T.SQRT)),
    "RSQRT": _one(FLOATS, _plain(_T.RSQRT)),
    "SIN": _one(FLOATS, _plain(_T.SIN)),
    "COS": _one(FLOATS, _cosine),
    "FLOOR": _one(FLOATS, _plain(_T.FLOOR)),
    "CEIL": _one(FLOATS, _ceiling),
    "SIGN": _one(FLOATS, _sign),
    "LOGISTIC": _one(PLAIN, _plain(_T.LOGISTIC)),
    "TANH": _one(PLAIN, _plain(_T.TANH)),
    "HARD_SWISH": _one(PLAIN, _plain(_T.HARD_SWISH)),
    "RELU": _one(PLAIN, _clamp(_T.RELU)),
    "RELU_N1_TO_1": _one(PLAIN, _clamp(_T.RELU1)),
    "RELU6": _one(PLAIN, _clamp(_T.RELU6)),
    "RELU_0_TO_1": _one(FLOATS, _clamp_to_one),
    "ELU": _either(_T.ELU, FLOATS, 1.0),
    "PRELU": _one(PLAIN, _plain(_T.PRELU)),
    "LEAKY_RELU": _one(FLOATS, _leaky),
    "EQUAL": _comparison(_T.EQUAL, _ANY),
    "NOT_EQUAL": _comparison(_T.NOT_EQUAL, _ANY),
    "LESS": _comparison(_T.LESS),
    "LESS_EQUAL": _comparison(_T.LESS_EQUAL),
    "GREATER": _comparison(_T.GREATER),
    "GREATER_EQUAL": _comparison(_T.GREATER_EQUAL),
    "LOGICAL_AND": _one(BOOLEANS, _plain(_T.LOGICAL_AND)),
    "LOGICAL_OR": _one(BOOLEANS, _plain(_T.LOGICAL_OR)),
    "LOGICAL_NOT": _one(BOOLEANS, _plain(_T.LOGICAL_NOT)),
    **{
        name: tuple(Converter((("BOOL", *kind),), _select, outputs=kind) for kind in NUMBERS)
        for name in ("SELECT", "SELECT_V2")
    },
    "CAST": (
        Converter(
            (*FLOATS, *_INTEGERS, *BOOLEANS, ("UINT8",)),
            _cast,
            outputs=("FLOAT32", "INT32", "BOOL"),
        ),
    ),
}
