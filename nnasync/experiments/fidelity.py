"""How far a simulation was from the real run of the same point.

Repeats that were both simulated and run are compared pair by pair: they have the same seed, and so
the same requests, and what is random in those is no difference. The error of a latency is that of
the mean over all pairs; its confidence interval comes from how far each pair is off the common
ratio (the ratio estimator of survey sampling). A verdict is given where the intervals allow one:
*within* if all of them are within the limits, *outside* if one is beyond its limit as a whole. Real
runs that others disturbed say nothing of the simulator, and so give no verdict at all.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Literal

import msgspec

from nnasync.experiments.figures import measures_of
from nnasync.experiments.intervals import CONFIDENCE, Interval, interval
from nnasync.experiments.run_of_point import Run, trusted

LATENCY_LIMIT = 0.10
"""By how much simulated latencies may be off to count as near, of the real ones."""

NETWORK_LIMIT = 0.20
"""The same for real networks, which disturb each other in ways that are not simulated."""

ATTAINMENT_LIMIT = 0.01
"""By how much the simulated share of deadlines met may be off, as a difference."""

Verdict = Literal["within", "outside", "cannot tell"]


class Fidelity(msgspec.Struct, frozen=True):
    """How far a simulation of one stream at one point is off the real runs.

    mean and p99: (simulated - real) / real; None where one of them is not known. attainment:
    simulated - real, in shares, so 0.01 is one point. `limit` is how far off latencies may be,
    `intervals` are those of the errors by their names, over so many `pairs`. is_disturbed: whether
    others disturbed the real runs, all of them.
    """

    point: int
    values: dict[str, float | str]
    stream: str
    mean: float | None
    p99: float | None
    attainment: float | None
    limit: float = LATENCY_LIMIT
    intervals: dict[str, Interval] = {}
    pairs: int = 1
    is_disturbed: bool = False

    @property
    def is_near(self) -> bool:
        """Returns whether every known error is within its limit."""
        return not self.far()

    def far(self) -> tuple[str, ...]:
        """Returns which of mean, p99 and attainment are not within their limits."""
        return tuple(name for name, error, limit in self._errors() if abs(error) > limit)

    @property
    def verdict(self) -> Verdict:
        """Returns whether the simulation is within its limits, as far as the real runs can tell."""
        if self.is_disturbed:
            return "cannot tell"
        errors = [(abs(error), self._half(name), limit) for name, error, limit in self._errors()]
        if any(error - half > limit for error, half, limit in errors):
            return "outside"
        is_within = all(error + half <= limit for error, half, limit in errors)
        return "within" if is_within else "cannot tell"

    @property
    def why(self) -> str:
        """Returns why there is no verdict; empty where there is one."""
        if self.verdict != "cannot tell":
            return ""
        if self.is_disturbed:
            return "disturbed"
        return f"{self.pairs} repeats differ too much" if self.pairs > 1 else "one repeat only"

    @property
    def told(self) -> str:
        """Returns the verdict in words, with the reason where there is none."""
        return ": ".join(filter(None, (self.verdict, self.why)))

    def _errors(self) -> Iterator[tuple[str, float, float]]:
        """Yields the name, the value and the limit of each known error."""
        if self.mean is not None:
            yield "mean", self.mean, self.limit
        if self.p99 is not None:
            yield "p99", self.p99, self.limit
        if self.attainment is not None:
            yield "attainment", self.attainment, ATTAINMENT_LIMIT

    def _half(self, name: str) -> float:
        """Returns the half-width of an error's interval; infinite for one repeat alone."""
        found = self.intervals.get(name)
        if found is None:
            return 0.0
        return math.inf if found.half is None else found.half


def fidelity_of(
    runs: Sequence[Run], networks: Collection[str] = (), *, confidence: float = CONFIDENCE
) -> tuple[Fidelity, ...]:
    """Compares real and simulated runs at each point; pairs are repeats that were run as both.

    Disturbed repeats are left out where others of the point were not. `networks` are the streams of
    real networks, for which the limit is a wider one; `confidence` is that of the intervals.
    """
    simulated = {(run.point, run.repeat): run for run in runs if run.result.kind == "simulated"}
    pairs: dict[int, list[tuple[Run, Run]]] = {}
    for real in trusted(runs):
        guess = simulated.get((real.point, real.repeat))
        if real.result.kind == "real" and guess is not None:
            pairs.setdefault(real.point, []).append((guess, real))
    return tuple(
        _compared(
            each,
            stream.name,
            NETWORK_LIMIT if stream.name in networks else LATENCY_LIMIT,
            confidence,
        )
        for each in pairs.values()
        for stream in each[0][1].result.streams
    )


def limits_told(errors: Sequence[Fidelity]) -> str:
    """Returns the limits for the latencies of these errors, in words."""
    return " or ".join(f"{limit:.0%}" for limit in sorted({each.limit for each in errors}))


def summed_up(errors: Sequence[Fidelity]) -> str:
    """Returns how many cases have which verdict, as "20 within, 3 outside, 1 cannot tell"."""
    counts: dict[Verdict, int] = {"within": 0, "outside": 0, "cannot tell": 0}
    for each in errors:
        counts[each.verdict] += 1
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)


def _compared(
    pairs: Sequence[tuple[Run, Run]], stream: str, limit: float, confidence: float
) -> Fidelity:
    real = pairs[0][1]
    both = [(_measures(guess, stream), _measures(truth, stream)) for guess, truth in pairs]
    found = {
        "mean": _ratio([(guess["mean_ms"], truth["mean_ms"]) for guess, truth in both], confidence),
        "p99": _ratio([(guess["p99_ms"], truth["p99_ms"]) for guess, truth in both], confidence),
        "attainment": _difference(
            [(g["attainment"], t["attainment"]) for g, t in both], confidence
        ),
    }
    intervals = {name: each for name, each in found.items() if each is not None}
    return Fidelity(
        point=real.point,
        values=real.values,
        stream=stream,
        mean=intervals["mean"].mean if "mean" in intervals else None,
        p99=intervals["p99"].mean if "p99" in intervals else None,
        attainment=intervals["attainment"].mean if "attainment" in intervals else None,
        limit=limit,
        intervals=intervals,
        pairs=len(pairs),
        is_disturbed=all(truth.is_disturbed for _, truth in pairs),
    )


def _measures(run: Run, name: str) -> dict[str, float]:
    stream = run.stream(name)
    return {} if stream is None else measures_of(run, stream)


def _ratio(pairs: Sequence[tuple[float, float]], confidence: float) -> Interval | None:
    """Returns by which share the first numbers of the pairs exceed the second ones on average."""
    known = [pair for pair in pairs if all(map(math.isfinite, pair))]
    real = math.fsum(truth for _, truth in known)
    if not real:
        return None
    error = math.fsum(guess for guess, _ in known) / real - 1
    mean = real / len(known)
    apart = interval(
        [(guess - (1 + error) * truth) / mean for guess, truth in known], confidence=confidence
    )
    return None if apart is None else Interval(error, apart.half, len(known))


def _difference(pairs: Sequence[tuple[float, float]], confidence: float) -> Interval | None:
    """Returns by how much the first numbers of the pairs exceed the second ones on average."""
    known = [pair for pair in pairs if all(map(math.isfinite, pair))]
    return interval([guess - truth for guess, truth in known], confidence=confidence)
