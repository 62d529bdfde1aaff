"""A section: what it is given, what it gives back, and how it tells how far it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from benchmarks.peers.catalog import Entry
from benchmarks.peers.children import Outcome, measure

__all__ = ["Context", "Progress", "Section", "mark", "number"]

LEAST_S = 5.0


class Section(msgspec.Struct, frozen=True):
    """The tables of a section as text, and its figures."""

    title: str
    text: str
    figures: Mapping[str, Any]


class Progress:
    """Reports progress on standard error: on a terminal in one line, else a line now and then."""

    EVERY_S = 10.0

    def __init__(self) -> None:
        self._lively = sys.stderr.isatty()
        self._width = 0
        self._told_s = 0.0

    def tell(self, line: str) -> None:
        if self._lively:
            print(f"\r{line.ljust(self._width)}", end="", file=sys.stderr, flush=True)
            self._width = len(line)
        elif time.monotonic() - self._told_s > self.EVERY_S:
            self._told_s = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._lively:
            print(f"\r{' ' * self._width}\r", end="", file=sys.stderr, flush=True)


class Context:
    """What all sections share: models, rounds, devices, and the time limit of the section."""

    def __init__(
        self,
        entries: Sequence[Entry],
        rounds: int,
        progress: Progress,
        devices: Sequence[str] | None = None,
    ) -> None:
        self.entries = entries
        self.rounds = rounds
        self.progress = progress
        self._devices = devices
        self._until_s = 0.0

    def begin(self, seconds: float) -> None:
        """Begins a section that may take so long."""
        self._until_s = time.monotonic() + seconds

    def entry(self, name: str) -> Entry | None:
        """Returns a model by name; None if it is not among the chosen."""
        return next((entry for entry in self.entries if entry.name == name), None)

    def left_s(self) -> float:
        """Returns the seconds that are left."""
        return max(0.0, self._until_s - time.monotonic())

    def is_over(self) -> bool:
        """Returns whether too little time is left to begin anything more."""
        return self.left_s() < LEAST_S

    def measure(self, section: str, label: str, task: Mapping[str, Any]) -> Outcome:
        """Runs one child of a section, and ends it when the section's time is over."""
        return measure(
            section,
            {"devices": self._devices, **task},
            timeout_s=max(LEAST_S, self.left_s()),
            tell=lambda doing: self.progress.tell(f"{section}: {label}: {doing}"),
        )


def number(value: float | None, digits: int = 1) -> str:
    """Returns a number for a table, "-" where there is none."""
    return "-" if value is None or value != value else f"{value:.{digits}f}"


def mark(value: float | None, limit: float | None, *, at_least: bool = False) -> str:
    """Returns whether a figure keeps its limit: "yes", "no", or nothing where one is missing."""
    if value is None or limit is None:
        return ""
    return "yes" if (value >= limit if at_least else value <= limit) else "no"
