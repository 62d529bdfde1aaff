"""A model, devices and preferences made into something that runs, and the report of why there."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial

import anyio
import msgspec

from nnasync.clock import Deadline, now_ns
from nnasync.compilation.beside import let_go
from nnasync.compilation.chosen import NO_CACHE, Chosen
from nnasync.compilation.circumstances import Circumstances, is_quiet
from nnasync.compilation.contenders import (
    REFERENCE,
    Choosing,
    Contender,
    EngineContender,
    OutsideContender,
    Wish,
)
from nnasync.compilation.contest import SHORT_NS, Limits, contest, still_agrees
from nnasync.compilation.gathering import Field, by_deadline, gather
from nnasync.compilation.keeping import keep_stages
from nnasync.compilation.manifest import Manifest, Outline
from nnasync.compilation.partitioning import assigned, propose
from nnasync.compilation.pinning import pinned
from nnasync.compilation.pins import parse_pin, pin_of
from nnasync.compilation.ranking import crowding
from nnasync.compilation.report import Candidate, Rejection, Report
from nnasync.compilation.samples import can_sample
from nnasync.compilation.segmenting import cut_to_quantum
from nnasync.compilation.standing import Standing
from nnasync.compilation.terms import Terms
from nnasync.compilation.verdicts import Question, Verdict, Verdicts
from nnasync.device import Device
from nnasync.engine import EngineDevice
from nnasync.engine.staged import StagedPlan
from nnasync.errors import BadState, DeviceError, GeneralFailure, MissedDeadline, NNError, Refused
from nnasync.workers.helping import in_helper_thread

__all__ = ["choose", "first_stage"]

logger = logging.getLogger(__name__)

_MARGIN_NS = 2_000_000
_FALLBACK = "fallback"
_FASTEST = "fastest whose results agree"
_DISTURBED = " (other work disturbed the measuring)"
_AGREEING = ("slower", "equal", "chosen")
"""How the verdicts on those begin whose results agree."""


async def choose(
    wish: Wish, devices: Sequence[Device], terms: Terms, deadline: Deadline | None
) -> Chosen:
    """Make and keep the best plan there is."""
    field = await gather(devices, wish, deadline, terms.reference)
    compiler = _Compiler(wish, field, devices, terms, deadline)
    async with compiler.discarding():
        return await compiler.finish(await compiler.choose())


async def first_stage(
    wish: Wish,
    devices: Sequence[Device],
    terms: Terms,
    deadline: Deadline | None,
    optimise_after: int,
) -> Chosen:
    """Make the first plan that can be had, which can be replaced, if it is of this process."""
    field = await gather(devices, wish, deadline, terms.reference)
    compiler = _Compiler(wish, field, devices, terms, deadline)
    async with compiler.discarding():
        return await compiler.first_stage(optimise_after)


def _limits(deadline: Deadline | None, budget_ns: int, patience_s: float) -> Limits:
    if deadline is None:
        return Limits(budget_ns, patience_s, float("inf"))
    remaining_ns = max(0, deadline.remaining_ns(now_ns()))
    until_ns = deadline.at_ns - _MARGIN_NS - remaining_ns // 10
    return Limits(min(budget_ns, remaining_ns), patience_s, until_ns)


class _Compiler:
    """One compilation under way."""

    def __init__(
        self,
        wish: Wish,
        field: Field,
        devices: Sequence[Device],
        terms: Terms,
        deadline: Deadline | None,
    ) -> None:
        self._wish = wish
        self._field = field
        self._devices = devices
        self._terms = terms
        self._deadline = deadline
        self._limits = _limits(deadline, terms.budget_ns, terms.patience_s)
        self._losers: list[Contender] = []
        self._longest_ns = 0
        self._refused = False
        self._told: list[Contender] = []
        self._unprepared: dict[str, NNError] = {}

    @contextlib.asynccontextmanager
    async def discarding(self) -> AsyncIterator[None]:
        """Give back in the end what was prepared and not taken."""
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                for contender in self._losers:
                    await contender.discard()

    async def choose(self) -> Choosing:
        """The contender that a pin names, or the best one."""
        terms = self._terms
        if terms.pin is not None:
            return await self._follow(terms.pin)
        is_measurable = terms.budget_ns > 0 and can_sample(self._wish.model)
        if is_measurable or not self._field.contenders:
            await self._consider_partitions()
        if len(self._field.contenders) < 2 or not is_measurable:
            return await self._take_first()
        return await self._compete(terms.verdicts)

    async def first_stage(self, optimise_after: int) -> Chosen:
        """The first contender that is ready, in a form that can be replaced, if it has one."""
        if not self._field.contenders:
            await self._consider_partitions()
        choosing = await self._take_first()
        staged = None
        if isinstance(choosing.contender, EngineContender):
            staged = choosing.contender.stage(ripe_after=optimise_after)
        return self._chosen(choosing, "not kept yet", staged)

    async def _follow(self, pin: str) -> Choosing:
        """Prepare the contender that a pin names, and no other."""
        choice = parse_pin(pin, self._terms.digest)
        if choice.runs:
            shared = await assigned(choice, self._field, self._wish)
            self._field.contenders += [shared] if shared is not None else []
        contender = pinned(choice, self._field, self._devices)
        self._cache_in(contender)
        await contender.prepare(self._deadline)
        self._losers.append(contender)
        self._tell(contender, "chosen")
        return Choosing(contender, "pinned")

    async def _consider_partitions(self) -> None:
        """Let devices that take a part of the model each compete as one."""
        if self._devices:
            proposed = propose(self._field, self._wish)
            self._field.contenders += await by_deadline(self._devices[0], proposed, self._deadline)

    async def _take_first(self) -> Choosing:
        """Prepare the first contender that can be; the others are not even tried."""
        failure: NNError | None = None
        for contender in self._field.contenders:
            self._cache_in(contender)
            try:
                await contender.prepare(self._deadline)
            except MissedDeadline:
                raise
            except (DeviceError, Refused) as error:
                failure = error
                self._failed_to_prepare(contender, error)
                continue
            self._losers.append(contender)
            self._tell(contender, "chosen")
            first = not self._unprepared
            reason = "first device that takes the whole model" if first else _FALLBACK
            return Choosing(contender, reason)
        raise failure or self._nobody()

    async def _compete(self, verdicts: Verdicts | None) -> Choosing:
        """Take the contender that won before, or let them compete now."""
        question, before = self._question(), None
        if verdicts is not None:
            before = await in_helper_thread(verdicts.find, question)
        if before is not None and not self._is_to_be_held_again(before):
            remembered = await self._as_before(before)
            if remembered is not None:
                return remembered
        ready = await self._prepared(self._leaders())
        if len(ready) == 1 and not self._wider_than([ready[0].family]):
            self._tell(ready[0], "chosen: the only one that is ready")
            is_last = ready[0].name == REFERENCE and self._unprepared
            return Choosing(ready[0], _FALLBACK if is_last else "the only one that is ready")
        standings = [Standing(contender) for contender in ready]
        winner = await self._measured(standings)
        earlier = None if before is None else before.circumstances
        held = Circumstances.of(time.time(), crowding(standings), earlier)
        reason = _FASTEST + _told(held)
        choosing = Choosing(winner.contender, reason, winner.median_ns, circumstances=held)
        is_measured = winner.agrees is not False and winner.median_ns is not None
        if not is_measured or self._refused or now_ns() >= self._limits.until_ns:
            return msgspec.structs.replace(choosing, is_final=False)
        if verdicts is None:
            return choosing
        return await self._keep_verdict(verdicts, question, choosing, before)

    def _is_to_be_held_again(self, verdict: Verdict) -> bool:
        """Whether there should be another contest in spite of a verdict."""
        return self._terms.again or (verdict.circumstances.is_provisional and is_quiet())

    async def _keep_verdict(
        self, verdicts: Verdicts, question: Question, choosing: Choosing, before: Verdict | None
    ) -> Choosing:
        """Remember what was chosen, or stay with what was chosen before in quieter times."""
        keep = partial(
            verdicts.keep,
            question,
            self._field.contenders.index(choosing.contender),
            tuple(self._field.candidates),
            choosing.circumstances,
            before,
        )
        verdict = await in_helper_thread(keep)
        if before is None or verdict.candidates != before.candidates:
            return choosing
        return await self._as_before(verdict) or choosing

    async def _measured(self, standings: list[Standing]) -> Standing:
        """The winner of the contest, which is noted for the report."""

        async def widen(close: Sequence[Standing]) -> list[Standing]:
            wider = self._wider_than([standing.contender.family for standing in close])
            long = {
                standing.contender.family
                for standing in close
                if standing.cost(self._wish.preference) > SHORT_NS
            }
            worth = [each for each in wider if each.family in long or _threads(each) <= 1]
            return [Standing(contender) for contender in await self._prepared(worth)]

        judge_by = await self._judge(standings)
        wish = self._wish
        winner = await contest(
            wish.model, standings, judge_by, wish.preference, self._limits, widen
        )
        self._note(standings)
        trials = [standing.trial for standing in standings]
        for standing in standings:
            standing.trial = None
        await let_go(trials)
        for contender in self._field.contenders:
            if contender not in self._told:
                self._tell(contender, "not tried: too slow, or too short, with fewer threads")
        return winner

    def _leaders(self) -> list[Contender]:
        """Of each family the contender with the fewest threads."""
        leaders: dict[tuple[str, str], Contender] = {}
        for contender in self._field.contenders:
            leader = leaders.setdefault(contender.family, contender)
            if _threads(contender) < _threads(leader):
                leaders[contender.family] = contender
        return list(leaders.values())

    def _wider_than(self, families: Sequence[tuple[str, str]]) -> list[Contender]:
        """The other contenders of these families."""
        leaders = self._leaders()
        return [
            contender
            for contender in self._field.contenders
            if contender.family in families and contender not in leaders
        ]

    async def _as_before(self, verdict: Verdict) -> Choosing | None:
        """Prepare the winner of an earlier contest; None if it cannot be, or is wrong, by now."""
        contender = self._field.contenders[verdict.chosen]
        if contender not in self._losers:
            try:
                await contender.prepare(self._deadline)
            except MissedDeadline:
                raise
            except (DeviceError, Refused):
                return None
            self._losers.append(contender)
        if not await self._is_trusted(contender):
            return None
        self._field.candidates = list(verdict.candidates)
        reason = f"{_FASTEST}, as measured before{_told(verdict.circumstances)}"
        return Choosing(
            contender,
            reason,
            _chosen_ns(verdict.candidates),
            circumstances=verdict.circumstances,
        )

    async def _is_trusted(self, contender: Contender) -> bool:
        """Whether an earlier judgement holds: a driver of others answers one sample again."""
        if not any(part.device in self._terms.code for part in contender.choice.parts):
            return True
        standing = Standing(contender)
        judge_by = await self._judge([standing])
        if await still_agrees(self._wish.model, standing, judge_by, self._limits):
            return True
        logger.warning(
            "%s agreed with the reference when %s was measured, and does not any more: %s",
            contender.name,
            self._wish.model.name,
            standing.agreement if standing.failure is None else standing.failure,
        )
        return False

    async def _prepared(self, contenders: Sequence[Contender]) -> list[Contender]:
        """Those that are ready in time; raises what the last failed with if none ever was."""
        ready: list[Contender] = []
        failure: NNError | None = None
        for contender in contenders:
            began_ns = now_ns()
            if self._losers and began_ns + self._longest_ns > self._limits.until_ns:
                self._tell(contender, "not tried: the deadline is near")
                continue
            self._cache_in(contender)
            try:
                await contender.prepare(self._deadline_of(self._losers))
            except (DeviceError, Refused) as error:
                if isinstance(error, MissedDeadline) and not self._losers:
                    raise
                failure = error
                self._failed_to_prepare(contender, error)
                continue
            ready.append(contender)
            self._losers.append(contender)
            self._longest_ns = max(self._longest_ns, now_ns() - began_ns)
        if not self._losers:
            raise failure or self._nobody()
        return ready

    def _deadline_of(self, ready: Sequence[Contender]) -> Deadline | None:
        """The next one may use all the time only if it is the first."""
        if self._deadline is None or not ready:
            return self._deadline
        return Deadline(int(self._limits.until_ns))

    async def _judge(self, standings: Sequence[Standing]) -> Contender | None:
        """The prepared reference, None if it does not take the model in time."""
        for standing in standings:
            if standing.contender.device.name == REFERENCE:
                return standing.contender
        if not isinstance(self._terms.reference, EngineDevice):
            return None
        contender = EngineContender(self._terms.reference, self._wish, None)
        try:
            await contender.prepare(self._deadline_of([contender]))
        except NNError:
            return None
        self._losers.append(contender)
        return contender

    def _question(self) -> Question:
        wish, judge_by = self._wish, self._terms.reference
        engines = [d for d in self._devices if isinstance(d, EngineDevice)]
        return Question(
            model=self._terms.digest,
            contenders=tuple(contender.choice for contender in self._field.contenders),
            judge="" if judge_by is None else f"{judge_by.name} {judge_by.version}",
            preference=int(wish.preference),
            precision=wish.precision,
            cores=engines[0].workers.cores if engines else 0,
            code=dict(self._terms.code),
        )

    def _failed_to_prepare(self, contender: Contender, error: NNError) -> None:
        self._refused |= isinstance(error, Refused)
        name = contender.name
        self._unprepared.setdefault(name, error)
        self._field.rejections.append(Rejection(name, -1, f"prepare failed: {error}"))
        self._tell(contender, "prepare failed")

    def _tell(self, contender: Contender, verdict: str) -> None:
        name, lowering = contender.name, contender.lowering
        self._told.append(contender)
        line = Candidate(name, lowering, None, "not measured", verdict)
        self._field.candidates.append(line)

    def _note(self, standings: Sequence[Standing]) -> None:
        """Put what a contest found into the report."""
        for standing in standings:
            self._told.append(standing.contender)
            self._field.candidates.append(standing.candidate())
            if standing.failure is not None:
                name = standing.contender.name
                reason = f"failed in a trial: {standing.failure}"
                self._field.rejections.append(Rejection(name, -1, reason))

    async def finish(self, choosing: Choosing) -> Chosen:
        """Give what was chosen its last form, and keep it."""
        contender = choosing.contender
        if self._terms.quantum_ns is None:
            await self._narrow(contender)
        else:
            await self._cut(contender, self._terms.quantum_ns, choosing.median_ns)
        return self._chosen(choosing, await self._keep(choosing))

    def _chosen(
        self, choosing: Choosing, not_kept: str, staged: StagedPlan | None = None
    ) -> Chosen:
        contender, field = choosing.contender, self._field
        fallbacks = self._wish.fallbacks
        if fallbacks and contender.name == REFERENCE and choosing.reason == _FALLBACK:
            for name, error in self._unprepared.items():
                fallbacks.tell(self._wish.model.name, name, (), "prepare", error)
        if contender in self._losers:
            self._losers.remove(contender)
        missed = NO_CACHE if self._terms.cache is None else self._terms.cache.reason or "no entry"
        report = Report(
            partitions=contender.partitions(choosing.reason),
            candidates=tuple(field.candidates),
            rejections=tuple(field.rejections),
            cache_hit=False,
            cache_reason=f"{missed}; {not_kept}" if self._terms.cache and not_kept else missed,
            pin=pin_of(contender.choice, self._terms.digest),
        )
        return Chosen(choosing, self._wish, report, staged)

    async def _keep(self, choosing: Choosing) -> str:
        """Keep what was chosen in the cache; why not, or ""."""
        cache = self._terms.cache
        if cache is None:
            return ""
        if not choosing.is_final:
            return "not kept: the measuring did not come to an end"
        field = self._field
        try:
            outline = Outline.of(self._wish.model)
        except BadState as error:
            return f"not kept: {error}"
        manifest = Manifest(
            stages=(),
            outline=outline,
            pin=pin_of(choosing.contender.choice, self._terms.digest),
            reason=choosing.reason,
            candidates=tuple(field.candidates),
            rejections=tuple(field.rejections),
            circumstances=choosing.circumstances,
        )
        why = await keep_stages(cache, choosing, self._rivals(choosing), manifest)
        return f"not kept: {why}" if why else ""

    def _rivals(self, choosing: Choosing) -> list[Choosing]:
        """What else was measured and agrees, the fastest first."""
        known: dict[tuple[str, str], float] = {
            (line.device, line.lowering): line.median_us * 1000
            for line in self._field.candidates
            if line.median_us is not None and line.verdict.startswith(_AGREEING)
        }
        rivals = [
            Choosing(contender, "", known[contender.name, contender.lowering])
            for contender in self._field.contenders
            if (contender.name, contender.lowering) in known and contender is not choosing.contender
        ]
        return sorted(rivals, key=lambda rival: rival.median_ns or 0)

    def _cache_in(self, contender: Contender) -> None:
        """A device outside of this process keeps what it compiles by itself."""
        if isinstance(contender, OutsideContender):
            contender.cache = self._terms.cache

    async def _narrow(self, contender: Contender) -> None:
        """Give a winner of several threads a form with one, for runs beside others."""
        if not isinstance(contender, EngineContender) or _threads(contender) < 2:
            return
        for other in self._field.contenders:
            if not isinstance(other, EngineContender) or other.family != contender.family:
                continue
            if _threads(other) == 1:
                with contextlib.suppress(DeviceError, Refused):
                    await contender.narrow_beside(other, self._deadline_of([contender]))
                return

    async def _cut(self, contender: Contender, quantum_ns: int, median_ns: float | None) -> None:
        """Segment the plan of an engine that cannot stop inside a run, if a quantum is wanted.

        An engine without lowerings looks at its stop flag itself, as the reference does.
        """
        if not isinstance(contender, EngineContender) or contender.engine_lowering is None:
            return
        deadline = self._deadline_of([contender])
        try:
            await cut_to_quantum(contender, quantum_ns, median_ns, deadline)
        except (DeviceError, Refused) as error:
            reason = f"runs in one piece: no segments: {error}"
            self._field.rejections.append(Rejection(contender.name, -1, reason))

    def _nobody(self) -> NNError:
        """What to raise where nobody takes the model: that a device is gone, if one is."""
        names = ", ".join(device.name for device in self._devices) or "none"
        reasons = [str(rejection) for rejection in self._field.rejections] + [
            f"{candidate.device}, {candidate.lowering}: {candidate.verdict}"
            for candidate in self._field.candidates
            if candidate.verdict.startswith("not allowed")
        ]
        model = self._wish.model.name
        kind = GeneralFailure if self._field.lost is None else type(self._field.lost)
        return kind(
            f"no device takes the whole model {model!r} (devices: {names}): "
            f"{'; '.join(reasons[:8])}"
        )


def _told(held: Circumstances) -> str:
    return _DISTURBED if held.disturbed else ""


def _chosen_ns(candidates: Sequence[Candidate]) -> float | None:
    """How long a run of the chosen candidate took, if it was measured."""
    for candidate in candidates:
        if candidate.verdict == "chosen" and candidate.median_us is not None:
            return candidate.median_us * 1000
    return None


def _threads(contender: Contender) -> int:
    return max(part.threads for part in contender.choice.parts)
