"""Contenders measured against each other: who agrees with the reference, and who is fastest.

First every contender answers the same samples, all of them however slow it is, so that who agrees
does not depend on how busy the machine was. Its answers are compared with the reference's, and the
time they took rules out who is hopeless. A contender that there was no time to judge on all of them
is not judged: it never counts as one that agrees.

The others then run in turns, a few milliseconds each, so that a slow moment of the machine hits
them alike, until the budget is spent, and at least three times each. Who after a few was far from
the fastest even in his best one has no more of them, which leaves the budget to the others. Whoever
is then close to the fastest runs again, against its variants with more threads, unless a run is so
short that a second thread, which sleeps by the time that a stream brings the next input, would cost
to wake what it saves.

A turn counts with the median of its runs, and a contender with the lower quartile of its turns:
foreign load lasts for whole turns, and those that it spoils are the dear ones. In the end those
that are near the cheapest run a few times with cold caches, as they would in a stream: the first
run of a turn is colder than the others, but not as cold as that, and less so where a variant of the
same engine was before. Who wins by all that is told in `ranking`. Where the preference is
LOW_POWER, processor time counts instead of time.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import anyio
import msgspec
import numpy as np

from nnasync._core.clock import now_ns
from nnasync._core.compilation.agreement import judge, wants_moved
from nnasync._core.compilation.contenders import Contender
from nnasync._core.compilation.ranking import Standing, close, near, rule_out, winner
from nnasync._core.compilation.report import Fate
from nnasync._core.compilation.samples import Samples, disturbed, neighbors, samples_of
from nnasync._core.compilation.trials import SampleAnswer, Trial, TurnTimes
from nnasync._core.workers import contained
from nnasync._core.workers.anyio_threads import in_helper_thread
from nnasync.errors import GeneralFailure, NNError
from nnasync.hal import Array, ExecutionPreference, Model
from nnasync.machine.here import HERE

SHORT_NS = 100_000
"""Two threads save half of a run at most; to wake one takes some 50 microseconds."""


_NO_TIME = "not judged: the time was over before it had answered all samples"
_MIN_TURNS = 3
_MAX_TURNS = 25
_MAX_TURNS_OF_NEAR = 60
_TURNS_OF_FAR = 5
_SETTLING_S = 0.002
"""Threads of an engine look for more work for a while after a run, on a core that others need."""
_COLD_ROUNDS, _MIN_COLD_ROUNDS = 7, 3
_COLD_SHARE = 5
"""One part of so many of the budget is for runs with cold caches."""
_EVER_WARM_NS = 10_000_000
"""What caches hold is fetched anew within a fraction of the time of longer runs."""


_REFERENCE_SHARE = 0.4
"""What the answers of the reference may take of a limited processor time; each is needed twice."""
_LEAST_SAMPLES = 3

_CHILL_BYTES = 16 << 20
_CHILL_PAUSE_S = 0.002
"""More than the caches next to a core hold; with a pause that has the effect of a stream's."""


class ContestLimits(msgspec.Struct, frozen=True):
    """Limits how long a contest may take.

    budget_ns: the turns, and the runs with cold caches. patience_s: one answer or turn, after which
    a contender counts as hanging. until_ns: the moment by which it is over. cpu_until_ns: what the
    clock of this process shows when its processor time is used up. trying: called with the name of
    a contender before it runs.
    """

    budget_ns: int
    patience_s: float
    until_ns: float
    trying: Callable[[str], object] | None = None
    cpu_until_ns: float = float("inf")

    def left_ns(self) -> float:
        """Returns how much time there is for turns; processor time that is used up leaves none."""
        return min(self.budget_ns, self.cpu_left_ns())

    def cpu_left_ns(self) -> float:
        """Returns how much processor time is left."""
        return max(0, self.cpu_until_ns - time.process_time_ns())


Widen = Callable[[Sequence[Standing]], Awaitable[Sequence[Standing]]]
"""Prepares the wider variants of contenders that do well."""


