"""Bursts of networks whose shapes are found while they run.

The memory of a call is known only when the call is there, and such a network has no state, so a
call of this burst is a plain one: they run in the order in which they were made, and while the
burst is open its device is in the fast state. A call that gives up while it waits lets the next one
wait for the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync._core.execution.burst import Burst
from nnasync._core.execution.flexible import FlexibleCalls
from nnasync._core.execution.ports import in_order
from nnasync.errors import DeviceUnavailable, MissedDeadlinePersistent, because
from nnasync.fences import Fence
from nnasync.hal import NEVER_NS, ExecutionConfig

__all__ = ["FlexibleBurst"]


class FlexibleBurst(Burst):
    """A stream of executions of a network with open shapes, made by `net.burst()`."""

    _has_open_shapes = True

    def __init__(self, calls: FlexibleCalls, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._calls = calls
        self._tail = Fence()
        self._tail.signal()
        self._waiting: set[Fence] = set()

    async def _in_turn(self, arrays: Sequence[Any], out: Any, config: ExecutionConfig) -> Any:
        """The answer to one call, after those before it."""
        values = self._calls.given(in_order(self._ports.inputs, arrays, "input"))
        before, over = self._tail, Fence()
        self._tail = over
        self._room.enter()
        self._submitted += 1
        try:
            if not before.done:
                values = [_copied(value) for value in values]
                await self._turn_after(before, config.deadline_ns)
            value, result = await self._calls.call(values, out, config)
            if not self._open:
                raise _closed()
        except BaseException:
            self._failed += 1
            raise
        else:
            self._succeeded += 1
            self._tally.completed += 1
        finally:
            self._room.leave()
            before.add_callback(lambda _: over.signal())
        return (value, result.timing) if config.measure else value

    async def _turn_after(self, before: Fence, deadline_ns: int) -> None:
        """Wait until the call before this one is over, at most until the deadline."""
        reached = Fence()
        before.add_callback(lambda _: reached.signal())
        alarm = None
        if deadline_ns != NEVER_NS:
            late = MissedDeadlinePersistent("the deadline passed before the execution began")
            alarm = self._workers.watchdog.arm(deadline_ns, lambda: reached.fail(late))
        self._waiting.add(reached)
        try:
            await reached
        finally:
            self._waiting.discard(reached)
            if alarm is not None:
                alarm.disarm()

    def close(self) -> None:
        """End the burst; calls in flight end with DeviceUnavailable. Idempotent."""
        super().close()
        for reached in tuple(self._waiting):
            reached.fail(_closed())


def _closed() -> DeviceUnavailable:
    return because(
        "closing", DeviceUnavailable("the burst was closed while this call was in flight")
    )


def _copied(value: Any) -> Any:
    """An array as it is now, which the caller may reuse at once; buffers as they are."""
    return value.copy() if isinstance(value, np.ndarray) else value
