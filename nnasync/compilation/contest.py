"""Contenders measured against each other: who agrees with the reference, and who is fastest.

First every contender answers a few samples. Its answers are compared with the reference's, and the
time they took rules out who is hopeless. The others then run in turns, a few milliseconds each, so
that a slow moment of the machine hits them alike, until the budget is spent, and at least three
times each. Who after a few was far from the fastest even in his best one has no more of them, which
leaves the budget to the others. Whoever is then close to the fastest runs again, against its
variants with more threads, unless a run is so short that a second thread, which sleeps by the time
that a stream brings the next input, would cost to wake what it saves.

A turn counts with the median of its runs, and a contender with the lower quartile of its turns:
foreign load lasts for whole turns, and those that it spoils are the dear ones. The smallest wins;
within a few percent the order of the contenders decides, and one thread goes before several. Where
the preference is LOW_POWER, processor time counts instead of time.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Sequence

import anyio
import msgspec

from nnasync.clock import now_ns
from nnasync.compilation.agreement import judge
from nnasync.compilation.contenders import Contender
from nnasync.compilation.report import Candidate
from nnasync.compilation.samples import sample
from nnasync.compilation.trials import Answer, Trial, Turn
from nnasync.errors import GeneralFailure, NNError
from nnasync.hal import Array, ExecutionPreference, Model
from nnasync.workers import contained

__all__ = ["SHORT_NS", "Limits", "Standing", "Widen", "contest"]

SHORT_NS = 100_000
"""Two threads save half of a run at most; to wake one takes some 50 microseconds."""


_SAMPLES = 3
_LONG_NS = 50_000_000
_HOPELESS = 3.0
_HOPELESS_NS = 50_000
_MIN_TURNS = 3
_MAX_TURNS = 25
_MAX_TURNS_OF_NEAR = 60
_NEAR = 1.15
"""Rivals within so much of the fastest have more turns than others, if the budget allows it."""
_FAR, _TURNS_OF_FAR = 1.3, 5
_SLICE_NS = 3_000_000
_SETTLING_S = 0.002
"""Threads of an engine look for more work for a while after a run, on a core that others need."""
_TIE = 1.03
_CLOSE = 1.5


class Limits(msgspec.Struct, frozen=True):
    """How long a contest may take.

    budget_ns: the turns. patience_s: one answer or turn, after which a contender counts as hanging.
    until_ns: the moment by which it is over.
    """

    budget_ns: int
    patience_s: float
    until_ns: float


class Standing:
    """How a contender is doing."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.trial: Trial | None = None
        self.impression_ns: float | None = None
        self.turns_ns: list[float] = []
        self.cpu_ns: list[float] = []
        self.agreement = "not measured"
        self.agrees: bool | None = None
        self.failure: NNError | None = None
        self.verdict = ""

    @property
    def is_in(self) -> bool:
        """Whether it may still win."""
        return self.failure is None and self.agrees is not False and not self.verdict

    @property
    def is_wide(self) -> bool:
        """Whether it runs on several threads."""
        return any(part.threads > 1 for part in self.contender.choice.parts)

    @property
    def median_ns(self) -> float | None:
        """Of the medians of its turns the lower quartile, None if it never ran."""
        return _lower_quartile(self.turns_ns) if self.turns_ns else self.impression_ns

    def cost(self, preference: ExecutionPreference) -> float:
        """What the preference wants little of, in nanoseconds; infinite if it is not known."""
        turns = self._costs(preference)
        if turns:
            return _lower_quartile(turns)
        return float("inf") if self.impression_ns is None else self.impression_ns

    def least_cost(self, preference: ExecutionPreference) -> float:
        """The same of its best turn."""
        return min(self._costs(preference), default=self.cost(preference))

    def _costs(self, preference: ExecutionPreference) -> Sequence[float]:
        """Those of its turns."""
        is_frugal = preference == ExecutionPreference.LOW_POWER and self.cpu_ns
        return self.cpu_ns if is_frugal else self.turns_ns

    def note(self, turn: Turn) -> None:
        """Count a turn."""
        self.turns_ns.append(statistics.median(turn.runs_ns))
        if turn.cpu_ns is not None:
            self.cpu_ns.append(turn.cpu_ns)

    def begin_anew(self) -> None:
        """Forget all turns."""
        self.turns_ns, self.cpu_ns = [], []

    def candidate(self) -> Candidate:
        """The line of the report."""
        median = self.median_ns
        return Candidate(
            self.contender.name,
            self.contender.lowering,
            None if median is None else round(median / 1000, 3),
            self.agreement,
            self.verdict,
            round(statistics.median(self.cpu_ns) / 1000, 3) if self.cpu_ns else None,
        )