async def contest(
    model: Model,
    standings: list[Standing],
    judge_by: Contender | None,
    preference: ExecutionPreference,
    limits: ContestLimits,
    widen: Widen,
    samples: Samples | None = None,
) -> Standing:
    """Holds a contest, and returns the standing that won; the others' standings say why not.

    `judge_by` is the prepared reference, which may be one of the contenders, or None. `widen` is
    asked for variants of those that are not far from the fastest, which are appended and measured
    with them. `samples` are made here unless they are given. Where time runs out before the
    measuring began the first contender is taken.
    """
    left_s, margins = (limits.until_ns - now_ns()) / 1e9, HERE.decisions.margins
    _say_no_time(standings)
    with anyio.move_on_after(None if left_s == float("inf") else max(0, left_s)):
        if samples is None:
            samples = await in_helper_thread(samples_of, model, abandon_on_cancel=True)
        contest = _Contest(model, preference, limits, samples)
        await contest.hear_reference(judge_by, standings)
        await contest.judge(standings)
        rule_out(standings)
        await contest.take_turns(standings)
        rivals = close(standings, preference)
        wider = await widen(rivals)
        if wider:
            standings += wider
            await contest.judge(wider)
            for standing in rivals:
                standing.begin_anew()
            await contest.take_turns([*rivals, *wider])
        await contest.run_cold(near(standings, preference, margins))
    return winner(standings, preference, margins)


