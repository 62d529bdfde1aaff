"""Runs one case on one device, in all its forms and over the paths asked for.

A case that is to succeed is run as given; with dynamic output shapes, then also with a first output
that is too small, which must be told; and as its signed twin, whose results must be those of the
unsigned case, shifted. A case that is to fail must be refused, or fail when executed: the device
has to say so by an error of `errors`. A device that says, from the model alone, that it cannot run
an operation of the main subgraph does not support the case; once it has said that it can,
everything else is a failure.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio
from msgspec import structs

from nnasync._core.accuracy import compare, computes_in_half, golden_criterion
from nnasync._core.clock import now_ns
from nnasync._core.engine_device.reasons import explained
from nnasync._core.runtime import CompileOptions, Runtime
from nnasync.conformance.cases import Case
from nnasync.conformance.lowerings import InLowering, ways
from nnasync.conformance.paths import CaseBuffers, Path, execute
from nnasync.conformance.reloading import reload
from nnasync.conformance.results import CaseOutcome, CaseResult, Run, Variant
from nnasync.conformance.trial import CaseTrial, Fault, Outputs, error_text
from nnasync.conformance.variants import (
    has_exact_twin,
    shifted,
    signed_twin,
    with_dynamic_outputs,
)
from nnasync.device import Device, PreparedModel
from nnasync.errors import InvalidArgument, MissedDeadline, NNError
from nnasync.extensions import operation_label
from nnasync.hal import DEFAULT_LOOP_TIMEOUT_NS, ExecutionConfig, OperandType, OperationType, Timing

LIMIT_S = 120.0
"""A device that needs longer for one case hangs."""

NO_CACHE = "the device has no compilation cache"
NOT_KEPT = "the device does not keep this compilation"

_TOLD_REASONS = 3
_WAITING = CompileOptions(wait="best")
_ENDLESS_LOOP_TIMEOUT_NS = 1_000_000


class Runner:
    """Runs cases on one device of a runtime, one at a time.

    With `timing`, every execution is made with and without measuring. With `exact_coupling`, signed
    twins must give the very same results where they can, else results within the tolerance. With a
    `lowering`, the device runs the cases in that, or in `lowerings.ALL` that it offers for each.
    """

    def __init__(
        self,
        runtime: Runtime,
        device: Device,
        *,
        paths: Sequence[Path] = (Path.SYNC,),
        timing: bool = False,
        exact_coupling: bool = False,
        lowering: str | None = None,
    ) -> None:
        self._runtime = runtime
        self._lowering = lowering
        self._device = device
        self._paths = [path for path in Path if path in paths]
        self._measures = (False, True) if timing else (False,)
        self._exact_coupling = exact_coupling

    async def run(self, case: Case) -> CaseResult:
        """Run a case in all its forms; raises nothing that a device does."""
        started_ns = now_ns()
        runs: list[Run] = []
        try:
            with anyio.fail_after(LIMIT_S):
                if case.expect_failure:
                    await self._to_fail(case, runs)
                else:
                    await self._each_way(case, runs)
        except MissedDeadline as error:
            runs.append(_failed(error_text(error)))
        except TimeoutError:
            runs.append(_failed(f"no answer within {LIMIT_S:g} s"))
        except Exception as error:
            runs.append(_failed(error_text(error)))
        return CaseResult(
            case.name,
            case.spec,
            case.source,
            _counted(case, runs),
            _outcome(runs),
            now_ns() - started_ns,
            tuple(runs),
        )

    # -- cases that are to succeed

    async def _each_way(self, case: Case, runs: list[Run]) -> None:
        """Run the case in every lowering that is asked for."""
        whole = self._device
        try:
            for device in await ways(whole, case.model, self._lowering):
                self._device, begun = device, len(runs)
                await self._all(case, runs)
                if isinstance(device, InLowering):
                    runs[begun:] = [
                        structs.replace(r, lowering=device.lowering) for r in runs[begun:]
                    ]
        finally:
            self._device = whole

    async def _all(self, case: Case, runs: list[Run]) -> None:
        begun = len(runs)
        unsigned = await self._variant(case, Variant.AS_GIVEN, runs)
        if runs[begun].outcome is CaseOutcome.UNSUPPORTED:
            return
        dynamic = with_dynamic_outputs(case)
        if dynamic is not None:
            await self._variant(dynamic, Variant.DYNAMIC, runs)
        twin = signed_twin(case)
        if twin is not None:
            await self._coupling(case, twin, unsigned, runs)

    async def _variant(self, case: Case, variant: Variant, runs: list[Run]) -> dict[Path, Outputs]:
        """Run one form over all paths; returns the outputs of each path that gave some."""
        prepared = await self._prepared(case, variant, runs)
        if prepared is None:
            return {}
        trial = CaseTrial(case, variant, prepared)
        try:
            for path in self._paths:
                if path is Path.CACHED:
                    runs.extend(await self._from_cache(trial))
                    continue
                for measure in self._measures:
                    if path is Path.RUNTIME:
                        runs.append(await self._through_runtime(trial, measure=measure))
                    else:
                        runs.append(await trial.run(path, measure=measure))
                if variant is Variant.DYNAMIC and path not in (Path.FENCED, Path.RUNTIME):
                    runs.extend(await trial.run_too_small(path))
        finally:
            await trial.close()
        return trial.outputs

    async def _prepared(
        self, case: Case, variant: Variant, runs: list[Run]
    ) -> PreparedModel | None:
        step = "get_supported_operations"
        try:
            missing, why = await self._unsupported(case)
            if missing:
                runs.append(Run(variant, CaseOutcome.UNSUPPORTED, reason=why, missing=missing))
                return None
            step = "prepare_model"
            return await self._device.prepare_model(case.model)
        except Exception as error:
            runs.append(Run(variant, CaseOutcome.FAILED, reason=f"{step}: {error_text(error)}"))
            return None

    async def _unsupported(self, case: Case) -> tuple[tuple[str, ...], str]:
        """Names of the operations that the device says it cannot run, and why."""
        model = case.model
        answers = await self._device.get_supported_operations(model)
        if len(answers) != len(model.main.operations):
            raise Fault(f"{len(answers)} answers for {len(model.main.operations)} operations")
        reasons = await explained(self._device, model, answers)
        missing = [
            operation_label(model.extension_name_to_prefix, operation.type)
            for operation, reason in zip(model.main.operations, reasons, strict=True)
            if reason
        ]
        error_text = dict.fromkeys(reason for reason in reasons if reason)
        return tuple(dict.fromkeys(missing)), "; ".join([*error_text][:_TOLD_REASONS])

    async def _through_runtime(self, trial: CaseTrial, *, measure: bool) -> Run:
        try:
            net = await self._runtime.compile(
                trial.case.model, devices=[self._device], options=_WAITING
            )
            try:
                inputs = trial.case.inputs
                value, timing = (
                    await net.measured(*inputs) if measure else (await net(*inputs), Timing())
                )
            finally:
                await net.close()
            outputs = value if isinstance(value, tuple) else (value,)
            trial.judge(Path.RUNTIME, outputs, timing, measure=measure)
        except Exception as error:
            return trial.failed(Path.RUNTIME, error, measure=measure)
        return Run(trial.variant, CaseOutcome.PASSED, Path.RUNTIME, measure)

    async def _from_cache(self, trial: CaseTrial) -> list[Run]:
        """Runs on the model as it comes from its compilation cache, if the device has caching."""
        case, variant = trial.case, trial.variant
        try:
            if await self._device.get_number_of_cache_files_needed() == (0, 0):
                return [Run(variant, CaseOutcome.UNSUPPORTED, Path.CACHED, reason=NO_CACHE)]
            prepared = await reload(self._device, case.model)
            if prepared is None:
                return [Run(variant, CaseOutcome.UNSUPPORTED, Path.CACHED, reason=NOT_KEPT)]
            reloaded = CaseTrial(case, variant, prepared)
        except Exception as error:
            return [trial.failed(Path.CACHED, error, measure=False)]
        try:
            runs = [await reloaded.run(Path.CACHED, measure=each) for each in self._measures]
            trial.outputs.update(reloaded.outputs)
            return runs
        finally:
            await reloaded.close()

    async def _coupling(
        self, case: Case, twin: Case, unsigned: dict[Path, Outputs], runs: list[Run]
    ) -> None:
        begun = len(runs)
        signed = await self._variant(twin, Variant.SIGNED, runs)
        if runs[begun:] and runs[begun].outcome is CaseOutcome.UNSUPPORTED and not self._lowering:
            reason = "the device takes the unsigned case, but not its signed twin"
            runs[begun] = Run(Variant.SIGNED, CaseOutcome.FAILED, reason=reason)
        for path in signed.keys() & unsigned.keys():
            fault = self._coupling_fault(case, unsigned[path], signed[path])
            if fault:
                reason = f"signed against unsigned: {fault}"
                runs.append(Run(Variant.SIGNED, CaseOutcome.FAILED, path, reason=reason))

    def _coupling_fault(self, case: Case, unsigned: Outputs, signed: Outputs) -> str:
        half = computes_in_half(case.model)
        exact = self._exact_coupling and has_exact_twin(case.model)
        for output, plain, other in zip(case.outputs, unsigned, signed, strict=True):
            moved = shifted(other) if output.type == OperandType.TENSOR_QUANT8_ASYMM else other
            if output.ignored or moved.tobytes() == plain.tobytes():
                continue
            criterion = golden_criterion(output.type, half=half, test=case.name)
            fault = compare(moved, plain, output.type, criterion).fault
            if fault or exact:
                return f"output {output.name!r}: {fault or 'not the same bytes'}"
        return ""

    # -- cases that are to fail

    async def _to_fail(self, case: Case, runs: list[Run]) -> None:
        supported, refusal = await self._refusal(case)
        if refusal is not None and not isinstance(refusal, InvalidArgument):
            runs.append(_failed(f"get_supported_operations: {error_text(refusal)}"))
            return
        try:
            prepared = await self._device.prepare_model(case.model)
        except InvalidArgument as error:
            runs.append(Run(Variant.AS_GIVEN, CaseOutcome.PASSED, reason=error_text(error)))
        except NNError as error:
            known = supported or refusal is not None
            outcome = CaseOutcome.PASSED if known else CaseOutcome.UNSUPPORTED
            runs.append(Run(Variant.AS_GIVEN, outcome, reason=error_text(error)))
        except Exception as error:
            runs.append(_failed(f"prepare_model: {error_text(error)}"))
        else:
            try:
                if refusal is not None:
                    runs.append(
                        _failed("prepare_model takes what get_supported_operations refused")
                    )
                elif not supported:
                    runs.append(Run(Variant.AS_GIVEN, CaseOutcome.UNSUPPORTED))
                else:
                    await self._to_fail_at_execution(case, prepared, runs)
            finally:
                await prepared.close()

    async def _refusal(self, case: Case) -> tuple[bool, Exception | None]:
        """Returns whether the device says that it supports a model, or how it refuses to say."""
        try:
            return not (await self._unsupported(case))[0], None
        except Exception as error:
            return False, error

    async def _to_fail_at_execution(
        self, case: Case, prepared: PreparedModel, runs: list[Run]
    ) -> None:
        """An endless loop ends by its timeout, which a burst cannot ask for."""
        endless = any(each.type == OperationType.WHILE for each in case.model.main.operations)
        expected: type[NNError] = MissedDeadline if endless else NNError
        timeout_ns = _ENDLESS_LOOP_TIMEOUT_NS if endless else DEFAULT_LOOP_TIMEOUT_NS
        buffers = CaseBuffers(case)
        for path in [each for each in self._paths if each is not Path.CACHED] or [Path.SYNC]:
            if endless and path is Path.BURST:
                continue
            outcome, reason = CaseOutcome.FAILED, "must fail, but succeeded"
            try:
                if path is Path.RUNTIME:
                    await self._run_net(case, timeout_ns if endless else None)
                else:
                    request = buffers.request()
                    config = ExecutionConfig(loop_timeout_ns=timeout_ns)
                    await execute(path, prepared, request, config)
            except expected as error:
                outcome, reason = CaseOutcome.PASSED, error_text(error)
            except Exception as error:
                reason = f"must fail with {expected.__name__}, not {error_text(error)}"
            runs.append(Run(Variant.AS_GIVEN, outcome, path, reason=reason))
        buffers.close()

    async def _run_net(self, case: Case, loop_timeout_ns: int | None) -> None:
        """Compile and run; only a launch can be given a loop timeout."""
        net = await self._runtime.compile(case.model, devices=[self._device], options=_WAITING)
        try:
            if loop_timeout_ns is None:
                await net(*case.inputs)
                return
            timeout_s = loop_timeout_ns / 1e9
            with await net.launch(*case.inputs, loop_timeout_s=timeout_s) as execution:
                await execution.result()
        finally:
            await net.close()


def _counted(case: Case, runs: Sequence[Run]) -> tuple[str, ...]:
    """The operations to count a case under: an unsupported one under what is not supported."""
    missing = runs[0].missing if runs else ()
    return missing or case.operations


def _outcome(runs: Sequence[Run]) -> CaseOutcome:
    if any(run.outcome is CaseOutcome.FAILED for run in runs):
        return CaseOutcome.FAILED
    return runs[0].outcome if runs else CaseOutcome.FAILED


def _failed(reason: str) -> Run:
    return Run(Variant.AS_GIVEN, CaseOutcome.FAILED, reason=reason)
