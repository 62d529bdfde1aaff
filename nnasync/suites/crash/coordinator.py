"""The coordinator: each mode on each device, in children; what one does to itself costs no other.

This process loads no driver. First a child asks the device in quiet what it takes and what it
answers; then each mode has its processes and its time, and ends as success, failure, hang or crash.
Where the driver is in a process of its own, a client that does nothing unusual is beside the
stressed ones, and what happens to it is part of the verdict.
"""

from __future__ import annotations

import shlex
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path

import anyio
from msgspec import structs

from nnasync.hal import Struct
from nnasync.suites.crash.children import ChildEnd, CrashChild
from nnasync.suites.crash.modes import LEAST_S, MODES, CrashMode, StressKind, StressSet
from nnasync.suites.crash.orders import (
    ChildReport,
    CrashOrder,
    DegradationOrder,
    GraphOrder,
    QuietOrder,
    StressedNetwork,
    StressOrder,
)
from nnasync.suites.crash.served import ServedStress
from nnasync.suites.crash.verdicts import (
    call_bars,
    call_figures,
    leaks,
    report_figures,
)
from nnasync.suites.results import Finding, Standing, SuiteRow

QUIET = "answers in quiet"
_MOST_TOLD = 200
PATIENCE_S = 30.0
LEAST_DEGRADATION_S = 1.2
"""Shorter rounds would tell of chance alone."""


class CrashPlan(Struct, frozen=True):
    """What to do: modes on devices with networks in files; `scale` 1 takes hours.

    `options` are those of the command line that repeat it, apart from mode, device, scale and seed.
    A child that is `patience_s` behind its time hangs; no stress is shorter than `least_s`.
    """

    devices: tuple[str, ...]
    networks: tuple[str, ...]
    modes: tuple[str, ...] = tuple(mode.name for mode in MODES)
    scale: float = 1.0
    seed: int = 0
    patience_s: float = PATIENCE_S
    least_s: float = LEAST_S
    options: tuple[str, ...] = ()

    def command(self, mode: str, device: str) -> str:
        """The command that repeats one mode on one device."""
        words = ["nnasync", "suite", "crash", *([mode] if mode != QUIET else [])]
        words += ["--device", device, "--scale", f"{self.scale:g}", "--seed", str(self.seed)]
        return shlex.join([*words, *self.options])


async def run_crash(
    plan: CrashPlan,
    done: Callable[[SuiteRow], object],
    said: Callable[[str], object] = lambda _: None,
) -> None:
    """Run all modes of a plan; `done` gets each row as it is there, `said` what is going on.

    Cancelled, it leaves no process behind.
    """
    with tempfile.TemporaryDirectory(prefix="nnasync-crash-") as folder:
        for number, device in enumerate(plan.devices):
            place = Path(folder) / str(number)
            place.mkdir(mode=0o700)
            await _OneDevice(plan, device, place, done, said).run()


