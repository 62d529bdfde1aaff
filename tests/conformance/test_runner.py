"""Running a case: what passes, and every way in which a device can be wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.null import NullEngine
from nnasync.conformance import runner as runner_module
from nnasync.conformance.cases import Case
from nnasync.conformance.paths import Path
from nnasync.conformance.results import CaseOutcome, CaseResult, Variant
from nnasync.conformance.runner import Runner
from nnasync.device import Device, PreparedModel
from nnasync.errors import (
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
    OutputInsufficientSize,
)
from nnasync.fences import signaled
from nnasync.hal import (
    Array,
    ErrorStatus,
    ExecutionResult,
    Operand,
    Operation,
    OperationType,
    OutputShape,
    Timing,
)
from tests.conformance.small_cases import (
    addition,
    average_of_a_half,
    case,
    endless,
    impossible,
    int32,
    line,
    quantized_sum,
    rectified,
    tensor,
)

REFERENCE = "nnasync-reference"
ALL_PATHS = tuple(Path)
EXECUTE = "execute_synchronously"


async def run(
    given: Case,
    engine: Any = REFERENCE,
    *,
    wrapped: Callable[[Device], Any] | None = None,
    **options: Any,
) -> CaseResult:
    async with nn.open_runtime(devices=[engine], options=nn.Options(cores=2)) as runtime:
        device = runtime.devices[0]
        subject = device if wrapped is None else wrapped(device)
        return await Runner(runtime, subject, **options).run(given)


def result_of(given: Case, *arguments: Any, **options: Any) -> CaseResult:
    async def main() -> CaseResult:
        return await run(given, *arguments, **options)

    return anyio.run(main)


def faults(result: CaseResult) -> list[str]:
    return [each.reason for each in result.runs if each.outcome is CaseOutcome.FAILED]


@pytest.mark.anyio
async def test_reference_passes_on_every_path_and_loop() -> None:
    result = await run(case(quantized_sum()), paths=ALL_PATHS, timing=True, exact_coupling=True)
    assert faults(result) == []
    assert result.outcome is CaseOutcome.PASSED
    assert result.operations == ("ADD",)
    forms = {(each.variant, each.path, each.measured) for each in result.runs}
    for path in Path:
        for measured in (False, True):
            for variant in (Variant.AS_GIVEN, Variant.DYNAMIC, Variant.SIGNED):
                assert (variant, path, measured) in forms
    too_small = [each.path for each in result.runs if each.variant is Variant.TOO_SMALL]
    assert too_small == [Path.ASYNC, Path.SYNC, Path.BURST]
    assert result.duration_ns > 0


@pytest.mark.parametrize("path", Path)
def test_a_wrong_element_is_told_on_every_path(path: Path) -> None:
    result = result_of(case(addition(wrong=0.5)), paths=[path])
    assert result.outcome is CaseOutcome.FAILED
    wrong = "output 0 'y': 1 of 4 differ, the first at [1, 1]: 24, expected 24.5 within"
    assert [fault[: len(wrong)] for fault in faults(result)] == [wrong] * len(faults(result))
    variants = {each.variant for each in result.runs if each.outcome is CaseOutcome.FAILED}
    fenced = path is Path.FENCED
    assert variants == ({Variant.AS_GIVEN} if fenced else {Variant.AS_GIVEN, Variant.DYNAMIC})


def test_tolerance_follows_the_model() -> None:
    assert result_of(case(addition(wrong=0.05))).outcome is CaseOutcome.FAILED
    assert result_of(case(addition(wrong=0.05, relaxed=True))).outcome is CaseOutcome.PASSED


def test_ignored_output_is_not_compared() -> None:
    made = addition(wrong=100)
    made["main"]["operands"][3]["ignored"] = True
    assert result_of(case(made)).outcome is CaseOutcome.PASSED


def test_distribution_is_compared_where_asked_for() -> None:
    operands = [
        tensor("x", [[0.0, np.log(3)]], "SUBGRAPH_INPUT"),
        int32(4),
        tensor("seed", [1, 2], "CONSTANT_COPY", type="TENSOR_INT32"),
        tensor("y", [[0] * 4], "SUBGRAPH_OUTPUT", type="TENSOR_INT32", ignored=True),
    ]
    made = line("draw", operands, [("RANDOM_MULTINOMIAL", [0, 1, 2], [3])])
    given = case(made | {"multinomial_tolerance": 0.01})
    for drawn, outcome in (
        ([[0, 1, 1, 1]], CaseOutcome.PASSED),
        ([[0, 0, 1, 1]], CaseOutcome.FAILED),
    ):
        engine = NullEngine(compute=constantly(np.array(drawn)))
        result = result_of(given, engine)
        assert result.outcome is outcome
        assert all("frequencies" in fault for fault in faults(result))


def constantly(value: Array) -> Callable[[Any], Any]:
    return lambda inputs: [value]


# -- what a device supports


def test_unsupported_operations_are_named() -> None:
    result = result_of(case(rectified()), NullEngine(operation_types=[OperationType.ADD]))
    assert result.outcome is CaseOutcome.UNSUPPORTED
    assert [each.missing for each in result.runs] == [("RELU",)]
    assert result.operations == ("RELU",)
    assert [each.reason for each in result.runs] == ["RELU is not supported as it is used here"]


def test_why_operations_are_not_supported_is_told() -> None:
    class Explaining(NullEngine):
        def why_not(self, model: nn.Model) -> list[str | None]:
            return ["no bytes"]

    result = result_of(case(rectified()), Explaining(operation_types=[OperationType.ADD]))
    assert [each.reason for each in result.runs] == ["RELU: no bytes"]


def unsigned_only(
    _operation: Operation, inputs: Sequence[Operand], _outputs: Sequence[Operand]
) -> bool:
    return inputs[0].type == nn.OperandType.TENSOR_QUANT8_ASYMM


def relu(zero_point: int) -> Callable[[Any], Any]:
    return lambda inputs: [np.maximum(inputs[0], zero_point)]


def test_who_takes_the_unsigned_case_takes_its_twin() -> None:
    engine = NullEngine(supports=unsigned_only, compute=relu(100))
    result = result_of(case(rectified()), engine)
    assert faults(result) == ["the device takes the unsigned case, but not its signed twin"]
    assert [each.variant for each in result.runs][-1] is Variant.SIGNED


def nearly_coupled(inputs: Any) -> Any:
    signed = inputs[0].dtype == np.int8
    value = np.maximum(inputs[0], -28 if signed else 100)
    return [value + np.array([1 if signed else 0, 0, 0, 0], value.dtype)]


def test_coupling_is_within_the_tolerance_or_exact() -> None:
    engine = NullEngine(compute=nearly_coupled)
    assert result_of(case(rectified()), engine).outcome is CaseOutcome.PASSED
    result = result_of(case(rectified()), engine, exact_coupling=True)
    assert faults(result) == ["signed against unsigned: output 'y': not the same bytes"]


@pytest.mark.parametrize(("steps", "is_right"), [(0, True), (1, True), (-2, False)])
def test_a_twin_that_rounds_by_the_sign_may_be_a_step_away(steps: int, is_right: bool) -> None:
    def compute(inputs: Any) -> Any:
        signed = inputs[0].dtype == np.int8
        value = -11 - steps if signed else 117
        return [np.full((1, 1, 1, 1), value, inputs[0].dtype)]

    given = case(average_of_a_half())
    result = result_of(given, NullEngine(compute=compute), exact_coupling=True)
    assert (result.outcome is CaseOutcome.PASSED) == is_right


def test_the_reference_rounds_by_the_sign() -> None:
    given = case(average_of_a_half())
    result = result_of(given, exact_coupling=True)
    assert result.outcome is CaseOutcome.PASSED


def test_twin_that_computes_something_else() -> None:
    result = result_of(case(rectified()), NullEngine(compute=relu(100)))
    assert all(
        each.variant is Variant.SIGNED for each in result.runs if each.outcome.name[0] == "F"
    )
    assert any("signed against unsigned: output 'y'" in fault for fault in faults(result))


def test_preparing_fails_although_all_is_supported() -> None:
    engine = NullEngine()
    engine.fail("compile", GeneralFailure("out of order"))
    result = result_of(case(addition()), engine)
    assert result.outcome is CaseOutcome.FAILED
    assert faults(result) == ["prepare_model: GeneralFailure: out of order"] * 2


def test_executing_fails() -> None:
    engine = NullEngine(compute=lambda inputs: [inputs[0]])
    engine.fail("run", KeyError("x"))
    result = result_of(case(addition()), engine)
    assert all("GeneralFailure" in fault for fault in faults(result))
    assert len(faults(result)) == 3


def test_a_device_that_hangs_fails_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "LIMIT_S", 0.05)
    engine = NullEngine()
    engine.hang()

    async def main() -> CaseResult:
        async with nn.open_runtime(devices=[engine]) as runtime:
            try:
                return await Runner(runtime, runtime.devices[0]).run(case(addition()))
            finally:
                engine.heal()
                engine.release()

    result = anyio.run(main)
    assert result.outcome is CaseOutcome.FAILED
    assert faults(result) == ["no answer within 0.05 s"]


# -- devices that lie


class Lying:
    """A device whose prepared models change what a call returns or raises."""

    def __init__(self, device: Device, lie: Callable[..., Any], what: str) -> None:
        self._device = device
        self._lie = lie
        self._what = what

    def __getattr__(self, name: str) -> Any:
        if name == self._what:
            return self._lie
        return getattr(self._device, name)

    async def prepare_model(self, *arguments: Any, **options: Any) -> PreparedModel:
        prepared = await self._device.prepare_model(*arguments, **options)
        return LyingModel(prepared, self._lie, self._what)


class LyingModel:
    """A prepared model of such a device."""

    def __init__(self, prepared: PreparedModel, lie: Callable[..., Any], what: str) -> None:
        self._prepared = prepared
        self._lie = lie
        self._what = what

    def __getattr__(self, name: str) -> Any:
        if name != self._what:
            return getattr(self._prepared, name)

        async def lied(*arguments: Any, **options: Any) -> Any:
            truth = getattr(self._prepared, name)
            return await self._lie(truth, *arguments, **options)

        return lied


def lying(lie: Callable[..., Any], what: str = EXECUTE) -> list[str]:
    """The faults found in a float addition on a device that lies."""
    result = result_of(case(addition()), wrapped=lambda device: Lying(device, lie, what))
    assert result.outcome is CaseOutcome.FAILED
    return faults(result)


def with_shapes(*shapes: OutputShape) -> Callable[..., Any]:
    async def lie(truth: Any, *arguments: Any, **options: Any) -> ExecutionResult:
        await truth(*arguments, **options)
        return ExecutionResult(shapes)

    return lie


@pytest.mark.parametrize(
    ("shapes", "fault"),
    [
        ([OutputShape((2, 3))], "output 0 has shape [2, 3], expected [2, 2]"),
        ([OutputShape((2, 2))] * 2, "2 output shapes, expected 1"),
        ([OutputShape((2, 2), False)], "output 0 is said to be too small, which is wrong"),
    ],
)
def test_wrong_shapes(shapes: list[OutputShape], fault: str) -> None:
    assert lying(with_shapes(*shapes))[:2] == [fault, fault]


def test_shapes_may_be_left_out_only_where_they_are_known() -> None:
    assert lying(with_shapes())[0] == "0 output shapes, expected 1"
    result = result_of(
        case(addition()), wrapped=lambda device: Lying(device, with_shapes(), EXECUTE)
    )
    assert [each.outcome for each in result.runs][:2] == [CaseOutcome.PASSED, CaseOutcome.FAILED]


def test_too_small_output_must_be_told_rightly() -> None:
    async def lie(truth: Any, *arguments: Any, **options: Any) -> ExecutionResult:
        try:
            result: ExecutionResult = await truth(*arguments, **options)
        except OutputInsufficientSize as error:
            shapes = tuple(OutputShape(shape.dimensions) for shape in error.output_shapes)
            raise OutputInsufficientSize("small", shapes) from None
        return result

    assert lying(lie) == ["output 0 is said to be large enough, which is wrong"]

    async def other(truth: Any, *arguments: Any, **options: Any) -> ExecutionResult:
        try:
            result: ExecutionResult = await truth(*arguments, **options)
        except OutputInsufficientSize:
            raise GeneralFailure("no") from None
        return result

    assert lying(other) == ["an output that is too small must be told, not GeneralFailure: no"]


def test_timing_that_was_not_asked_for() -> None:
    async def lie(truth: Any, *arguments: Any, **options: Any) -> ExecutionResult:
        result = await truth(*arguments, **options)
        return ExecutionResult(result.output_shapes, Timing(1, 2))

    assert lying(lie)[0] == "timing was not asked for, but is [1, 2]"


def test_timing_that_cannot_be() -> None:
    async def lie(truth: Any, *arguments: Any, **options: Any) -> ExecutionResult:
        result = await truth(*arguments, **options)
        timing = Timing(5, 2) if arguments[-1].measure else Timing()
        return ExecutionResult(result.output_shapes, timing)

    result = result_of(
        case(addition()), wrapped=lambda device: Lying(device, lie, EXECUTE), timing=True
    )
    assert set(faults(result)) == {"5 ns on the device within 2 ns in the driver"}
    assert all(each.measured == (each.outcome is CaseOutcome.FAILED) for each in result.runs[:4])


def test_inputs_must_not_be_written() -> None:
    async def lie(truth: Any, request: Any, config: Any) -> ExecutionResult:
        result: ExecutionResult = await truth(request, config)
        request.pools[0].view[0] ^= 1
        return result

    assert lying(lie)[0] == "an input was written to"


def test_outputs_that_are_not_written_are_wrong() -> None:
    async def lie(truth: Any, request: Any, config: Any) -> ExecutionResult:
        return ExecutionResult((OutputShape((2, 2)),))

    assert lying(lie)[0].startswith("output 0 'y': 4 of 4 differ")


class AtOnce:
    """A fenced execution that is over, whatever was asked for."""

    status = ErrorStatus.NONE
    timing_launched = timing_fenced = Timing()

    def __init__(self) -> None:
        self.fence = signaled()

    async def get_execution_info(self) -> AtOnce:
        return self


def fenced_faults(lie: Callable[..., Any]) -> list[str]:
    result = result_of(
        case(addition()),
        wrapped=lambda device: Lying(device, lie, "execute_fenced"),
        paths=[Path.FENCED],
    )
    return faults(result)


def test_a_fenced_execution_of_unknown_shapes_must_be_refused() -> None:
    async def lie(truth: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return await truth(*arguments, **options)
        except InvalidArgument:
            return AtOnce()

    refused = "a fenced execution with outputs of unknown shape must be refused"
    assert fenced_faults(lie) == [refused]


def test_a_signaled_fence_means_success() -> None:
    async def lie(truth: Any, *arguments: Any, **options: Any) -> Any:
        done = AtOnce()
        done.status = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
        return done

    error_text = (
        "GeneralFailure: the fence is signaled, but the info says RESOURCE_EXHAUSTED_TRANSIENT"
    )
    assert fenced_faults(lie)[0] == error_text


async def wrong_count(model: nn.Model) -> tuple[bool, ...]:
    return (True,) * 7


async def broken(model: nn.Model) -> tuple[bool, ...]:
    raise DeviceUnavailable("gone")


@pytest.mark.parametrize(
    ("lie", "fault"),
    [(wrong_count, "7 answers for 1 operations"), (broken, "DeviceUnavailable: gone")],
)
def test_wrong_answers_about_support(lie: Callable[..., Any], fault: str) -> None:
    expected = f"get_supported_operations: {fault}"
    assert lying(lie, "get_supported_operations") == [expected] * 2
    result = result_of(
        case(impossible()), wrapped=lambda device: Lying(device, lie, "get_supported_operations")
    )
    assert faults(result) == [expected]


async def failing_close(truth: Any) -> None:
    await truth()
    raise RuntimeError("stuck")


def test_closing_a_model_fails() -> None:
    assert lying(failing_close, "close") == ["RuntimeError: stuck"]


# -- cases that are to fail


@pytest.mark.parametrize("path", Path)
def test_an_impossible_model_is_refused(path: Path) -> None:
    result = result_of(case(impossible()), paths=[path])
    assert result.outcome is CaseOutcome.PASSED
    assert "ModelError" in result.runs[0].reason


@pytest.mark.anyio
async def test_an_endless_loop_misses_its_deadline() -> None:
    result = await run(case(endless()), paths=ALL_PATHS)
    assert faults(result) == []
    paths = [each.path for each in result.runs]
    assert paths == [Path.ASYNC, Path.SYNC, Path.FENCED, Path.RUNTIME]
    assert all("MissedDeadline" in each.reason for each in result.runs)


def test_what_must_fail_but_succeeds() -> None:
    given = case(addition(expect_failure=True))
    result = result_of(given, paths=ALL_PATHS)
    assert result.outcome is CaseOutcome.FAILED
    paths = [path for path in Path if path is not Path.CACHED]
    assert faults(result) == ["must fail, but succeeded"] * len(paths)


def test_failing_at_execution_is_enough() -> None:
    engine = NullEngine()
    engine.fail("run", nn.DeviceError("no"))
    result = result_of(case(addition(expect_failure=True)), engine, paths=ALL_PATHS)
    assert result.outcome is CaseOutcome.PASSED


def test_an_endless_loop_that_fails_for_another_reason() -> None:
    engine = NullEngine()
    engine.fail("run", GeneralFailure("no"))
    result = result_of(case(endless()), engine)
    assert faults(result) == ["must fail with MissedDeadline, not GeneralFailure: no"]


async def bare_error(truth: Any, *arguments: Any, **options: Any) -> Any:
    raise ZeroDivisionError("oops")


def test_failing_with_an_error_that_is_none_of_ours() -> None:
    result = result_of(
        case(addition(expect_failure=True)),
        wrapped=lambda device: Lying(device, bare_error, EXECUTE),
    )
    assert faults(result) == ["must fail with NNError, not ZeroDivisionError: oops"]


def test_a_case_to_fail_that_a_device_does_not_support() -> None:
    given = case(addition(expect_failure=True))
    engine = NullEngine(operation_types=[OperationType.RELU])
    assert result_of(given, engine).outcome is CaseOutcome.PASSED  # refused as not legal for it
    engine = NullEngine(operation_types=[OperationType.RELU])
    engine.fail("compile", GeneralFailure("not mine"))
    assert result_of(given, engine).outcome is CaseOutcome.UNSUPPORTED
