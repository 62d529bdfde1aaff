"""What a launch is told beside its inputs: the fences that it waits for, and its time limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nnasync.errors import InvalidArgument
from nnasync.execution.launch import Execution
from nnasync.fences import Fence, FenceStatus
from nnasync.hal import DEFAULT_LOOP_TIMEOUT_NS, MAXIMUM_LOOP_TIMEOUT_NS

__all__ = ["all_met", "fences_of", "limit_of_loops_ns", "nanoseconds"]

_SIGNALED = FenceStatus.SIGNALED


def fences_of(wait_for: Sequence[Fence | Execution]) -> Sequence[Fence]:
    """The fences of `wait_for`; raises InvalidArgument for what is none."""
    if wait_for.__class__ is not list and not isinstance(wait_for, Iterable):
        raise InvalidArgument(f"wait_for takes a list of fences, got {wait_for!r}")
    return [_fence(item) for item in wait_for]


def all_met(fences: Sequence[Fence]) -> bool:
    """Whether all of them are signaled."""
    return not fences or all(fence.status is _SIGNALED for fence in fences)


def _fence(item: Fence | Execution) -> Fence:
    if item.__class__ is Fence:
        return item
    fence = item.fence if isinstance(item, Execution) else item
    if not isinstance(fence, Fence):
        raise InvalidArgument(f"wait_for takes fences, got {item!r}")
    return fence


def nanoseconds(seconds: float | None, name: str) -> int | None:
    """A time limit in nanoseconds; raises InvalidArgument for what is none."""
    if seconds is None:
        return None
    number: object = seconds
    if not isinstance(number, (int, float)) or not 0 <= number < float("inf"):
        raise InvalidArgument(f"{name} must be a number of seconds, 0 or more, got {seconds!r}")
    return int(seconds * 1e9)


def limit_of_loops_ns(seconds: float | None) -> int:
    """The limit of each WHILE loop, at most what the HAL allows."""
    if seconds is None:
        return DEFAULT_LOOP_TIMEOUT_NS
    return min(nanoseconds(seconds, "loop_timeout") or 0, MAXIMUM_LOOP_TIMEOUT_NS)
