"""One run of one point of an experiment, with what became of it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nnasync.experiments.record import RunResult, StreamResult

DISTURBED = 0.05
"""From this share on others disturb a real run."""


def disturbance_of(others: float, stolen: float, waited: float | None) -> float:
    """How much a real run was disturbed, of which others and other virtual machines had so much.

    What others have of the cores does not matter as far as the threads of the run need not wait
    for it; what the hypervisor gives away nobody waits for in a queue.
    """
    return max(stolen, min(others, others if waited is None else waited))


class Run(msgspec.Struct, frozen=True):
    """A run of a point: `values` are what the sweep set, as shown; it took `took_s` to run.

    others: of a real run, which share of the machine's cores other processes and other virtual
    machines had meanwhile; stolen: those other virtual machines alone. attempts: how many times it
    was run, as earlier ones were disturbed more.
    """

    point: int
    values: dict[str, float | str]
    repeat: int
    took_s: float
    result: RunResult
    others: float = 0.0
    stolen: float = 0.0
    attempts: int = 1

    @property
    def disturbance(self) -> float:
        """How much others disturbed a real run: a share of the cores, or of what it wanted."""
        return disturbance_of(self.others, self.stolen, self.result.waited)

    @property
    def is_disturbed(self) -> bool:
        """Whether its latencies are not to be trusted."""
        return self.disturbance >= DISTURBED

    def stream(self, name: str) -> StreamResult | None:
        """What became of a stream, if it was in this run."""
        return next((each for each in self.result.streams if each.name == name), None)


def trusted(runs: Iterable[Run]) -> tuple[Run, ...]:
    """All runs but the disturbed ones of points that were run for real undisturbed as well."""
    every = tuple(runs)
    calm = {run.point for run in every if run.result.kind == "real" and not run.is_disturbed}
    return tuple(run for run in every if not (run.is_disturbed and run.point in calm))
