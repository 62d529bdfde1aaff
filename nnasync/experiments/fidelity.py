"""How far a simulation was from the real run of the same point."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nnasync.experiments.figures import Figures, figures_of
from nnasync.experiments.run_of_point import Run

LATENCY_LIMIT = 0.10
"""By how much simulated latencies may be off to count as near, of the real ones."""

ATTAINMENT_LIMIT = 0.01
"""By how much the simulated share of deadlines met may be off, as a difference."""


class Fidelity(msgspec.Struct, frozen=True):
    """The error of one stream at one point.

    mean and p99: (simulated - real) / real; None where one of them is not known. attainment:
    simulated - real, in shares, so 0.01 is one point.
    """

    point: int
    values: dict[str, float | str]
    stream: str
    mean: float | None
    p99: float | None
    attainment: float | None

    @property
    def is_near(self) -> bool:
        """Whether every known error is within its limit."""
        return not self.far()

    def far(self) -> tuple[str, ...]:
        """What is not within its limit: of mean, p99 and attainment."""
        limits = (
            ("mean", self.mean, LATENCY_LIMIT),
            ("p99", self.p99, LATENCY_LIMIT),
            ("attainment", self.attainment, ATTAINMENT_LIMIT),
        )
        return tuple(
            name for name, error, limit in limits if error is not None and abs(error) > limit
        )


def fidelity_of(runs: Sequence[Run]) -> tuple[Fidelity, ...]:
    """The errors wherever a point was simulated and run for real, over the repeats that were both.

    Those have the same requests, as they have the same seeds.
    """
    real_ones = {(run.point, run.repeat) for run in runs if run.result.kind == "real"}
    simulated: dict[tuple[int, str], Figures] = {}
    real: dict[tuple[int, str], Figures] = {}
    for each in figures_of(run for run in runs if (run.point, run.repeat) in real_ones):
        (simulated if each.kind == "simulated" else real)[each.point, each.stream] = each
    return tuple(
        _errors(simulated[key], measured) for key, measured in real.items() if key in simulated
    )


def _errors(simulated: Figures, real: Figures) -> Fidelity:
    return Fidelity(
        point=real.point,
        values=real.values,
        stream=real.stream,
        mean=_relative(simulated, real, "mean_ms"),
        p99=_relative(simulated, real, "p99_ms"),
        attainment=_difference(simulated, real),
    )


def _relative(simulated: Figures, real: Figures, name: str) -> float | None:
    guess, truth = simulated.mean(name), real.mean(name)
    return None if guess is None or not truth else guess / truth - 1


def _difference(simulated: Figures, real: Figures) -> float | None:
    guess, truth = simulated.mean("attainment"), real.mean("attainment")
    return None if guess is None or truth is None else guess - truth
