"""How far a long command is, on standard error: on a terminal all the time, else now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

_PERIOD_S = 0.1


class Progress:
    """Counts what is done; `line` says how far that is."""

    def __init__(self, line: Callable[[], str], *, every: int) -> None:
        """Writes a line each `every` calls where there is no terminal."""
        self.done = 0
        self._line = line
        self._every = every
        self._lively = sys.stderr.isatty()
        self._told_s = 0.0

    def step(self) -> None:
        """Note that one more is done."""
        self.done += 1
        now_s = time.monotonic()
        if self._lively and now_s - self._told_s > _PERIOD_S:
            self._told_s = now_s
            print(f"\r{self._line()}", end="\x1b[K", file=sys.stderr, flush=True)
        elif not self._lively and self.done % self._every == 0:
            print(self._line(), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the line of a terminal empty."""
        if self._lively:
            print("\x1b[2K\r", end="", file=sys.stderr, flush=True)
