"""Calls that tell how long they took, the same for networks and for bursts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple

from nnasync._core.clock import Deadline
from nnasync._core.execution.ports import R
from nnasync.hal import Priority, Timing
from nnasync.tracing.tally import Tally


class Measured(NamedTuple, Generic[R]):
    """The result of a call, with its timing."""

    value: R
    timing: Timing


class MeasuredCalls(ABC, Generic[R]):
    """The part of networks and bursts that makes calls and returns their timings."""

    async def measured(
        self,
        *arrays: Any,
        deadline: Deadline | None = None,
        out: Any = None,
        priority: Priority | None = None,
    ) -> Measured[R]:
        """Runs once, with arguments as of a call; returns the result and its Timing."""
        tally = self._tally_at(priority)
        tally.calls += 1
        try:
            found = await self._call_in_full(arrays, out, deadline, priority, measure=True)
        except BaseException as error:
            tally.ended(error, deadline)
            raise
        tally.completed += 1
        return Measured(*found)

    @abstractmethod
    def _tally_at(self, priority: Priority | None) -> Tally:
        """Returns the tally of calls of this priority, or of the usual one."""

    @abstractmethod
    async def _call_in_full(
        self,
        arrays: Sequence[Any],
        out: Any,
        deadline: Deadline | None,
        priority: Priority | None,
        *,
        measure: bool = False,
    ) -> Any:
        """Runs a call of any form; returns the result, with its Timing where it is measured."""
