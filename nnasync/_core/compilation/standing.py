"""How a contender of a contest is doing: its agreement, its turns, and what they came to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from nnasync._core.compilation.contenders import REFERENCE, Contender
from nnasync._core.compilation.report import Candidate, Fate
from nnasync._core.compilation.trials import Trial, TurnTimes
from nnasync.errors import NNError
from nnasync.hal import ExecutionPreference

__all__ = ["Standing"]


class Standing:
    """How a contender is doing."""

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
        """Whether it may still win."""
        return self.failure is None and self.agrees is not False and self.fate is None

    @property
    def is_wide(self) -> bool:
        """Whether it runs on several threads."""
        return any(part.threads > 1 for part in self.contender.choice.parts)

    @property
    def is_reference(self) -> bool:
        """Whether it is the reference, which no peer runs."""
        return self.contender.name == REFERENCE

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

    def cold_cost(self, preference: ExecutionPreference) -> float | None:
        """The same of a run that finds cold caches: their median, None if there were none."""
        is_frugal = preference == ExecutionPreference.LOW_POWER and self.cpu_ns
        runs = self.cold_cpu_ns if is_frugal else self.cold_ns
        return statistics.median(runs) if runs else None

    def _costs(self, preference: ExecutionPreference) -> Sequence[float]:
        """Those of its turns."""
        is_frugal = preference == ExecutionPreference.LOW_POWER and self.cpu_ns
        return self.cpu_ns if is_frugal else self.turns_ns

    def note(self, turn: TurnTimes) -> None:
        """Count a turn."""
        self.turns_ns.append(statistics.median(turn.runs_ns))
        if turn.cpu_ns is not None:
            self.cpu_ns.append(turn.cpu_ns)
            self.took_ns += sum(turn.runs_ns)
            self.ran_ns += turn.cpu_ns * len(turn.runs_ns)

    def note_cold(self, turn: TurnTimes) -> None:
        """Count a turn that found cold caches."""
        self.cold_ns += turn.runs_ns
        if turn.cpu_ns is not None:
            self.cold_cpu_ns.append(turn.cpu_ns)

    def begin_anew(self) -> None:
        """Forget all turns."""
        self.turns_ns, self.cpu_ns = [], []

    def settle(self, fate: Fate, verdict: str) -> None:
        """Say what becomes of it, and that in words."""
        self.fate, self.verdict = fate, verdict

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
            round(statistics.median(self.cold_ns) / 1000, 3) if self.cold_ns else None,
            self.fate or Fate.UNTRIED,
        )


def _lower_quartile(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 4]
