"""The first answer of a model that was never compiled before: who can give it soonest.

To compare devices takes seconds, and nobody should have to wait for that. So the engine that is
known to be ready soonest gets the model at once, in the way that it thinks best, and the file as it
is where that can be (`whole_form`). No other engine is even imported before the first results are
out. Then the devices are compared in the background, and the winner takes over (`upgrade`). Who won
an earlier contest is asked first, unless it takes long to load; where it may stay for good, nothing
follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from nnasync._core.compilation.candidates import Field, has_plans, note_ways, ways_among
from nnasync._core.compilation.choice import pin_of
from nnasync._core.compilation.contenders import Chosen, EngineContender
from nnasync._core.compilation.fallback import REFERENCE
from nnasync._core.compilation.report import Candidate, Fate, Report
from nnasync._core.compilation.spec import CompileSpec, can_sample
from nnasync._core.compilation.upgrade import NO_CACHE
from nnasync._core.compilation.verdicts import Verdict, chosen_ns
from nnasync._core.compilation.whole_form import whole_form
from nnasync._core.engine_device import EngineDevice
from nnasync.engine import Lowering
from nnasync.errors import DeviceError, MissedDeadline, Refused
from nnasync.hal import Model

_SOON_MS = 100.0
"""An engine that takes longer until it is ready does not answer first if another one can."""

_SOONEST = "answers first: ready soonest"
_KNOWN = "fastest whose results agree, as measured before"


class Begun(msgspec.Struct):
    """Holds what a thread found for a spec: what may answer until the next contest.

    chosen: is taken once; None where no engine of this process takes the whole model.
    """

    spec: CompileSpec
    chosen: Chosen | None

    def taken(self) -> Chosen | None:
        """Returns what was chosen, which belongs to the caller from now on."""
        chosen, self.chosen = self.chosen, None
        return chosen


class _Plan(msgspec.Struct, frozen=True):
    """Holds a prepared contender, and the field with what was noted on the way."""

    contender: EngineContender
    field: Field


def may_follow(spec: CompileSpec) -> bool:
    """Returns whether another plan than the first one may be better, and can take its place."""
    engines = [each for each in spec.devices if isinstance(each, EngineDevice) and has_plans(each)]
    return (
        spec.wait == "first"
        and not spec.again
        and len(engines) == len(spec.devices) > 0
        and spec.pin is None
        and spec.preemption_quantum_ms is None
        and spec.budget_ns > 0
        and (len(engines) > 1 or engines[0].has_lowerings)
    )


def begin(spec: CompileSpec, missed: str = "") -> Begun:
    """Have the device that is ready soonest prepare a model, on the calling thread.

    A file is not translated for that where the engine that it was made for can run it as it is. No
    loop may wait for this. Of the spec, `may_follow` is true; `missed` says why the cache did not
    have it. Raises as `first_answer` does.
    """
    devices = [each for each in spec.devices if isinstance(each, EngineDevice)]
    known = _known(spec)
    devices.sort(key=known.rank)
    plan = None
    if known.whole is not None:
        soon = [each for each in devices if known.is_soon(each)]
        plan = _first(soon, known.whole, known.verdict)
    if plan is None:
        source = spec.source
        translated = spec.outlined(source if isinstance(source, Model) else source())
        if can_sample(translated.model):
            plan = _first(devices, translated, known.verdict)
    return Begun(spec, None if plan is None else _chosen(plan, known.verdict, missed))


async def first_answer(spec: CompileSpec, missed: str, begun: Begun | None) -> Chosen | None:
    """Returns the plan that answers first: that of the device that is ready soonest.

    None where there is nothing that could follow, or no engine of this process takes the whole
    model: then the best plan is worth waiting for. `missed` says why the cache did not have it;
    `begun` is what `begin` found, if that was called already.

    Raises InvalidArgument for a model that is not legal, MissedDeadline, OSError.
    """
    if begun is None and may_follow(spec):
        lead = next(each for each in spec.devices if isinstance(each, EngineDevice))
        begun = await lead.workers.helper_threads.run_unwrapped(
            lambda: begin(spec, missed), spec.name or "the model", spec.deadline
        )
    return None if begun is None else begun.taken()


def _first(
    devices: Sequence[EngineDevice], spec: CompileSpec, verdict: Verdict | None
) -> _Plan | None:
    """Returns the plan of the first of these devices that takes the whole model."""
    for device in devices:
        field = Field()
        try:
            contender = _prepared(device, spec, field, verdict)
        except MissedDeadline:
            raise
        except (DeviceError, Refused):
            continue
        if contender is not None:
            return _Plan(contender, field)
    return None


def _prepared(
    device: EngineDevice, spec: CompileSpec, field: Field, verdict: Verdict | None
) -> EngineContender | None:
    """Returns a device's prepared contender; None where it does not take the whole model."""

    def choose(offered: Sequence[Lowering]) -> Sequence[Lowering | None]:
        note_ways(device, spec, field, ways_among(offered, spec))
        contender = _contender(field, verdict)
        return () if contender is None else (contender.engine_lowering,)

    plan = device.begin_plan(spec.model, spec.preference, choose)
    contender = _contender(field, verdict)
    return None if plan is None or contender is None else contender.with_plan(plan)


