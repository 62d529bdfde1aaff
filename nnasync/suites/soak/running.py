"""Runs a soak: a child for each device, watched from outside, and judged by the slopes.

The child is asked how it does by what it tells of its calls; what it holds is read from the system.
Ended before its time, what was sampled until then is judged.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path

import anyio

from nnasync.hal import Struct
from nnasync.suites.crash.children import ChildEnd, CrashChild
from nnasync.suites.crash.orders import (
    ChildMessage,
    ChildReport,
    QuietOrder,
    SoakOrder,
    SoakWindow,
    StressedNetwork,
)
from nnasync.suites.foreign_load import ForeignLoad
from nnasync.suites.process_use import ProcessUse, least, process_use
from nnasync.suites.results import Better, Finding, Standing, SuiteFigure, SuiteRow
from nnasync.suites.soak.judging import SoakSample, judge

__all__ = ["SoakPlan", "run_soak"]

SUBJECT = "soak"
_BAD = ("wrong", "faults")
PATIENCE_S = 60.0
LOOK_S = 0.25
"""What is held is looked at so often; the least counts, for what is in flight goes again."""
SETTLE_S = 300.0
SETTLE_SHARE = 0.3
"""Of a soak that is shorter, this share is for settling."""


class SoakPlan(Struct, frozen=True):
    """How long to load which devices: each gets an even share of `seconds`.

    The state is sampled every `sample_s`; the isolated device is killed every `kill_every_s` on
    average, and what is done again and again pauses for `pause_s` on average.
    """

    devices: tuple[str, ...]
    networks: tuple[str, ...]
    seconds: float
    seed: int = 0
    sample_s: float = 5.0
    kill_every_s: float = 30.0
    pause_s: float = 0.5
    patience_s: float = PATIENCE_S
    command: str = "nnasync suite soak"


async def run_soak(
    plan: SoakPlan,
    done: Callable[[SuiteRow], object],
    said: Callable[[str], object] = lambda _: None,
) -> None:
    """Load one device after the other; `done` gets the row of each, also when it is cancelled."""
    with tempfile.TemporaryDirectory(prefix="nnasync-soak-") as folder:
        for device in plan.devices:
            await _Soaked(plan, device, folder, said).run(done)


class _Soaked:
    """The soak of one device."""

    def __init__(
        self, plan: SoakPlan, device: str, folder: str, said: Callable[[str], object]
    ) -> None:
        self._plan = plan
        self._device = device
        self._folder = folder
        self._said = said
        self._seconds = plan.seconds / len(plan.devices)
        self._samples: list[SoakSample] = []
        self._window = SoakWindow(None, {}, ())
        self._child: CrashChild | None = None
        self._foreign: ForeignLoad | None = None
        self._least: ProcessUse | None = None
        self._began_s = 0.0

    async def run(self, done: Callable[[SuiteRow], object]) -> None:
        """Ask the device in quiet what it takes, and load it."""
        self._began_s = anyio.current_time()
        end = await self._in_quiet()
        networks = end.report.networks if end.report is not None else ()
        if not networks:
            standing = end.standing
            if standing is Standing.SUCCESS:
                standing = Standing.SKIPPED
            text = end.text or "the device takes none of the networks"
            done(self._row(standing, text, [text]))
            return
        end = ChildEnd(Standing.SUCCESS, "ended before its time")
        try:
            end = await self._load(networks)
        finally:
            done(self._judged(end))

    async def _in_quiet(self) -> ChildEnd:
        networks = tuple(StressedNetwork(Path(path).stem, path) for path in self._plan.networks)
        order = QuietOrder(self._device, networks, self._folder, self._plan.seed)
        async with CrashChild(order) as child:
            return await child.follow(self._plan.patience_s)

    async def _load(self, networks: tuple[StressedNetwork, ...]) -> ChildEnd:
        plan = self._plan
        order = SoakOrder(
            self._device,
            networks,
            self._seconds,
            plan.seed,
            plan.sample_s,
            plan.kill_every_s,
            plan.pause_s,
        )
        async with CrashChild(order, heard=self._hear) as self._child:
            self._began_s = anyio.current_time()
            self._foreign = ForeignLoad(self._child.pid)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._look, self._child.pid)
                end = await self._child.follow(self._seconds + plan.patience_s)
                tasks.cancel_scope.cancel()
            return end

    async def _look(self, pid: int) -> None:
        while True:
            self._least = least(self._least, process_use(pid))
            await anyio.sleep(min(LOOK_S, self._plan.sample_s / 2))

    def _hear(self, message: ChildMessage) -> None:
        if not isinstance(message, SoakWindow) or self._child is None or self._foreign is None:
            return
        self._window = message
        use, self._least = least(self._least, process_use(self._child.pid)), None
        at_s = anyio.current_time() - self._began_s
        self._said(f"{self._device}: {at_s:.0f} of {self._seconds:.0f} s")
        foreign = self._foreign.lap()
        if use is not None:
            held = use.memory_bytes, use.descriptors, use.threads
            self._samples.append(SoakSample(at_s, *held, message.latency_ms, foreign))

    def _judged(self, end: ChildEnd) -> SuiteRow:
        figures, faults = judge(self._samples, min(SETTLE_S, self._seconds * SETTLE_SHARE))
        report = end.report or ChildReport(self._window.faults, counts=self._window.counts)
        standing = end.standing
        faults = [*faults, *report.failures]
        if standing in (Standing.HANG, Standing.CRASH):
            faults.insert(0, end.text)
        elif faults:
            standing = Standing.FAILURE
        counts = {"wrong": 0} | report.counts
        totals = [
            SuiteFigure(name, count, better=Better.LESS if name in _BAD else Better.NEITHER)
            for name, count in sorted(counts.items())
        ]
        text = "; ".join(faults) or end.text
        return self._row(standing, text, faults, (*totals, *figures))

    def _row(
        self,
        standing: Standing,
        text: str,
        faults: list[str],
        figures: tuple[SuiteFigure, ...] = (),
    ) -> SuiteRow:
        took_s = anyio.current_time() - self._began_s
        command = f"{self._plan.command} --device {shlex.quote(self._device)}"
        command += f" --hours {self._seconds / 3600:g} --seed {self._plan.seed}"
        findings = tuple(Finding(each, command) for each in faults)
        if standing in (Standing.SUCCESS, Standing.SKIPPED):
            findings = ()
        return SuiteRow(SUBJECT, self._device, standing, took_s, text, figures, findings=findings)
