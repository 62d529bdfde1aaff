"""Who wins a contest by what was measured, and what the report says of the others.

The cheapest wins; within what figures of the same work differ by on this machine, the order of the
contenders decides (all such margins are `machine.Decisions.margins`). But a run that directly
follows another of the same model finds everything in caches, which the runs of a stream do not. So
those that are near the cheapest run with cold caches too, and that counts in two ways.

Calls back to back are what comes first: a network is to take at most 1.05 times as long as with the
best engine called directly. Even they do not find all in caches that turns find there, since each
copies inputs and wakes who awaits it: what one took above a turn's run grew by about a thirtieth of
what a cold run takes above it (two MobileNets and a noise suppression, on two engines each). So
much is added to a run, and whoever is then near enough to the cheapest may win.

Of these whoever is clearly worse by the product of that and of a cold run does not win: it would
lose more in a stream than it gains back to back.

The reference is another matter: many small steps of an interpreter, whose runs in a row are as
quick as they never are in a stream. Where it is the cheapest, but an engine is near, those may win
that are near the cheapest engine, which is as fast as engines called directly are.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from nnasync._core.compilation.contenders import Contender
from nnasync._core.compilation.fallback import REFERENCE
from nnasync._core.compilation.report import Candidate, Fate
from nnasync._core.compilation.trials import Trial, TurnTimes
from nnasync.errors import NNError
from nnasync.hal import ExecutionPreference
from nnasync.machine.decisions import Margins

_NEAR_REFERENCE = 1.2
_COLD_PART = 1 / 30
"""How much of what cold caches cost calls back to back have to pay, too."""
_CLOSE = 1.5
_HOPELESS = 3.0
_HOPELESS_NS = 50_000
_DISAGREES = "disagrees with the reference"

_Settled = tuple[Fate, str]


class Standing:
    """Records how a contender does in a contest: its trial, its times, its agreement, its fate."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.trial: Trial | None = None
        self.impression_ns: float | None = None
        self.turns_ns: list[float] = []
        self.cpu_ns: list[float] = []
        self.cold_ns: list[float] = []
        self.cold_cpu_ns: list[float] = []
        self.took_ns = self.ran_ns = 0.0
        self.agreement = "not measured"
        self.agrees: bool | None = None
        self.failure: NNError | None = None
        self.verdict = ""
        self.fate: Fate | None = None

    @property
    def is_in(self) -> bool:
        """Returns whether the contender may still win."""
        return self.failure is None and self.agrees is not False and self.fate is None

    @property
    def is_wide(self) -> bool:
        """Returns whether the contender runs on several threads."""
        return any(part.threads > 1 for part in self.contender.choice.parts)

    @property
    def is_reference(self) -> bool:
        """Returns whether the contender is the reference."""
        return self.contender.name == REFERENCE

    @property
    def median_ns(self) -> float | None:
        """Returns the lower quartile of the medians of all turns, None if it never ran."""
        return _lower_quartile(self.turns_ns) if self.turns_ns else self.impression_ns

    def cost(self, preference: ExecutionPreference) -> float:
        """Returns the nanoseconds that the preference minimizes; infinite if they are unknown.

        With LOW_POWER that is processor time, else the duration of a run.
        """
        turns = self._costs(preference)
        if turns:
            return _lower_quartile(turns)
        return float("inf") if self.impression_ns is None else self.impression_ns

    def least_cost(self, preference: ExecutionPreference) -> float:
        """Returns what `cost` does for the best turn alone."""
        return min(self._costs(preference), default=self.cost(preference))

    def cold_cost(self, preference: ExecutionPreference) -> float | None:
        """Returns the median cost of the runs that found cold caches, None if there were none."""
        is_frugal = preference == ExecutionPreference.LOW_POWER and self.cpu_ns
        runs = self.cold_cpu_ns if is_frugal else self.cold_ns
        return statistics.median(runs) if runs else None

    def _costs(self, preference: ExecutionPreference) -> Sequence[float]:
        """Returns the costs of the contender's turns."""
        is_frugal = preference == ExecutionPreference.LOW_POWER and self.cpu_ns
        return self.cpu_ns if is_frugal else self.turns_ns

    def note(self, turn: TurnTimes) -> None:
        """Notes the times of a turn."""
        self.turns_ns.append(statistics.median(turn.runs_ns))
        if turn.cpu_ns is not None:
            self.cpu_ns.append(turn.cpu_ns)
            self.took_ns += sum(turn.runs_ns)
            self.ran_ns += turn.cpu_ns * len(turn.runs_ns)

    def note_cold(self, turn: TurnTimes) -> None:
        """Notes the times of a turn that found cold caches."""
        self.cold_ns += turn.runs_ns
        if turn.cpu_ns is not None:
            self.cold_cpu_ns.append(turn.cpu_ns)

    def begin_anew(self) -> None:
        """Forgets all turns, so that the contender is measured anew."""
        self.turns_ns, self.cpu_ns = [], []

    def settle(self, fate: Fate, verdict: str) -> None:
        """Notes the fate of the contender, and says in words why."""
        self.fate, self.verdict = fate, verdict

    def candidate(self) -> Candidate:
        """Returns the contender's line for the report."""
        median = self.median_ns
        return Candidate(
            self.contender.name,
            self.contender.lowering,
            None if median is None else round(median / 1000, 3),
            self.agreement,
            self.verdict,
            round(statistics.median(self.cpu_ns) / 1000, 3) if self.cpu_ns else None,
            round(statistics.median(self.cold_ns) / 1000, 3) if self.cold_ns else None,
            self.fate or Fate.UNTRIED,
        )


