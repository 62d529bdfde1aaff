"""One run of one point of an experiment, with what became of it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nnasync.experiments.record import RunResult, StreamResult

DISTURBED = 0.05
"""From this share on others disturb a real run."""


def disturbance_of(others: float, stolen: float, waited: float | None) -> float:
    """Returns how much others disturbed a real run, as a share of the cores.

    `others` is the share that other programs had, `stolen` the one of other virtual machines, and
    `waited` the share of its time for which the run waited for a core. What other programs have
    does not matter as far as the run need not wait for it; what the hypervisor takes away shows in
    no queue, and counts whole.
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
        """Returns how much others disturbed a real run.

        It is a share of the cores, or of what the run wanted of them.
        """
        return disturbance_of(self.others, self.stolen, self.result.waited)

    @property
    def is_disturbed(self) -> bool:
        """Returns whether others disturbed the run so much that its latencies cannot be trusted."""
        return self.disturbance >= DISTURBED

    def stream(self, name: str) -> StreamResult | None:
        """Returns the result of a stream; None if it was not in this run."""
        return next((each for each in self.result.streams if each.name == name), None)


def trusted(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Returns the runs without disturbed ones of points that also have undisturbed real runs."""
    every = tuple(runs)
    calm = {run.point for run in every if run.result.kind == "real" and not run.is_disturbed}
    return tuple(run for run in every if not (run.is_disturbed and run.point in calm))
