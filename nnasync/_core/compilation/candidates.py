"""Who may run a model: the devices asked, their lowerings, and what the application allows."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, TypeVar

from nnasync._core.clock import Deadline, now_ns
from nnasync._core.compilation.choice import WHOLE, Choice, Part, tell_lowering
from nnasync._core.compilation.contenders import Contender, EngineContender, OutsideContender
from nnasync._core.compilation.fallback import REFERENCE
from nnasync._core.compilation.report import Candidate, Fate, Rejection
from nnasync._core.compilation.spec import CompileSpec
from nnasync._core.compilation.whole_form import ends_of, whole_form
from nnasync._core.deferred import deferred
from nnasync._core.engine_device import EngineDevice
from nnasync.device import Device, LoweringDevice
from nnasync.engine import Lowering
from nnasync.errors import (
    DeviceDied,
    DeviceUnavailable,
    InvalidArgument,
    MissedDeadline,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    NNError,
)
from nnasync.hal import ExecutionPreference, Model

if TYPE_CHECKING:
    import anyio

    from nnasync._core.compilation import outside_steps
    from nnasync._core.compilation.caching import CompilationCache
    from nnasync._core.engine_device import reasons
else:
    anyio = deferred("anyio")
    outside_steps = deferred("nnasync._core.compilation.outside_steps")
    reasons = deferred("nnasync._core.engine_device.reasons")

T = TypeVar("T")


class Field:
    """Facts about the devices and one model, collected before anything is prepared.

    `support` is, for each device that answered, what it supports of the main subgraph. `whole` is
    the file as one operation, where that competes too.
    """

    def __init__(self, cache: CompilationCache | None = None) -> None:
        """`cache` is for devices outside of this process, which keep what they made themselves."""
        self.cache = cache
        self.contenders: list[Contender] = []
        self.candidates: list[Candidate] = []
        self.rejections: list[Rejection] = []
        self.support: list[tuple[Device, tuple[bool, ...]]] = []
        self.lost: DeviceDied | DeviceUnavailable | None = None
        self.whole: Model | None = None


async def gather(spec: CompileSpec, cache: CompilationCache | None = None) -> Field:
    """Ask every device; raises InvalidArgument if the model is not legal, MissedDeadline.

    Devices that are no engines share a model on the workers of an engine, or of the reference.
    """
    field = Field(cache)
    engines = [each for each in (*spec.devices, spec.reference) if isinstance(each, EngineDevice)]
    workers = engines[0].workers if engines else None
    for device in spec.devices:
        answers = await consider(device, spec, field)
        if answers is not None:
            field.support.append((await outside_steps.stand_in(device, workers, spec), answers))
    await _consider_whole(spec, field)
    return field


async def _consider_whole(spec: CompileSpec, field: Field) -> None:
    """Let engines compete with the file as it is, too, each in the way that it thinks best."""
    if spec.whole is None:
        return
    whole = await spec.on_thread(lambda: whole_form(spec), "nnasync-loading")
    if whole is None or ends_of(whole.model) != ends_of(spec.model):
        return
    known = {contender.choice for contender in field.contenders}
    for device in spec.devices:
        if not isinstance(device, EngineDevice):
            continue
        aside = Field()
        await consider(device, whole, aside)
        found = [each for each in aside.contenders if each.choice not in known]
        names = [each.name for each in field.contenders]
        behind = len(names) - names[::-1].index(device.name) if device.name in names else len(names)
        field.contenders[behind:behind] = [each for each in found if each.family == found[0].family]
        field.whole = whole.model if found else field.whole


async def consider(device: Device, spec: CompileSpec, field: Field) -> tuple[bool, ...] | None:
    """Ask one device, and note its contenders; None if it does not answer. Raises as `gather`."""
    answers = await by_deadline(device, _supported(device, spec, field), spec.deadline)
    if answers is None:
        return None
    if not all(answers):
        field.rejections += await by_deadline(
            device, _unsupported(device, spec, answers), spec.deadline
        )
        _turn_down(field, device, WHOLE, "does not support every operation")
        return answers
    ways = await by_deadline(device, lowerings_of(device, spec), spec.deadline)
    note_ways(device, spec, field, ways)
    return answers


def note_ways(
    device: Device, spec: CompileSpec, field: Field, ways: Sequence[Lowering | None]
) -> None:
    """Note the contenders of a device, one for each of its ways that the application allows."""
    for lowering in ways:
        against = objection(device, lowering, spec)
        if against:
            _turn_down(field, device, tell_lowering(lowering), against, Fate.FORBIDDEN)
        elif isinstance(device, EngineDevice) and has_plans(device):
            field.contenders.append(EngineContender(device, spec, lowering))
        else:
            field.contenders.append(OutsideContender(device, spec, lowering, cache=field.cache))


async def lowerings_of(device: Device, spec: CompileSpec) -> list[Lowering | None]:
    """Returns the lowerings of a device for a model; [None] for one that knows one way only."""
    # The protocol is asked about other devices only, for that takes long.
    if isinstance(device, EngineDevice):
        if not (has_plans(device) and device.has_lowerings):
            return [None]
    elif not isinstance(device, LoweringDevice):
        return [None]
    try:
        found = list(await device.lowerings(spec.model, spec.preference))
    except NNError:
        return [None]
    return ways_among(found, spec)


def ways_among(offered: Sequence[Lowering], spec: CompileSpec) -> list[Lowering | None]:
    """Returns the offered lowerings that the application's preference allows."""
    found = offered
    if spec.preference != ExecutionPreference.FAST_SINGLE_ANSWER:
        found = [lowering for lowering in offered if lowering.threads == 1] or offered
    return [*found] or [None]