Widen = Callable[[Sequence[Standing]], Awaitable[Sequence[Standing]]]
"""Prepares the wider variants of contenders that do well."""


async def contest(
    model: Model,
    standings: list[Standing],
    judge_by: Contender | None,
    preference: ExecutionPreference,
    limits: Limits,
    widen: Widen,
) -> Standing:
    """The contender to take; the others' standings say why not.

    `judge_by` is the prepared reference, which may be one of the contenders, or None. `widen` is
    asked for variants of those that are not far from the fastest, which are appended and measured
    with them. Where time runs out before the measuring began the first contender is taken.
    """
    left_s = (limits.until_ns - now_ns()) / 1e9
    with anyio.move_on_after(None if left_s == float("inf") else max(0, left_s)):
        contest = _Contest(model, preference, limits)
        await contest.hear_reference(judge_by, standings)
        await contest.judge(standings)
        contest.rule_out(standings)
        await contest.take_turns(standings)
        close = _close(standings, preference)
        wider = await widen(close)
        if wider:
            standings += wider
            await contest.judge(wider)
            for standing in close:
                standing.begin_anew()
            await contest.take_turns([*close, *wider])
    return _winner(standings, preference)


class _Contest:
    """One contest under way."""

    def __init__(self, model: Model, preference: ExecutionPreference, limits: Limits) -> None:
        self._model = model
        self._preference = preference
        self._limits = limits
        self._samples = [sample(model, seed) for seed in range(_SAMPLES)]
        self._expected: list[list[Array]] = []
        self._no_judge = ""
        self._judge_by: Contender | None = None

    async def hear_reference(
        self, judge_by: Contender | None, standings: Sequence[Standing]
    ) -> None:
        """Note the answers of the reference, fewer where it is slow; or why there are none."""
        self._judge_by = judge_by
        if judge_by is None:
            self._no_judge = "not judged: the reference does not take this model"
            return
        own = next((each for each in standings if each.contender is judge_by), None)
        standing = own or Standing(judge_by)
        answers = await self._answers(standing)
        if answers is None:
            self._no_judge = f"not judged: the reference failed on samples: {standing.failure}"
            return
        self._expected = [answer.outputs for answer in answers]
        standing.agrees, standing.agreement = True, "is the reference"

    async def judge(self, standings: Sequence[Standing]) -> None:
        """Let everybody else answer the samples."""
        for standing in standings:
            if standing.contender is self._judge_by:
                continue
            answers = await self._answers(standing)
            if answers is None:
                continue
            if not self._expected:
                standing.agreement = self._no_judge
                continue
            judgement = judge(
                self._model,
                self._expected[: len(answers)],
                [answer.outputs for answer in answers[: len(self._expected)]],
                is_reduced=standing.contender.is_reduced,
            )
            standing.agrees, standing.agreement = judgement.agrees, judgement.text

    async def _answers(self, standing: Standing) -> list[Answer] | None:
        """Its answers to the samples; None, and its failure noted, if it has none."""
        answers: list[Answer] = []
        try:
            standing.trial = standing.contender.trial()
            for inputs in self._samples:
                with anyio.fail_after(self._limits.patience_s):
                    answers.append(await standing.trial.answer(inputs))
                if len(answers) > 1 and answers[-1].run_ns > _LONG_NS:
                    break
        except Exception as error:
            self._fails(standing, error)
            return None
        standing.impression_ns = float(min(answer.run_ns for answer in answers))
        return answers

    def rule_out(self, standings: Sequence[Standing]) -> None:
        """Send those home that are many times slower than the fastest that agrees."""
        agreeing = [s for s in standings if s.is_in and s.impression_ns is not None]
        best = min((s.impression_ns or 0 for s in agreeing), default=0)
        for standing in agreeing:
            impression = standing.impression_ns or 0
            if impression > _HOPELESS * best + _HOPELESS_NS:
                standing.verdict = (
                    f"slower: about {impression / max(1, best):.1f} times the fastest"
                )

    async def take_turns(self, standings: Sequence[Standing]) -> None:
        """Measure those that are left, in turns."""
        rivals = [s for s in standings if s.is_in and s.trial is not None]
        began_ns = now_ns()
        turn = 0
        while len(rivals) > 1:
            if turn >= _MIN_TURNS and now_ns() - began_ns > self._limits.budget_ns:
                break
            for standing in rivals[turn % len(rivals) :] + rivals[: turn % len(rivals)]:
                await self._turn(standing)
                if standing.is_wide:
                    await anyio.sleep(_SETTLING_S)
            turn += 1
            rivals = [standing for standing in rivals if standing.is_in]
            if turn >= _TURNS_OF_FAR:
                rivals = self._within(rivals, _FAR)
            if turn >= _MAX_TURNS:
                rivals = self._within(rivals, _NEAR)
            if turn >= _MAX_TURNS_OF_NEAR:
                break

    def _within(self, rivals: Sequence[Standing], ratio: float) -> list[Standing]:
        """Those whose best turn cost at most so many times as much as those of the fastest."""
        least = min((each.cost(self._preference) for each in rivals), default=0.0)
        return [each for each in rivals if each.least_cost(self._preference) <= ratio * least]

    async def _turn(self, standing: Standing) -> None:
        if standing.trial is None:
            return
        try:
            with anyio.fail_after(self._limits.patience_s):
                turn = await standing.trial.turn(_SLICE_NS)
        except Exception as error:
            self._fails(standing, error)
            return
        standing.note(turn)

    def _fails(self, standing: Standing, error: Exception) -> None:
        name = standing.contender.name
        if isinstance(error, TimeoutError):
            error = GeneralFailure(f"{name} gave no answer for {self._limits.patience_s:g} s")
        standing.failure = contained(error, name)
        standing.verdict = f"failed: {standing.failure}"


