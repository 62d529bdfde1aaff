"""Repeats the contest for networks whose runs take much longer than measured.

A contest measures a fraction of a second, once; a program runs for weeks. So the runtime compares
what runs take with what the contest had found. Where they take 1.5 times as long for half a minute
of use, another contest is held in the background, and if it has another winner, calls change over
to it. What is under way, and open bursts, stay with the plan that they began with.

A machine that has become busier slows all devices down, and another contest then finds the same
winner. So the next one needs runs that are slower still, and there is a pause, which doubles each
time.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Awaitable, Callable, Sequence

from nnasync._core.clock import now_ns
from nnasync._core.compilation import Compilation
from nnasync._core.engine_device import EnginePreparedModel
from nnasync._core.engine_device.plan_users import Level
from nnasync._core.execution import Net
from nnasync._core.wakeup import shield
from nnasync.fences import Fence
from nnasync.hal import Priority
from nnasync.scheduler import Estimate

logger = logging.getLogger(__name__)

_SLOW = 1.5
_SLOW_NS = 50_000
"""Runs of a stream find colder caches than those of a contest; on top of the ratio."""
_MIN_RUNS = 20
_SLOW_LOOKS = 6
_FIRST_PAUSE_NS = 600_000_000_000
_LONGEST_PAUSE_NS = 86_400_000_000_000


class Slowness:
    """Tells when the runs of a network have been slower than expected for long."""

    def __init__(self, expected_ns: float) -> None:
        self._expected_ns = expected_ns
        self._slow_looks = self._runs = 0
        self._not_before_ns = 0
        self._pause_ns = _FIRST_PAUSE_NS

    def look(self, now_ns: int, runs: int, run_ns: float) -> bool:
        """Takes in how the runs do; returns whether the devices should compete again.

        Called every few seconds with the number of runs so far and what a run takes lately. Where
        there were hardly any runs since the last look, it says nothing about the network.
        """
        if runs - self._runs < _MIN_RUNS:
            return False
        self._runs = runs
        is_slow = run_ns > _SLOW * self._expected_ns + _SLOW_NS
        self._slow_looks = self._slow_looks + 1 if is_slow else 0
        return self._slow_looks >= _SLOW_LOOKS and now_ns >= self._not_before_ns

    def competed(self, now_ns: int, run_ns: float, lately_ns: float) -> None:
        """Starts anew after a contest that measured `run_ns`, where runs took `lately_ns`."""
        self._expected_ns = max(run_ns, lately_ns)
        self._slow_looks = self._runs = 0
        self._not_before_ns = now_ns + self._pause_ns
        self._pause_ns = min(2 * self._pause_ns, _LONGEST_PAUSE_NS)


class Rechecker:
    """Watches one network, and has its devices compete again where its runs are slow."""

    def __init__(
        self, net: Net, run_ns: float, again: Callable[[str], Awaitable[Compilation]]
    ) -> None:
        """Takes what the contest measured, `run_ns`.

        `again` holds another contest; it is given the pin of the winner of that one.
        """
        self._net = weakref.ref(net)
        self._again = again
        self._slowness = Slowness(run_ns)
        self._is_due = Fence()
        self._lately_ns = 0.0
        self._runs = 0
        self._seen: dict[Priority, int] = {}

    @property
    def is_waiting(self) -> bool:
        """Returns whether no contest is under way or due."""
        return not self._is_due.done

    def look(self) -> None:
        """Looks at the network's runs; called every few seconds, on any thread."""
        net = self._net()
        if net is None or self._is_due.done or not isinstance(net._prepared, EnginePreparedModel):
            return
        estimate = self._used(net._prepared.levels)
        if estimate is None:
            return
        self._lately_ns = estimate.ns
        if self._slowness.look(now_ns(), self._runs, estimate.ns):
            self._is_due.signal()

    def _used(self, levels: Sequence[Level]) -> Estimate | None:
        """Returns the estimate of the most urgent runs of which there were enough; counts runs."""
        found: Estimate | None = None
        for level in levels:
            fresh = level.estimate.samples - self._seen.get(level.priority, 0)
            if found is None and fresh >= _MIN_RUNS:
                found = level.estimate
                self._runs += fresh
            if found is level.estimate or fresh < 0:
                self._seen[level.priority] = level.estimate.samples
        return found

    async def run(self) -> None:
        """Watches until the network is gone, or this is cancelled; its failures harm nobody."""
        while self._net() is not None:
            await self._is_due
            try:
                await self._compete()
            except Exception as error:
                net = self._net()
                if net is None or net._closed:
                    return  # What failed is that there is no runtime any more.
                del net
                logger.warning("a network with slow runs stays as it is: %s", error)
                self._slowness.competed(now_ns(), 0, float("inf"))
            self._is_due = Fence()

    async def _compete(self) -> None:
        net = self._net()
        if net is None:
            return
        lately_ns = self._lately_ns
        logger.info("runs of network %r are slow: its devices compete again", net.model.name)
        pin = net.report().pin
        del net
        compilation = await self._again(pin)
        self._slowness.competed(now_ns(), compilation.run_ns or 0, lately_ns)
        net = self._net()
        # Buffers that were allocated for a network belong to the device that it runs on.
        is_free = net is not None and not net._has_roles
        is_other = net is not None and net.report().pin != compilation.report.pin
        if net is None or not (is_free and is_other and net._take_over(compilation)):
            with shield():
                await compilation.prepared.close()
            return
        devices = ", ".join(part.device for part in compilation.report.partitions)
        logger.info("network %r runs on %s from now on", net.model.name, devices)
