"""Which operations of a model are lowered, and why the others are not."""

from __future__ import annotations

from collections.abc import Sequence

from nnasync._core.drivers.openvino.lowered import Build, OpenVinoUnsupported
from nnasync._core.drivers.openvino.lowering import RULES
from nnasync._core.validation import find_operation, read_operation, subgraph_tensors
from nnasync.errors import ModelError
from nnasync.extensions import operation_key, operation_label
from nnasync.hal import Model, Operation
from nnasync.kernels import Arguments, NotConstant, Tensor


class _NoRule(Exception):
    """The reason of an operation whose type has no lowering."""


class LoweringStep:
    """An operation with what it reads and writes; `build` is None where it is not lowered."""

    __slots__ = ("build", "operation", "outputs", "reason")

    def __init__(
        self,
        operation: Operation,
        outputs: Sequence[Tensor],
        build: Build | None = None,
        reason: str = "",
    ) -> None:
        self.operation = operation
        self.outputs = tuple(outputs)
        self.build = build
        self.reason = reason


def resolve(model: Model) -> tuple[list[Tensor | None], list[LoweringStep]]:
    """The operands of the main subgraph with all shapes that can be known, and its operations."""
    tensors = subgraph_tensors(model, model.main)
    steps = [_step(model, operation, tensors) for operation in model.main.operations]
    return tensors, steps


def reason(model: Model, index: int) -> str | None:
    """Returns why an operation of the main subgraph is not lowered; None if it is."""
    return resolve(model)[1][index].reason or None


def _step(model: Model, operation: Operation, tensors: list[Tensor | None]) -> LoweringStep:
    """Infer what an operation writes, complete `tensors` with it, and lower it."""
    name = operation_label(model.extension_name_to_prefix, operation.type)
    try:
        if find_operation(model, operation.type) is None:
            raise _NoRule
        arguments, outputs = read_operation(model, operation, tensors)
        _check_known(arguments, outputs)
        key = operation_key(model.extension_name_to_prefix, operation.type)
        rule = None if key is None else RULES.get(key)
        if rule is None:
            raise _NoRule
        return LoweringStep(operation, outputs, rule.apply(arguments, outputs))
    except NotConstant:
        why = "an argument that OpenVINO needs beforehand is no constant"
        return LoweringStep(operation, (), reason=f"{name}: {why}")
    except _NoRule:
        return LoweringStep(operation, (), reason=f"{name} is not lowered")
    except (OpenVinoUnsupported, ModelError) as error:
        return LoweringStep(operation, (), reason=f"{name}: {error}")


def _check_known(arguments: Arguments, outputs: Sequence[Tensor]) -> None:
    for tensor in (*arguments.inputs, *outputs):
        if tensor is None:
            continue
        if not tensor.is_known:
            raise OpenVinoUnsupported("a shape is only known when the network runs")
        if 0 in tensor.shape:
            raise OpenVinoUnsupported("tensors without elements are not lowered")
