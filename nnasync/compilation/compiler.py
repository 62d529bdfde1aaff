"""A model, devices and preferences made into something that runs, and the report of why there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from nnasync.clock import Deadline, now_ns
from nnasync.compilation.chosen import NO_CACHE, Chosen
from nnasync.compilation.competition import FALLBACK, Competition, threads_of
from nnasync.compilation.contenders import REFERENCE, Choosing, Contender, EngineContender, Wish
from nnasync.compilation.contest_messages import Answer, Ask
from nnasync.compilation.gathering import gather
from nnasync.compilation.keeping import keep_stages
from nnasync.compilation.manifest import Manifest, Outline
from nnasync.compilation.pins import pin_of
from nnasync.compilation.report import Rejection, Report
from nnasync.compilation.segmenting import cut_to_quantum
from nnasync.compilation.terms import Terms
from nnasync.device import Device
from nnasync.errors import BadState, DeviceError, Refused
from nnasync.hal import ExecutionPreference, Model
from nnasync.plans.staged import StagedPlan

__all__ = ["choose", "first_stage", "hold"]

_AGREEING = ("slower", "equal", "chosen")
"""How the verdicts on those begin whose results agree."""


async def choose(
    wish: Wish, devices: Sequence[Device], terms: Terms, deadline: Deadline | None
) -> Chosen:
    """Make and keep the best plan there is."""
    field = await gather(devices, wish, deadline, terms.reference)
    competition = Competition(wish, field, devices, terms, deadline)
    async with competition.discarding():
        return await _finished(competition, await competition.choose())


async def first_stage(
    wish: Wish,
    devices: Sequence[Device],
    terms: Terms,
    deadline: Deadline | None,
    optimise_after: int,
) -> Chosen:
    """Make the first plan that can be had, which can be replaced, if it is of this process."""
    field = await gather(devices, wish, deadline, terms.reference)
    competition = Competition(wish, field, devices, terms, deadline)
    async with competition.discarding():
        if not field.contenders:
            await competition.consider_partitions()
        choosing = await competition.take_first()
        staged = None
        if isinstance(choosing.contender, EngineContender):
            staged = choosing.contender.stage(ripe_after=optimise_after)
        return _chosen(competition, choosing, "not kept yet", staged)


async def hold(
    ask: Ask, model: Model, devices: Sequence[Device], terms: Terms, tell: Callable[[Answer], None]
) -> None:
    """Hold a contest for another process, and tell it who is tried and what came of it."""
    question = ask.question
    preference = ExecutionPreference(question.preference)
    wish = Wish(model, preference, ask.priority, question.precision)
    deadline = None if ask.remaining_ns is None else Deadline(now_ns() + ask.remaining_ns)
    field = await gather(devices, wish, deadline, terms.reference)
    competition = Competition(wish, field, devices, terms, deadline)
    async with competition.discarding():
        tell(await competition.held(ask))


async def _finished(competition: Competition, choosing: Choosing) -> Chosen:
    """Give what was chosen its last form, and keep it."""
    contender = choosing.contender
    if competition.terms.quantum_ns is None:
        await _narrow(competition, contender)
    else:
        await _cut(competition, contender, competition.terms.quantum_ns, choosing.median_ns)
    return _chosen(competition, choosing, await _keep(competition, choosing))


def _chosen(
    competition: Competition, choosing: Choosing, not_kept: str, staged: StagedPlan | None = None
) -> Chosen:
    contender, field = choosing.contender, competition.field
    fallbacks = competition.wish.fallbacks
    if fallbacks and contender.name == REFERENCE and choosing.reason == FALLBACK:
        for name, error in competition.unprepared.items():
            fallbacks.tell(competition.wish.model.name, name, (), "prepare", error)
    competition.take(contender)
    missed = (
        NO_CACHE
        if competition.terms.cache is None
        else competition.terms.cache.reason or "no entry"
    )
    report = Report(
        partitions=contender.partitions(choosing.reason),
        candidates=tuple(field.candidates),
        rejections=tuple(field.rejections),
        cache_hit=False,
        cache_reason=f"{missed}; {not_kept}" if competition.terms.cache and not_kept else missed,
        pin=pin_of(contender.choice, competition.terms.digest),
    )
    return Chosen(choosing, competition.wish, report, staged)


async def _keep(competition: Competition, choosing: Choosing) -> str:
    """Keep what was chosen in the cache; why not, or ""."""
    cache = competition.terms.cache
    if cache is None:
        return ""
    if not choosing.is_final:
        return "not kept: the measuring did not come to an end"
    field = competition.field
    try:
        outline = Outline.of(competition.wish.model)
    except BadState as error:
        return f"not kept: {error}"
    manifest = Manifest(
        stages=(),
        outline=outline,
        pin=pin_of(choosing.contender.choice, competition.terms.digest),
        reason=choosing.reason,
        candidates=tuple(field.candidates),
        rejections=tuple(field.rejections),
        circumstances=choosing.circumstances,
    )
    why = await keep_stages(cache, choosing, _rivals(competition, choosing), manifest)
    return f"not kept: {why}" if why else ""


def _rivals(competition: Competition, choosing: Choosing) -> list[Choosing]:
    """What else was measured and agrees, the fastest first."""
    known: dict[tuple[str, str], float] = {
        (line.device, line.lowering): line.median_us * 1000
        for line in competition.field.candidates
        if line.median_us is not None and line.verdict.startswith(_AGREEING)
    }
    rivals = [
        Choosing(contender, "", known[contender.name, contender.lowering])
        for contender in competition.field.contenders
        if (contender.name, contender.lowering) in known and contender is not choosing.contender
    ]
    return sorted(rivals, key=lambda rival: rival.median_ns or 0)


async def _narrow(competition: Competition, contender: Contender) -> None:
    """Give a winner of several threads a form with one, for runs beside others."""
    if not isinstance(contender, EngineContender) or threads_of(contender) < 2:
        return
    for other in competition.field.contenders:
        if not isinstance(other, EngineContender) or other.family != contender.family:
            continue
        if threads_of(other) == 1:
            with contextlib.suppress(DeviceError, Refused):
                await contender.narrow_beside(other, competition.deadline_for_more())
            return


async def _cut(
    competition: Competition, contender: Contender, quantum_ns: int, median_ns: float | None
) -> None:
    """Segment the plan of an engine that cannot stop inside a run, if a quantum is wanted.

    An engine without lowerings looks at its stop flag itself, as the reference does.
    """
    if not isinstance(contender, EngineContender) or contender.engine_lowering is None:
        return
    deadline = competition.deadline_for_more()
    try:
        await cut_to_quantum(contender, quantum_ns, median_ns, deadline)
    except (DeviceError, Refused) as error:
        reason = f"runs in one piece: no segments: {error}"
        competition.field.rejections.append(Rejection(contender.name, -1, reason))