def _lower_quartile(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 4]


def close(standings: Sequence[Standing], preference: ExecutionPreference) -> list[Standing]:
    """Returns the contenders that cost little more than the cheapest.

    Their variants with more threads may be better.
    """
    rivals = [each for each in standings if each.is_in]
    least = min((each.cost(preference) for each in rivals), default=0.0)
    return [each for each in rivals if each.cost(preference) <= _CLOSE * least]


def near(
    standings: Sequence[Standing], preference: ExecutionPreference, margins: Margins
) -> list[Standing]:
    """Returns the contenders between whom cold runs may decide."""
    rivals = _eligible(standings)
    return _within(rivals, [each.cost(preference) for each in rivals], margins.near)


def crowding(standings: Sequence[Standing]) -> float:
    """Returns how much others wanted the cores: time per processor time of runs on one thread.

    At least 1, also where no processor time is known.
    """
    narrow = [each for each in standings if not each.is_wide]
    took_ns, ran_ns = sum(each.took_ns for each in narrow), sum(each.ran_ns for each in narrow)
    return max(1.0, took_ns / ran_ns) if ran_ns > 0 else 1.0


def rule_out(standings: Sequence[Standing]) -> None:
    """Rules out the contenders that are many times slower than the fastest that agrees."""
    agreeing = [s for s in standings if s.is_in and s.impression_ns is not None]
    best = min((s.impression_ns or 0 for s in agreeing), default=0)
    for standing in agreeing:
        impression = standing.impression_ns or 0
        if impression > _HOPELESS * best + _HOPELESS_NS:
            ratio = impression / max(1, best)
            fate = Fate.SLOWER if standing.agrees else Fate.UNTRIED
            standing.settle(fate, f"slower: about {ratio:.1f} times the fastest")


def winner(
    standings: Sequence[Standing], preference: ExecutionPreference, margins: Margins
) -> Standing:
    """Returns the cheapest standing that agrees with the reference; notes the verdicts of all."""
    if not _eligible(standings):
        return _cheapest_overall(standings)
    rivals = near(standings, preference, margins)
    costs = dict(zip(rivals, _called(rivals, preference), strict=True))
    rivals = _within(rivals, list(costs.values()), margins.near_enough)
    dear = _slow_when_cold(rivals, costs, preference, margins.clearly)
    rivals = [each for each in rivals if each not in dear]
    least = min(costs[each] for each in rivals)
    winner = next(each for each in rivals if costs[each] <= least * margins.tie)
    for each in standings:
        if each is winner:
            is_measured = each.median_ns is not None
            each.settle(Fate.CHOSEN, "chosen" if is_measured else "chosen: first that is ready")
        elif each.agrees is False:
            each.settle(Fate.DISAGREES, _DISAGREES)
        elif each in dear or (each in costs and costs[each] > margins.tie * costs[winner]):
            each.settle(*_slower_when_cold(each, winner, preference, margins.tie))
        elif each.fate is None:
            each.settle(*_slower(each, winner, preference, margins.tie))
    return winner


