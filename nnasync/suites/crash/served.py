"""A driver in a process of its own, stressed by processes of clients, with an innocent one beside.

The three kinds of process die for different reasons: the driver's by its own fault, a client by the
framework's or because it was to, the innocent one never. What the driver holds is read from outside
before the stress, and afterwards until it has given back what the clients had.
"""

from __future__ import annotations

import math
import random
from pathlib import Path

import anyio

from nnasync.hal import Struct
from nnasync.suites.crash.children import ChildEnd, CrashChild
from nnasync.suites.crash.modes import CrashMode, StressKind, StressSet
from nnasync.suites.crash.orders import CrashActivity, ServiceOrder, StressedNetwork, StressOrder
from nnasync.suites.crash.verdicts import (
    ClientEnd,
    call_bars,
    call_figures,
    is_released,
    merged,
    report_figures,
    served_verdict,
    use_figures,
    victims,
)
from nnasync.suites.process_use import ProcessUse, process_use
from nnasync.suites.results import Bars, Better, Standing, SuiteFigure

INNOCENT_VISIT_S = 0.3
UNTIL_ASKED_S = 1e9
RELEASE_LIMIT_S = 10.0
RELEASE_POLL_S = 0.02


class ServedVerdict(Struct, frozen=True):
    """What came of it, with figures; `faults` one by one."""

    standing: Standing
    text: str
    faults: list[str]
    figures: tuple[SuiteFigure, ...] = ()
    bars: tuple[Bars, ...] = ()


class ServedStress:
    """One set of parameters of a mode on a device in a process of its own."""

    def __init__(
        self,
        *,
        device: str,
        mode: CrashMode,
        stress_set: StressSet,
        seconds: float,
        networks: tuple[StressedNetwork, ...],
        seed: str,
        patience_s: float,
        folder: str,
    ) -> None:
        self._device = device
        self._mode = mode
        self._set = stress_set
        self._seconds = seconds
        self._networks = networks
        self._seed = seed
        self._patience_s = patience_s
        self._address = str(Path(folder) / "device.socket")
        self._workers = max(2, stress_set.clients)
        self._clients: list[ClientEnd] = []
        self._before: ProcessUse | None = None
        self._after: ProcessUse | None = None
        self._released_s: float | None = None

    async def run(self) -> ServedVerdict:
        """Serve, stress, look at what is left, and judge."""
        order = ServiceOrder(self._device, self._address, self._workers)
        async with CrashChild(order) as driver, anyio.create_task_group() as tasks:
            tasks.start_soon(driver.follow, math.inf)
            await driver.has_begun.wait()
            innocent_end = ChildEnd(Standing.SUCCESS, "")
            if not driver.has_ended.is_set():
                innocent_end = await self._beside_innocent(driver)
            await self._end_driver(driver)
            tasks.cancel_scope.cancel()
        return self._judged(driver.end, innocent_end)

    async def _beside_innocent(self, driver: CrashChild) -> ChildEnd:
        order = StressOrder(
            self._device,
            CrashActivity.INFER,
            1,
            UNTIL_ASKED_S,
            self._networks[:1],
            0,
            address=self._address,
            visit_s=INNOCENT_VISIT_S,
        )
        async with CrashChild(order) as innocent, anyio.create_task_group() as tasks:
            tasks.start_soon(innocent.follow, math.inf)
            with anyio.move_on_after(self._patience_s):
                await innocent.has_gone_round.wait()
            self._before = process_use(driver.pid)
            await self._stress()
            await self._wait_for_release(driver)
            await innocent.ask_to_end()
            with anyio.move_on_after(self._patience_s) as scope:
                await innocent.has_ended.wait()
            tasks.cancel_scope.cancel()
        if scope.cancelled_caught:
            return ChildEnd(Standing.HANG, f"no end within {self._patience_s:g} s")
        return innocent.end

    async def _stress(self) -> None:
        deaths = victims(self._seed, self._set.processes, self._set.kill_percent, self._seconds)
        async with anyio.create_task_group() as tasks:
            for number, dies_after_s in enumerate(deaths):
                tasks.start_soon(self._one_process, number, dies_after_s)

    async def _one_process(self, number: int, dies_after_s: float | None) -> None:
        chance = random.Random(f"{self._seed}/{number}/order")
        order = StressOrder(
            self._device,
            self._mode.activity,
            self._set.clients,
            self._seconds,
            self._networks,
            chance.getrandbits(32),
            address=self._address,
            dies_after_s=dies_after_s,
            pause_s=self._mode.pause_s,
        )
        is_victim = dies_after_s is not None or self._mode.kind is StressKind.TERMINATED
        async with CrashChild(order) as child, anyio.create_task_group() as tasks:
            if self._mode.kind is StressKind.TERMINATED:
                after_s = chance.uniform(0.25, 0.5) * self._seconds
                tasks.start_soon(self._terminate, child, after_s)
            end = await child.follow(self._seconds + self._patience_s)
            tasks.cancel_scope.cancel()
        self._clients.append(ClientEnd(end, is_victim))

    async def _terminate(self, child: CrashChild, after_s: float) -> None:
        await child.has_begun.wait()
        await anyio.sleep(after_s)
        child.kill()

    async def _wait_for_release(self, driver: CrashChild) -> None:
        begin_s = anyio.current_time()
        while not driver.has_ended.is_set():
            self._after = process_use(driver.pid)
            late_s = anyio.current_time() - begin_s
            if (
                self._before
                and self._after
                and is_released(self._before, self._after, self._workers)
            ):
                self._released_s = late_s
                return
            if late_s > RELEASE_LIMIT_S:
                return
            await anyio.sleep(RELEASE_POLL_S)

    async def _end_driver(self, driver: CrashChild) -> None:
        if driver.has_ended.is_set():
            return
        await driver.ask_to_end()
        with anyio.move_on_after(self._patience_s):
            await driver.has_ended.wait()

    def _judged(self, driver: ChildEnd, innocent: ChildEnd) -> ServedVerdict:
        standing, text = served_verdict(driver, innocent, self._clients)
        faults = [text] if text else []
        if standing is Standing.SUCCESS and self._released_s is None:
            standing = Standing.FAILURE
            faults.append(self._left())
        times = innocent.report.times if innocent.report is not None else None
        killed = sum(each.is_victim and each.was_killed for each in self._clients)
        reports = [each.end.report for each in self._clients if each.end.report is not None]
        figures = [
            SuiteFigure("clients killed as they were to be", killed),
            *call_figures(times, "innocent client"),
            *report_figures(merged(reports)),
            *use_figures(self._before, self._after),
        ]
        if self._released_s is not None:
            figures.append(SuiteFigure("released after", self._released_s, "s", better=Better.LESS))
        bars = call_bars(times, "innocent client")
        return ServedVerdict(standing, "; ".join(faults), faults, tuple(figures), bars)

    def _left(self) -> str:
        before, after = self._before, self._after
        if before is None or after is None:
            return "what the driver's process holds could not be read"
        return (
            f"{RELEASE_LIMIT_S:g} s after the clients were gone the driver's process has "
            f"{after.descriptors} descriptors and {after.threads} threads; before the stress it "
            f"had {before.descriptors} and {before.threads}"
        )
