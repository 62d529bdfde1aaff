"""The small models that the HAL suite works with, each with inputs.

Together they have what a device meets in a model: constants copied and in a pool, temporaries,
operands that are read twice, omitted and optional arguments, several inputs and outputs, all kinds
of quantization, shapes that are only found in the run, and both operations of control flow. Beside
them stand pseudo-random models of one operation each, for every operation there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync import hal
from nnasync._core.model import ModelBuilder
from nnasync.conformance.cases import Case, Expected
from nnasync.conformance.random_graphs import Size, generate, generated_operations, model_of
from nnasync.hal import Array, ChannelQuant, Model, OperandType, OperationType, Shape
from nnasync.kernels import Tensor

_QUANT8 = OperandType.TENSOR_QUANT8_ASYMM
_SIGNED8 = OperandType.TENSOR_QUANT8_ASYMM_SIGNED


def case_of(model: Model, inputs: Sequence[Array], *, shapes: Sequence[Shape] = ()) -> Case:
    """A model with inputs as a case; `shapes` are those of outputs that the model leaves open."""
    main = model.main
    operands = [main.operands[index] for index in main.output_indexes]
    outputs = [
        Expected(operand.name, operand.type, np.zeros(shape, hal.dtype_of(operand.type)))
        for operand, shape in zip(
            operands, shapes or [operand.dimensions for operand in operands], strict=True
        )
    ]
    return Case(
        name=model.name,
        spec=model.name,
        source="",
        version=None,
        model=model,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        expect_failure=False,
        multinomial_tolerance=None,
        operations=tuple(hal.operation_name(operation.type) for operation in main.operations),
    )


def subjects() -> list[Case]:
    """The models that were made by hand."""
    return [
        _sum(),
        _network(),
        _quantized(),
        _per_channel(),
        _branches(),
        _halves(),
        _choice(),
        _recurrent(),
        _open_shape(),
        _conditional(),
        _loop(),
    ]


def random_models() -> list[Model]:
    """A model of one operation for each operation that the random graphs have."""
    return [model_of(generate(Size.SINGLE, seed)) for seed in range(len(generated_operations()))]


def chain(type: OperationType, length: int, *, name: str = "") -> Case:
    """x, combined with the same constant again and again by ADD or MUL."""
    m = ModelBuilder(name or f"{length} times {type.name}")
    x = m.input("x", (2, 2))
    y = x
    for _ in range(length):
        y = m.operation(type, y, np.array([[1, 2], [3, 4]], np.float32), 0)
    m.output("y", y)
    return case_of(m.build(), [_numbers(2, 2)])


def endless_loop() -> Case:
    """A loop that only its time limit ends."""
    m = ModelBuilder("endless loop")
    x = m.input("x", (1,))
    m.output(
        "y",
        m.while_loop(
            lambda g, x: g.operation(OperationType.GREATER_EQUAL, x, x),
            lambda g, x: g.add(x, np.array([1], np.float32)),
            x,
        ),
    )
    return case_of(m.build(), [np.zeros(1, np.float32)])


def _numbers(*shape: int) -> Array:
    """Small numbers that differ from one another."""
    count = int(np.prod(shape))
    return (np.arange(count, dtype=np.float32).reshape(shape) % 13 - 6) / np.float32(4)


def _bytes(*shape: int) -> Array:
    return (np.arange(int(np.prod(shape))).reshape(shape) * 37 % 256).astype(np.uint8)


def _sum() -> Case:
    m = ModelBuilder("sum of two inputs")
    a, b = m.input("a", (2, 3)), m.input("b", (2, 3))
    m.output("y", m.add(a, b, activation="relu"))
    return case_of(m.build(), [_numbers(2, 3), np.ones((2, 3), np.float32)])


def _network() -> Case:
    """Convolution with its optional arguments, pooling, a constant in a pool, softmax."""
    m = ModelBuilder("float network")
    x = m.input("x", (1, 6, 6, 2))
    y = m.conv_2d(x, _numbers(4, 3, 3, 2), _numbers(4), dilation=(2, 2), activation="relu6")
    y = m.max_pool_2d(y, 2)
    y = m.fully_connected(y, _numbers(5, 36), _numbers(5))
    m.output("y", m.operation(OperationType.SOFTMAX, y, 1.0, 1))
    return case_of(m.build(), [_numbers(1, 6, 6, 2)])


def _quantized() -> Case:
    m = ModelBuilder("quantized network")
    x = m.input("x", (1, 4, 4, 2), type=_QUANT8, scale=0.5, zero_point=128)
    filter = m.constant(_bytes(1, 2, 2, 2), scale=0.25, zero_point=120)
    y = m.depthwise_conv_2d(x, filter, np.array([3, -4], np.int32), scale=2.0, zero_point=100)
    y = m.average_pool_2d(y, 2)
    y = m.operation(OperationType.LOGISTIC, y)
    m.output("y", m.dequantize(y))
    return case_of(m.build(), [_bytes(1, 4, 4, 2)])


def _per_channel() -> Case:
    m = ModelBuilder("scales per channel")
    x = m.input("x", (1, 3, 3, 2), type=_SIGNED8, scale=0.5, zero_point=-3)
    quant = ChannelQuant((0.25, 0.5, 0.125), 0)
    filter = m.constant(_bytes(3, 2, 2, 2).view(np.int8), channel_quant=quant)
    bias = m.constant(np.array([1, 2, 3], np.int32))
    y = m.conv_2d(x, filter, bias, padding=(0, 0, 0, 0), scale=8.0, zero_point=5)
    m.output("y", y)
    return case_of(m.build(), [_bytes(1, 3, 3, 2).view(np.int8)])


def _branches() -> Case:
    """Values that several operations read, and an operation with several outputs."""
    m = ModelBuilder("several inputs and outputs")
    a, b = m.input("a", (2, 4)), m.input("b", (2, 4))
    total = m.add(a, b)
    one, two = m.operation_outputs(OperationType.SPLIT, total, 1, 2)
    m.output("product", m.mul(one, two))
    joined = m.concatenation([total, m.mul(total, total)], 0)
    m.output("joined", m.reshape(joined, (8, 2)))
    return case_of(m.build(), [_numbers(2, 4), _numbers(2, 4)])


def _halves() -> Case:
    m = ModelBuilder("float16")
    x = m.input("x", (1, 4), type=OperandType.TENSOR_FLOAT16)
    m.output("y", m.tanh(m.mul(x, np.array([[0.5, 1, 2, 3]], np.float16))))
    return case_of(m.build(), [_numbers(1, 4).astype(np.float16)])


def _choice() -> Case:
    m = ModelBuilder("choice by comparison")
    a, b = m.input("a", (5,)), m.input("b", (5,))
    smaller = m.operation(OperationType.LESS, a, b)
    m.output("y", m.operation(OperationType.SELECT, smaller, a, b))
    return case_of(m.build(), [_numbers(5), np.zeros(5, np.float32)])


def _recurrent() -> Case:
    """An LSTM of which many arguments are omitted."""
    m = ModelBuilder("LSTM with omitted arguments")
    x, h, c = m.input("x", (1, 2)), m.input("h", (1, 3)), m.input("c", (1, 3))
    results = m.lstm(
        x,
        h,
        c,
        input_weights=[None, *(_numbers(3, 2) for _ in range(3))],
        recurrent_weights=[None, *(_numbers(3, 3) for _ in range(3))],
        biases=[None, *(_numbers(3) for _ in range(3))],
    )
    for name, value in zip(("y", "h_next", "c_next"), results, strict=True):
        m.output(name, value)
    return case_of(m.build(), [_numbers(1, 2), _numbers(1, 3), _numbers(1, 3)])


def _open_shape() -> Case:
    m = ModelBuilder("shape found in the run")
    x = m.input("x", (2, 3))
    shape = m.input("shape", (2,), type=OperandType.TENSOR_INT32)
    given = Tensor(type=OperandType.TENSOR_FLOAT32, shape=(0, 0))
    m.output("y", m.operation(OperationType.RESHAPE, x, shape, output=given))
    return case_of(m.build(), [_numbers(2, 3), np.array([3, 2], np.int32)], shapes=[(3, 2)])


def _conditional() -> Case:
    m = ModelBuilder("IF")
    condition = m.input("condition", (1,), type=OperandType.TENSOR_BOOL8)
    x = m.input("x", (2, 2))

    def doubled(g: Any, x: Any) -> Any:
        return g.add(x, x)

    def shifted(g: Any, x: Any) -> Any:
        return g.relu(g.add(x, np.array([[1, 2], [3, 4]], np.float32)))

    m.output("y", m.cond(condition, doubled, shifted, x))
    return case_of(m.build(), [np.array([False], np.bool_), _numbers(2, 2)])


def _loop() -> Case:
    m = ModelBuilder("WHILE")
    n, x = m.input("n", (1,)), m.input("x", (2,))

    def below(g: Any, n: Any, x: Any) -> Any:
        return g.operation(OperationType.LESS, n, np.array([3], np.float32))

    def step(g: Any, n: Any, x: Any) -> Any:
        return g.add(n, np.array([1], np.float32)), g.add(x, x)

    count, y = m.while_loop(below, step, n, x)
    m.output("count", count)
    m.output("y", y)
    return case_of(m.build(), [np.zeros(1, np.float32), _numbers(2)])
