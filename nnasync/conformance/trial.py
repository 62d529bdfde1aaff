"""One form of a case on a prepared model: executions over the paths, and whether they are right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from nnasync import hal
from nnasync._core.accuracy import compare, compare_distribution, computes_in_half, golden_criterion
from nnasync.conformance.cases import Case
from nnasync.conformance.paths import CaseBuffers, Path, execute
from nnasync.conformance.results import CaseOutcome, Run, Variant
from nnasync.device import PreparedModel
from nnasync.errors import InvalidArgument, OutputInsufficientSize
from nnasync.hal import (
    NOT_AVAILABLE,
    Array,
    ExecutionConfig,
    ExecutionResult,
    OutputShape,
    Timing,
)

Outputs = tuple[Array, ...]


class Fault(Exception):
    """What is wrong with a result."""


class CaseTrial:
    """A form of a case on a prepared model: its memory, its executions, the verdicts."""

    def __init__(self, case: Case, variant: Variant, prepared: PreparedModel) -> None:
        self.case = case
        self.variant = variant
        self.outputs: dict[Path, Outputs] = {}
        self._prepared = prepared
        self._buffers = CaseBuffers(case)
        self._half = computes_in_half(case.model)
        main = case.model.main
        operands = [main.operands[index] for index in main.output_indexes]
        self._specified = all(hal.is_fully_specified(o.type, o.dimensions) for o in operands)

    async def run(self, path: Path, *, measure: bool) -> Run:
        """Execute and judge; a fenced execution must be refused where shapes are unknown."""
        refusal = path is Path.FENCED and not self._specified
        self._buffers.clear()
        try:
            result = await self._execute(path, self._buffers.request(), measure=measure)
            if refusal:
                raise Fault("a fenced execution with outputs of unknown shape must be refused")
            outputs = self._read(result)
            self.judge(path, outputs, result.timing, measure=measure)
        except InvalidArgument as error:
            if not refusal:
                return self.failed(path, error, measure=measure)
        except Exception as error:
            return self.failed(path, error, measure=measure)
        return Run(self.variant, CaseOutcome.PASSED, path, measure)

    async def run_too_small(self, path: Path) -> Iterable[Run]:
        """Execute with a first output that lacks a byte, if it has more than one."""
        if not self.case.outputs or self.case.outputs[0].value.nbytes <= 1:
            return ()
        self._buffers.clear()
        request = self._buffers.request(too_small=True)
        fault = "an output that is too small must be told"
        try:
            await self._execute(path, request, measure=False)
        except OutputInsufficientSize as error:
            fault = self._shapes_fault(error.output_shapes, too_small=True)
        except Exception as error:
            fault = f"{fault}, not {error_text(error)}"
        outcome = CaseOutcome.FAILED if fault else CaseOutcome.PASSED
        return (Run(Variant.TOO_SMALL, outcome, path, reason=fault),)

    def judge(self, path: Path, outputs: Outputs, timing: Timing, *, measure: bool) -> None:
        """Raise unless outputs and timing are right; remembers the outputs of the path."""
        if len(outputs) != len(self.case.outputs):
            raise Fault(f"{len(outputs)} outputs, expected {len(self.case.outputs)}")
        self.outputs[path] = outputs
        if self.case.multinomial_tolerance is not None:
            self._judge_distribution(outputs[0], self.case.multinomial_tolerance)
        for position, (given, expected) in enumerate(zip(outputs, self.case.outputs, strict=True)):
            if not expected.ignored:
                criterion = golden_criterion(expected.type, half=self._half, test=self.case.name)
                fault = compare(np.asarray(given), expected.value, expected.type, criterion).fault
                if fault:
                    raise Fault(f"output {position} {expected.name!r}: {fault}")
        if not self._buffers.inputs_are_intact():
            raise Fault("an input was written to")
        known = [timing.time_on_device_ns, timing.time_in_driver_ns]
        if not measure and known != [NOT_AVAILABLE, NOT_AVAILABLE]:
            raise Fault(f"timing was not asked for, but is {known}")
        if NOT_AVAILABLE not in known and known[0] > known[1]:
            raise Fault(f"{known[0]} ns on the device within {known[1]} ns in the driver")

    def failed(self, path: Path, error: Exception, *, measure: bool) -> Run:
        """A failed run and why."""
        return Run(self.variant, CaseOutcome.FAILED, path, measure, error_text(error))

    async def close(self) -> None:
        """Give model and memory back."""
        await self._prepared.close()
        self._buffers.close()

    async def _execute(self, path: Path, request: hal.Request, *, measure: bool) -> ExecutionResult:
        return await execute(path, self._prepared, request, ExecutionConfig(measure=measure))

    def _read(self, result: ExecutionResult) -> Outputs:
        """The outputs in the shapes that the device reports, where they are those expected."""
        shapes = result.output_shapes
        if shapes or not self._specified:
            fault = self._shapes_fault(shapes, too_small=False)
            if fault:
                raise Fault(fault)
        return tuple(
            self._buffers.output(position, output.value.shape)
            for position, output in enumerate(self.case.outputs)
        )

    def _shapes_fault(self, shapes: Sequence[OutputShape], *, too_small: bool) -> str:
        outputs = self.case.outputs
        if len(shapes) != len(outputs):
            return f"{len(shapes)} output shapes, expected {len(outputs)}"
        for position, (shape, output) in enumerate(zip(shapes, outputs, strict=True)):
            given, expected = list(shape.dimensions), list(output.value.shape)
            if given != expected and not (too_small and _agree_where_known(given, expected)):
                return f"output {position} has shape {given}, expected {expected}"
            if shape.is_sufficient == (too_small and position == 0):
                said = "large enough" if shape.is_sufficient else "too small"
                return f"output {position} is said to be {said}, which is wrong"
        return ""

    def _judge_distribution(self, drawn: Array, tolerance: float) -> None:
        logits = self.case.inputs[0] if self.case.inputs else None
        if logits is None:
            raise Fault("a distribution is expected, but of no input")
        fault = compare_distribution(drawn, logits, tolerance).fault
        if fault:
            raise Fault(f"output 0: frequencies: {fault}")


def _agree_where_known(given: Sequence[int], expected: Sequence[int]) -> bool:
    """Returns whether shapes are the same but for dimensions that are 0 in the expected one."""
    return len(given) == len(expected) and all(
        b in (0, a) for a, b in zip(given, expected, strict=True)
    )


def error_text(error: BaseException) -> str:
    """An error in words; one that is none of `errors` shows by its name."""
    if isinstance(error, Fault):
        return str(error)
    return f"{type(error).__name__}: {error}"
