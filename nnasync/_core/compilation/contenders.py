"""The ways to run a whole model on devices: each device, with each of its lowerings.

A contender prepares itself, runs trials, and then becomes the prepared model or is discarded.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

from nnasync._core.clock import Deadline
from nnasync._core.compilation.caching import CompilationCache, prepare_cached
from nnasync._core.compilation.choice import WHOLE, Choice, Part, tell_lowering
from nnasync._core.compilation.report import Partition, Report
from nnasync._core.compilation.spec import CompileSpec
from nnasync._core.compilation.verdicts import QUIET, Circumstances
from nnasync._core.deferred import deferred
from nnasync._core.engine_device import EngineDevice
from nnasync._core.plans.adaptive import AdaptivePlan
from nnasync._core.plans.staged import StagedPlan
from nnasync._core.wakeup import in_thread
from nnasync.device import Device, PreparedModel
from nnasync.engine import Lowering, Plan
from nnasync.errors import BadState
from nnasync.hal import Model

if TYPE_CHECKING:
    from nnasync._core.compilation import trials
    from nnasync._core.compilation.trials import Trial
else:
    trials = deferred("nnasync._core.compilation.trials")


class Contender(Protocol):
    """A way to run the whole model."""

    @property
    def spec(self) -> CompileSpec:
        """What it is to run, and how."""

    @property
    def name(self) -> str:
        """The device, or several joined by "+"."""

    @property
    def device(self) -> Device:
        """The device that holds the prepared model."""

    @property
    def family(self) -> tuple[str, str]:
        """Contenders of one family differ in their numbers of threads only."""

    @property
    def choice(self) -> Choice:
        """What reproduces this contender."""

    @property
    def lowering(self) -> str:
        """In words, how the device runs it."""

    @property
    def is_reduced(self) -> bool:
        """Whether floats are computed with less than float32 since the application asked for it."""

    async def prepare(self, deadline: Deadline | None) -> None:
        """Compile; raises what the device raises."""

    def trial(self) -> Trial:
        """A trial of what was prepared."""

    def finish(self) -> PreparedModel:
        """What was prepared, to be executed."""

    def partitions(self, reason: str) -> tuple[Partition, ...]:
        """Which operations run where."""

    def shares(self) -> list[Share]:
        """What devices over engines have prepared; none where the plans cannot be told apart."""

    async def discard(self) -> None:
        """Give back what was prepared."""


@runtime_checkable
class PlanContender(Contender, Protocol):
    """A contender that runs in this process."""

    def plan(self) -> Plan:
        """What was prepared, as a plan."""


class Chosen(msgspec.Struct, frozen=True):
    """A contender that was chosen, and why.

    `median_ns` of a run is known where it was measured, under these `circumstances`. Not final is
    what another compilation should not just repeat. `report` is there when the contender is ready
    to finish; `staged` is its plan where another one may follow.
    """

    contender: Contender
    reason: str
    median_ns: float | None = None
    is_final: bool = True
    circumstances: Circumstances = QUIET
    report: Report = Report()
    staged: StagedPlan | None = None


class Share(msgspec.Struct, frozen=True):
    """What one device has of a model: a step, by its number, and how it runs it."""

    number: int
    device: EngineDevice
    lowering: Lowering | None
    model: Model
    operations: tuple[int, ...]
    plan: Plan | None

    @property
    def part(self) -> Part:
        """The device with its lowering."""
        return Part.of(self.device, self.lowering)


class _Whole:
    """What contenders have in common that run the model on one device."""

    def __init__(self, device: Device, spec: CompileSpec, lowering: Lowering | None) -> None:
        self.spec = spec
        self._device = device
        self._lowering = lowering

    @property
    def name(self) -> str:
        """Name of the device."""
        return self._device.name

    @property
    def device(self) -> Device:
        """The device."""
        return self._device

    @property
    def lowering(self) -> str:
        """Name and number of threads of the lowering."""
        return tell_lowering(self._lowering)

    @property
    def is_reduced(self) -> bool:
        """As the lowering says; a relaxed model alone asks for no less than float16."""
        if self._lowering is None or self.spec.precision != "bf16":
            return False
        relaxed = self.spec.model.relax_computation_float32_to_float16
        return self._lowering.reduces_precision or relaxed

    @property
    def family(self) -> tuple[str, str]:
        """Device and name of the lowering."""
        return self.name, WHOLE if self._lowering is None else self._lowering.name

    @property
    def choice(self) -> Choice:
        """Device and lowering."""
        return Choice((Part.of(self._device, self._lowering),))

    def partitions(self, reason: str) -> tuple[Partition, ...]:
        """All operations run here."""
        count = len(self.spec.model.main.operations)
        return (Partition(self._device.name, tuple(range(count)), reason),)


class EngineContender(_Whole):
    """A device over an engine, with one of its lowerings."""

    def __init__(
        self,
        device: EngineDevice,
        spec: CompileSpec,
        lowering: Lowering | None,
        plan: Plan | None = None,
    ) -> None:
        """`plan` is there where it need not be compiled any more."""
        super().__init__(device, spec, lowering)
        self._engine_device = device
        self._plan = plan
        self._narrow: tuple[Lowering | None, Plan] | None = None
        self._partitions: tuple[Partition, ...] = ()

    @property
    def engine_lowering(self) -> Lowering | None:
        """The lowering; None if the engine knows one way only."""
        return self._lowering

    @property
    def engine_device(self) -> EngineDevice:
        """The device, as one over an engine."""
        return self._engine_device

    async def narrow_when_busy(self, other: EngineContender, deadline: Deadline | None) -> None:
        """Let runs beside others take the form of `other`, the same with fewer threads."""
        if other._plan is None:
            await other.prepare(deadline)
        self._narrow = other.engine_lowering, other._open_plan()

    def narrow_later(self) -> AdaptivePlan:
        """Replace the plan by one that can switch to a single-threaded form, added later."""
        workers = self._engine_device.workers
        plan = AdaptivePlan(self._open_plan(), None, lambda: workers.is_busy)
        self._plan = plan
        return plan

    def shares(self) -> list[Share]:
        """The plan, and the one beside it, each with its lowering; none if it is in parts."""
        if self._partitions:
            return []
        plans = [(self._lowering, self._open_plan()), *filter(None, [self._narrow])]
        device, model = self._engine_device, self.spec.model
        return [Share(0, device, lowering, model, (), plan) for lowering, plan in plans]

    def plan(self) -> Plan:
        """What finishes: the plan, in both forms where it has two, and falling back if it may."""
        plan = self._open_plan()
        if isinstance(plan, StagedPlan):
            return plan
        if self._narrow is not None:
            workers = self._engine_device.workers
            plan = AdaptivePlan(plan, self._narrow[1], lambda: workers.is_busy)
        fallbacks = self.spec.fallbacks
        if fallbacks is None:
            return plan
        kind = "full" if self._partitions else "partial"
        return fallbacks.guarded(plan, self.spec.model.name, self.name, kind=kind)

    def stage(self, *, ripe_after: int = 0) -> StagedPlan:
        """Have a plan finish that can be replaced while it is in use; it is returned."""
        staged = StagedPlan(self.plan(), ripe_after=ripe_after)
        self._plan, self._narrow = staged, None
        return staged

    def replace_plan(self, plan: Plan, partitions: tuple[Partition, ...]) -> None:
        """Have another plan of the same model and engine, in parts, finish in place of this one."""
        self._plan, self._narrow = plan, None
        self._partitions = partitions

    def partitions(self, reason: str) -> tuple[Partition, ...]:
        """All operations, or the parts of the plan that came in place of the first."""
        return self._partitions or super().partitions(reason)

    async def prepare(self, deadline: Deadline | None) -> None:
        """Compile a plan on a thread."""
        spec = self.spec
        self._plan = await self._engine_device.compile_plan(
            spec.model, spec.preference, deadline, self._lowering
        )

    def trial(self) -> Trial:
        """Runs of the bare plan."""
        return trials.EngineTrial(self._device.name, self.spec.model, self._open_plan())

    def finish(self) -> PreparedModel:
        """The plan as a prepared model of the device."""
        spec = self.spec
        health = None if spec.fallbacks is None else spec.fallbacks.health
        return self._engine_device.adopt(spec.model, self.plan(), spec.priority, health=health)

    async def discard(self) -> None:
        """Drop the plan, on a thread."""
        held = [self._plan, self._narrow]
        self._plan = self._narrow = None
        await let_go(held)

    def _open_plan(self) -> Plan:
        if self._plan is None:
            raise BadState(f"{self._device.name} has prepared nothing")
        return self._plan


class OutsideContender(_Whole):
    """A device that is no engine of this process."""

    def __init__(
        self,
        device: Device,
        spec: CompileSpec,
        lowering: Lowering | None = None,
        prepared: PreparedModel | None = None,
    ) -> None:
        """`prepared` is there where it need not be prepared any more."""
        super().__init__(device, spec, lowering)
        self._prepared = prepared
        self.cache: CompilationCache | None = None

    async def prepare(self, deadline: Deadline | None) -> None:
        """Prepare on the device."""
        self._prepared = await prepare_cached(
            self._device, self.spec, self._lowering, deadline, self.cache
        )

    def shares(self) -> list[Share]:
        """Nothing that can be told apart."""
        return []

    def trial(self) -> Trial:
        """Executions of the prepared model."""
        return trials.OutsideTrial(self._device.name, self.spec.model, self._open())

    def finish(self) -> PreparedModel:
        """The prepared model, falling back if it may."""
        spec, prepared = self.spec, self._open()
        if spec.fallbacks is None:
            return prepared
        return spec.fallbacks.outside(prepared, spec.model, self.name, spec.priority)

    async def discard(self) -> None:
        """Close the prepared model."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            await prepared.close()

    def _open(self) -> PreparedModel:
        if self._prepared is None:
            raise BadState(f"{self._device.name} has prepared nothing")
        return self._prepared


async def let_go(things: MutableSequence[Any]) -> None:
    """Destroy a list of objects, such as plans, on a thread, because that can be slow."""
    if things:
        await in_thread(things.clear, "nnasync-letting-go", enters_engine=True)
