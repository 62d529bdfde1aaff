"""The HAL suite: right devices pass it, and what it looks for it finds."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from nnasync._core.drivers import DRIVERS, is_installed
from nnasync._core.runtime import Options, open_runtime, run
from nnasync._core.validation import validate_model
from nnasync.burst import BurstResult
from nnasync.conformance.hal_suite import (
    GROUPS,
    CheckResult,
    CheckVerdict,
    SuitePlan,
    SuiteReport,
    run_on,
    run_suite,
    suite,
)
from nnasync.conformance.hal_suite.mutations import KINDS, mutants
from nnasync.conformance.hal_suite.subjects import random_models, subjects
from nnasync.device import DEFAULT_PREPARE, Device, PrepareModelConfig
from nnasync.errors import (
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
    MissedDeadlineTransient,
)
from nnasync.hal import (
    DEFAULT_CONFIG,
    NEVER_NS,
    Capabilities,
    DeviceStatus,
    ExecutionResult,
    Model,
    OperandPerformance,
    OperandType,
    PerformanceInfo,
    Timing,
)

REFERENCE = "nnasync-reference"
COMPUTING = [name for name in DRIVERS if DRIVERS[name].computes]


def results_of(
    only: str, wrapped: Callable[[Device], Any], *, every: int = 1, rounds: int = 1
) -> list[CheckResult]:
    """What comes out of a part of the suite on a device that wraps the reference."""
    results: list[CheckResult] = []

    async def main() -> None:
        async with open_runtime(devices=[REFERENCE], options=Options(cores=1)) as runtime:
            device = wrapped(runtime.device(REFERENCE))
            plan = SuitePlan(REFERENCE, only=only, every=every, rounds=rounds)
            await run_on(device, plan, results.append)

    run(main)
    assert results
    return results


def failures(results: Sequence[CheckResult]) -> dict[str, str]:
    return {each.name: each.reason for each in results if each.verdict is CheckVerdict.FAILED}


# -- right devices


@pytest.mark.parametrize(
    "device",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name == "openvino-cpu" else [])
        for name in COMPUTING
    ],
)
def test_devices_pass(device: str) -> None:
    if not is_installed(device):
        pytest.skip(f"{device} needs a package that is not installed")
    report = SuiteReport()
    run(run_suite, SuitePlan(device, every=100, rounds=1), report.add)
    assert report.failures == []
    assert list(report.groups()) == list(GROUPS)
    assert all(counts.passed for counts in report.groups().values())


def test_cases_become_subjects(shared: Path) -> None:
    report = SuiteReport()
    cases = str(shared / "cts" / "V1_3.jsonl.gz")
    plan = SuitePlan(REFERENCE, only="requests/sync*", cases=cases)
    run(run_suite, plan, report.add)
    assert report.failures == []
    plain = SuiteReport()
    run(run_suite, SuitePlan(REFERENCE, only="requests/sync*"), plain.add)
    assert report.counts.passed > plain.counts.passed


# -- mutations


def test_what_is_mutated_is_legal() -> None:
    for model in [case.model for case in subjects()] + random_models():
        validate_model(model)


def test_every_kind_makes_mutants() -> None:
    made = Counter(kind for case in subjects() for kind in KINDS for _ in mutants(case.model, kind))
    assert set(made) == set(KINDS)


def test_referenced_subgraphs_are_mutated_as_well() -> None:
    conditional = next(case.model for case in subjects() if case.name == "IF")
    places = [mutant.what.split(",")[0] for mutant in mutants(conditional, "operand scale")]
    assert {"referenced subgraph 0", "referenced subgraph 1"} <= set(places)


# -- devices that lie


class Liar:
    """A device, or a prepared model, but for what a subclass says otherwise."""

    def __init__(self, true: Any) -> None:
        self.true = true

    def __getattr__(self, name: str) -> Any:
        return getattr(self.true, name)


class LyingModels(Liar):
    """A device whose prepared models lie; `wrap` makes one of a true one."""

    def __init__(self, device: Device, wrap: Callable[[Any], Any]) -> None:
        super().__init__(device)
        self._wrap = wrap

    async def prepare_model(self, *arguments: Any, **options: Any) -> Any:
        return self._wrap(await self.true.prepare_model(*arguments, **options))


class Credulous(Liar):
    """Takes every model."""

    async def get_supported_operations(self, model: Model) -> tuple[bool, ...]:
        return (True,) * len(model.main.operations)

    async def prepare_model(self, *arguments: Any, **options: Any) -> Any:
        try:
            return await self.true.prepare_model(*arguments, **options)
        except InvalidArgument:
            return None


def test_a_device_that_takes_every_model() -> None:
    results = results_of("models", Credulous, every=150)
    assert {each.verdict for each in results} == {CheckVerdict.FAILED}
    assert all("must be refused with InvalidArgument" in each.reason for each in results)
    assert "cycle of operations" in failures(results_of("basics", Credulous))


async def bare(*arguments: Any, **options: Any) -> Any:
    raise RuntimeError("oops")


def test_a_device_that_fails_with_an_error_that_is_none_of_ours() -> None:
    class Crude(Liar):
        get_supported_operations = staticmethod(bare)

    results = results_of("models", Crude, every=500)
    assert "not RuntimeError: oops" in results[0].reason


def replaced(capabilities: Capabilities, **changes: Any) -> Capabilities:
    return msgspec.structs.replace(capabilities, **changes)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: replaced(c, if_performance=PerformanceInfo(0.0, 1.0)), "figures of IF"),
        (
            lambda c: replaced(c, operand_performance=c.operand_performance[::-1]),
            "not sorted by type",
        ),
        (
            lambda c: replaced(
                c, operand_performance=(OperandPerformance(OperandType.SUBGRAPH, c.if_performance),)
            ),
            "an entry for SUBGRAPH",
        ),
    ],
)
def test_wrong_capabilities(change: Callable[[Capabilities], Capabilities], reason: str) -> None:
    class Boaster(Liar):
        async def get_capabilities(self) -> Capabilities:
            return change(await self.true.get_capabilities())

    assert reason in failures(results_of("basics/capabilities", Boaster))["capabilities"]


def test_wrong_basics() -> None:
    class Odd(Liar):
        version = ""

        async def get_status(self) -> DeviceStatus:
            return DeviceStatus.BUSY

        async def get_number_of_cache_files_needed(self) -> tuple[int, int]:
            return (33, 0)

        async def get_supported_operations(self, model: Model) -> tuple[bool, ...]:
            return (*await self.true.get_supported_operations(model), True)

    error_text = failures(results_of("basics", Odd))
    assert {"status", "identity", "numbers of cache files"} <= set(error_text)
    assert error_text["supported operations of IF"] == "2 answers for 1 operations"


class Agreeable(Liar):
    """A prepared model."""

    async def execute_synchronously(self, *arguments: Any, **options: Any) -> ExecutionResult:
        """Says that all went well, with a timing."""
        try:
            await self.true.execute_synchronously(*arguments, **options)
        except InvalidArgument:
            pass
        return ExecutionResult(timing=Timing(7, 5))


def test_a_model_that_takes_every_request() -> None:
    error_text = failures(results_of("requests/sync/sum*", lambda d: LyingModels(d, Agreeable)))
    name = "sync/sum of two inputs"
    assert error_text[f"{name}: as it should be"] == "timing was not asked for, but is 7 and 5 ns"
    assert error_text[f"{name}: inputs[1] removed"].endswith("but is taken")
    assert error_text[f"{name}: no pools"].endswith("but is taken")


class Hasty(Liar):
    """A prepared model that, but for its first run, misses deadlines that nobody set."""

    tried = False

    async def execute(self, request: Any, config: Any = DEFAULT_CONFIG) -> ExecutionResult:
        if config.deadline_ns == NEVER_NS and self.tried:
            raise MissedDeadlineTransient("too late")
        self.tried = True
        result: ExecutionResult = await self.true.execute(request, config)
        return result


def test_a_model_that_misses_what_is_not_due() -> None:
    only = "quality of service/async*/sum*"
    error_text = failures(results_of(only, lambda device: LyingModels(device, Hasty)))
    assert list(error_text) == ["async, deadline unlimited/sum of two inputs"]


class Channel:
    """A result channel that changes the answers."""

    def __init__(self, channel: Any, change: Callable[[BurstResult], list[BurstResult]]) -> None:
        self._channel = channel
        self._change = change

    def send(self, message: bytes) -> None:
        answer = msgspec.msgpack.decode(message, type=BurstResult)
        for changed in self._change(answer):
            self._channel.send(msgspec.msgpack.encode(changed))


def with_answers(change: Callable[[BurstResult], list[BurstResult]]) -> Callable[[Device], Any]:
    class Bursting(Liar):
        async def configure_execution_burst(
            self, callback: Any, requests: Any, results: Any
        ) -> Any:
            changed = Channel(results, change)
            return await self.true.configure_execution_burst(callback, requests, changed)

    return lambda device: LyingModels(device, Bursting)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda answer: [answer, answer], "1 answers more than messages"),
        (lambda answer: [BurstResult(answer.serial)], "must be answered with an error"),
        (
            lambda answer: [msgspec.structs.replace(answer, time_on_device_ns=1)],
            "a timing is told with",
        ),
        (lambda answer: [BurstResult(answer.serial, 77)], "77 is no ErrorStatus"),
    ],
)
def test_bursts_that_answer_wrongly(
    change: Callable[[BurstResult], list[BurstResult]], reason: str
) -> None:
    results = results_of("bursts/sum of two inputs: arguments cut*", with_answers(change), every=60)
    # Whether it begins with an error or with what the subject needs first, something is wrong.
    assert any(reason in error_text for error_text in failures(results).values())


def test_what_is_skipped_names_model_operation_types_and_reason() -> None:
    """A device that takes MUL, but not of float16, is not said to lack MUL."""

    class NoHalves(Liar):
        async def get_supported_operations(self, model: Model) -> tuple[bool, ...]:
            operands = model.main.operands
            return tuple(
                operands[each.inputs[0]].type != OperandType.TENSOR_FLOAT16
                for each in model.main.operations
            )

        async def why_not(self, model: Model) -> list[str | None]:
            return ["no half floats"] * len(model.main.operations)

    results = results_of("quality of service/*", NoHalves)
    skipped = {each.reason for each in results if each.verdict is CheckVerdict.SKIPPED}
    error_text = (
        "the device does not support model 'float16', operation 0 on TENSOR_FLOAT16, INT32: "
        "MUL: no half floats"
    )
    assert error_text in skipped


def test_a_device_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Liar):
        async def get_status(self) -> DeviceStatus:
            await anyio.sleep_forever()
            raise DeviceUnavailable("never")

    monkeypatch.setattr(suite, "LIMIT_S", 0.01)
    assert failures(results_of("basics/status", Silent)) == {"status": "no answer within 0.01 s"}


class Trusting(Liar):
    """A cache of models by a number that stands in the file, which nobody looks at twice."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._models: list[Model] = []

    async def get_number_of_cache_files_needed(self) -> tuple[int, int]:
        return (1, 0)

    async def prepare_model(
        self, model: Model, config: PrepareModelConfig = DEFAULT_PREPARE
    ) -> Any:
        for fd in config.model_cache:
            self._models.append(model)
            try:
                os.pwrite(fd, bytes([len(self._models) - 1]), 0)
            except OSError:
                continue
        return await self.true.prepare_model(model, replace(config, model_cache=(), data_cache=()))

    async def prepare_model_from_cache(self, config: PrepareModelConfig) -> Any:
        if len(config.model_cache) != 1:
            raise InvalidArgument("one file")
        try:
            content = os.pread(config.model_cache[0], 1, 0)
        except OSError as error:
            raise GeneralFailure("not to be read") from error
        if not content:
            raise GeneralFailure("empty")
        return await self.true.prepare_model(self._models[content[0] % len(self._models)])


