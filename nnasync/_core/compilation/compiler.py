"""A model, devices and preferences made into something that runs, and the report of why there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from nnasync._core.compilation.caching import CompilationCache
from nnasync._core.compilation.candidates import gather
from nnasync._core.compilation.choice import pin_of
from nnasync._core.compilation.competition import FALLBACK, Competition, threads_of
from nnasync._core.compilation.contenders import Chosen, Contender, EngineContender
from nnasync._core.compilation.contest_messages import Answer, Ask
from nnasync._core.compilation.fallback import REFERENCE
from nnasync._core.compilation.kept import KeptCompilation
from nnasync._core.compilation.report import Fate, Rejection, Report
from nnasync._core.compilation.segmenting import cut_to_quantum
from nnasync._core.compilation.spec import CompileSpec
from nnasync._core.compilation.upgrade import NO_CACHE
from nnasync.errors import DeviceError, Refused

_AGREEING = (Fate.CHOSEN, Fate.EQUAL, Fate.SLOWER)


async def choose(spec: CompileSpec, cache: CompilationCache | None) -> Chosen:
    """Make and keep the best plan there is."""
    competition = Competition(spec, await gather(spec, cache))
    async with competition.discarding():
        return await _finished(competition, await competition.choose())


async def hold(ask: Ask, spec: CompileSpec, record: Callable[[Answer], None]) -> None:
    """Hold a contest for another process, and tell it who is tried and what came of it."""
    competition = Competition(spec, await gather(spec))
    async with competition.discarding():
        record(await competition.held(ask))


async def _finished(competition: Competition, chosen: Chosen) -> Chosen:
    """Give what was chosen its last form, keep it, and tell of it."""
    contender, field, spec = chosen.contender, competition.field, competition.spec
    if spec.quantum_ns is None:
        await _narrow(competition, contender)
    else:
        await _cut(competition, contender, spec.quantum_ns, chosen.median_ns)
    report = Report(
        partitions=contender.partitions(chosen.reason),
        candidates=tuple(field.candidates),
        rejections=tuple(field.rejections),
        cache_reason=NO_CACHE,
        pin=pin_of(contender.choice, spec.digest),
    )
    cache = field.cache
    if cache is not None:
        not_kept = await _keep(competition, cache, chosen, report)
        missed = cache.reason or "no entry"
        told = f"{missed}; not kept: {not_kept}" if not_kept else missed
        report = msgspec.structs.replace(report, cache_reason=told)
    if spec.fallbacks and contender.name == REFERENCE and chosen.reason == FALLBACK:
        for name, error in competition.unprepared.items():
            spec.fallbacks.record(spec.model.name, name, (), "prepare", error)
    competition.take(contender)
    return msgspec.structs.replace(chosen, report=report)


async def _keep(
    competition: Competition, cache: CompilationCache, chosen: Chosen, report: Report
) -> str:
    """Keep what was chosen in the cache; why not, or ""."""
    if not chosen.is_final:
        return "the measuring did not come to an end"
    kept = KeptCompilation(cache, competition.spec)
    return await kept.keep(chosen, _rivals(competition, chosen), report)


def _rivals(competition: Competition, chosen: Chosen) -> list[Chosen]:
    """Returns the other contenders that were measured and agree, the fastest first."""
    known: dict[tuple[str, str], float] = {
        (line.device, line.lowering): line.median_us * 1000
        for line in competition.field.candidates
        if line.median_us is not None and line.fate in _AGREEING
    }
    rivals = [
        Chosen(contender, "", known[contender.name, contender.lowering])
        for contender in competition.field.contenders
        if (contender.name, contender.lowering) in known and contender is not chosen.contender
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
