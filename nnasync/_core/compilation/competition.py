"""The contenders for a model compete: with what was measured before, in another process, or here.

Whoever wins is prepared in this process then. Where nothing is to be measured the first that is
ready is taken, or the one that a pin names.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial

import anyio
import msgspec

from nnasync._core.clock import Deadline, now_ns
from nnasync._core.compilation.candidates import Field, by_deadline, pinned
from nnasync._core.compilation.choice import Choice, parse_pin
from nnasync._core.compilation.contenders import (
    Chosen,
    Contender,
    EngineContender,
    let_go,
)
from nnasync._core.compilation.contest import SHORT_NS, ContestLimits, contest, still_agrees
from nnasync._core.compilation.contest_messages import Answer, Ask, Held, Unheld
from nnasync._core.compilation.contest_process import ContenderDied, NoContest
from nnasync._core.compilation.fallback import REFERENCE
from nnasync._core.compilation.partitioning import assigned, propose
from nnasync._core.compilation.promise import Promise, by_promise, kind_of, learnt
from nnasync._core.compilation.purse import Purse, loading_ms_of
from nnasync._core.compilation.ranking import Standing, crowding
from nnasync._core.compilation.report import Candidate, Fate, Rejection
from nnasync._core.compilation.samples import Samples, samples_of
from nnasync._core.compilation.spec import CompileSpec, can_sample
from nnasync._core.compilation.verdicts import Circumstances, Verdict, Verdicts, chosen_ns, is_quiet
from nnasync._core.engine_device import EngineDevice
from nnasync._core.workers.anyio_threads import in_helper_thread
from nnasync.errors import (
    DeviceError,
    GeneralFailure,
    MissedDeadline,
    NNError,
    Refused,
    from_status,
)
from nnasync.machine.here import HERE

logger = logging.getLogger(__name__)

FALLBACK = "fallback"
"""The reason of the reference where others could not prepare the model."""

_MARGIN_NS = 2_000_000
_LEAST = 2
"""So many compete at least, so that there is an outcome, and one that went on comes to an end."""
_NOT_YET = "not tried yet: the processor time of a contest in the background was used up"
_FASTEST = "fastest whose results agree"
_DISTURBED = " (other work disturbed the measuring)"
_IDLE_PATIENCE = 20
"""In the system's idle class a device may get no core for long, which is not its fault."""
_WORTH_A_PROCESS_NS = 2_000_000_000
"""With less time than this a process would hardly have started."""


def _limits(spec: CompileSpec) -> ContestLimits:
    deadline, budget_ns = spec.deadline, spec.budget_ns
    cpu_ns = spec.contest_cpu_ns
    cpu_until_ns = float("inf")
    if cpu_ns:
        began_ns = spec.cpu_began_ns
        cpu_until_ns = cpu_ns + (time.process_time_ns() if began_ns is None else began_ns)
    if deadline is None:
        return ContestLimits(budget_ns, spec.patience_s, float("inf"), spec.trying, cpu_until_ns)
    remaining_ns = max(0, deadline.remaining_ns(now_ns()))
    until_ns = deadline.at_ns - _MARGIN_NS - remaining_ns // 10
    budget_ns = min(budget_ns, remaining_ns)
    return ContestLimits(budget_ns, spec.patience_s, until_ns, spec.trying, cpu_until_ns)


