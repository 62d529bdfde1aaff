"""Contenders that share a model between devices: each operation on its best one.

What a device takes is known, and what an operation costs there is what the device reports. With one
assignment the devices can still differ in how they lower their steps. The device that leads, of
those beside the reference the one with the most work, offers its lowerings in turn; the others take
part with the first that is allowed, on one thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnasync._core.clock import Deadline
from nnasync._core.compilation.candidates import Field, has_plans, lowerings_of, objection
from nnasync._core.compilation.choice import WHOLE, Choice, Runs, spread
from nnasync._core.compilation.contenders import PlanContender, Share, let_go
from nnasync._core.compilation.fallback import REFERENCE
from nnasync._core.compilation.outside_steps import runs_outside
from nnasync._core.compilation.report import Partition
from nnasync._core.compilation.spec import CompileSpec
from nnasync._core.engine_device import EngineDevice, PlanTerms
from nnasync._core.partition import (
    INTERPRETER,
    Assignment,
    CompositeEngine,
    PartitionedModel,
    PartitionStep,
    Support,
    all_steps,
    as_much_as_possible,
    assignment_of,
    body_model,
    distribute,
    find_control_flow,
    multiply_adds,
    reported_costs,
    split,
)
from nnasync._core.partition.control_flow import view
from nnasync._core.workers.anyio_threads import in_helper_thread
from nnasync.device import PreparedModel
from nnasync.engine import Lowering, Plan
from nnasync.errors import InvalidArgument, NNError, Refused
from nnasync.hal import Model

_Ability = tuple[EngineDevice, Support]
"""A device and what it supports."""

INTERPRETER_NAME = "control-flow interpreter"
"""Stands in reports for a device."""


class PartitionContender(PlanContender):
    """Several devices that run steps of one model."""

    def __init__(
        self,
        spec: CompileSpec,
        partitioned: PartitionedModel,
        devices: Sequence[EngineDevice],
        lowerings: Sequence[Lowering | None],
        lead: int,
    ) -> None:
        """`devices` and `lowerings` are by number of device; `lead` is the one that leads."""
        steps = [step for step in all_steps(partitioned) if not step.bodies]
        self._used = list(dict.fromkeys(step.device for step in steps))
        super().__init__(spec, [(devices[number], lowerings[number]) for number in self._used])
        self._partitioned = partitioned
        self._devices = devices
        self._lowerings = lowerings
        self._lead = lead
        self._engine: CompositeEngine | None = None
        self._taken: dict[int, Plan] = {}

    @property
    def device(self) -> EngineDevice:
        """Returns the device that leads."""
        return self._devices[self._lead]

    @property
    def family(self) -> tuple[str, str]:
        """Returns the names of the devices, and the lowering of the one that leads."""
        lead = self._lowerings[self._lead]
        return self.name, WHOLE if lead is None else lead.name

    @property
    def lowering(self) -> str:
        """Returns the lowerings in words, and the number of steps."""
        return f"{super().lowering}; {len(all_steps(self._partitioned))} steps"

    @property
    def choice(self) -> Choice:
        """Returns the devices with their lowerings, and which operations each runs."""
        parts = super().choice.parts
        assignment = assignment_of(self._partitioned)
        numbers = {number: position for position, number in enumerate(self._used)}
        numbers[INTERPRETER] = len(parts)
        bodies = [
            (number, spread(numbers[owner] for owner in row))
            for number, row in assignment.bodies.items()
        ]
        runs = spread(numbers[owner] for owner in assignment.main)
        return Choice(parts, runs, tuple(bodies))

    async def prepare(self, deadline: Deadline | None) -> None:
        """Compile all steps."""
        ways = {
            number: way
            for number, step in enumerate(all_steps(self._partitioned))
            if not step.bodies and (way := self._lowerings[step.device]) is not None
        }
        engine = CompositeEngine(
            self._partitioned,
            [device.engine for device in self._devices],
            ways,
            self._guarded_step,
            self._taken,
        )
        composite = EngineDevice(engine, self.device.workers)
        self._engine = engine
        self._plan = await composite.compile_plan(self.spec.model, self.spec.preference, deadline)

    def shares(self) -> list[Share]:
        """Returns the steps that devices run, with their plans where those are there."""
        plans = self._taken if self._engine is None else self._engine.plans
        return [
            Share(
                number,
                self._devices[step.device],
                self._lowerings[step.device],
                step.model,
                step.operations,
                plans.get(number),
            )
            for number, step in enumerate(all_steps(self._partitioned))
            if not step.bodies
        ]

    def take(self, plans: dict[int, Plan]) -> None:
        """Have plans of steps, by number, which need not be compiled."""
        self._taken = plans

    def plan(self) -> Plan:
        """Returns the plan of all steps; the whole model falls back where that is allowed."""
        return self._guarded(self._ready(self._plan), "full")

    def terms(self) -> PlanTerms:
        """Returns those of the device that asks for most."""
        limits = [self._devices[n].engine.concurrency for n in self._used]
        return PlanTerms(
            self.name,
            concurrency=min(filter(None, limits), default=0),
            runs_inline=not any(runs_outside(self._devices[n]) for n in self._used),
        )

    def finish(self) -> PreparedModel:
        """Returns the steps as one prepared model."""
        spec, fallbacks = self.spec, self.spec.fallbacks
        health = None if fallbacks is None else fallbacks.health
        return self.device.adopt(
            spec.model, self.plan(), spec.priority, terms=self.terms(), health=health
        )

    def partitions(self, reason: str) -> tuple[Partition, ...]:
        """Returns the steps in order of execution, with those of their bodies."""
        return self._told(self._partitioned, reason)

    def _told(self, partitioned: PartitionedModel, reason: str) -> tuple[Partition, ...]:
        return tuple(
            Partition(
                INTERPRETER_NAME if step.bodies else self._devices[step.device].name,
                step.operations,
                reason,
                tuple(self._told(body, reason) for body in step.bodies),
            )
            for step in partitioned.steps
        )

    async def discard(self) -> None:
        """Drop the plans, on a thread."""
        held = [self._plan, self._engine, self._taken]
        self._plan, self._engine, self._taken = None, None, {}
        await let_go(held)

    def _guarded_step(self, step: PartitionStep, plan: Plan) -> Plan:
        """Returns the plan of a step, which falls back where that is allowed."""
        fallbacks, device = self.spec.fallbacks, self._devices[step.device]
        if fallbacks is None:
            return plan
        network, operations = self.spec.model.name, self._operations(step)
        return fallbacks.guarded_step(plan, step.model, network, device.name, operations)

    def _operations(self, step: PartitionStep) -> tuple[int, ...]:
        """Returns the operations of the main subgraph that a step is for.

        The step may be inside the body of one of them.
        """
        for outer in self._partitioned.steps:
            inner = (each for body in outer.bodies for each in all_steps(body))
            if any(each is step for each in inner):
                return outer.operations
        return step.operations


async def propose(field: Field, spec: CompileSpec) -> list[PartitionContender]:
    """Returns the ways to share a model among devices that are worth trying.

    None where a device other than the reference can take all of it, or nobody can take a part.
    """
    able = await _abilities(field, spec)
    fast = [each for each in able if each[0].name != REFERENCE]
    if not fast or any(all(support.main) for _, support in fast):
        return []
    reference = [each for each in able if each[0].name == REFERENCE]
    devices = [device for device, _ in able]
    try:
        owners = await _cheapest(spec, able)
    except Refused:
        raise
    except NNError:
        return []
    found = await _ways(devices, spec, owners, set())
    for device, support in fast if reference else ():
        rest = reference[0][1].main
        if not all(taken or left for taken, left in zip(support.main, rest, strict=True)):
            continue
        # As much as it takes, however small: whether that pays is for the measuring to say.
        forced = await in_helper_thread(as_much_as_possible, spec.model, support)
        known = {other.choice for other in found}
        found += await _ways([device, reference[0][0]], spec, forced, known)
    return found


async def assigned(choice: Choice, field: Field, spec: CompileSpec) -> PartitionContender | None:
    """Returns the contender of a pinned choice; None if its devices or lowerings are not there."""
    able = {device.name: (device, support) for device, support in await _abilities(field, spec)}
    if not all(part.device in able for part in choice.parts):
        return None
    chosen = [able[part.device] for part in choice.parts]
    engines = [device for device, _ in chosen]
    owners = assignment_in(choice, spec.model)
    if not _is_possible(owners, spec.model, [support for _, support in chosen]):
        return None
    try:
        partitioned = await in_helper_thread(split, spec.model, owners)
    except InvalidArgument:
        return None
    lowerings: list[Lowering | None] = []
    for number, part in enumerate(choice.parts):
        offered = await _offered(engines[number], _largest_step(partitioned, number), spec)
        matching = [way for way in offered if _named(way) == (part.lowering, part.threads)]
        if not matching:
            return None
        lowerings.append(matching[0])
    return PartitionContender(spec, partitioned, engines, lowerings, _lead(spec, owners, engines))


def spelled_out(
    choice: Choice, engines: Sequence[EngineDevice], spec: CompileSpec
) -> PartitionContender:
    """Returns the contender of an earlier choice; raises InvalidArgument for another model.

    `engines` are by number of the part; whether they take their parts is not asked again.
    """
    owners = assignment_in(choice, spec.model)
    ways = [part.way for part in choice.parts]
    lead = _lead(spec, owners, engines)
    return PartitionContender(spec, split(spec.model, owners), engines, ways, lead)


def assignment_in(choice: Choice, model: Model) -> Assignment:
    """Returns the assignment that the runs of a choice spell out, devices by number of the part."""
    if not choice.runs:
        return Assignment((0,) * len(model.main.operations))

    def row(runs: Runs) -> tuple[int, ...]:
        names = {len(choice.parts): INTERPRETER}
        return tuple(names.get(part, part) for part, count in runs for _ in range(count))

    return Assignment(row(choice.runs), {number: row(runs) for number, runs in choice.bodies})


def _is_possible(owners: Assignment, model: Model, support: Sequence[Support]) -> bool:
    """Returns whether each part has operations, and each device supports what it is to run."""
    if set(owners.devices) != set(range(len(support))):
        return False
    rows = [(owners.main, [each.main for each in support], len(model.main.operations))]
    for number, row in owners.bodies.items():
        if not 0 <= number < len(model.referenced):
            return False
        answers = [each.bodies.get(number, ()) for each in support]
        rows.append((row, answers, len(model.referenced[number].operations)))
    return all(
        len(row) == count
        and all(
            owner == INTERPRETER or (len(answers[owner]) == count and answers[owner][index])
            for index, owner in enumerate(row)
        )
        for row, answers, count in rows
    )


async def _cheapest(spec: CompileSpec, able: Sequence[_Ability]) -> Assignment:
    """Returns the device of each operation, by what the devices report; raises GeneralFailure."""
    capabilities = [await device.get_capabilities() for device, _ in able]
    support = [each for _, each in able]
    names = [device.name for device, _ in able]
    reference = names.index(REFERENCE) if REFERENCE in names else None

    def rate(place: Model) -> Sequence[Sequence[float]]:
        return reported_costs(place, capabilities, spec.preference)

    def chosen() -> Assignment:
        return distribute(spec.model, support, rate, reference=reference)

    return await in_helper_thread(chosen)


async def _ways(
    devices: Sequence[EngineDevice], spec: CompileSpec, owners: Assignment, known: set[Choice]
) -> list[PartitionContender]:
    """Returns the contenders of one assignment: one for each lowering of the device that leads."""
    used = owners.devices
    if len(used) < 2 and INTERPRETER not in owners.main:
        return []
    try:
        partitioned = await in_helper_thread(split, spec.model, owners)
    except Refused:
        raise
    except NNError:
        return []
    lead = _lead(spec, owners, devices)
    offers: dict[int, list[Lowering | None]] = {}
    for number in used:
        step = _largest_step(partitioned, number)
        offers[number] = await _offered(devices[number], step, spec)
    if not all(offers.values()):
        return []
    first = [_narrowest(offers.get(number, [None])) for number in range(len(devices))]
    found = [
        PartitionContender(
            spec, partitioned, devices, [*first[:lead], way, *first[lead + 1 :]], lead
        )
        for way in offers[lead]
    ]
    return [each for each in found if each.choice not in known]


async def _offered(device: EngineDevice, model: Model, spec: CompileSpec) -> list[Lowering | None]:
    """Returns a device's lowerings for a part of the model that the application allows."""
    ways = await lowerings_of(device, spec.of(model))
    return [way for way in ways if not objection(device, way, spec)]


