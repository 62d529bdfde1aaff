"""The ways to run a whole model on devices: each device, with each of its lowerings.

A contender prepares itself, runs trials, and then becomes the prepared model or is discarded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import MutableSequence, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from nnasync._core.clock import Deadline
from nnasync._core.compilation.choice import WHOLE, Choice, Part, tell_lowering
from nnasync._core.compilation.report import Partition, Report
from nnasync._core.compilation.spec import CompileSpec
from nnasync._core.compilation.verdicts import QUIET, Circumstances
from nnasync._core.deferred import deferred
from nnasync._core.engine_device import EngineDevice, PlanTerms
from nnasync._core.plans.adaptive import AdaptivePlan
from nnasync._core.plans.limited import limited
from nnasync._core.plans.staged import StagedPlan
from nnasync._core.wakeup import in_thread
from nnasync.device import Device, PreparedModel
from nnasync.engine import Lowering, Plan
from nnasync.errors import BadState
from nnasync.hal import Model

if TYPE_CHECKING:
    from nnasync._core.compilation import caching, trials
    from nnasync._core.compilation.caching import CompilationCache
    from nnasync._core.compilation.trials import Trial
else:
    caching = deferred("nnasync._core.compilation.caching")
    trials = deferred("nnasync._core.compilation.trials")

T = TypeVar("T")


class Contender(ABC):
    """Represents a way to run the whole model: devices, each with the lowering of its part."""

    def __init__(self, spec: CompileSpec, parts: Sequence[tuple[Device, Lowering | None]]) -> None:
        """`spec` is what it is to run, and how; the first of `parts` leads."""
        self.spec = spec
        self._parts = tuple(parts)

    @property
    def name(self) -> str:
        """Returns the name of the device, or those of several joined by "+"."""
        return "+".join(device.name for device, _ in self._parts)

    @property
    def device(self) -> Device:
        """Returns the device that holds the prepared model."""
        return self._parts[0][0]

    @property
    def family(self) -> tuple[str, str]:
        """Contenders of one family differ in their numbers of threads only."""
        lead = self._parts[0][1]
        return self.name, WHOLE if lead is None else lead.name

    @property
    def choice(self) -> Choice:
        """Returns the choice that reproduces this contender."""
        return Choice(tuple(Part.of(*part) for part in self._parts))

    @property
    def lowering(self) -> str:
        """Returns in words how the device runs the model."""
        return " + ".join(tell_lowering(way) for _, way in self._parts)

    @property
    def promise(self) -> int:
        """Returns how likely the devices take this contender for their fastest way."""
        return sum(way.promise for _, way in self._parts if way is not None)

    @property
    def is_reduced(self) -> bool:
        """Returns whether floats are computed in less than float32, as the application allows.

        A relaxed model alone asks for no less than float16.
        """
        relaxed = self.spec.model.relax_computation_float32_to_float16
        ways = [way for _, way in self._parts if way is not None]
        return self.spec.precision == "bf16" and any(relaxed or w.reduces_precision for w in ways)

    def partitions(self, reason: str) -> tuple[Partition, ...]:
        """Returns which operations run where."""
        count = len(self.spec.model.main.operations)
        return (Partition(self.name, tuple(range(count)), reason),)

    @abstractmethod
    async def prepare(self, deadline: Deadline | None) -> None:
        """Compile; raises what the device raises."""

    @abstractmethod
    def trial(self) -> Trial:
        """Returns a trial of what was prepared."""

    @abstractmethod
    def finish(self) -> PreparedModel:
        """Returns the prepared model, to be executed."""

    @abstractmethod
    async def discard(self) -> None:
        """Give back what was prepared, on a thread where that can be slow."""

    def _ready(self, prepared: T | None) -> T:
        if prepared is None:
            raise BadState(f"{self.name}: nothing was prepared")
        return prepared


class PlanContender(Contender):
    """Represents a contender that runs in this process."""

    _plan: Plan | None = None

    @abstractmethod
    def plan(self) -> Plan:
        """Returns the plan for `finish`, which falls back where that is allowed."""

    @abstractmethod
    def terms(self) -> PlanTerms:
        """Returns what the plan asks of who runs it."""

    @abstractmethod
    def shares(self) -> list[Share]:
        """Returns what each device has prepared; empty where the plans cannot be told apart."""

    def trial(self) -> Trial:
        """Returns a trial that runs the bare plan."""
        return trials.EngineTrial(self.name, self.spec.model, self._ready(self._plan))

    def _guarded(self, plan: Plan, kind: str) -> Plan:
        """Returns a plan of the whole model that falls back where that is allowed."""
        fallbacks = self.spec.fallbacks
        if fallbacks is None:
            return plan
        return fallbacks.guarded(plan, self.spec.model.name, self.name, kind=kind)


class Chosen(msgspec.Struct, frozen=True):
    """States which contender was chosen, and why.

    `median_ns` of a run is known where it was measured, under these `circumstances`. Not final is
    what another compilation should not just repeat. `report` is there when the contender is ready
    to finish; `staged` is its plan where another one may follow, `prepared` what it finished as,
    where it did.
    """

    contender: Contender
    reason: str
    median_ns: float | None = None
    is_final: bool = True
    circumstances: Circumstances = QUIET
    report: Report = Report()
    staged: StagedPlan | None = None
    prepared: PreparedModel | None = None


class Share(msgspec.Struct, frozen=True):
    """States which step of a model a device has, by its number, and how it runs that."""

    number: int
    device: EngineDevice
    lowering: Lowering | None
    model: Model
    operations: tuple[int, ...]
    plan: Plan | None

    @property
    def part(self) -> Part:
        """Returns the device with its lowering."""
        return Part.of(self.device, self.lowering)


class EngineContender(PlanContender):
    """Represents a device over an engine with one of its lowerings."""

    def __init__(
        self,
        device: EngineDevice,
        spec: CompileSpec,
        lowering: Lowering | None,
        plan: Plan | None = None,
    ) -> None:
        """`plan` is there where it need not be compiled any more."""
        super().__init__(spec, [(device, lowering)])
        self.engine_device = device
        self.engine_lowering = lowering
        """The lowering, None if the engine knows one way only."""
        self._plan = plan
        self._narrow: tuple[Lowering | None, Plan] | None = None
        self._partitions: tuple[Partition, ...] = ()

    async def narrow_when_busy(self, other: EngineContender, deadline: Deadline | None) -> None:
        """Let runs beside others take the form of `other`, the same with fewer threads."""
        if other._plan is None:
            await other.prepare(deadline)
        self._narrow = other.engine_lowering, other._ready(other._plan)

    def narrow_later(self) -> AdaptivePlan:
        """Replace the plan by one that can switch to a single-threaded form, added later."""
        self._plan = plan = self._adaptive(self._ready(self._plan), None)
        return plan

    def _adaptive(self, plan: Plan, narrow: Plan | None) -> AdaptivePlan:
        return AdaptivePlan(plan, narrow, self.engine_device.workers.is_busy)

    def terms(self) -> PlanTerms:
        """Returns those of the engine."""
        return self.engine_device.terms

    def shares(self) -> list[Share]:
        """Returns the plan, and its form with fewer threads, each with its lowering.

        The list is empty if the plan was divided into parts.
        """
        if self._partitions:
            return []
        plans = [(self.engine_lowering, self._ready(self._plan)), *filter(None, [self._narrow])]
        device, model = self.engine_device, self.spec.model
        return [Share(0, device, lowering, model, (), plan) for lowering, plan in plans]

    def plan(self) -> Plan:
        """Returns the plan, in both forms where it has two."""
        plan = self._ready(self._plan)
        if isinstance(plan, StagedPlan):
            return plan
        if self._narrow is not None:
            plan = self._adaptive(plan, self._narrow[1])
        return self._guarded(plan, "full" if self._partitions else "partial")

    def stage(self, *, ripe_after: int = 0) -> StagedPlan:
        """Makes the plan one that can be replaced while it is in use, and returns it."""
        first = limited(self.plan(), self.terms().concurrency)
        staged = StagedPlan(first, ripe_after=ripe_after)
        self._plan, self._narrow = staged, None
        return staged

    def replace_plan(self, plan: Plan, partitions: tuple[Partition, ...]) -> None:
        """Replaces the plan by another one of the same model and engine, which is in parts."""
        self._plan, self._narrow = plan, None
        self._partitions = partitions

    def partitions(self, reason: str) -> tuple[Partition, ...]:
        """Returns the parts of the plan, or one with all operations where it has none."""
        return self._partitions or super().partitions(reason)

    def with_plan(self, plan: Plan) -> EngineContender:
        """Gives this contender its plan, so that it need not be prepared, and returns it."""
        self._plan = plan
        return self

    async def prepare(self, deadline: Deadline | None) -> None:
        """Compile a plan on a thread."""
        spec = self.spec
        self._plan = await self.engine_device.compile_plan(
            spec.model, spec.preference, deadline, self.engine_lowering
        )

    def finish(self) -> PreparedModel:
        """Returns the plan as a prepared model of the device."""
        spec = self.spec
        health = None if spec.fallbacks is None else spec.fallbacks.health
        return self.engine_device.adopt(spec.model, self.plan(), spec.priority, health=health)

    async def discard(self) -> None:
        """Drop the plan."""
        held = [self._plan, self._narrow]
        self._plan = self._narrow = None
        await let_go(held)


class OutsideContender(Contender):
    """Represents a device that is no engine of this process."""

    def __init__(
        self,
        device: Device,
        spec: CompileSpec,
        lowering: Lowering | None = None,
        prepared: PreparedModel | None = None,
        cache: CompilationCache | None = None,
    ) -> None:
        """`prepared` is there where it need not be prepared any more."""
        super().__init__(spec, [(device, lowering)])
        self._lowering = lowering
        self._prepared = prepared
        self._cache = cache

    async def prepare(self, deadline: Deadline | None) -> None:
        """Prepare on the device."""
        self._prepared = await caching.prepare_cached(
            self.device, self.spec, self._lowering, deadline, self._cache
        )

    def trial(self) -> Trial:
        """Returns a trial that executes the prepared model."""
        return trials.OutsideTrial(self.name, self.spec.model, self._ready(self._prepared))

    def finish(self) -> PreparedModel:
        """Returns the prepared model, which falls back where that is allowed."""
        spec, prepared = self.spec, self._ready(self._prepared)
        if spec.fallbacks is None:
            return prepared
        return spec.fallbacks.outside(prepared, spec.model, self.name, spec.priority)

    async def discard(self) -> None:
        """Close the prepared model."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            await prepared.close()


async def let_go(things: MutableSequence[Any]) -> None:
    """Destroy a list of objects, such as plans, on a thread, because that can be slow."""
    if things:
        await in_thread(things.clear, "nnasync-letting-go", enters_engine=True)
