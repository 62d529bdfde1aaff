"""Inputs by the thousand on a device, in processes that are replaced when they are lost.

The numbers of a kind are worked through in stretches, by a process that lives for many of them.
Where it is lost, its successor goes on behind the input at which that happened. Inputs that end
badly are told once for each way of ending: the first one is tried again alone, which tells its
recipe and that it can be repeated, and then shrunk.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from anyio import to_thread

from nnasync.errors import InvalidArgument
from nnasync.suites.fuzz.child import Child, Count, child
from nnasync.suites.fuzz.conversation import (
    Begun,
    Guided,
    Setting,
    Single,
    Stretch,
    Task,
    TaskEnded,
)
from nnasync.suites.fuzz.findings import FuzzFinding, command_of, write_finding
from nnasync.suites.fuzz.inputs import FuzzKind, Recipe
from nnasync.suites.fuzz.progress import (
    CampaignProgress,
    KindProgress,
    read_progress,
    write_progress,
)
from nnasync.suites.fuzz.shrinking import shrunk
from nnasync.suites.fuzz.verdicts import Broken, Ending, InputResult
from nnasync.suites.results import Better, Finding, Standing, SuiteFigure, SuiteRow

__all__ = ["Campaign", "FuzzPlan", "Tried", "repeat"]

STRETCH = 500
"""So many numbers are one task of a process."""
_MOST_STRETCHES = 40
_MOST_GROWN_BYTES = 256 << 20
"""After so many stretches, or grown by so much, a process is replaced."""
_MOST_TRIALS = {Broken.CRASH: 40, Broken.HANG: 8, Broken.MEMORY: 16}
_USUAL_TRIALS = 300
_MOST_SHRUNK = 20
"""So many findings of a row are shrunk; the others are kept as they are."""


class FuzzPlan(msgspec.Struct, frozen=True):
    """What to try: `runs` numbers of each kind; each input may take `limit_s`.

    With `seconds` it is as many as begin within that time, the kinds in turn, and `runs` is of no
    account. Findings go to `out`. With `progress` numbers go on where that file says that earlier
    runs ended, and it is told how far this one came.
    """

    setting: Setting
    kinds: tuple[FuzzKind, ...] = tuple(FuzzKind)
    runs: int = 1000
    seed: int = 0
    limit_s: float = 60.0
    out: Path | None = None
    is_guided: bool = False
    seconds: float | None = None
    progress: Path | None = None


class Tried(msgspec.Struct, frozen=True):
    """What a finding's input did when it was tried again; whether it was still the same input."""

    result: InputResult
    is_same_input: bool


class _Row:
    """What came of the inputs of one kind so far."""

    def __init__(self, kind: FuzzKind) -> None:
        self.kind = kind
        self.endings: collections.Counter[Ending] = collections.Counter()
        self.findings: dict[str, FuzzFinding] = {}
        self.files: dict[str, Path] = {}
        self.seconds = 0.0
        self.lost = 0
        self.grown_bytes = 0
        self.skipped = ""

    @property
    def count(self) -> int:
        return self.endings.total() + sum(each.count for each in self.findings.values())


