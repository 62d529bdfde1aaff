"""The prepared models of one plan: they share it and its memory, each has its own executions."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Protocol

from nnasync import hal
from nnasync._core.endings import renewed_in_child
from nnasync._core.engine_device.fast_state import FastState
from nnasync._core.heap import HEAP
from nnasync.hal import Model, Priority
from nnasync.scheduler import Estimate


class Level:
    """A priority, with the estimate of its executions.

    Runs of LOW give way, to others and to the system, so the estimates of the others know nothing
    of them.
    """

    __slots__ = ("estimate", "priority")

    def __init__(self, priority: Priority, estimate: Estimate) -> None:
        self.priority = priority
        self.estimate = estimate


class _User(Protocol):
    @property
    def levels(self) -> list[Level]: ...

    @property
    def fast_states(self) -> Sequence[FastState]: ...


class PlanUsers:
    """The users of a plan, held weakly: its scratch memory may be freed when none needs it."""

    def __init__(self) -> None:
        self._users: weakref.WeakSet[_User] = weakref.WeakSet()
        self._lock = renewed_in_child(threading.Lock())

    def join(self, user: _User) -> None:
        """Notes a prepared model that uses the plan."""
        with self._lock:
            self._users.add(user)

    def leave(self, user: _User) -> bool:
        """Notes that a prepared model was closed; returns whether it was the last."""
        with self._lock:
            self._users.discard(user)
            is_last = not self._users
        if is_last:
            HEAP.freed()  # Soon, when nothing refers to the plan any more.
        return is_last

    @property
    def runs(self) -> int:
        """Returns how many executions of the plan have run."""
        return sum(level.estimate.samples for user in self._all() for level in user.levels)

    @property
    def is_hot(self) -> bool:
        """Returns whether the device is in its fast state for one of their bursts."""
        return any(each.is_hot for user in self._all() for each in tuple(user.fast_states))

    def _all(self) -> list[_User]:
        with self._lock:
            return list(self._users)


def has_loops(model: Model) -> bool:
    """Returns whether a model has a WHILE, whose duration depends on its data."""
    # Those of extensions first: the table of operations is large, and a file kept whole has none.
    return any(
        not hal.is_extension(operation.type) and operation.type == hal.OperationType.WHILE
        for subgraph in (model.main, *model.referenced)
        for operation in subgraph.operations
    )
