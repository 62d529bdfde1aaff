"""What the arguments of a launch mean, other than its inputs one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from nnasync._core.clock import Deadline
from nnasync._core.deferred import deferred
from nnasync._core.execution.launch import Execution
from nnasync.errors import InvalidArgument
from nnasync.fences import Fence, FenceStatus
from nnasync.hal import (
    DEFAULT_CONFIG,
    DEFAULT_LOOP_TIMEOUT_NS,
    MAXIMUM_LOOP_TIMEOUT_NS,
    NEVER_NS,
    ExecutionConfig,
    Priority,
)
from nnasync.memory import Pool, Region

if TYPE_CHECKING:
    from nnasync._core.execution import buffer
else:
    buffer = deferred("nnasync._core.execution.buffer")


_SIGNALED = FenceStatus.SIGNALED
_MEASURED = ExecutionConfig(measure=True)


def spread(arrays: Sequence[Any]) -> Sequence[Any]:
    """Returns the arguments of a launch one by one: `launch(outputs)` means `launch(*outputs)`."""
    if len(arrays) == 1:
        first = arrays[0]
        if (
            first.__class__ in (tuple, list)
            and first
            and (isinstance(first[0], Region) or _is_held(first[0]))
        ):
            spread: Sequence[Any] = first
            return spread
    return arrays


def _is_held(value: Any) -> bool:
    """Returns whether a value is a buffer or an image, which is used in place."""
    return value.__class__ is Pool or (
        not isinstance(value, (int, float, list, tuple)) and isinstance(value, buffer.Buffer)
    )


def config_of(
    deadline: Deadline | None, priority: Priority | None = None, *, measure: bool
) -> ExecutionConfig:
    """Returns the configuration of a call; raises InvalidArgument for what is no Priority."""
    if priority is not None:
        check_priority(priority)
        deadline_ns = NEVER_NS if deadline is None else deadline.at_ns
        return ExecutionConfig(measure, deadline_ns, priority=priority)
    if deadline is not None:
        return ExecutionConfig(measure, deadline.at_ns)
    return _MEASURED if measure else DEFAULT_CONFIG


def check_priority(priority: object) -> None:
    """Raises InvalidArgument for what is no Priority."""
    if priority.__class__ is not Priority:
        raise InvalidArgument(
            "priority must be nn.Priority.LOW, MEDIUM or HIGH, or None for that of the network, "
            f"got {priority!r}"
        )


def launch_config(
    deadline: Deadline | None,
    duration_s: float | None,
    loop_timeout_s: float | None,
    priority: Priority | None = None,
    *,
    measure: bool,
) -> ExecutionConfig:
    """Returns the configuration of a launch; raises InvalidArgument."""
    if priority is not None:
        check_priority(priority)
    return ExecutionConfig(
        measure,
        NEVER_NS if deadline is None else deadline.at_ns,
        _limit_of_loops_ns(loop_timeout_s),
        _nanoseconds(duration_s, "duration_s"),
        priority,
    )


def fences_of(wait_for: Sequence[Fence | Execution]) -> Sequence[Fence]:
    """Returns the fences given as `wait_for=`; raises InvalidArgument."""
    if wait_for.__class__ is not list and not isinstance(wait_for, Iterable):
        raise InvalidArgument(f"wait_for takes a list of fences, got {wait_for!r}")
    return [_fence(item) for item in wait_for]


def all_met(fences: Sequence[Fence]) -> bool:
    """Returns whether all dependencies are done and none failed."""
    return not fences or all(fence.status is _SIGNALED for fence in fences)


def _fence(item: Fence | Execution) -> Fence:
    if item.__class__ is Fence:
        return item
    fence = item.fence if isinstance(item, Execution) else item
    if not isinstance(fence, Fence):
        raise InvalidArgument(f"wait_for takes fences, got {item!r}")
    return fence


def _nanoseconds(seconds: float | None, name: str) -> int | None:
    """Returns a time limit in seconds as nanoseconds; raises InvalidArgument."""
    if seconds is None:
        return None
    number: object = seconds
    if not isinstance(number, (int, float)) or not 0 <= number < float("inf"):
        raise InvalidArgument(f"{name} must be a number of seconds, 0 or more, got {seconds!r}")
    return int(seconds * 1e9)


def _limit_of_loops_ns(seconds: float | None) -> int:
    """Returns `loop_timeout_s=` as nanoseconds; raises InvalidArgument."""
    if seconds is None:
        return DEFAULT_LOOP_TIMEOUT_NS
    return min(_nanoseconds(seconds, "loop_timeout_s") or 0, MAXIMUM_LOOP_TIMEOUT_NS)