class _Contest:
    """Holds the samples and answers of one contest under way."""

    def __init__(
        self, model: Model, preference: ExecutionPreference, limits: ContestLimits, samples: Samples
    ) -> None:
        self._model = model
        self._preference = preference
        self._limits = limits
        self._samples = samples
        self._expected: list[list[Array]] = []
        self._moved: list[list[Array]] = []
        self._no_judge = ""
        self._rounded: list[list[Array]] | None = None
        self._judge_by: Contender | None = None
        self._reference: Standing | None = None

    async def hear_reference(
        self, judge_by: Contender | None, standings: Sequence[Standing]
    ) -> None:
        """Notes the answers of the reference, or why there are none."""
        self._judge_by = judge_by
        if judge_by is None:
            self._no_judge = "not judged: the reference does not take this model"
            return
        own = next((each for each in standings if each.contender is judge_by), None)
        self._reference = standing = own or Standing(judge_by)
        await self._keep_affordable(standing)
        # The samples come last: runs are measured on the last of them, as they are for all others.
        samples = await in_helper_thread(self._moved_samples, abandon_on_cancel=True)
        moved = await self._asked(standing, samples)
        answers = None if moved is None else await self._answers(standing)
        if answers is None or moved is None:
            self._no_judge = f"not judged: the reference failed on samples: {standing.failure}"
            return
        self._expected = [answer.outputs for answer in answers]
        self._moved = [answer.outputs for answer in moved]
        standing.agrees, standing.agreement = True, "is the reference"

    async def _keep_affordable(self, reference: Standing) -> None:
        """Leave out samples where a limited processor time would go to the reference alone."""
        left_ns = self._limits.cpu_left_ns()
        if left_ns == float("inf") or not await self._asked(reference, self._samples.inputs[-1:]):
            return
        cost_ns = max(1.0, left_ns - self._limits.cpu_left_ns())
        count = int(_REFERENCE_SHARE * left_ns / cost_ns / 2)
        self._samples = self._samples.last(max(_LEAST_SAMPLES, count))

    async def judge(self, standings: Sequence[Standing]) -> None:
        """Has all contenders but the reference answer the samples, and judges the answers."""
        _say_no_time(standings)
        for standing in standings:
            if standing.contender is self._judge_by:
                continue
            answers = await self._answers(standing)
            if answers is None:
                continue
            if not self._expected:
                standing.agreement = self._no_judge
                continue
            compare = partial(
                judge,
                self._model,
                self._expected,
                [answer.outputs for answer in answers],
                is_reduced=standing.contender.is_reduced,
                moved=self._moved,
                edges=self._samples.edges,
            )
            judgment = await in_helper_thread(compare, abandon_on_cancel=True)
            if judgment.may_be_rounding and (rounded := await self._answers_to_neighbors()):
                again = partial(compare, rounded=rounded)
                judgment = await in_helper_thread(again, abandon_on_cancel=True)
            standing.agrees, standing.agreement = judgment.agrees, judgment.text

    async def _answers_to_neighbors(self) -> list[list[Array]]:
        """Returns the reference's outputs for inputs whose floats were moved by their last bit.

        The list is empty where the reference fails.
        """
        if self._rounded is None:
            samples = await in_helper_thread(self._neighbors, abandon_on_cancel=True)
            reference = self._reference
            answers = None if reference is None else await self._asked(reference, samples)
            self._rounded = [answer.outputs for answer in answers or ()]
        return self._rounded

    def _neighbors(self) -> list[list[Array]]:
        """Returns the samples with each float moved by its last bit."""
        return [neighbors(inputs, seed) for seed, inputs in enumerate(self._samples.inputs)]

    async def _answers(self, standing: Standing) -> list[SampleAnswer] | None:
        """Returns a contender's answers to the samples.

        If it fails, that is noted, and None returned.
        """
        answers = await self._asked(standing, self._samples.inputs)
        if answers is not None:
            standing.impression_ns = float(min(answer.run_ns for answer in answers))
        return answers

    def _moved_samples(self) -> list[list[Array]]:
        """Returns the samples with moved inputs; none for a model that is not judged by these."""
        if not wants_moved(self._model):
            return []
        samples = enumerate(self._samples.inputs)
        return [disturbed(self._model, inputs, seed) for seed, inputs in samples]

    async def _asked(
        self, standing: Standing, samples: Sequence[Sequence[Array]]
    ) -> list[SampleAnswer] | None:
        self._say_who(standing)
        try:
            trial = standing.trial = standing.trial or standing.contender.trial()
            answers: list[SampleAnswer] = []
            for inputs in samples:
                with anyio.fail_after(self._limits.patience_s):
                    answers.append(await trial.answer(inputs))
        except Exception as error:
            self._fails(standing, error)
            return None
        return answers

    async def take_turns(self, standings: Sequence[Standing]) -> None:
        """Measures in turns the contenders that are left."""
        rivals = [s for s in standings if s.is_in and s.trial is not None]
        budget_ns = self._limits.left_ns() * (_COLD_SHARE - 1) / _COLD_SHARE
        slice_ns, margins = HERE.decisions.slice_ns, HERE.decisions.margins
        began_ns = now_ns()
        turn = 0
        while len(rivals) > 1:
            if turn >= _MIN_TURNS and now_ns() - began_ns > budget_ns:
                break
            for standing in _in_turn(rivals, turn):
                measured = await self._try(standing, lambda trial: trial.turn(slice_ns))
                if measured is not None:
                    standing.note(measured)
                if standing.is_wide:
                    await anyio.sleep(_SETTLING_S)
            turn += 1
            rivals = [standing for standing in rivals if standing.is_in]
            if turn >= _TURNS_OF_FAR:
                rivals = self._within(rivals, margins.far)
            if turn >= _MAX_TURNS:
                rivals = self._within(rivals, margins.rivals)
            if turn >= _MAX_TURNS_OF_NEAR:
                break

    def _within(self, rivals: Sequence[Standing], ratio: float) -> list[Standing]:
        """Returns the rivals whose best turn cost at most `ratio` times as much as the cheapest."""
        least = min((each.cost(self._preference) for each in rivals), default=0.0)
        return [each for each in rivals if each.least_cost(self._preference) <= ratio * least]

    async def run_cold(self, standings: Sequence[Standing]) -> None:
        """Measures contenders with cold caches, where that may decide between them."""
        rivals = [s for s in standings if s.turns_ns]
        least = min((s.cost(self._preference) for s in rivals), default=0.0)
        if len(rivals) < 2 or least > _EVER_WARM_NS or not self._limits.left_ns():
            return
        evict = CacheEvictor()
        round_ns = await self._cold_round_ns(rivals, evict)
        if _MIN_COLD_ROUNDS * round_ns > self._limits.cpu_left_ns():
            return
        began_ns = now_ns()
        for number in range(_COLD_ROUNDS):
            elapsed_ns = now_ns() - began_ns
            is_over = elapsed_ns > self._limits.budget_ns // _COLD_SHARE
            is_over |= round_ns > self._limits.cpu_left_ns()
            if len(rivals) < 2 or (is_over and number >= _MIN_COLD_ROUNDS):
                return
            for standing in _in_turn(rivals, number):
                measured = await self._try(standing, lambda trial: trial.cold(evict))
                if measured is not None:
                    standing.note_cold(measured)
            rivals = [standing for standing in rivals if standing.is_in]

    async def _cold_round_ns(self, rivals: Sequence[Standing], evict: CacheEvictor) -> float:
        """Returns about how much of a limited processor time one cold run of each rival takes."""
        left_ns = self._limits.cpu_left_ns()
        if left_ns == float("inf"):
            return 0.0
        await in_helper_thread(evict, abandon_on_cancel=True)
        evict_ns = left_ns - self._limits.cpu_left_ns()
        return sum(evict_ns + each.cost(self._preference) for each in rivals)

    async def _try(
        self, standing: Standing, run: Callable[[Trial], Awaitable[TurnTimes]]
    ) -> TurnTimes | None:
        """Returns what a run of a contender's trial measured.

        If it fails, that is noted, and None returned.
        """
        if standing.trial is None:
            return None
        self._say_who(standing)
        try:
            with anyio.fail_after(self._limits.patience_s):
                return await run(standing.trial)
        except Exception as error:
            self._fails(standing, error)
            return None

    def _say_who(self, standing: Standing) -> None:
        if self._limits.trying is not None:
            self._limits.trying(standing.contender.name)

    def _fails(self, standing: Standing, error: Exception) -> None:
        name = standing.contender.name
        if isinstance(error, TimeoutError) and not isinstance(error, NNError):
            error = GeneralFailure(f"{name} gave no answer for {self._limits.patience_s:g} s")
        standing.failure = contained(error, name)
        standing.settle(Fate.FAILED, f"failed: {standing.failure}")


