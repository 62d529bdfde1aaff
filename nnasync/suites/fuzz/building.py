"""Models built by calls whose arguments fit by chance only."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnasync import hal
from nnasync._core.model import ModelBuilder, Value
from nnasync.errors import CallerError
from nnasync.hal import ChannelQuant, OperandType, OperationType
from nnasync.kernels import EXTENSION_OPERATIONS
from nnasync.kernels.operation import Tensor
from nnasync.suites.fuzz.edits import FLOATS, SMALL, Editor
from nnasync.suites.fuzz.samples import FuzzSample

__all__ = ["built"]

_TENSORS = tuple(type for type in OperandType if hal.has_dtype(type) and not hal.is_scalar(type))
_ODD = (
    float("nan"),
    2**40,
    "x",
    b"ab",
    [[1], [1, 2]],
    np.complex64(1),
    np.zeros(2, "M8[s]"),
    object,
)


def built(editor: Editor) -> FuzzSample | None:
    """A model of up to eight operations; None where the builder refuses it."""
    builder = ModelBuilder("built")
    values = [_input(builder, editor, number) for number in range(editor.random.randint(1, 4))]
    found = [value for value in values if value is not None]
    for number in range(editor.random.randint(1, 8)):
        found += _operation(builder, editor, found)
        if found and editor.random.random() < 0.5:
            _attempted(builder.output, f"output {number}", editor.pick(found))
    model = _attempted(builder.build)
    return None if model is None else FuzzSample(model, {})


def _attempted(function: Any, *arguments: Any, **options: Any) -> Any:
    """Returns the result of a call; None where it is refused."""
    try:
        return function(*arguments, **options)
    except CallerError:
        return None


def _shape(editor: Editor) -> tuple[int, ...]:
    return tuple(editor.pick(SMALL) for _ in range(editor.pick((0, 1, 2, 3, 4, 4, 4, 6))))


def _quantization(editor: Editor, type: int) -> dict[str, Any]:
    if editor.random.random() < 0.1:
        return {"scale": editor.pick(FLOATS), "zero_point": editor.random.randint(-300, 300)}
    return {} if hal.zero_points(type) is None else {"scale": 0.5}


def _input(builder: ModelBuilder, editor: Editor, number: int) -> Value | None:
    type = editor.pick((OperandType.TENSOR_FLOAT32, *_TENSORS))
    make = builder.state if editor.random.random() < 0.1 else builder.input
    options = _quantization(editor, type)
    value: Value | None = _attempted(make, f"input {number}", _shape(editor), type=type, **options)
    return value


def _argument(builder: ModelBuilder, editor: Editor, values: list[Value]) -> Any:
    kind = editor.random.randrange(10)
    if kind < 4 and values:
        return editor.pick(values)
    if kind == 4:
        type = editor.pick(_TENSORS)
        array = editor.array(type, tuple(n or 1 for n in _shape(editor)))
        options = _quantization(editor, type)
        if type == OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL:
            options = {"channel_quant": ChannelQuant((0.5,) * editor.pick(SMALL), 0)}
        return _attempted(builder.constant, array, type=type, **options)
    if kind == 5:
        return editor.pick(_ODD) if editor.random.random() < 0.2 else None
    numbers = (np.array([1, 2], np.int32), np.array([0], np.int32))
    return editor.pick((0, 1, 2, 3, -1, True, False, 0.5, 1.0, *numbers))


def _operation(builder: ModelBuilder, editor: Editor, values: list[Value]) -> list[Value]:
    """An operation with arguments by chance; its results, if it was accepted."""
    type: int = editor.pick(tuple(OperationType))
    if editor.random.random() < 0.1:
        name, number = editor.pick(tuple(EXTENSION_OPERATIONS))
        type = builder.extension_type(name, number)
    count = editor.pick((1, 1, 1, 2, 2, 2, 3, 3, 4, 7, 8, 10))
    arguments = [_argument(builder, editor, values) for _ in range(count)]
    options: dict[str, Any] = {}
    if editor.random.random() < 0.5:
        options |= {"scale": 0.5, "zero_point": 0}
    if editor.random.random() < 0.2:
        kind = editor.pick(_TENSORS)
        options["output"] = Tensor(type=kind, shape=_shape(editor), **_quantization(editor, kind))
    if editor.random.random() < 0.2:
        outputs = [None] * editor.random.randint(0, 3)
        several = _attempted(builder.operation_outputs, type, *arguments, outputs=outputs)
        return list(several or ())
    value = _attempted(builder.operation, type, *arguments, **options)
    return [] if value is None else [value]
