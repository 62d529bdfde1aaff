"""The load of a soak, in a child: all that an application does in a day, at once, for hours.

Streams call networks at a steady rate with deadlines. Beside them networks are compiled and closed,
or dropped without being closed, compiled through a cache that is too small for them, asked in
storms of calls whose deadline is next to none, and run on a device in a process of its own that is
killed. Every answer is compared; a call may miss its deadline or be refused, and one on a device
that was killed may say so; any other error is a fault.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from nnasync._core.clock import within
from nnasync._core.compilation.report import Fate, Report, devices_of
from nnasync._core.execution import Net
from nnasync._core.runtime import Options, Runtime, open_runtime
from nnasync.errors import (
    DeviceDied,
    DeviceUnavailable,
    MissedDeadline,
    NNError,
    Refused,
)
from nnasync.hal import Model
from nnasync.suites.crash.networks import (
    QUANTIZED_TOLERANCE,
    TOLERANCE,
    answers,
    difference,
    is_quantized,
    load_answers,
)
from nnasync.suites.crash.orders import ChildReport, SoakOrder, SoakWindow, StressedNetwork
from nnasync.suites.crash.telling import CallStopwatch, Teller, error_text

PERIOD_S = 1 / 30
DEADLINE_S = 1.0
STORM_CALLS = 50
STORM_DEADLINE_US = 50
CACHE_BYTES = 1 << 20
MOST_FAULTS = 20
POLL_S = 0.05


class _Soak:
    """One device under all of the load."""

    def __init__(
        self, order: SoakOrder, here: Runtime, apart: Runtime, cache: str, teller: Teller
    ) -> None:
        self._order = order
        self._here = here
        self._apart = apart
        self._cache = cache
        self._teller = teller
        self._random = random.Random(order.seed)
        self._answers = {each.name: load_answers(each.answers) for each in order.networks}
        self._watch = CallStopwatch()
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []

    async def run(self) -> None:
        """Load until the time is over or the coordinator asks to end."""
        until_s = time.monotonic() + self._order.seconds
        async with anyio.create_task_group() as tasks:
            for network in self._order.networks:
                tasks.start_soon(self._stream, network)
            for work in (self._compile, self._drop, self._churn, self._storm, self._ask_apart):
                tasks.start_soon(self._again, work)
            tasks.start_soon(self._kill)
            window_s = time.monotonic() + self._order.sample_s
            while time.monotonic() < until_s and not self._teller.must_end:
                await anyio.sleep(min(POLL_S, self._order.sample_s))
                if time.monotonic() >= window_s:
                    window_s += self._order.sample_s
                    self._tell()
            tasks.cancel_scope.cancel()
        self._tell()

    def _tell(self) -> None:
        times, self._watch = self._watch.times(), CallStopwatch()
        latency_ms = None if times is None else times.p50_ms
        self._teller.say(SoakWindow(latency_ms, dict(self.counts), tuple(self.faults)))

    async def _again(self, work: Callable[[StressedNetwork], Awaitable[None]]) -> None:
        """Do one thing after the other, each with a network, with pauses."""
        place = 0
        networks = self._order.networks
        while True:
            await self._guarded(networks[place % len(networks)], work)
            place += 1
            await anyio.sleep(self._random.uniform(0, 2 * self._order.pause_s))

    async def _guarded(
        self, network: StressedNetwork, work: Callable[[StressedNetwork], Awaitable[None]]
    ) -> None:
        try:
            await work(network)
        except MissedDeadline:
            self.counts["missed deadlines"] += 1
        except Refused:
            self.counts["refused"] += 1
        except (DeviceDied, DeviceUnavailable) as error:
            self.counts["device died"] += 1
            if not self.counts["kills"]:
                self._fault(network, error_text(error))
        except NNError as error:
            self._fault(network, error_text(error))

    def _fault(self, network: StressedNetwork, text: str) -> None:
        self.counts["faults"] += 1
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(f"{network.name}: {text}")

    def _judge(self, network: StressedNetwork, given: Any, tolerance: float = TOLERANCE) -> None:
        self.counts["calls"] += 1
        fault = difference(given, self._answers[network.name][1], tolerance)
        if fault:
            self.counts["wrong"] += 1
            self._fault(network, f"wrong: {fault}")

    # -- what is done

    async def _stream(self, network: StressedNetwork) -> None:
        async with self._here.compile(network.path) as net:
            while True:
                begin_s = time.monotonic()
                await self._guarded(network, lambda each: self._frame(each, net))
                await anyio.sleep(max(0.0, begin_s + PERIOD_S - time.monotonic()))

    async def _frame(self, network: StressedNetwork, net: Net[Any]) -> None:
        inputs = self._answers[network.name][0]
        begin_s = time.perf_counter()
        result = await net(*inputs, deadline=within(s=DEADLINE_S))
        self._watch.add((time.perf_counter() - begin_s) * 1e3)
        self._judge(network, result if isinstance(result, tuple) else (result,))

    async def _compile(self, network: StressedNetwork) -> None:
        async with self._here.compile(network.path) as net:
            self.counts["compilations"] += 1
            self._judge(network, await answers(net, self._answers[network.name][0]))

    async def _drop(self, network: StressedNetwork) -> None:
        """Leave a network to the garbage collection, perhaps with a call in flight."""
        net = await self._here.compile(network.path)
        self._judge(network, await answers(net, self._answers[network.name][0]))
        self.counts["drops"] += 1

    async def _churn(self, network: StressedNetwork) -> None:
        async with self._here.compile(network.path, cache_dir=self._cache) as net:
            self.counts["cached compilations"] += 1
            self._judge(network, await answers(net, self._answers[network.name][0]))

    async def _storm(self, network: StressedNetwork) -> None:
        async with self._here.compile(network.path) as net:
            inputs = self._answers[network.name][0]

            async def call(each: StressedNetwork) -> None:
                result = await net(*inputs, deadline=within(us=STORM_DEADLINE_US))
                self._judge(each, result if isinstance(result, tuple) else (result,))

            async with anyio.create_task_group() as tasks:
                for _ in range(STORM_CALLS):
                    tasks.start_soon(self._guarded, network, call)
        self.counts["storms"] += 1

    async def _ask_apart(self, network: StressedNetwork) -> None:
        async with self._apart.compile(network.path) as net:
            for _ in range(10):
                given = await answers(net, self._answers[network.name][0])
                tolerance = tolerance_of(net.report(), net.model, self._order.device)
                self._judge(network, given, tolerance)
        self.counts["rounds apart"] += 1

    async def _kill(self) -> None:
        while True:
            await anyio.sleep(self._random.uniform(0.5, 1.5) * self._order.kill_every_s)
            pid = getattr(self._apart.devices[0], "pid", None)
            if pid:
                self.counts["kills"] += 1
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def tolerance_of(report: Report, model: Model, device: str) -> float:
    """Returns how far answers may be from those of a device in quiet.

    While a device is gone the reference computes, which the report counts as a fallback. One that
    died as it prepared the network is asked to run it in the next of its ways. Both differ from
    the answers in quiet as any other engine may.
    """
    died = any(each.fate is Fate.FAILED for each in report.candidates)
    if devices_of(report) == device and not report.fallbacks and not died:
        return TOLERANCE
    return QUANTIZED_TOLERANCE if is_quantized(model) else TOLERANCE


async def soak(order: SoakOrder, teller: Teller) -> ChildReport:
    """Carry out the order of a soak."""
    options = Options(competition_budget_ms=0, cache_limit_bytes=CACHE_BYTES)
    with tempfile.TemporaryDirectory(prefix="nnasync-soak-") as cache:
        async with (
            open_runtime(devices=[order.device], options=options) as here,
            open_runtime(devices=[order.device], isolate=[order.device], options=options) as apart,
        ):
            load = _Soak(order, here, apart, cache, teller)
            teller.begun()
            await load.run()
    return ChildReport(tuple(load.faults), counts=dict(load.counts))