def _say_no_time(standings: Sequence[Standing]) -> None:
    """Notes that there was no time to judge; whoever is judged after all has that replaced."""
    for standing in standings:
        if standing.agrees is None:
            standing.agreement = _NO_TIME


def _in_turn(rivals: Sequence[Standing], number: int) -> list[Standing]:
    """Returns the rivals in turn, so that another one begins each time."""
    first = number % len(rivals)
    return [*rivals[first:], *rivals[:first]]


async def still_agrees(
    model: Model, standing: Standing, judge_by: Contender | None, limits: ContestLimits
) -> bool:
    """Returns whether a contender that agreed with the reference before does so on one sample now.

    True where nobody can judge. The standing has the agreement, or the failure.
    """
    samples = await in_helper_thread(samples_of, model, abandon_on_cancel=True)
    last = samples.last(1)
    contest = _Contest(model, ExecutionPreference.FAST_SINGLE_ANSWER, limits, last)
    await contest.hear_reference(judge_by, [standing])
    await contest.judge([standing])
    return standing.failure is None and standing.agrees is not False


class CacheEvictor:
    """Makes caches cold when it is called; holds some memory for that, so let it go soon."""

    def __init__(self) -> None:
        self.memory = np.zeros(_CHILL_BYTES, np.uint8)

    def __call__(self) -> None:
        """Sleep for a moment and write over the memory; not for the thread of a loop."""
        time.sleep(_CHILL_PAUSE_S)
        np.add(self.memory, 1, out=self.memory)