def has_plans(device: EngineDevice) -> bool:
    """Returns whether a device has the usual `prepare_model`; a subclass may override it."""
    return type(device).prepare_model is EngineDevice.prepare_model


async def by_deadline(device: Device, answer: Awaitable[T], deadline: Deadline | None) -> T:
    """Returns a device's answer to a question that has no deadline of its own.

    Raises MissedDeadline where it does not come by the deadline.
    """
    if deadline is None:
        return await answer
    remaining_s = max(0, deadline.remaining_ns(now_ns())) / 1e9
    try:
        with anyio.fail_after(remaining_s):
            return await answer
    except MissedDeadline:
        raise
    except TimeoutError as error:
        while (left_ns := deadline.remaining_ns(now_ns())) > 0:
            # The clock of the loop may be a millisecond behind.
            await anyio.sleep(left_ns / 1e9)
        kind = MissedDeadlineTransient if remaining_s else MissedDeadlinePersistent
        raise kind(f"{device.name} was not ready by the deadline") from error


async def _supported(device: Device, spec: CompileSpec, field: Field) -> tuple[bool, ...] | None:
    try:
        answers = tuple(await device.get_supported_operations(spec.model))
    except InvalidArgument:
        raise
    except NNError as error:
        if isinstance(error, DeviceDied | DeviceUnavailable):
            field.lost = error
        field.rejections.append(Rejection(device.name, -1, f"cannot say what it supports: {error}"))
        _turn_down(field, device, WHOLE, "cannot say what it supports")
        return None
    count = len(spec.model.main.operations)
    if len(answers) == count:
        return answers
    field.rejections.append(Rejection(device.name, -1, reasons.miscounted(len(answers), count)))
    return (False,) * count


async def _unsupported(
    device: Device, spec: CompileSpec, answers: Sequence[bool]
) -> list[Rejection]:
    found = await reasons.explained(device, spec.model, answers)
    return [Rejection(device.name, index, reason) for index, reason in enumerate(found) if reason]


def objection(device: Device, lowering: Lowering | None, spec: CompileSpec) -> str:
    """Returns why the application does not allow a lowering; empty if it does."""
    if spec.precision == "exact":
        exact = device.name == REFERENCE if lowering is None else lowering.is_exact
        return "" if exact else "not allowed: precision is exact, this is not bit-stable"
    relaxed = spec.model.relax_computation_float32_to_float16
    if lowering is not None and lowering.reduces_precision and not relaxed:
        return "" if spec.precision == "bf16" else "not allowed: it reduces precision"
    return ""


def _turn_down(
    field: Field, device: Device, lowering: str, verdict: str, fate: Fate = Fate.UNSUPPORTED
) -> None:
    line = Candidate(device.name, lowering, None, "not measured", verdict, fate=fate)
    field.candidates.append(line)


def pinned(choice: Choice, field: Field, devices: Sequence[Device]) -> Contender:
    """Returns the contender of a choice; raises InvalidArgument that says why there is none."""
    for contender in field.contenders:
        if contender.choice == choice:
            return contender
    for part in choice.parts:
        _check_part(part, devices)
    raise InvalidArgument(f"the pin cannot be followed: {_difference(choice, field)}")


def _check_part(part: Part, devices: Sequence[Device]) -> None:
    named = {device.name: device.version for device in devices}
    if part.device not in named:
        raise InvalidArgument(
            f"the pin names the device {part.device}, which is not among: {', '.join(named)}"
        )
    if part.version != named[part.device]:
        raise InvalidArgument(
            f"the pin is for version {part.version} of {part.device}, here is version "
            f"{named[part.device]}"
        )


def _difference(choice: Choice, field: Field) -> str:
    part = choice.parts[0]
    wanted = f"{part.device} with {part.lowering}, threads: {part.threads}"
    if len(choice.parts) > 1:
        wanted = "this partition over " + ", ".join(each.device for each in choice.parts)
    offers = [f"{each.name} with {each.lowering}" for each in field.contenders]
    refused = [f"{each.device} with {each.lowering} ({each.verdict})" for each in field.candidates]
    text = f"{wanted} is not offered here; offered: {'; '.join(offers) or 'nothing'}"
    return text + (f"; turned down: {'; '.join(refused[:8])}" if refused else "")
