"""Bursts of networks whose shapes are found while they run.

The memory of a call is known only when the call is there, and such a network has no state, so a
call of this burst is a plain one: they run in the order in which they were made, and while the
burst is open its device is in the fast state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync._core.clock import Deadline
from nnasync._core.execution.burst import Burst
from nnasync._core.execution.depth_limit import DepthLimit
from nnasync._core.execution.flexible import FlexibleCalls
from nnasync._core.execution.ports import R, in_order
from nnasync.errors import DeviceUnavailable, because
from nnasync.hal import Priority


class FlexibleBurst(Burst[R]):
    """A stream of executions of a network with open shapes, made by `net.burst()`."""

    def __init__(self, calls: FlexibleCalls, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._calls = calls
        self._turn_of_one = DepthLimit(1, "wait", self._workers.watchdog)

    async def _call_in_full(
        self,
        arrays: Sequence[Any],
        out: Any,
        deadline: Deadline | None,
        priority: Priority | None,
        *,
        measure: bool = False,
    ) -> Any:
        """Runs a call of any form after those before it."""
        await self._let_in(deadline)
        config = self._config_of(deadline, priority, measure=measure)
        values = self._calls.given(in_order(self._ports.inputs, arrays, "input"))
        turn = self._turn_of_one
        self._limit.enter()
        self._submitted += 1
        try:
            if turn.is_full:
                values = [_copied(value) for value in values]
                await turn.wait(config.deadline_ns)
            turn.enter()
            try:
                value, result = await self._calls.call(values, out, config)
            finally:
                turn.leave()
            if not self._open:
                raise _closed()
        finally:
            self._limit.leave()
        self._succeeded += 1
        return (value, result.timing) if measure else value

    def close(self) -> None:
        """Ends the burst; calls in flight end with DeviceUnavailable. May be repeated."""
        super().close()
        self._turn_of_one.close(_closed())


def _closed() -> DeviceUnavailable:
    return because(
        "closing", DeviceUnavailable("the burst was closed while this call was in flight")
    )


def _copied(value: Any) -> Any:
    """Returns a copy of an array, so that the caller may reuse it.

    A buffer is returned as it is.
    """
    return value.copy() if isinstance(value, np.ndarray) else value
