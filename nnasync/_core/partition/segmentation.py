"""A model on one device in segments, so that a higher priority need not wait for all of it.

Segments are runs of operations in order of execution. Each is expected to end within the quantum,
but for single operations that take longer. Where to cut is chosen (dynamic programming) such that
first the time beyond the quantum is the least, then what the borders cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from nnasync._core.partition.crossing import crossing_bytes
from nnasync._core.partition.grouping import Group
from nnasync.errors import InvalidArgument
from nnasync.hal import Model

_BORDER_BYTES = 50_000.0
"""The fixed cost of a border, in bytes, in addition to the data that crosses it."""


def segments(
    model: Model, weights_ns: Sequence[float], quantum_ns: float, *, device: int = 0
) -> tuple[Group, ...]:
    """Returns segments for `cut`; `weights_ns` is what each operation is expected to take.

    Raises InvalidArgument for another number of weights, for one below 0, and for a quantum that is
    not above 0.
    """
    count = len(model.main.operations)
    if len(weights_ns) != count or not all(0 <= weight < math.inf for weight in weights_ns):
        raise InvalidArgument(f"expected a weight from 0 on for each of {count} operations")
    if not quantum_ns > 0:
        raise InvalidArgument(f"a quantum of {quantum_ns} ns must be above 0")
    borders = [nbytes + _BORDER_BYTES for nbytes in crossing_bytes(model)]
    borders[count] = 0.0
    starts = _best_starts(list(accumulate(weights_ns, initial=0.0)), borders, quantum_ns)
    found, end = [], count
    while end:
        found.append(Group(device, tuple(range(starts[end], end))))
        end = starts[end]
    return tuple(reversed(found))


def _best_starts(
    sums_ns: Sequence[float], borders: Sequence[float], quantum_ns: float
) -> list[int]:
    """Returns for each cut where the segment before it begins on the best way to there.

    What is beyond the quantum only grows with a longer segment, so the first one that is too long
    and begins at a possible cut is the last that is tried.
    """
    best: list[tuple[float, float]] = [(0.0, 0.0)]
    starts = [0]
    for end in range(1, len(sums_ns)):
        found, start = (math.inf, math.inf), 0
        for begin in range(end - 1, -1, -1):
            excess = max(0.0, sums_ns[end] - sums_ns[begin] - quantum_ns)
            beyond, cost = best[begin]
            way = beyond + excess, cost + borders[end]
            if math.isfinite(cost) and way < found:
                found, start = way, begin
            if excess and math.isfinite(cost):
                break
        best.append(found)
        starts.append(start)
    return starts
