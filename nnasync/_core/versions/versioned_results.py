"""What an older device answers, made into what a device of HAL 1.3 may answer.

Statuses that its version does not have become GENERAL_FAILURE. Shapes of outputs come with success,
or where an output was too small, and then completely; timings with success, if they were asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnasync import hal
from nnasync._core.workers import contained
from nnasync.errors import (
    GeneralFailure,
    NNError,
    OutputInsufficientSize,
)
from nnasync.hal import (
    ErrorStatus,
    ExecutionResult,
    HalVersion,
    Model,
    Operand,
    OutputShape,
    Request,
    Shape,
    Timing,
    combine_dimensions,
)


def are_specified(model: Model | None, request: Request) -> bool:
    """Returns whether model and request together state all outputs' shapes, if that is known."""
    return model is None or all(
        hal.is_fully_specified(operand.type, shape)
        for operand, shape in zip(_outputs(model), _stated(model, request), strict=True)
    )


def checked_result(
    found: object, model: Model | None, request: Request, who: str, *, measure: bool
) -> ExecutionResult:
    """The result of an execution that succeeded; raises GeneralFailure if it cannot be true.

    A device need not repeat shapes that were all known before. Without the model, as of one that
    was loaded from a cache, nothing is known of them.
    """
    result = found if isinstance(found, ExecutionResult) else ExecutionResult()
    if model is None:
        return ExecutionResult(result.output_shapes, result.timing if measure else Timing())
    shapes = result.output_shapes or _filled(model, request, who)
    fault = _shapes_fault(shapes, model, request)
    if fault is None and not all(shape.is_sufficient for shape in shapes):
        fault = "say that an output was too small"
    if fault is not None:
        raise GeneralFailure(f"{who} succeeded, but its output shapes {fault}")
    return ExecutionResult(shapes, result.timing if measure else Timing())


def older_error(
    error: BaseException, version: HalVersion, outputs: int | None, who: str
) -> NNError:
    """The error of an older device; one that its version does not have becomes GeneralFailure.

    `outputs` is how many shapes come with OutputInsufficientSize, None outside of executions.
    """
    failure = contained(error, who)
    if isinstance(failure, OutputInsufficientSize):
        shapes = failure.output_shapes
        if outputs is not None and len(shapes) == outputs and version >= HalVersion.V1_2:
            return failure
        text = f"{who} says that an output is too small, but not what it needs: {failure}"
        return _caused(GeneralFailure(text), failure)
    if failure.status <= ErrorStatus.INVALID_ARGUMENT:
        return failure
    name = hal.version_name(version)
    text = f"{who} failed with {failure.status.name}, which {name} does not have: {failure}"
    return _caused(GeneralFailure(text), failure)


def _caused(error: NNError, cause: NNError) -> NNError:
    error.__cause__ = cause
    return error


def _filled(model: Model, request: Request, who: str) -> tuple[OutputShape, ...]:
    if not are_specified(model, request):
        raise GeneralFailure(f"{who} succeeded, but does not say what shapes its outputs have")
    return tuple(map(OutputShape, _stated(model, request)))


def _shapes_fault(shapes: Sequence[OutputShape], model: Model, request: Request) -> str | None:
    stated = _stated(model, request)
    if len(shapes) != len(stated):
        return f"are {len(shapes)}, for {len(stated)} outputs"
    for index, (shape, expected) in enumerate(zip(shapes, stated, strict=True)):
        if not hal.has_dimensions(shape.dimensions, expected):
            return f"have {list(shape.dimensions)} for output {index}, stated as {list(expected)}"
    return None


def _stated(model: Model, request: Request) -> list[Shape]:
    return [
        combine_dimensions(operand.dimensions, argument.dimensions) or ()
        for operand, argument in zip(_outputs(model), request.outputs, strict=True)
    ]


def _outputs(model: Model) -> list[Operand]:
    return [model.main.operands[index] for index in model.main.output_indexes]
