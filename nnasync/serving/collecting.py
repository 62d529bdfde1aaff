"""Garbage collection of a process that does nothing but serve: between requests.

Python's collector looks for cycles of objects which nobody can reach; whatever is in no cycle goes
without it. It begins when many objects have come, which is when many requests are in flight, and no
thread of the process runs meanwhile: 2 to 5 ms for those that came lately, 25 to 50 ms for all. So
it is switched off here. A few times a second a look is taken at how much has come. Mostly it can
wait until nothing is in flight; among requests there is a collection only once so much has come
that much of it has to be in cycles. What survives in large numbers are modules and models, and no
collection looks at them again until models change, or the process grows all the same.
"""

from __future__ import annotations

import gc
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from nnasync.serving.server import ModelServer

_LOOK_S = 0.25
_WORTHWHILE, _MANY = 2_000, 50_000
"""Objects that came since the last collection and are still there."""
_SURVIVORS = 10_000
_MUCH_BYTES = 256 << 20


class Collector:
    """Collects garbage where that keeps the fewest requests waiting."""

    def __init__(self) -> None:
        self._models: frozenset[int] | None = None
        self._least_bytes = 0

    def look(self, models: frozenset[int], resident_bytes: int, *, is_idle: bool) -> None:
        """Collects, if it is time to.

        `models` tells those that are served now, `resident_bytes` is what the process has of the
        memory, and `is_idle` says that nothing is in flight.
        """
        new = gc.get_count()[0]
        self._least_bytes = min(self._least_bytes, resident_bytes)
        has_grown = resident_bytes > self._least_bytes + _MUCH_BYTES
        if has_grown or models != self._models:
            self._models, self._least_bytes = models, resident_bytes
            gc.unfreeze()
        elif new < (_WORTHWHILE if is_idle else _MANY):
            return
        gc.collect()
        if len(gc.get_objects()) > _SURVIVORS:
            gc.freeze()


@contextmanager
def collecting_between_requests(server: ModelServer) -> Iterator[Collector]:
    """Switches the collector off while the block runs, and collects what is there at first."""
    was_on = gc.isenabled()
    gc.disable()
    collector = Collector()
    try:
        _look(collector, server)
        yield collector
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()


async def keep_looking(collector: Collector, server: ModelServer) -> None:
    """Has the collector look a few times a second."""
    while True:
        await anyio.sleep(_LOOK_S)
        _look(collector, server)


def _look(collector: Collector, server: ModelServer) -> None:
    models = frozenset(map(id, server.models))
    collector.look(models, resident_bytes(), is_idle=server.is_idle)


def resident_bytes() -> int:
    """Returns how much of the memory this process has, or 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0
