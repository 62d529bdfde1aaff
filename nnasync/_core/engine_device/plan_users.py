"""The prepared models of one plan: they share it and its memory, each has its own executions.

Another plan may take over, of another engine, and then its terms are those of all of them.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Protocol

from nnasync import hal
from nnasync._core.endings import renewed_in_child
from nnasync._core.engine_device.fast_state import FastState
from nnasync._core.heap import HEAP
from nnasync.hal import Model, Priority, Struct
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


class PlanTerms(Struct, frozen=True):
    """What a plan asks of who runs it.

    `device` is who runs it, in words. At most `concurrency` executions may run at once; 0 means any
    number. Unless it `runs_inline` none is on the thread of a loop, since it waits for the loop.
    """

    device: str
    concurrency: int = 0
    runs_inline: bool = True


class _User(Protocol):
    runs_here: bool

    @property
    def levels(self) -> list[Level]: ...

    @property
    def fast_states(self) -> Sequence[FastState]: ...


class PlanUsers:
    """The users of a plan, held weakly: its scratch memory may be freed when none needs it."""

    def __init__(self, model: str, terms: PlanTerms) -> None:
        """`model` is the name of the model."""
        self._model = model
        self.name = ""
        """What errors and traces call the executions of the plan."""
        self._name_by(terms)
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

    def change_terms(self, terms: PlanTerms) -> None:
        """Has all users keep to the terms of a plan that takes over.

        What runs inline does not wait for a place, so none of a plan that is limited does.
        """
        self._name_by(terms)
        if terms.concurrency or not terms.runs_inline:
            for user in self._all():
                user.runs_here = False

    def _name_by(self, terms: PlanTerms) -> None:
        self.name = f"{self._model or 'model'} on {terms.device}"

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