class _OneDevice:
    """All modes on one device."""

    def __init__(
        self,
        plan: CrashPlan,
        device: str,
        folder: Path,
        done: Callable[[SuiteRow], object],
        said: Callable[[str], object],
    ) -> None:
        self._plan = plan
        self._device = device
        self._folder = folder
        self._done = done
        self._said = said
        self._networks: tuple[StressedNetwork, ...] = ()
        self._report = ChildReport()

    async def run(self) -> None:
        """Ask in quiet, then run the modes."""
        await self._ask_in_quiet()
        for mode in MODES:
            if mode.name in self._plan.modes:
                for stress_set in mode.sets_at(self._plan.scale):
                    await self._run_mode(mode, stress_set)

    # -- in quiet

    async def _ask_in_quiet(self) -> None:
        """Find the networks that the device takes; one that kills or hangs it is left out."""
        begin_s = anyio.current_time()
        names = [Path(path).stem for path in self._plan.networks]
        rest = [
            StressedNetwork(name, path)
            for name, path in zip(names, self._plan.networks, strict=True)
        ]
        lost: list[ChildEnd] = []
        while True:
            end = await self._child(self._quiet_order(rest), self._plan.patience_s * len(rest))
            if end.report is not None:
                break
            lost.append(end)
            if end.at not in {each.name for each in rest}:
                break
            rest = [each for each in rest if each.name != end.at]
        self._networks = end.report.networks if end.report is not None else ()
        self._tell_quiet([*lost, end] if end not in lost else lost, begin_s)

    def _quiet_order(self, networks: list[StressedNetwork]) -> QuietOrder:
        return QuietOrder(self._device, tuple(networks), str(self._folder), self._plan.seed)

    def _tell_quiet(self, ends: list[ChildEnd], begin_s: float) -> None:
        report = ends[-1].report or ChildReport()
        standing = max((end.standing for end in ends), key=list(Standing).index)
        texts = [end.text for end in ends if end.text]
        if report.declined:
            texts.append(_declined(report.declined))
        if standing is Standing.SUCCESS and not report.networks:
            standing = Standing.SKIPPED
        failures = [text for end in ends for text in _faults(end)]
        self._row(QUIET, "", standing, "; ".join(texts), begin_s, failures)

    # -- modes

    async def _run_mode(self, mode: CrashMode, stress_set: StressSet) -> None:
        begin_s = anyio.current_time()
        seconds = stress_set.lasts(self._plan.scale, self._plan.least_s)
        self._said(f"{self._device}: {mode.name}, {stress_set.text}, {seconds:g} s")
        if mode.kind is not StressKind.GRAPHS and not self._networks:
            why = "the device takes none of the networks"
            self._row(mode.name, stress_set.text, Standing.SKIPPED, why, begin_s, [])
            return
        if mode.kind in (StressKind.SERVED, StressKind.TERMINATED):
            row = await self._served(mode, stress_set, seconds)
        else:
            row = await self._alone(mode, stress_set, seconds)
        took_s = anyio.current_time() - begin_s
        self._done(structs.replace(row, seconds=took_s))

    async def _served(self, mode: CrashMode, stress_set: StressSet, seconds: float) -> SuiteRow:
        networks = self._networks if stress_set.processes == 1 else self._networks[:1]
        stress = ServedStress(
            device=self._device,
            mode=mode,
            stress_set=stress_set,
            seconds=seconds,
            networks=networks,
            seed=f"{self._plan.seed}/{mode.name}/{stress_set.text}",
            patience_s=self._plan.patience_s,
            folder=str(self._folder),
        )
        verdict = await stress.run()
        faults = verdict.faults if verdict.standing is not Standing.SUCCESS else []
        return SuiteRow(
            f"{mode.name}: {stress_set.text}",
            self._device,
            verdict.standing,
            0,
            verdict.text,
            verdict.figures,
            verdict.bars,
            self._findings(mode.name, faults),
        )

    async def _alone(self, mode: CrashMode, stress_set: StressSet, seconds: float) -> SuiteRow:
        """A mode whose driver is in the process of its clients."""
        order = self._order(mode, stress_set, seconds)
        if isinstance(order, DegradationOrder):
            seconds = order.seconds * len(order.networks)
        end = await self._child(order, seconds + self._plan.patience_s)
        report = end.report or ChildReport()
        standing, faults = end.standing, _faults(end)
        grown = leaks(report.samples, seconds)
        if grown:
            faults += grown
            standing = Standing.FAILURE if standing is Standing.SUCCESS else standing
        if report.menu:
            self._report = report
        findings = self._findings(mode.name, faults)
        if mode.kind is StressKind.GRAPHS:
            findings = self._graph_findings(end) or findings
        return SuiteRow(
            f"{mode.name}: {stress_set.text}",
            self._device,
            standing,
            0,
            "; ".join(faults),
            (*report_figures(report), *call_figures(report.times, "call")),
            call_bars(report.times, "call"),
            findings,
        )

    def _order(self, mode: CrashMode, stress_set: StressSet, seconds: float) -> CrashOrder:
        if mode.kind is StressKind.GRAPHS:
            return GraphOrder(
                self._device,
                stress_set.size,
                self._plan.seed,
                stress_set.count,
                seconds,
                mode.executes,
                self._report.menu,
            )
        if mode.kind is StressKind.DEGRADATION:
            part_s = max(LEAST_DEGRADATION_S, seconds / len(self._networks))
            return DegradationOrder(self._device, self._networks, part_s)
        return StressOrder(
            self._device,
            mode.activity,
            stress_set.clients,
            seconds,
            self._networks,
            self._plan.seed,
        )

    # -- what they share

    async def _child(self, order: CrashOrder, limit_s: float) -> ChildEnd:
        async with CrashChild(order) as child:
            return await child.follow(limit_s)

    def _graph_findings(self, end: ChildEnd) -> tuple[Finding, ...]:
        """A finding for each graph, repeated by `nnasync randomgraph`."""
        if end.report is not None:
            pairs = end.report.findings
        else:
            pairs = ((end.text, end.at),) if end.at else ()
        command = f"nnasync randomgraph --device {shlex.quote(self._device)}"
        return tuple(Finding(text, f"{command} {arguments}") for text, arguments in pairs)

    def _findings(self, mode: str, faults: list[str]) -> tuple[Finding, ...]:
        command = self._plan.command(mode, self._device)
        return tuple(Finding(text, command) for text in faults)

    def _row(
        self,
        subject: str,
        text: str,
        standing: Standing,
        why: str,
        begin_s: float,
        faults: list[str],
    ) -> None:
        took_s = anyio.current_time() - begin_s
        name = f"{subject}: {text}" if text else subject
        findings = self._findings(subject, faults)
        self._done(SuiteRow(name, self._device, standing, took_s, why, findings=findings))


def _faults(end: ChildEnd) -> list[str]:
    """Returns the faults in how a child ended."""
    if end.standing is Standing.SUCCESS:
        return []
    return (
        list(end.report.failures) if end.standing is Standing.FAILURE and end.report else [end.text]
    )


def expected_rows(plan: CrashPlan) -> int:
    """Returns how many rows the result of a plan has."""
    modes = [mode for mode in MODES if mode.name in plan.modes]
    return len(plan.devices) * (1 + sum(len(mode.sets_at(plan.scale)) for mode in modes))


def _declined(why: dict[str, str]) -> str:
    """Returns which networks are not taken, and why the first one is not, in a line."""
    name, reason = next(iter(why.items()))
    return f"not taken: {', '.join(why)}; {name}: {textwrap.shorten(reason, _MOST_TOLD)}"