def _lower_quartile(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 4]


def _close(standings: Sequence[Standing], preference: ExecutionPreference) -> list[Standing]:
    """Those that cost little more than the cheapest."""
    rivals = [each for each in standings if each.is_in]
    least = min((each.cost(preference) for each in rivals), default=0.0)
    return [each for each in rivals if each.cost(preference) <= _CLOSE * least]


def _winner(standings: Sequence[Standing], preference: ExecutionPreference) -> Standing:
    """The cheapest of those that agree, with the verdicts of all."""
    rivals = [each for each in standings if each.is_in]
    agreeing = [each for each in rivals if each.agrees] or rivals
    if not agreeing:
        return _least_evil(standings)
    least = min(each.cost(preference) for each in agreeing)
    winner = next(each for each in agreeing if each.cost(preference) <= least * _TIE)
    for each in standings:
        if each is winner:
            each.verdict = "chosen" if each.median_ns is not None else "chosen: first that is ready"
        elif each.agrees is False:
            each.verdict = "disagrees with the reference"
        elif not each.verdict:
            each.verdict = _slower(each, winner, preference)
    return winner


def _least_evil(standings: Sequence[Standing]) -> Standing:
    """Nobody agrees: the first that at least runs, or else is ready, which the report tells."""
    running = [each for each in standings if each.failure is None]
    for standing in standings:
        standing.verdict = standing.verdict or "disagrees with the reference"
    if running:
        running[0].verdict = "chosen although it disagrees: no device that agrees is allowed"
        return running[0]
    standings[0].verdict = f"chosen although it {standings[0].verdict}"
    return standings[0]


def _slower(each: Standing, winner: Standing, preference: ExecutionPreference) -> str:
    cost, best = each.cost(preference), winner.cost(preference)
    if cost == float("inf") or not 0 < best < float("inf"):
        return "not measured: the deadline was near"
    ratio = cost / best
    return f"slower: {ratio:.2f} times the chosen" if ratio > _TIE else "equal: order decides"
