"""How far a simulation was from the real run of the same point."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from nnasync.experiments.figures import Figures, figures_of
from nnasync.experiments.run_of_point import Run

LATENCY_LIMIT = 0.10
"""By how much simulated latencies may be off to count as near, of the real ones."""

NETWORK_LIMIT = 0.20
"""The same for real networks, which disturb each other in ways that are not simulated."""

ATTAINMENT_LIMIT = 0.01
"""By how much the simulated share of deadlines met may be off, as a difference."""


class Fidelity(msgspec.Struct, frozen=True):
    """The error of one stream at one point.

    mean and p99: (simulated - real) / real; None where one of them is not known. attainment:
    simulated - real, in shares, so 0.01 is one point. `limit` is how far off latencies may be.
    """

    point: int
    values: dict[str, float | str]
    stream: str
    mean: float | None
    p99: float | None
    attainment: float | None
    limit: float = LATENCY_LIMIT

    @property
    def is_near(self) -> bool:
        """Whether every known error is within its limit."""
        return not self.far()

    def far(self) -> tuple[str, ...]:
        """What is not within its limit: of mean, p99 and attainment."""
        limits = (
            ("mean", self.mean, self.limit),
            ("p99", self.p99, self.limit),
            ("attainment", self.attainment, ATTAINMENT_LIMIT),
        )
        return tuple(
            name for name, error, limit in limits if error is not None and abs(error) > limit
        )


def fidelity_of(runs: Sequence[Run], networks: Collection[str] = ()) -> tuple[Fidelity, ...]:
    """The errors wherever a point was simulated and run for real, over the repeats that were both.

    Those have the same requests, as they have the same seeds. `networks` are the streams of real
    networks, for which the limit is a wider one.
    """
    real_ones = {(run.point, run.repeat) for run in runs if run.result.kind == "real"}
    simulated: dict[tuple[int, str], Figures] = {}
    real: dict[tuple[int, str], Figures] = {}
    for each in figures_of(run for run in runs if (run.point, run.repeat) in real_ones):
        (simulated if each.kind == "simulated" else real)[each.point, each.stream] = each
    return tuple(
        _errors(simulated[key], measured, NETWORK_LIMIT if key[1] in networks else LATENCY_LIMIT)
        for key, measured in real.items()
        if key in simulated
    )


def limits_told(errors: Sequence[Fidelity]) -> str:
    """The limits of the latencies of these errors, in words."""
    return " or ".join(f"{limit:.0%}" for limit in sorted({each.limit for each in errors}))


def _errors(simulated: Figures, real: Figures, limit: float) -> Fidelity:
    return Fidelity(
        point=real.point,
        values=real.values,
        stream=real.stream,
        mean=_relative(simulated, real, "mean_ms"),
        p99=_relative(simulated, real, "p99_ms"),
        attainment=_difference(simulated, real),
        limit=limit,
    )


def _relative(simulated: Figures, real: Figures, name: str) -> float | None:
    guess, truth = simulated.mean(name), real.mean(name)
    return None if guess is None or not truth else guess / truth - 1


def _difference(simulated: Figures, real: Figures) -> float | None:
    guess, truth = simulated.mean("attainment"), real.mean("attainment")
    return None if guess is None or truth is None else guess - truth
