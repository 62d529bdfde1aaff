"""The device under test with its subjects, each prepared once and run once to know its outputs."""

from __future__ import annotations

from collections.abc import Sequence

from nnasync import hal
from nnasync._core.accuracy import compare, computes_in_half, golden_criterion
from nnasync._core.engine_device.reasons import explained
from nnasync._core.validation import compliant_with
from nnasync.conformance.cases import Case
from nnasync.conformance.hal_suite.check import Skipped
from nnasync.conformance.paths import CaseBuffers, Path, execute
from nnasync.conformance.trial import Fault, Outputs
from nnasync.device import Device, PreparedModel
from nnasync.hal import (
    DEFAULT_CONFIG,
    NOT_AVAILABLE,
    ExecutionConfig,
    ExecutionResult,
    Model,
    Request,
    Timing,
)

PATHS = (Path.ASYNC, Path.SYNC, Path.BURST, Path.FENCED)
"""The paths of a prepared model."""


class Ready:
    """A subject on the device: its prepared model, its memory, the outputs of its first run."""

    def __init__(self, case: Case, prepared: PreparedModel) -> None:
        self.case = case
        self.prepared = prepared
        self.buffers = CaseBuffers(case)
        self.request = self.buffers.request()
        operands = [case.model.main.operands[index] for index in case.model.main.output_indexes]
        self._is_specified = all(hal.is_fully_specified(o.type, o.dimensions) for o in operands)
        self._half = computes_in_half(case.model)
        self._golden: Outputs | None = None

    def check_path(self, path: Path) -> None:
        """Raise Skipped where the subject cannot take a path."""
        if path is Path.FENCED and not self._is_specified:
            raise Skipped("a fenced execution needs outputs of known shape")

    async def run(self, path: Path = Path.SYNC, *, measure: bool = False) -> ExecutionResult:
        """Execute; raises Fault where the outputs are not those of the first run."""
        self.buffers.clear()
        result = await self.execute(path, self.request, ExecutionConfig(measure=measure))
        self.check_outputs()
        return result

    async def execute(
        self, path: Path, request: Request, config: ExecutionConfig = DEFAULT_CONFIG
    ) -> ExecutionResult:
        """Execute any request; raises what the device does."""
        return await execute(path, self.prepared, request, config)

    def outputs(self) -> Outputs:
        """Copies of what the outputs hold."""
        return tuple(
            self.buffers.output(position, output.value.shape)
            for position, output in enumerate(self.case.outputs)
        )

    def check_outputs(self) -> None:
        """Raise Fault where the outputs are not those of the first run."""
        outputs = self.outputs()
        if self._golden is None:
            self._golden = outputs
        self.compare(outputs, self._golden)

    def compare(self, given: Outputs, expected: Outputs) -> None:
        """Raise Fault where outputs differ by more than conformance tolerates."""
        for position, (one, other) in enumerate(zip(given, expected, strict=True)):
            output = self.case.outputs[position]
            criterion = golden_criterion(output.type, half=self._half, test=self.case.name)
            fault = "" if output.ignored else compare(one, other, output.type, criterion).fault
            if fault:
                raise Fault(f"output {position} is not that of the first run: {fault}")

    async def close(self) -> None:
        """Give model and memory back."""
        await self.prepared.close()
        self.buffers.close()


class Bench:
    """A device, what it is tried with, and how much of it.

    `subjects` are executed, `models` only changed and shown to the device. Only every n-th of the
    many mutations is tried, as `every` says. Races are run `rounds` times, and nothing else is done
    to cache files more often than that.
    """

    def __init__(
        self,
        device: Device,
        subjects: Sequence[Case],
        models: Sequence[Model] = (),
        *,
        every: int = 1,
        rounds: int = 100,
    ) -> None:
        self.device = device
        self.subjects = [each for each in subjects if self._knows(each.model)]
        self.models = [
            *(each.model for each in self.legal_subjects),
            *(model for model in models if self._knows(model)),
        ]
        self.every = every
        self.rounds = rounds
        self._prepared: dict[int, tuple[Case, PreparedModel]] = {}
        self._ready: dict[int, Ready] = {}
        self._refusals: dict[int, tuple[Model, str]] = {}

    @property
    def legal_subjects(self) -> list[Case]:
        """The subjects without those that are there to fail."""
        return [case for case in self.subjects if not case.expect_failure]

    async def ready(self, case: Case) -> Ready:
        """A subject on the device; raises Skipped where the device does not support it."""
        ready = self._ready.get(id(case))
        if ready is None:
            ready = self._ready[id(case)] = Ready(case, await self.prepared(case))
            await ready.run(Path.ASYNC)
        return ready

    async def prepared(self, case: Case) -> PreparedModel:
        """A case on the device, prepared once for all checks; raises Skipped likewise."""
        if id(case) not in self._prepared:
            await self.check_supported(case.model)
            self._prepared[id(case)] = case, await self.device.prepare_model(case.model)
        return self._prepared[id(case)][1]

    async def check_serves(self, case: Case, prepared: PreparedModel) -> None:
        """Raise Fault unless a prepared model gives the outputs that are known; closes it."""
        known = await self.ready(case)
        await known.run()
        expected = known.outputs()
        ready = Ready(case, prepared)
        try:
            await ready.run()
            ready.compare(ready.outputs(), expected)
        finally:
            await ready.close()

    async def check_supported(self, model: Model) -> None:
        """Raise Skipped where the device does not support a whole model."""
        answers = await self.device.get_supported_operations(model)
        if not all(answers):
            if id(model) not in self._refusals:
                self._refusals[id(model)] = model, await refusal(self.device, model, answers)
            raise Skipped(self._refusals[id(model)][1])

    async def close(self) -> None:
        """Give all prepared models back."""
        for number, (_, prepared) in self._prepared.items():
            await (self._ready.pop(number, None) or prepared).close()
        self._prepared.clear()

    def _knows(self, model: Model) -> bool:
        return compliant_with(self.device.feature_level, model)


async def refusal(device: Device, model: Model, answers: Sequence[bool]) -> str:
    """Returns which operation a device does not take first, on which types, and why."""
    operations, operands = model.main.operations, model.main.operands
    if len(answers) != len(operations):
        raise Fault(f"{len(answers)} answers for {len(operations)} operations")
    reasons = await explained(device, model, answers)
    index, reason = next((n, reason) for n, reason in enumerate(reasons) if reason)
    types = dict.fromkeys(hal.type_name(operands[n].type) for n in operations[index].inputs)
    error_text = f"model {model.name!r}, operation {index} on {', '.join(types) or 'nothing'}"
    return f"the device does not support {error_text}: {reason}"


def check_timing(timing: Timing, *, measure: bool) -> None:
    """Raise Fault for a timing nobody asked for, or longer on the device than in the driver."""
    device_ns, driver_ns = timing.time_on_device_ns, timing.time_in_driver_ns
    if not measure and (device_ns, driver_ns) != (NOT_AVAILABLE, NOT_AVAILABLE):
        raise Fault(f"timing was not asked for, but is {device_ns} and {driver_ns} ns")
    if NOT_AVAILABLE not in (device_ns, driver_ns) and device_ns > driver_ns:
        raise Fault(f"{device_ns} ns on the device within {driver_ns} ns in the driver")
