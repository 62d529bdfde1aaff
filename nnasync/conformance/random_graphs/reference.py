"""A graph on the reference device, in several ways whose results must be the very same.

`evaluate` works without any plan: each operation is prepared and run by itself, in fresh memory
that holds a pattern before. It gives the values of all operands. `execute` goes through the
device's plan. In both, what is warned of is an error; only while it computes may floats overflow.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec
import numpy as np

from nnasync import hal
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.validation import validate_model
from nnasync.conformance.random_graphs.equivalents import Form, in_form
from nnasync.conformance.random_graphs.graph import Origin, RandomGraph, model_of
from nnasync.engine import OutputBuffer, StopFlag, Target
from nnasync.errors import GeneralFailure
from nnasync.hal import Array, ExecutionPreference, OperationType, Shape
from nnasync.kernels import OPERATIONS, NotConstant, Tensor

MAX_OUTPUT_BYTES = 1 << 20
"""Memory for an output whose shape only the run tells."""
_PATTERN = 0xA5


@contextmanager
def strict() -> Iterator[None]:
    """Turns warnings into errors while the block runs."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def evaluate(graph: RandomGraph) -> list[Array | None]:
    """The values of all operands, each operation run by itself; raises whatever goes wrong."""
    values = [operand.value for operand in graph.operands]
    with strict():
        for operation in graph.operations:
            _evaluate(graph, operation, values)
    return values


def evaluate_as_far_as_possible(graph: RandomGraph) -> list[Array | None]:
    """Like `evaluate`, but what depends on an operation that fails has no value."""
    values = [operand.value for operand in graph.operands]
    with strict():
        for operation in graph.operations:
            known = all(
                values[index] is not None or graph.operands[index].origin is Origin.OMITTED
                for index in operation.inputs
            )
            if known:
                with suppress(Exception):
                    _evaluate(graph, operation, values)
    return values


def _evaluate(graph: RandomGraph, operation: hal.Operation, values: list[Array | None]) -> None:
    given = [values[index] for index in operation.inputs]
    results = _apply(graph, operation, given)
    for index, result in zip(operation.outputs, results, strict=True):
        values[index] = result


def _apply(
    graph: RandomGraph, operation: hal.Operation, given: Sequence[Array | None]
) -> list[Array]:
    known = OPERATIONS[OperationType(operation.type)]
    inputs = [
        _with_shape(graph.operands[index].tensor, value)
        for index, value in zip(operation.inputs, given, strict=True)
    ]
    outputs = [tensor for index in operation.outputs if (tensor := graph.operands[index].tensor)]
    try:
        tensors, kernel = known.specialize(inputs, outputs)
    except NotConstant:
        late = [
            None if tensor is None else msgspec.structs.replace(tensor, value=value)
            for tensor, value in zip(inputs, given, strict=True)
        ]
        with np.errstate(all="ignore"):
            tensors, kernel = known.specialize(late, outputs)
    results = [_patterned(tensor.shape, tensor.dtype) for tensor in tensors]
    scratch = [_patterned(spec.shape, np.dtype(spec.dtype)) for spec in kernel.scratch]
    step = kernel.bind(given, results, scratch)
    with np.errstate(all="ignore"):
        step()
    return results


def _with_shape(tensor: Tensor | None, value: Array | None) -> Tensor | None:
    """An operand as a run knows it: its shape, and of a computed one nothing else."""
    if tensor is None or value is None:
        return None
    return msgspec.structs.replace(tensor, shape=value.shape, exact=True)


def _patterned(shape: Shape, dtype: np.dtype) -> Array:
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8)[...] = _PATTERN
    return array


def outputs_of(graph: RandomGraph, values: Sequence[Array | None]) -> list[Array]:
    """The outputs among the values of all operands."""
    return [value for index in graph.outputs if (value := values[index]) is not None]


def execute(graph: RandomGraph, form: Form = Form.AS_GIVEN) -> list[Array]:
    """The outputs by way of the device's plan; raises whatever goes wrong."""
    run, stated = in_form(graph, form)
    with strict():
        model = model_of(stated)
        validate_model(model)
        plan = ReferenceEngine().compile(model, ExecutionPreference.FAST_SINGLE_ANSWER)
        targets = [_target(stated, index) for index in stated.outputs]
        call = plan.bind(run.input_values, targets)
        if not call.run(StopFlag()):
            raise GeneralFailure("the run ended early, though nobody asked for that")
    return [_filled(target) for target in targets]


def _target(graph: RandomGraph, index: int) -> Target:
    operand = graph.operands[index]
    dtype = hal.dtype_of(operand.type)
    if operand.origin is Origin.COMPUTED and hal.is_fully_specified(operand.type, operand.shape):
        return _patterned(operand.shape, dtype)
    return OutputBuffer(_patterned((MAX_OUTPUT_BYTES,), np.dtype(np.uint8)), dtype, operand.shape)


def _filled(target: Target) -> Array:
    if not isinstance(target, OutputBuffer):
        return target
    array = target.array(target.shape)
    if array is None:
        raise GeneralFailure(f"an output of shape {target.shape} is beyond its buffer")
    return array
