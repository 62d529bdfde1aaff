"""Everything that is to be true of a graph on a device, and what is not.

On the reference device the results of all its ways must be the very same; those of one operation
on unsigned bytes are, shifted, those on signed ones (a step away at most where the operation rounds
by the sign), and near those on real numbers. Any device
must give results near the reference's; those of one quantized operation are judged by the real
numbers, as the official suite does. A device may say that it does not support an operation, and one
that is not the reference may fail at compiling or executing: neither is held against it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import anyio

from nnasync import hal
from nnasync._core.accuracy import compare, golden_criterion
from nnasync._core.engine_device.reasons import explained
from nnasync._core.validation import validate_model
from nnasync.conformance.cases import Case, Expected
from nnasync.conformance.paths import CaseBuffers, Path, execute
from nnasync.conformance.random_graphs import reference
from nnasync.conformance.random_graphs.equivalents import Form, float_twin, quantized
from nnasync.conformance.random_graphs.graph import RandomGraph, graph_of, model_of
from nnasync.conformance.random_graphs.graph_criteria import (
    criterion_class,
    difference,
    first_fault,
)
from nnasync.conformance.trial import error_text
from nnasync.conformance.variants import has_exact_twin, signed_twin
from nnasync.device import Device, PreparedModel
from nnasync.errors import GeneralFailure, MissedDeadline
from nnasync.hal import Array, ExecutionResult, Struct
from nnasync.kernels.facts import CriterionClass

REFERENCE = "nnasync-reference"
_GRAPHS = (CriterionClass.SMALL_GRAPH, CriterionClass.LARGE_GRAPH)
"""Criteria of graphs, which are judged by the reference itself, and so are parts of them."""
LIMIT_S = 60.0
"""A device that needs longer for one graph hangs."""


class GraphVerdict(enum.Enum):
    """What came out of a graph on a device."""

    COMPARED = "compared"
    UNSUPPORTED = "unsupported"
    FAILED = "failed"


class Examination(Struct, frozen=True):
    """The verdict on a graph; `check` names what was looked at when it failed, and `reason` why."""

    verdict: GraphVerdict
    check: str = ""
    reason: str = ""


class _Failure(Exception):
    """A check that a graph did not pass."""

    def __init__(self, check: str, reason: str) -> None:
        super().__init__(check, reason)
        self.check = check
        self.reason = reason


class _Declined(Exception):
    """The device does not run the graph, and says so."""


async def examine(graph: RandomGraph, device: Device) -> Examination:
    """Run a graph on a device and judge it; raises nothing that a device or a kernel does."""
    try:
        with reference.strict():
            expected = _expected(graph, thorough=device.name == REFERENCE)
            await _run(graph, device, expected)
    except _Failure as failure:
        return Examination(GraphVerdict.FAILED, failure.check, failure.reason)
    except _Declined as declined:
        return Examination(GraphVerdict.UNSUPPORTED, reason=str(declined))
    return Examination(GraphVerdict.COMPARED)


# -- the reference


def _expected(graph: RandomGraph, *, thorough: bool) -> list[Array]:
    """Returns the results that judge a device; raises _Failure if the reference fails."""
    try:
        validate_model(model_of(graph))
    except Exception as error:
        raise _Failure("validation", error_text(error)) from error
    golden = _evaluated(graph, "evaluation")
    if thorough:
        for form in Form:
            _check_form(graph, form, golden)
        _check_signed_twin(graph, golden)
    twin = None if criterion_class(graph) in _GRAPHS else float_twin(graph)
    if twin is None:
        return golden
    reals = [
        quantized(value, graph.operands[index]) if graph.operands[index].scale else value
        for index, value in zip(graph.outputs, _evaluated(twin, "float twin"), strict=True)
    ]
    fault = first_fault(graph, golden, reals)
    if thorough and fault:
        raise _Failure("float twin", fault)
    return reals


def _evaluated(graph: RandomGraph, check: str) -> list[Array]:
    try:
        return reference.outputs_of(graph, reference.evaluate(graph))
    except Exception as error:
        raise _Failure(check, error_text(error)) from error


def _check_form(graph: RandomGraph, form: Form, golden: Sequence[Array]) -> None:
    try:
        fault = difference(graph, reference.execute(graph, form), golden)
    except Exception as error:
        fault = error_text(error)
    if fault:
        raise _Failure(f"plan, {form.value}", fault)


def _check_signed_twin(graph: RandomGraph, golden: Sequence[Array]) -> None:
    twin = signed_twin(_case(graph, golden))
    if twin is None:
        return
    inputs = [value for value in twin.inputs if value is not None]
    expected = [output.value for output in twin.outputs]
    try:
        signed = graph_of(twin.model, inputs)
        results = reference.execute(signed)
        exact = has_exact_twin(twin.model)
        fault = (difference if exact else _steps_apart)(signed, results, expected)
    except Exception as error:
        fault = error_text(error)
    if fault:
        raise _Failure("signed twin", fault)


def _steps_apart(graph: RandomGraph, given: Sequence[Array], expected: Sequence[Array]) -> str:
    """Returns where quantized results are more than a step from others, empty if they are not."""
    for index, one, other in zip(graph.outputs, given, expected, strict=True):
        type = graph.operands[index].type
        if fault := compare(one, other, type, golden_criterion(type)).fault:
            return fault
    return ""


# -- the device


async def _run(graph: RandomGraph, device: Device, expected: Sequence[Array]) -> None:
    try:
        with anyio.fail_after(LIMIT_S):
            given = await _results(graph, device, expected)
    except (_Declined, _Failure):
        raise
    except MissedDeadline as error:
        raise _Failure("device", error_text(error)) from error
    except TimeoutError:
        raise _Failure("device", f"no answer within {LIMIT_S:g} s") from None
    except GeneralFailure as error:
        if device.name != REFERENCE:
            raise _Declined(error_text(error)) from error
        raise _Failure("device", error_text(error)) from error
    except Exception as error:
        raise _Failure("device", error_text(error)) from error
    fault = first_fault(graph, given, expected)
    if fault:
        raise _Failure("device", fault)


async def _results(graph: RandomGraph, device: Device, expected: Sequence[Array]) -> list[Array]:
    case = _case(graph, expected)
    answers = await device.get_supported_operations(case.model)
    if len(answers) != len(graph.operations):
        raise _Failure("device", f"{len(answers)} answers for {len(graph.operations)} operations")
    if not all(answers):
        reasons = await explained(device, case.model, answers)
        raise _Declined(next(reason for reason in reasons if reason))
    prepared = await device.prepare_model(case.model)
    try:
        return await _executed(case, prepared)
    finally:
        with anyio.CancelScope(shield=True):
            await prepared.close()


async def _executed(case: Case, prepared: PreparedModel) -> list[Array]:
    buffers = CaseBuffers(case)
    try:
        buffers.clear()
        result = await execute(Path.SYNC, prepared, buffers.request())
        _check_shapes(case, result)
        if not buffers.inputs_are_intact():
            raise _Failure("device", "an input was written to")
        return [
            buffers.output(position, output.value.shape)
            for position, output in enumerate(case.outputs)
        ]
    finally:
        buffers.close()


def _case(graph: RandomGraph, expected: Sequence[Array]) -> Case:
    outputs = tuple(
        Expected(f"output {position}", graph.operands[index].type, value)
        for position, (index, value) in enumerate(zip(graph.outputs, expected, strict=True))
    )
    names = tuple(dict.fromkeys(hal.operation_name(each.type) for each in graph.operations))
    return Case(
        name=graph.name,
        spec="",
        source="",
        version=None,
        model=model_of(graph),
        inputs=graph.input_values,
        outputs=outputs,
        expect_failure=False,
        multinomial_tolerance=None,
        operations=names,
    )


def _check_shapes(case: Case, result: ExecutionResult) -> None:
    """Shapes may be left out where the model knows them all."""
    main = case.model.main
    operands = [main.operands[index] for index in main.output_indexes]
    if not result.output_shapes and all(
        hal.is_fully_specified(each.type, each.dimensions) for each in operands
    ):
        return
    given = [list(shape.dimensions) for shape in result.output_shapes]
    expected = [list(output.value.shape) for output in case.outputs]
    if given != expected:
        raise _Failure("device", f"output shapes are {given}, expected {expected}")