def test_a_device_that_trusts_its_cache_files() -> None:
    error_text = failures(results_of("caching/*/sum of two inputs", Trusting))
    assert {name.partition("/")[0] for name in error_text} == {
        "model cache damaged",
        "other token",
        "replaced",
        "wrong numbers of files",
    }


def test_a_device_without_a_cache() -> None:
    class Without(Liar):
        async def get_number_of_cache_files_needed(self) -> tuple[int, int]:
            return (0, 0)

        async def prepare_model_from_cache(self, *arguments: Any) -> Any:
            raise GeneralFailure("no compilation cache")

    results = results_of("caching", Without)
    assert Counter(each.verdict for each in results) == {
        CheckVerdict.PASSED: 1,
        CheckVerdict.SKIPPED: len(results) - 1,
    }


# -- memory domains


class LyingBuffers(Liar):
    """A device whose buffers lie; `wrap` makes one of a true one."""

    def __init__(self, device: Device, wrap: Callable[[Any], Any]) -> None:
        super().__init__(device)
        self._wrap = wrap

    async def allocate(self, *arguments: Any) -> Any:
        return self._wrap(await self.true.allocate(*arguments))


class Careless(Liar):
    """A buffer that forgives whatever is copied, and never fails to have something."""

    async def copy_from(self, *arguments: Any) -> None:
        try:
            await self.true.copy_from(*arguments)
        except InvalidArgument:
            pass

    async def copy_to(self, *arguments: Any) -> None:
        try:
            await self.true.copy_to(*arguments)
        except (InvalidArgument, GeneralFailure):
            pass