class _Known(msgspec.Struct, frozen=True):
    """Holds what is known before any engine is asked.

    verdict: of an earlier contest. whole: the file as one operation, if there is one. loading_ms:
    what engines take until they are ready, by name and version.
    """

    verdict: Verdict | None
    whole: CompileSpec | None
    loading_ms: Mapping[str, float]

    def rank(self, device: EngineDevice) -> tuple[bool, bool, float]:
        """Returns a key that sorts devices by who is asked first.

        The winner of a contest comes first if it is ready soon, then whoever is ready soonest.

        The reference comes last, whose first run may take longer than loading any other engine.
        """
        return not self._is_winner(device), device.name == REFERENCE, self._loads_in_ms(device)

    def is_soon(self, device: EngineDevice) -> bool:
        """Returns whether an engine is ready so soon that it may answer before the others."""
        return self._loads_in_ms(device) <= _SOON_MS

    def _loads_in_ms(self, device: EngineDevice) -> float:
        return self.loading_ms.get(f"{device.name} {device.version}", device.loads_in_ms)

    def _is_winner(self, device: EngineDevice) -> bool:
        """Returns whether a device won an earlier contest alone, and is ready soon."""
        verdict = self.verdict
        if verdict is None or verdict.chosen.runs or not self.is_soon(device):
            return False
        return verdict.chosen.parts[0].device == device.name


def _known(spec: CompileSpec) -> _Known:
    """Returns what the state folder and the file tell; blocks while these are read."""
    verdict = None if spec.verdicts is None else spec.verdicts.find(spec.question)
    loading_ms = {} if spec.loading_ms is None else spec.loading_ms()
    return _Known(verdict, None if spec.whole is None else whole_form(spec), loading_ms)


def _contender(field: Field, verdict: Verdict | None) -> EngineContender | None:
    """Returns the contender that won before, or else the first one of a device."""
    found = [each for each in field.contenders if isinstance(each, EngineContender)]
    for contender in found:
        if verdict is not None and contender.choice == verdict.chosen:
            return contender
    return found[0] if found else None


def _chosen(plan: _Plan, verdict: Verdict | None, missed: str) -> Chosen:
    """Returns a plan as what was chosen.

    Another one can take its place unless an earlier contest was won with this very plan.
    """
    contender, field = plan.contender, plan.field
    spec = contender.spec
    is_best = verdict is not None and contender.choice == verdict.chosen
    stays = (
        verdict is not None
        and is_best
        and not missed
        and not verdict.is_provisional
        and not spec.code
        and contender.choice.parts[0].threads == 1
    )
    line = Candidate(
        contender.name, contender.lowering, None, "not measured", _SOONEST, fate=Fate.CHOSEN
    )
    reason = _KNOWN if is_best else _SOONEST
    report = Report(
        partitions=contender.partitions(reason),
        candidates=verdict.candidates if verdict and is_best else (*field.candidates, line),
        rejections=tuple(field.rejections),
        cache_hit=False,
        cache_reason=missed or NO_CACHE,
        pin=pin_of(contender.choice, spec.digest),
    )
    median_ns = chosen_ns(verdict.candidates) if verdict and is_best else None
    staged = None if stays else contender.stage(ripe_after=1)
    return Chosen(
        contender,
        reason,
        median_ns,
        report=report,
        staged=staged,
        prepared=contender.finish(),
    )
