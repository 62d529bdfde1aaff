"""How long threads of this process waited for a core while they wanted one.

Linux counts for each thread how long it ran and how long it was ready to run and did not
(`/proc/self/task/*/schedstat`). That tells how much others disturbed a program more directly than
what they computed: who has a core to himself, or goes before others, does not wait.
"""

from __future__ import annotations

import os

_TASKS = "/proc/self/task"


class WaitMeter:
    """Measures from its making to each `read`; threads that ended before that do not count."""

    def __init__(self) -> None:
        self._start = _sample()

    def read(self) -> float | None:
        """The share of the time in which threads wanted a core that they waited; None: unknown."""
        ran_ns = waited_ns = 0
        for thread, (ran, waited) in _sample().items():
            ran_before, waited_before = self._start.get(thread, (0, 0))
            ran_ns += ran - ran_before
            waited_ns += waited - waited_before
        wanted_ns = ran_ns + waited_ns
        return waited_ns / wanted_ns if ran_ns > 0 else None


def _sample() -> dict[str, tuple[int, int]]:
    """Returns run and wait times of each thread in nanoseconds; empty where they are unknown."""
    found: dict[str, tuple[int, int]] = {}
    try:
        threads = os.listdir(_TASKS)
    except OSError:
        return found
    for thread in threads:
        try:
            with open(f"{_TASKS}/{thread}/schedstat", encoding="ascii") as file:
                ran, waited, _ = file.read().split()
            found[thread] = int(ran), int(waited)
        except (OSError, ValueError):
            continue
    return found