def test_buffers_that_take_everything() -> None:
    error_text = failures(results_of("memory domains/copy/*", lambda d: LyingBuffers(d, Careless)))
    for what in ("wrong sizes", "not initialized", "wrong dimensions"):
        assert error_text[f"copy/float32: {what}"].endswith("but is taken")
    assert "copy/quant8 of open shape: dimensions" in error_text


class Mixed(Liar):
    """A buffer whose contents change on the way out."""

    async def copy_to(self, memory: Any) -> None:
        await self.true.copy_to(memory)
        memory.view[-1] ^= 0x40


def test_buffers_that_hold_something_else() -> None:
    only = "memory domains/*all in buffers"
    error_text = failures(results_of(only, lambda d: LyingBuffers(d, Mixed)))
    reason = error_text["execute/sync/choice by comparison: all in buffers"]
    assert reason.startswith("output 0 is not that of the first run")


def test_a_device_that_allocates_anything() -> None:
    class Lax(Liar):
        async def allocate(self, *arguments: Any) -> Any:
            return object()

    results = results_of("memory domains/allocate/*", Lax)
    assert len(failures(results)) == len(results) > 50


def test_a_device_without_buffers() -> None:
    class Without(Liar):
        async def allocate(self, *arguments: Any) -> Any:
            await self.true.allocate(*arguments)
            raise GeneralFailure("no buffers")

    verdicts = Counter(each.verdict for each in results_of("memory domains", Without))
    assert set(verdicts) == {CheckVerdict.PASSED, CheckVerdict.SKIPPED}
    assert verdicts[CheckVerdict.SKIPPED] > verdicts[CheckVerdict.PASSED] > 50
