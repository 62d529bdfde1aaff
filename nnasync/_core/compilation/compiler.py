"""A model, devices and preferences made into something that runs, and the report of why there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from nnasync._core.compilation.caching import CompilationCache
from nnasync._core.compilation.candidates import gather
from nnasync._core.compilation.choice import pin_of
from nnasync._core.compilation.competition import FALLBACK, Competition, threads_of
from nnasync._core.compilation.contenders import Choosing, Contender, EngineContender
from nnasync._core.compilation.contest_messages import Answer, Ask
from nnasync._core.compilation.fallback import REFERENCE
from nnasync._core.compilation.keeping import keep_stages
from nnasync._core.compilation.manifest import Manifest, Outline
from nnasync._core.compilation.report import Fate, Rejection, Report
from nnasync._core.compilation.segmenting import cut_to_quantum
from nnasync._core.compilation.spec import CompileSpec
from nnasync._core.compilation.upgrade import NO_CACHE, Chosen
from nnasync.errors import BadState, DeviceError, Refused

_AGREEING = (Fate.CHOSEN, Fate.EQUAL, Fate.SLOWER)


async def choose(spec: CompileSpec, cache: CompilationCache | None) -> Chosen:
    """Make and keep the best plan there is."""
    competition = Competition(spec, await gather(spec), cache)
    async with competition.discarding():
        return await _finished(competition, await competition.choose())


async def hold(ask: Ask, spec: CompileSpec, record: Callable[[Answer], None]) -> None:
    """Hold a contest for another process, and tell it who is tried and what came of it."""
    competition = Competition(spec, await gather(spec), None)
    async with competition.discarding():
        record(await competition.held(ask))


async def _finished(competition: Competition, choosing: Choosing) -> Chosen:
    """Give what was chosen its last form, and keep it."""
    contender = choosing.contender
    if competition.spec.quantum_ns is None:
        await _narrow(competition, contender)
    else:
        await _cut(competition, contender, competition.spec.quantum_ns, choosing.median_ns)
    return _chosen(competition, choosing, await _keep(competition, choosing))


def _chosen(competition: Competition, choosing: Choosing, not_kept: str) -> Chosen:
    contender, field = choosing.contender, competition.field
    fallbacks = competition.spec.fallbacks
    if fallbacks and contender.name == REFERENCE and choosing.reason == FALLBACK:
        for name, error in competition.unprepared.items():
            fallbacks.record(competition.spec.model.name, name, (), "prepare", error)
    competition.take(contender)
    missed = NO_CACHE if competition.cache is None else competition.cache.reason or "no entry"
    report = Report(
        partitions=contender.partitions(choosing.reason),
        candidates=tuple(field.candidates),
        rejections=tuple(field.rejections),
        cache_hit=False,
        cache_reason=f"{missed}; {not_kept}" if competition.cache and not_kept else missed,
        pin=pin_of(contender.choice, competition.spec.digest),
    )
    return Chosen(choosing, competition.spec, report)


async def _keep(competition: Competition, choosing: Choosing) -> str:
    """Keep what was chosen in the cache; why not, or ""."""
    cache = competition.cache
    if cache is None:
        return ""
    if not choosing.is_final:
        return "not kept: the measuring did not come to an end"
    field = competition.field
    try:
        outline = Outline.of(competition.spec.model)
    except BadState as error:
        return f"not kept: {error}"
    manifest = Manifest(
        stages=(),
        outline=outline,
        pin=pin_of(choosing.contender.choice, competition.spec.digest),
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
        if line.median_us is not None and line.fate in _AGREEING
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
                await contender.narrow_when_busy(other, competition.deadline_for_more())
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
