"""What the converters of all families share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nnasync._core.importers.onnx.onnx_file import OnnxNode
from nnasync._core.importers.onnx.preparation import Step
from nnasync._core.importers.onnx.scope import OnnxScope, QuantizedView, Target
from nnasync._core.model import Value
from nnasync._core.model.graph import Input
from nnasync.errors import ModelError
from nnasync.hal import OperandType, OperationType

Convert = Callable[[OnnxScope, Step], None]
"""Turns one operator into operations; raises ModelError where it cannot."""

_MOST_NUMBERS = 1 << 24
_FLOATS = (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16)


def is_float(value: Value) -> bool:
    """Returns whether a value is of floats."""
    return value.type in _FLOATS


def check_count(count: int) -> None:
    """Raise ModelError for more numbers than are worked out while a file is read."""
    if count > _MOST_NUMBERS:
        raise ModelError(f"has {count} numbers to be worked out, at most {_MOST_NUMBERS} are")


def axis_of(axis: int, rank: int) -> int:
    """An axis from 0 on; raises ModelError where there is none such."""
    if not -rank <= axis < rank:
        raise ModelError(f"axis {axis} is not one of a tensor of rank {rank}")
    return axis % rank


def axes_of(scope: OnnxScope, node: OnnxNode) -> list[int] | None:
    """Axes from an attribute or, in newer files, from input 1."""
    if scope.has(node, 1):
        return scope.integers(node, 1, "axes")
    given = node.attribute("axes", None)
    return None if given is None else list(given)


def is_alike(view: Value | None, target: Target) -> bool:
    """Returns whether integers are quantized as a result is to be."""
    return view is not None and (view.type, view.scale, view.zero_point) == (
        target.type,
        target.scale,
        target.zero_point,
    )


def move(scope: OnnxScope, step: Step, type: OperationType, *others: Input) -> None:
    """Add an operation that only moves the numbers of input 0, quantized ones as they are."""
    moved(scope, step, type, [step.node.inputs[0]], others)


def moved(
    scope: OnnxScope, step: Step, type: OperationType, names: Sequence[str], others: Sequence[Input]
) -> None:
    """Add an operation that only moves the numbers of some inputs.

    It takes integers where all stand for floats in the same way.
    """
    views = [scope.quantized(name) for name in names]
    known = [view for view in views if view is not None]
    if len(known) == len(names) and len({(v.type, v.scale, v.zero_point) for v in known}) == 1:
        value = scope.builder.operation(type, *known, *others, like=known[0])
        scope.define(step.output, QuantizedView(value))
        return
    values = [scope.value(name) for name in names]
    scope.emit(step, type, *values, *others)


def outputs_of(node: OnnxNode, count: int) -> None:
    """Raise ModelError where an operator has more outputs than are translated."""
    if len([name for name in node.outputs if name]) > count:
        raise ModelError(f"has {len(node.outputs)} outputs, {count} are translated")