class Campaign:
    """The inputs of a plan on its device; `rows` says at any time what came of them so far."""

    def __init__(
        self,
        plan: FuzzPlan,
        step: Callable[[str, int], object] = lambda kind, count: None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`step` is told how many more inputs of a kind are over; `now_s` says when time is up."""
        self._plan = plan
        self._step = step
        self._now_s = now_s
        self._rows: list[_Row] = []
        self._process = _Reused(self._child)
        self.progress = CampaignProgress(plan.setting.device, plan.setting.isolate, plan.seed)
        """How far this run came, and those before it."""

    async def run(self) -> None:
        """Try everything.

        Raises InvalidArgument where the device or the seeds are not there, of which there are no
        rows, and DeviceDied where the device does not even start.
        """
        plan = self._plan
        if plan.progress is not None:
            self.progress = await to_thread.run_sync(
                read_progress, plan.progress, plan.setting, plan.seed
            )
        try:
            async with self._process:
                if plan.seconds is None:
                    for kind in plan.kinds:
                        await self._kind(self._row(kind))
                else:
                    await self._in_turn([self._row(kind) for kind in plan.kinds], plan.seconds)
        except InvalidArgument:
            self._rows = [row for row in self._rows if row.count]
            raise

    def _row(self, kind: FuzzKind) -> _Row:
        row = _Row(kind)
        self._rows.append(row)
        return row

    async def _in_turn(self, rows: Sequence[_Row], seconds: float) -> None:
        """A stretch of each kind after the other, while there is time for another one."""
        started_s = self._now_s()
        for row in itertools.cycle(rows):
            if self._now_s() - started_s >= seconds:
                return
            await self._stretch(row, STRETCH)

    def rows(self) -> tuple[SuiteRow, ...]:
        """One row a kind."""
        setting = self._plan.setting
        name = f"{setting.device}, isolated" if setting.isolate else setting.device
        return tuple(_suite_row(row, name) for row in self._rows)

    @property
    def findings(self) -> Sequence[FuzzFinding]:
        """All findings so far."""
        return [each for row in self._rows for each in row.findings.values()]

    async def _kind(self, row: _Row) -> None:
        if self._plan.is_guided:
            await self._guided(row)
            return
        left = self._plan.runs
        while left > 0:
            left -= await self._stretch(row, min(left, STRETCH))

    async def _stretch(self, row: _Row, count: int) -> int:
        """Try numbers of a row in one process; returns how many."""
        known = self.progress.kinds.get(row.kind, KindProgress())
        before, started_s = row.endings.copy(), time.monotonic()
        try:
            bad, is_lost = await self._tried(row, known.next, known.next + count)
        finally:
            row.seconds += time.monotonic() - started_s
        stop = bad[-1][0].number + 1 if is_lost else known.next + count
        endings = row.endings - before
        now = known.after(stop, endings, found=len(bad), is_lost=is_lost)
        kinds = self.progress.kinds | {row.kind: now}
        self.progress = msgspec.structs.replace(self.progress, kinds=kinds)
        for begun, result in bad:
            await self._found(row, result, begun)
        if self._plan.progress is not None:
            await to_thread.run_sync(write_progress, self._plan.progress, self.progress)
        return stop - known.next

    async def _tried(
        self, row: _Row, start: int, stop: int
    ) -> tuple[list[tuple[Begun, InputResult]], bool]:
        """Returns the broken inputs of a stretch, and whether the process was lost in it."""
        bad: list[tuple[Begun, InputResult]] = []

        def done(begun: Begun, result: InputResult) -> None:
            bad.append((begun, result))
            self._step(row.kind.value, 1)

        def count(endings: collections.Counter[Ending]) -> None:
            row.endings += endings
            self._step(row.kind.value, endings.total())

        task = Stretch(self._plan.seed, row.kind, start, stop)
        ended = await self._process.does(task, done, count)
        if ended is None:
            row.lost += 1
        else:
            row.grown_bytes += ended.grown_bytes
        return bad, ended is None

    async def _guided(self, row: _Row) -> None:
        """Let coverage choose the inputs; a lost process is replaced, with another seed."""
        left, seed = self._plan.runs, self._plan.seed
        while left > 0:
            before = row.count
            await self._guided_part(row, Guided(row.kind, left, seed))
            left -= max(1, row.count - before)
            seed += 1

    async def _guided_part(self, row: _Row, task: Guided) -> None:
        """Try inputs of one process, up to one that it is lost at."""
        bad: list[tuple[Begun, InputResult]] = []

        def done(begun: Begun, result: InputResult) -> None:
            if result.ending is not None:
                row.endings[result.ending] += 1
            else:
                bad.append((begun, result))
            self._step(row.kind.value, 1)

        async with self._child() as one:
            if await one.does(task, done) is None:
                row.lost += 1
        for begun, result in bad:
            await self._found(row, result, begun)

    async def _found(self, row: _Row, result: InputResult, begun: Begun) -> None:
        """Note a finding; the first one of its kind is tried again and shrunk."""
        plan, broken = self._plan, result.broken or Broken.ERROR
        plain = begun.recipe or Recipe(row.kind, "")
        setting = plan.setting
        finding = FuzzFinding(
            setting.device, broken, result.text, plain, begun.digest, isolate=setting.isolate
        )
        known = row.findings.get(finding.label)
        if known is not None:
            row.findings[finding.label] = msgspec.structs.replace(known, count=known.count + 1)
            return
        row.findings[finding.label] = finding
        task = Single(begun.recipe, plan.seed, row.kind, begun.number, begun.part)
        told = await self._again(task, finding)
        if len(row.findings) <= _MOST_SHRUNK and told.digest:
            told = await self._shrunk(told)
        row.findings[finding.label] = told
        if plan.out is not None and told.digest:
            row.files[finding.label] = write_finding(plan.out, told)

    async def _again(self, task: Single, finding: FuzzFinding) -> FuzzFinding:
        """The finding with its recipe; its text says so where it cannot be repeated."""
        begun, result = await self._single(task)
        if begun is None or begun.recipe is None:
            return finding
        text = finding.text
        if result is None or not finding.is_like(result):
            text += "; it does not happen again when the input is tried alone"
        return msgspec.structs.replace(finding, recipe=begun.recipe, digest=begun.digest, text=text)

    async def _shrunk(self, finding: FuzzFinding) -> FuzzFinding:
        """The finding with as few and small decisions as still lead to it."""
        recipe = finding.recipe
        if recipe.content is not None or "does not happen again" in finding.text:
            return finding
        digests = {recipe.decisions: finding.digest}
        async with _Reused(self._child) as reused:

            async def still(decisions: tuple[int, ...]) -> bool:
                task = Single(msgspec.structs.replace(recipe, decisions=decisions))
                begun, result = await reused.single(task)
                if begun is None or result is None or not finding.is_like(result):
                    return False
                digests[decisions] = begun.digest
                return True

            most = _MOST_TRIALS.get(finding.broken, _USUAL_TRIALS)
            best = await shrunk(recipe.decisions, still, most)
        return msgspec.structs.replace(
            finding,
            recipe=msgspec.structs.replace(recipe, decisions=best),
            digest=digests.get(best, finding.digest),
        )

    async def _single(self, task: Single) -> tuple[Begun | None, InputResult | None]:
        async with _Reused(self._child) as reused:
            return await reused.single(task)

    @asynccontextmanager
    async def _child(self) -> AsyncIterator[Child]:
        async with child(self._plan.setting, self._plan.limit_s) as one:
            yield one


class _Reused:
    """A process for task after task; another one when it is lost, has grown, or has done enough."""

    def __init__(self, make: Callable[[], contextlib.AbstractAsyncContextManager[Child]]) -> None:
        self._make = make
        self._stack = contextlib.AsyncExitStack()
        self._child: Child | None = None
        self._stretches = 0
        self._grown_bytes = 0

    async def __aenter__(self) -> _Reused:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._end()

    async def does(
        self, task: Task, done: Callable[[Begun, InputResult], object], count: Count | None = None
    ) -> TaskEnded | None:
        """Returns what `Child.does` says of a task."""
        if self._child is None:
            self._child = await self._stack.enter_async_context(self._make())
        ended = await self._child.does(task, done, count)
        self._stretches += isinstance(task, Stretch)
        self._grown_bytes += ended.grown_bytes if ended else 0
        if (
            ended is None
            or self._stretches >= _MOST_STRETCHES
            or self._grown_bytes > _MOST_GROWN_BYTES
        ):
            await self._end()
        return ended

    async def single(self, task: Single) -> tuple[Begun | None, InputResult | None]:
        """Try one input: what it was, and what came of it."""
        heard: list[tuple[Begun, InputResult]] = []
        await self.does(task, lambda begun, result: heard.append((begun, result)))
        return heard[0] if heard else (None, None)

    async def _end(self) -> None:
        self._child, self._stretches, self._grown_bytes = None, 0, 0
        await self._stack.aclose()


async def repeat(findings: Sequence[FuzzFinding], setting: Setting, limit_s: float) -> list[Tried]:
    """Try findings again on a device: what came of each.

    Raises InvalidArgument where the device or a seed is not there.
    """
    found = []
    async with _Reused(lambda: child(setting, limit_s)) as reused:
        for finding in findings:
            begun, result = await reused.single(Single(finding.recipe))
            is_same = begun is not None and begun.digest == finding.digest
            found.append(Tried(result or InputResult(), is_same))
    return found


def _suite_row(row: _Row, device: str) -> SuiteRow:
    worst = max(
        (_STANDINGS.get(each.broken, Standing.FAILURE) for each in row.findings.values()),
        key=list(Standing).index,
        default=Standing.SUCCESS,
    )
    figures = [SuiteFigure("inputs", row.count, better=Better.MORE)]
    figures += [SuiteFigure(ending.value, row.endings[ending]) for ending in Ending]
    figures.append(SuiteFigure("processes lost", row.lost, better=Better.LESS))
    grown_mib = round(row.grown_bytes / 2**20, 2) + 0.0
    figures.append(SuiteFigure("grown by", grown_mib, "MiB", better=Better.LESS))
    findings = []
    for label, each in row.findings.items():
        path = row.files.get(label)
        text = f"{each.broken.value}: {each.text} ({each.count} inputs)"
        findings.append(Finding(text, command_of(path) if path else "", str(path or "")))
    text = ", ".join(f"{count} {ending.value}" for ending, count in row.endings.most_common())
    if findings:
        text = f"{len(findings)} findings; {text}"
    return SuiteRow(
        row.kind.value, device, worst, row.seconds, text, tuple(figures), findings=tuple(findings)
    )


_STANDINGS = {Broken.CRASH: Standing.CRASH, Broken.HANG: Standing.HANG}