def _largest_step(partitioned: PartitionedModel, device: int) -> Model:
    steps = [step for step in all_steps(partitioned) if step.device == device]
    return max(steps, key=lambda step: sum(multiply_adds(step.model))).model


def _lead(spec: CompileSpec, owners: Assignment, devices: Sequence[EngineDevice]) -> int:
    """Returns the device with the most work, of those beside the reference."""
    work: dict[int, int] = {}
    places = {number: view(spec.model, number) for number in owners.bodies}
    for place, row in ((spec.model, owners.main), *((places[n], owners.bodies[n]) for n in places)):
        for owner, amount in zip(row, multiply_adds(place), strict=True):
            if owner != INTERPRETER:
                work[owner] = work.get(owner, 0) + amount
    return max(work, key=lambda number: (devices[number].name != REFERENCE, work[number]))


def _narrowest(offered: Sequence[Lowering | None]) -> Lowering | None:
    """Returns the first lowering, with the fewest threads that it is offered with."""
    first = offered[0]
    if first is None:
        return None
    variants = [way for way in offered if way is not None and way.name == first.name]
    return min(variants, key=lambda way: way.threads)


def _named(way: Lowering | None) -> tuple[str, int]:
    return (WHOLE, 1) if way is None else (way.name, way.threads)


async def _abilities(field: Field, spec: CompileSpec) -> list[_Ability]:
    """Returns the engines that take a part of the model, in the order of the devices.

    Most know neither IF nor WHILE. So they are asked about the subgraphs that the control-flow
    interpreter could run, each as a model of its own.
    """
    bodies = await in_helper_thread(_bodies, spec.model)
    found = []
    for device, answers in field.support:
        if isinstance(device, EngineDevice) and has_plans(device):
            support = Support(answers, await _supported(device, bodies))
            if any(answers) or any(map(any, support.bodies.values())):
                found.append((device, support))
    return found


def _bodies(model: Model) -> dict[int, Model]:
    """Returns the subgraphs that can be interpreted, by number."""
    return {number: body_model(model, number) for number in find_control_flow(model).bodies}


async def _supported(device: EngineDevice, bodies: dict[int, Model]) -> dict[int, tuple[bool, ...]]:
    """Returns a device's answers by subgraph; one on which it fails is left out."""
    found = {}
    for number, body in bodies.items():
        try:
            found[number] = await device.get_supported_operations(body)
        except NNError:
            continue
    return found