def _eligible(standings: Sequence[Standing]) -> list[Standing]:
    """Returns the standings that agree with the reference; where none was judged, all that run."""
    rivals = [each for each in standings if each.is_in]
    return [each for each in rivals if each.agrees] or rivals


def _within(rivals: Sequence[Standing], costs: Sequence[float], ratio: float) -> list[Standing]:
    """Returns the rivals that cost at most `ratio` times as much as the cheapest.

    Where that is the reference, and an engine is near, the cheapest engine counts.
    """
    least = min(costs, default=0.0)
    lines = list(zip(rivals, costs, strict=True))
    engines = [cost for each, cost in lines if not each.is_reference]
    if engines and min(engines) <= _NEAR_REFERENCE * least:
        least = min(engines)
    return [each for each, cost in lines if cost <= ratio * least]


def _called(rivals: Sequence[Standing], preference: ExecutionPreference) -> list[float]:
    """Returns what a run costs each rival in calls back to back.

    Where not all have run with cold caches, that is what it costs in turns.
    """
    costs = [each.cost(preference) for each in rivals]
    cold = [each.cold_cost(preference) for each in rivals]
    return [
        cost if None in cold else cost + _COLD_PART * max(0.0, (after_pause or 0.0) - cost)
        for cost, after_pause in zip(costs, cold, strict=True)
    ]


def _slow_when_cold(
    rivals: Sequence[Standing],
    costs: Mapping[Standing, float],
    preference: ExecutionPreference,
    clearly: float,
) -> list[Standing]:
    """Returns the rivals that lose more in cold runs than they gain in others."""
    products = {
        each: costs[each] * cold
        for each in rivals
        if (cold := each.cold_cost(preference)) is not None
    }
    least = min(products.values(), default=0.0)
    return [each for each, product in products.items() if product > clearly * least]


def _cheapest_overall(standings: Sequence[Standing]) -> Standing:
    """Nobody agrees: the first that at least runs, or else is ready, which the report tells."""
    running = [each for each in standings if each.failure is None]
    for standing in standings:
        if standing.fate is None:
            standing.settle(Fate.DISAGREES, _DISAGREES)
    if running:
        told = "chosen although it disagrees: no device that agrees is allowed"
        running[0].settle(Fate.CHOSEN, told)
        return running[0]
    standings[0].settle(Fate.CHOSEN, f"chosen although it {standings[0].verdict}")
    return standings[0]


def _slower_when_cold(
    each: Standing, winner: Standing, preference: ExecutionPreference, tie: float
) -> _Settled:
    ratio = _ratio(each.cost(preference), winner.cost(preference))
    cold = _ratio(each.cold_cost(preference) or 0.0, winner.cold_cost(preference) or 0.0)
    if ratio >= cold:
        return _slower(each, winner, preference, tie)
    if 1 / tie <= ratio <= tie:
        return Fate.EQUAL, f"equal back to back, slower when cold: {cold:.2f} times the chosen"
    return (
        Fate.SLOWER,
        f"slower when cold: {cold:.2f} times the chosen, {ratio:.2f} times back to back",
    )


def _ratio(cost: float, best: float) -> float:
    return cost / best if best else 1.0


def _slower(
    each: Standing, winner: Standing, preference: ExecutionPreference, tie: float
) -> _Settled:
    cost, best = each.cost(preference), winner.cost(preference)
    if cost == float("inf") or not 0 < best < float("inf"):
        return Fate.UNTRIED, "not measured: the deadline was near"
    ratio = cost / best
    if ratio > tie:
        return Fate.SLOWER, f"slower: {ratio:.2f} times the chosen"
    return Fate.EQUAL, "equal: order decides"
