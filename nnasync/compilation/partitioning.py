"""Contenders that share a model between devices: each operation on its best one.

What a device takes is known, and what an operation costs there is what the device reports. With one
assignment the devices can still differ in how they lower their steps. The device that leads, of
those beside the reference the one with the most work, offers its lowerings in turn; the others take
part with the first that is allowed, on one thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio.to_thread

from nnasync.clock import Deadline
from nnasync.compilation.choice import WHOLE, Choice, Part, spread, tell_lowering
from nnasync.compilation.contenders import REFERENCE, Wish
from nnasync.compilation.gathering import Field, has_plans, lowerings_of, objection
from nnasync.compilation.report import Partition
from nnasync.compilation.trials import EngineTrial, Trial
from nnasync.device import PreparedModel
from nnasync.engine import EngineDevice, Lowering, Plan
from nnasync.errors import BadState, NNError
from nnasync.hal import Model
from nnasync.partition import (
    CompositeEngine,
    PartitionedModel,
    assign,
    multiply_adds,
    reported_costs,
    split,
)

__all__ = ["PartitionContender", "assigned", "propose"]

_Support = Sequence[tuple[EngineDevice, Sequence[bool]]]


class PartitionContender:
    """Several devices that run steps of one model."""

    def __init__(
        self,
        wish: Wish,
        partitioned: PartitionedModel,
        devices: Sequence[EngineDevice],
        lowerings: Sequence[Lowering | None],
        lead: int,
    ) -> None:
        """`devices` and `lowerings` are by number of device; `lead` is the one that leads."""
        self.wish = wish
        self._partitioned = partitioned
        self._devices = devices
        self._lowerings = lowerings
        self._lead = lead
        self._plan: Plan | None = None
        used = dict.fromkeys(step.device for step in partitioned.steps)
        self._used = list(used)

    @property
    def name(self) -> str:
        """The devices that have a step, joined."""
        return "+".join(self._devices[number].name for number in self._used)

    @property
    def device(self) -> EngineDevice:
        """The device that leads holds the prepared model."""
        return self._devices[self._lead]

    @property
    def family(self) -> tuple[str, str]:
        """The devices, and the lowering of the one that leads."""
        lead = self._lowerings[self._lead]
        return self.name, WHOLE if lead is None else lead.name

    @property
    def lowering(self) -> str:
        """The lowerings in words, and the number of steps."""
        ways = " + ".join(tell_lowering(self._lowerings[number]) for number in self._used)
        return f"{ways}; {len(self._partitioned.steps)} steps"

    @property
    def is_reduced(self) -> bool:
        """Whether a step computes floats with less than float32, as the application allows."""
        ways = [self._lowerings[number] for number in self._used]
        reduces = any(way is not None and way.reduces_precision for way in ways)
        relaxed = self.wish.model.relax_computation_float32_to_float16
        return self.wish.precision == "bf16" and (reduces or relaxed)

    @property
    def choice(self) -> Choice:
        """The devices with their lowerings, and which operations each runs."""
        numbers = {number: position for position, number in enumerate(self._used)}
        owner = [0] * len(self.wish.model.main.operations)
        for step in self._partitioned.steps:
            for index in step.operations:
                owner[index] = numbers[step.device]
        parts = []
        for number in self._used:
            device = self._devices[number]
            way = self._lowerings[number] or Lowering(WHOLE)
            parts.append(Part(device.name, device.version, way.name, way.threads))
        return Choice(tuple(parts), spread(owner))

    async def prepare(self, deadline: Deadline | None) -> None:
        """Compile all steps."""
        ways = {
            number: way
            for number, step in enumerate(self._partitioned.steps)
            if (way := self._lowerings[step.device]) is not None
        }
        engine = CompositeEngine(
            self._partitioned, [device.engine for device in self._devices], ways
        )
        composite = EngineDevice(engine, self.device.workers)
        self._plan = await composite.compile_plan(self.wish.model, self.wish.preference, deadline)

    def trial(self) -> Trial:
        """Runs of all steps."""
        return EngineTrial(self.name, self.wish.model, self._open_plan())

    def finish(self) -> PreparedModel:
        """The steps as one prepared model."""
        limits = [self._devices[n].engine.concurrency for n in self._used]
        return self.device.adopt(
            self.wish.model,
            self._open_plan(),
            self.wish.priority,
            name=self.name,
            concurrency=min(filter(None, limits), default=0),
        )

    def partitions(self, reason: str) -> tuple[Partition, ...]:
        """The steps, in order of execution."""
        return tuple(
            Partition(self._devices[step.device].name, step.operations, reason)
            for step in self._partitioned.steps
        )

    async def discard(self) -> None:
        """Drop the plans."""
        self._plan = None

    def _open_plan(self) -> Plan:
        if self._plan is None:
            raise BadState(f"{self.name} have prepared nothing")
        return self._plan


async def propose(field: Field, wish: Wish) -> list[PartitionContender]:
    """The ways to share a model that are worth trying.

    None where a device other than the reference can take all of it, or nobody can take a part.
    """
    able = [
        (device, answers)
        for device, answers in field.support
        if isinstance(device, EngineDevice) and has_plans(device) and any(answers)
    ]
    fast = [each for each in able if each[0].name != REFERENCE]
    if len(able) < 2 or not fast or any(all(answers) for _, answers in fast):
        return []
    reference = [each for each in able if each[0].name == REFERENCE]
    devices = [device for device, _ in able]
    try:
        owner = await _cheapest(wish, able)
    except NNError:
        return []
    found = await _ways(devices, wish, owner, set())
    for device, answers in fast if reference else ():
        # As much as it takes, however small: whether that pays is for the measuring to say.
        forced = tuple(0 if taken else 1 for taken in answers)
        known = {other.choice for other in found}
        found += await _ways([device, reference[0][0]], wish, forced, known)
    return found


async def assigned(choice: Choice, field: Field, wish: Wish) -> PartitionContender | None:
    """The contender of a pinned choice; None if its devices or lowerings are not there."""
    by_name = {device.name: device for device, _ in field.support}
    devices = [by_name.get(part.device) for part in choice.parts]
    engines = [device for device in devices if isinstance(device, EngineDevice)]
    owner = [part for part, count in choice.runs for _ in range(count)]
    if len(engines) != len(devices) or len(owner) != len(wish.model.main.operations):
        return None
    support = {device.name: answers for device, answers in field.support}
    if not all(support[engines[n].name][index] for index, n in enumerate(owner)):
        return None
    partitioned = await anyio.to_thread.run_sync(split, wish.model, owner)
    lowerings: list[Lowering | None] = []
    for number, part in enumerate(choice.parts):
        offered = await _offered(engines[number], _largest_step(partitioned, number), wish)
        matching = [way for way in offered if _named(way) == (part.lowering, part.threads)]
        if not matching:
            return None
        lowerings.append(matching[0])
    return PartitionContender(wish, partitioned, engines, lowerings, _lead(wish, owner, engines))


async def _cheapest(wish: Wish, able: _Support) -> tuple[int, ...]:
    """The device of each operation, by what devices report; raises GeneralFailure."""
    capabilities = [await device.get_capabilities() for device, _ in able]
    support = [answers for _, answers in able]

    def chosen() -> tuple[int, ...]:
        costs = reported_costs(wish.model, capabilities, wish.preference)
        return assign(wish.model, support, costs)

    return await anyio.to_thread.run_sync(chosen)


async def _ways(
    devices: Sequence[EngineDevice], wish: Wish, owner: tuple[int, ...], known: set[Choice]
) -> list[PartitionContender]:
    """One assignment of the operations to devices, with the lowerings of the one that leads."""
    if len(set(owner)) < 2:
        return []
    try:
        partitioned = await anyio.to_thread.run_sync(split, wish.model, owner)
    except NNError:
        return []
    lead = _lead(wish, owner, devices)
    offers: dict[int, list[Lowering | None]] = {}
    for number in dict.fromkeys(owner):
        step = _largest_step(partitioned, number)
        offers[number] = await _offered(devices[number], step, wish)
    if not all(offers.values()):
        return []
    first = [_narrowest(offers.get(number, [None])) for number in range(len(devices))]
    found = [
        PartitionContender(
            wish, partitioned, devices, [*first[:lead], way, *first[lead + 1 :]], lead
        )
        for way in offers[lead]
    ]
    return [each for each in found if each.choice not in known]


async def _offered(device: EngineDevice, model: Model, wish: Wish) -> list[Lowering | None]:
    """The lowerings of a device for a part of the model that the application allows."""
    ways = await lowerings_of(device, Wish(model, wish.preference, wish.priority, wish.precision))
    return [way for way in ways if not objection(device, way, wish)]


def _largest_step(partitioned: PartitionedModel, device: int) -> Model:
    steps = [step for step in partitioned.steps if step.device == device]
    return max(steps, key=lambda step: sum(multiply_adds(step.model))).model


def _lead(wish: Wish, owner: Sequence[int], devices: Sequence[EngineDevice]) -> int:
    """The device with the most work, of those beside the reference."""
    work: dict[int, int] = {}
    for index, amount in enumerate(multiply_adds(wish.model)):
        work[owner[index]] = work.get(owner[index], 0) + amount
    return max(work, key=lambda number: (devices[number].name != REFERENCE, work[number]))


def _narrowest(offered: Sequence[Lowering | None]) -> Lowering | None:
    """The first lowering, with the fewest threads that it is offered with."""
    first = offered[0]
    if first is None:
        return None
    variants = [way for way in offered if way is not None and way.name == first.name]
    return min(variants, key=lambda way: way.threads)


def _named(way: Lowering | None) -> tuple[str, int]:
    return (WHOLE, 1) if way is None else (way.name, way.threads)