class Competition:
    """Prepares and measures the contenders for one model; to be used within `discarding`."""

    def __init__(self, spec: CompileSpec, field: Field) -> None:
        self.spec = spec
        self.field = field
        self._limits = _limits(spec)
        self._purse: Purse | None = None
        """The processor time of a contest that is held here, where it is limited."""
        self._samples: Samples | None = None
        self._losers: list[Contender] = []
        self._longest_ns = 0
        self._refused = False
        self._told: list[Contender] = []
        self.unprepared: dict[str, NNError] = {}
        self.untried: list[Choice] = []
        """Who did not compete since the processor time was used up."""
        self._promises: tuple[Promise, ...] = ()

    @contextlib.asynccontextmanager
    async def discarding(self) -> AsyncIterator[None]:
        """Discards at the end what was prepared and not taken."""
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                for contender in self._losers:
                    await contender.discard()

    async def choose(self) -> Chosen:
        """Returns the contender that a pin names, or the best one."""
        if self.spec.pin is not None:
            return await self._follow(self.spec.pin)
        is_measurable = self.spec.budget_ns > 0 and can_sample(self.spec.model)
        if is_measurable or not self.field.contenders:
            await self.consider_partitions()
        if len(self.field.contenders) < 2 or not is_measurable:
            return await self.take_first()
        return await self._compete(self.spec.verdicts)

    async def _follow(self, pin: str) -> Chosen:
        """Prepare the contender that a pin names, and no other."""
        choice = parse_pin(pin, self.spec.digest)
        if choice.runs:
            shared = await assigned(choice, self.field, self.spec)
            self.field.contenders += [shared] if shared is not None else []
        contender = pinned(choice, self.field, self.spec.devices)
        if error := await self._prepare(contender, self.spec.deadline):
            raise error
        self._tell(contender, Fate.CHOSEN, "chosen")
        return Chosen(contender, "pinned")

    async def consider_partitions(self) -> None:
        """Let devices that take a part of the model each compete as one."""
        if self.spec.devices:
            proposed = propose(self.field, self.spec)
            self.field.contenders += await by_deadline(
                self.spec.devices[0], proposed, self.spec.deadline
            )

    async def take_first(self) -> Chosen:
        """Prepare the first contender that can be; the others are not even tried."""
        failure: NNError | None = None
        for contender in self.field.contenders:
            if error := await self._prepare(contender, self.spec.deadline):
                failure = error
                self._failed_to_prepare(contender, error)
                continue
            self._tell(contender, Fate.CHOSEN, "chosen")
            first = not self.unprepared
            reason = "first device that takes the whole model" if first else FALLBACK
            return Chosen(contender, reason)
        raise failure or self._nobody()

    async def _compete(self, verdicts: Verdicts | None) -> Chosen:
        """Returns the contender that won before, or holds a contest now."""
        before = None
        if verdicts is not None:
            before = await in_helper_thread(verdicts.find, self.spec.question)
        if before is not None and not self._is_to_be_held_again(before):
            remembered = await self._as_before(before)
            if remembered is not None:
                return remembered
        only = self._still_to_compete(before)
        if verdicts is not None and self.spec.contest_cpu_ns:
            self._promises = await in_helper_thread(self._promised, verdicts)
        names = dict.fromkeys(contender.name for contender in self.field.contenders)
        logger.info("network %r: %s are compared", self.spec.model.name, ", ".join(names))
        apart = await self._compete_apart(before, only)
        chosen = apart or await self._compete_here(before, only)
        if not chosen.is_final or chosen.median_ns is None or verdicts is None:
            return chosen
        return await self._keep_verdict(verdicts, chosen, before)

    def _still_to_compete(self, before: Verdict | None) -> tuple[Choice, ...]:
        """Returns who competes where an earlier contest was not finished; empty for all."""
        is_continued = before is not None and before.untried and self.spec.in_background
        return (before.chosen, *before.untried) if before and is_continued else ()

    def _promised(self, verdicts: Verdicts) -> tuple[Promise, ...]:
        """Returns what earlier verdicts promise of the contenders; reads files."""
        return learnt(verdicts.latest(), self.spec.question, kind_of(self.spec.model))

    async def _compete_here(self, before: Verdict | None, only: Sequence[Choice] = ()) -> Chosen:
        """Holds the contest in this process."""
        if only:
            found = [each for each in self.field.contenders if each.choice in only]
            found.sort(key=lambda each: each.choice != only[0])
            self.field.contenders = found or self.field.contenders
        if limit_ns := self.spec.contest_cpu_ns:
            loads_in_ms = await in_helper_thread(loading_ms_of, self.spec)
            self._purse = Purse(limit_ns, self._limits.cpu_left_ns, loads_in_ms)
        ready = await self._prepared(self._in_order())
        if len(ready) == 1 and not self._wider_than([ready[0].family]):
            self._tell(ready[0], Fate.CHOSEN, "chosen: the only one that is ready")
            is_last = ready[0].name == REFERENCE and self.unprepared
            return Chosen(ready[0], FALLBACK if is_last else "the only one that is ready")
        standings = [Standing(contender) for contender in ready]
        winner = await self._measured(standings)
        earlier = None if before is None else before.circumstances
        held = Circumstances.of(time.time(), crowding(standings), earlier)
        reason = _FASTEST + _circumstances_text(held)
        chosen = Chosen(winner.contender, reason, winner.median_ns, circumstances=held)
        is_measured = winner.agrees is not False and winner.median_ns is not None
        if not is_measured or self._refused or now_ns() >= self._limits.until_ns:
            return msgspec.structs.replace(chosen, is_final=False)
        return chosen

    async def held(self, ask: Ask) -> Answer:
        """Holds a contest that another process asked for, and returns what came of it."""
        await self.consider_partitions()
        self._leave_out(ask.left_out)
        self._promises = ask.promises
        # Whoever asks knows better whether a file may compete, which is judged before it is sent.
        has_whole = ask.question.has_whole
        if msgspec.structs.replace(self.spec.question, has_whole=has_whole) != ask.question:
            return Unheld("other devices are found there than here")
        chosen = await self._compete_here(None, ask.only)
        return Held(
            chosen=chosen.contender.choice,
            reason=chosen.reason,
            median_ns=chosen.median_ns,
            candidates=tuple(self.field.candidates),
            rejections=tuple(self.field.rejections),
            crowding=chosen.circumstances.crowding,
            unprepared={name: (e.status, str(e)) for name, e in self.unprepared.items()},
            is_final=chosen.is_final,
            untried=tuple(self.untried),
        )

    async def _compete_apart(
        self, before: Verdict | None, only: tuple[Choice, ...]
    ) -> Chosen | None:
        """Has another process hold the contest; returns None where that cannot be."""
        apart, remaining_ns = self.spec.apart, None
        if self.spec.deadline is not None:
            # The other half is for the winner, which is prepared here.
            remaining_ns = self.spec.deadline.remaining_ns(now_ns()) // 2
        if apart is None or (remaining_ns is not None and remaining_ns < _WORTH_A_PROCESS_NS):
            return None
        left_out: list[str] = []
        cpu_ns = self.spec.contest_cpu_ns
        while len(self.field.contenders) > 1:
            ask = Ask(
                devices=apart.devices,
                left_out=tuple(left_out),
                question=self.spec.question,
                priority=self.spec.priority,
                budget_ns=self.spec.budget_ns,
                patience_s=self.spec.patience_s * (_IDLE_PATIENCE if cpu_ns else 1),
                remaining_ns=remaining_ns,
                cpu_ns=cpu_ns,
                only=only,
                has_whole=self.field.whole is not None,
                promises=self._promises,
            )
            try:
                with anyio.fail_after(None if remaining_ns is None else remaining_ns / 1e9):
                    held = await apart.process().hold(self.spec.model, ask, self.field.whole)
                return await self._chosen_apart(held, before)
            except NoContest as reason:
                logger.info("a contest is held in this process: %s", reason)
                return None
            except MissedDeadline:
                raise
            except TimeoutError:
                break
            except ContenderDied as death:
                logger.warning("%s: it is left out", death)
                self.field.rejections.append(Rejection(death.device, -1, str(death)))
                self._leave_out([death.device])
                if death.device in left_out:
                    break
                left_out.append(death.device)
        return msgspec.structs.replace(await self.take_first(), is_final=False)

    async def _chosen_apart(self, held: Held, before: Verdict | None) -> Chosen | None:
        """Prepare who won in another process; None if it cannot be."""
        contender = self._contender(held.chosen)
        if contender is None or await self._prepare(contender, self.spec.deadline):
            return None
        self.field.candidates = list(held.candidates)
        self.untried = list(held.untried)
        self.field.rejections += [
            each for each in held.rejections if each not in self.field.rejections
        ]
        self.unprepared = {
            name: from_status(status, text) for name, (status, text) in held.unprepared.items()
        }
        earlier = None if before is None else before.circumstances
        circumstances = Circumstances.of(time.time(), held.crowding, earlier)
        return Chosen(contender, held.reason, held.median_ns, held.is_final, circumstances)

    def _contender(self, choice: Choice) -> Contender | None:
        """Returns the contender of a choice; None where there is none by now."""
        contenders = self.field.contenders
        return next((each for each in contenders if each.choice == choice), None)

    def _leave_out(self, names: Sequence[str]) -> None:
        """Removes the contenders in which one of these devices has a part."""
        self.field.contenders = [
            contender
            for contender in self.field.contenders
            if not any(part.device in names for part in contender.choice.parts)
        ]

    def _is_to_be_held_again(self, verdict: Verdict) -> bool:
        """Returns whether there should be another contest in spite of a verdict."""
        if self.spec.again or (verdict.untried and not self.spec.in_background):
            return True
        return verdict.is_provisional and is_quiet()

    async def _keep_verdict(
        self, verdicts: Verdicts, chosen: Chosen, before: Verdict | None
    ) -> Chosen:
        """Remember what was chosen, or stay with what was chosen before in quieter times."""
        keep = partial(
            verdicts.keep,
            self.spec.question,
            chosen.contender.choice,
            self._lines(before),
            chosen.circumstances,
            before,
            self.untried,
            name=self.spec.model.name,
            kind=kind_of(self.spec.model),
        )
        verdict = await in_helper_thread(keep)
        if before is None or verdict.candidates != before.candidates:
            return chosen
        return await self._as_before(verdict) or chosen

    def _lines(self, before: Verdict | None) -> tuple[Candidate, ...]:
        """Returns what is known of all contenders, those that competed only before included."""
        if self._still_to_compete(before) and before is not None:
            now = {(line.device, line.lowering) for line in self.field.candidates}
            self.field.candidates += [
                msgspec.structs.replace(line, fate=Fate.SLOWER)
                if line.fate is Fate.CHOSEN
                else line
                for line in before.candidates
                if (line.device, line.lowering) not in now
            ]
        return tuple(self.field.candidates)

    async def _measured(self, standings: list[Standing]) -> Standing:
        """Holds the contest, notes it for the report, and returns the winner."""

        async def widen(close: Sequence[Standing]) -> list[Standing]:
            wider = self._wider_than([standing.contender.family for standing in close])
            long = {
                standing.contender.family
                for standing in close
                if standing.cost(self.spec.preference) > SHORT_NS
            }
            worth = [each for each in wider if each.family in long or threads_of(each) <= 1]
            return [Standing(contender) for contender in await self._prepared(worth)]

        judge_by = await self._judge(standings)
        spec = self.spec
        winner = await contest(
            spec.model, standings, judge_by, spec.preference, self._limits, widen, self._samples
        )
        self._note(standings)
        trials = [standing.trial for standing in standings]
        for standing in standings:
            standing.trial = None
        await let_go(trials)
        for contender in self.field.contenders:
            if contender not in self._told:
                told = "not tried: too slow, or too short, with fewer threads"
                self._tell(contender, Fate.UNTRIED, told)
        return winner

    def _leaders(self) -> list[Contender]:
        """Returns the contender with the fewest threads of each family.

        Where not all may come to it, the most promising come first.
        """
        leaders: dict[tuple[str, str], Contender] = {}
        for contender in self.field.contenders:
            leader = leaders.setdefault(contender.family, contender)
            if threads_of(contender) < threads_of(leader):
                leaders[contender.family] = contender
        found = list(leaders.values())
        if self.spec.contest_cpu_ns:
            return by_promise(found, self._promises, self.field.whole)
        return found

    def _in_order(self) -> list[Contender]:
        """Returns the leaders in order; the reference comes early where time is limited."""
        leaders = self._leaders()
        if self._purse is None:
            return leaders
        others = [each for each in leaders if each.name != REFERENCE]
        judges = [each for each in leaders if each.name == REFERENCE]
        return [*others[:_LEAST], *judges, *others[_LEAST:]]

    def _wider_than(self, families: Sequence[tuple[str, str]]) -> list[Contender]:
        """Returns the contenders of these families that have more threads than their leaders."""
        leaders = self._leaders()
        return [
            contender
            for contender in self.field.contenders
            if contender.family in families and contender not in leaders
        ]

    async def _as_before(self, verdict: Verdict) -> Chosen | None:
        """Prepare the winner of an earlier contest; None if it cannot be, or is wrong, by now."""
        contender = self._contender(verdict.chosen)
        if contender is None:
            return None
        is_ready = contender in self._losers
        if not is_ready and await self._prepare(contender, self.spec.deadline):
            return None
        if not await self._is_trusted(contender):
            return None
        self.field.candidates = list(verdict.candidates)
        reason = f"{_FASTEST}, as measured before{_circumstances_text(verdict.circumstances)}"
        return Chosen(
            contender,
            reason,
            chosen_ns(verdict.candidates),
            circumstances=verdict.circumstances,
        )

    async def _is_trusted(self, contender: Contender) -> bool:
        """Returns whether an earlier judgment holds; others' drivers answer a sample again."""
        if not any(part.device in self.spec.code for part in contender.choice.parts):
            return True
        standing = Standing(contender)
        judge_by = await self._judge([standing])
        if await still_agrees(self.spec.model, standing, judge_by, self._limits):
            return True
        logger.warning(
            "%s agreed with the reference when %s was measured, and does not any more: %s",
            contender.name,
            self.spec.model.name,
            standing.agreement if standing.failure is None else standing.failure,
        )
        return False

    async def _prepared(self, contenders: Sequence[Contender]) -> list[Contender]:
        """Returns the contenders that are ready in time; raises if none ever was."""
        ready: list[Contender] = []
        failure: NNError | None = None
        for contender in contenders:
            began_ns = now_ns()
            if self._losers and began_ns + self._longest_ns > self._limits.until_ns:
                self._tell(contender, Fate.UNTRIED, "not tried: the deadline is near")
                continue
            if not self._affords(contender):
                self._put_off(contender)
                continue
            if self.spec.trying is not None:
                self.spec.trying(contender.name)
            try:
                error = await self._prepare(contender, self._deadline_of(self._losers))
            except MissedDeadline as late:
                if not self._losers:
                    raise
                error = late
            if error is not None:
                failure = error
                self._failed_to_prepare(contender, error)
                continue
            ready.append(contender)
            self._longest_ns = max(self._longest_ns, now_ns() - began_ns)
        if not self._losers:
            raise failure or self._nobody()
        return ready

    async def _prepare(self, contender: Contender, deadline: Deadline | None) -> NNError | None:
        """Prepare a contender, which is given back in the end unless it is taken; why not, if so.

        Raises MissedDeadline.
        """
        began_ns = time.process_time_ns()
        try:
            await contender.prepare(deadline)
        except MissedDeadline:
            raise
        except (DeviceError, Refused) as error:
            return error
        self._losers.append(contender)
        if self._purse is not None:
            self._purse.note(_devices_of(contender), time.process_time_ns() - began_ns)
            if contender.name == REFERENCE:
                await self._foretell(contender, self._purse)
        return None

    async def _foretell(self, reference: Contender, purse: Purse) -> None:
        """Measures a run of the reference for the purse; a failure shows when the reference judges.

        The samples are made before that, for they are no small part of the time.
        """
        self._samples = await in_helper_thread(samples_of, self.spec.model)
        with contextlib.suppress(NNError, TimeoutError), anyio.fail_after(self._limits.patience_s):
            turn = await reference.trial().turn(1)
            slice_ns = HERE.decisions.slice_ns
            purse.note_reference(turn.cpu_ns or max(turn.runs_ns), slice_ns, len(self._losers) + 1)

    def _put_off(self, leader: Contender) -> None:
        """Leaves a contender, and its variants with more threads, to the next contest."""
        for each in self.field.contenders:
            if each is leader or (each.family == leader.family and threads_of(leader) == 1):
                self._tell(each, Fate.UNTRIED, _NOT_YET)
                self.untried.append(each.choice)

    def _affords(self, contender: Contender) -> bool:
        """Returns whether the processor time that is left suffices for another contender."""
        rivals = [each for each in self._losers if each.name != REFERENCE]
        if self._purse is None or contender.name == REFERENCE or len(rivals) < _LEAST:
            return True
        return self._purse.affords(_devices_of(contender))

    def take(self, contender: Contender) -> None:
        """Keeps a prepared contender when the others are discarded."""
        if contender in self._losers:
            self._losers.remove(contender)

    def deadline_for_more(self) -> Deadline | None:
        """Returns by when whatever is prepared beside the chosen contender has to be ready."""
        return self._deadline_of(self._losers)

    def _deadline_of(self, ready: Sequence[Contender]) -> Deadline | None:
        """Returns the deadline of the next contender: only the first may use all of the time."""
        if self.spec.deadline is None or not ready:
            return self.spec.deadline
        return Deadline(int(self._limits.until_ns))

    async def _judge(self, standings: Sequence[Standing]) -> Contender | None:
        """Returns the prepared reference, None if it does not take the model in time."""
        for standing in standings:
            if standing.contender.device.name == REFERENCE:
                return standing.contender
        if not isinstance(self.spec.reference, EngineDevice):
            return None
        contender = EngineContender(self.spec.reference, self.spec, None)
        try:
            await contender.prepare(self._deadline_of([contender]))
        except NNError:
            return None
        self._losers.append(contender)
        return contender

    def _failed_to_prepare(self, contender: Contender, error: NNError) -> None:
        self._refused |= isinstance(error, Refused)
        name = contender.name
        self.unprepared.setdefault(name, error)
        self.field.rejections.append(Rejection(name, -1, f"prepare failed: {error}"))
        self._tell(contender, Fate.FAILED, "prepare failed")

    def _tell(self, contender: Contender, fate: Fate, verdict: str) -> None:
        name, lowering = contender.name, contender.lowering
        self._told.append(contender)
        line = Candidate(name, lowering, None, "not measured", verdict, fate=fate)
        self.field.candidates.append(line)

    def _note(self, standings: Sequence[Standing]) -> None:
        """Put what a contest found into the report."""
        for standing in standings:
            self._told.append(standing.contender)
            self.field.candidates.append(standing.candidate())
            if standing.failure is not None:
                name = standing.contender.name
                reason = f"failed in a trial: {standing.failure}"
                self.field.rejections.append(Rejection(name, -1, reason))

    def _nobody(self) -> NNError:
        """Returns the error for a model that nobody takes; where a device is gone, it says that."""
        names = ", ".join(device.name for device in self.spec.devices) or "none"
        reasons = [str(rejection) for rejection in self.field.rejections] + [
            f"{candidate.device}, {candidate.lowering}: {candidate.verdict}"
            for candidate in self.field.candidates
            if candidate.fate is Fate.FORBIDDEN
        ]
        model = self.spec.model.name
        kind = GeneralFailure if self.field.lost is None else type(self.field.lost)
        return kind(
            f"no device takes the whole model {model!r} (devices: {names}): "
            f"{'; '.join(reasons[:8])}"
        )


def _circumstances_text(held: Circumstances) -> str:
    return _DISTURBED if held.disturbed else ""


def _devices_of(contender: Contender) -> list[str]:
    return [part.device for part in contender.choice.parts]


def threads_of(contender: Contender) -> int:
    """Returns how many cores a run of a contender keeps busy."""
    return max(part.threads for part in contender.choice.parts)
