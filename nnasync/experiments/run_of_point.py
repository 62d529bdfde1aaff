"""One run of one point of an experiment, with what became of it."""

from __future__ import annotations

import msgspec

from nnasync.experiments.record import RunResult, StreamResult


class Run(msgspec.Struct, frozen=True):
    """A run of a point: `values` are what the sweep set, as shown; it took `took_s` to run.

    others: of a real run, which share of the machine's cores other processes and other virtual
    machines had meanwhile; stolen: those other virtual machines alone.
    """

    point: int
    values: dict[str, float | str]
    repeat: int
    took_s: float
    result: RunResult
    others: float = 0.0
    stolen: float = 0.0

    def stream(self, name: str) -> StreamResult | None:
        """What became of a stream, if it was in this run."""
        return next((each for each in self.result.streams if each.name == name), None)
