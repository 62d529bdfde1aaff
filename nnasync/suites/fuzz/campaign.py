"""Inputs by the thousand on a device, in processes that are replaced when they are lost.

The numbers of a kind are worked through in stretches. Where a process is lost, its successor goes
on behind the input at which that happened. Inputs that end badly are told once for each way of
ending: the first one is tried again alone, which tells its recipe and that it can be repeated, and
then shrunk.
"""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from nnasync.suites.fuzz.child import Child, child
from nnasync.suites.fuzz.conversation import Begun, Guided, Setting, Single, Stretch, Task
from nnasync.suites.fuzz.findings import FuzzFinding, command_of, write_finding
from nnasync.suites.fuzz.inputs import FuzzKind, Recipe
from nnasync.suites.fuzz.shrinking import shrunk
from nnasync.suites.fuzz.verdicts import Broken, Ending, InputResult
from nnasync.suites.results import Better, Finding, Standing, SuiteFigure, SuiteRow

__all__ = ["Campaign", "FuzzPlan", "Tried", "repeat"]

STRETCH = 5000
"""After so many inputs a process is replaced: what it has grown by is told, and gone."""
_MOST_TRIALS = {Broken.CRASH: 40, Broken.HANG: 8, Broken.MEMORY: 16}
_USUAL_TRIALS = 300
_MOST_SHRUNK = 20
"""So many findings of a row are shrunk; the others are kept as they are."""


class FuzzPlan(msgspec.Struct, frozen=True):
    """What to try: `runs` inputs of each kind; each may take `limit_s`, findings go to `out`."""

    setting: Setting
    kinds: tuple[FuzzKind, ...] = tuple(FuzzKind)
    runs: int = 1000
    seed: int = 0
    limit_s: float = 60.0
    out: Path | None = None
    is_guided: bool = False


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

    def __init__(self, plan: FuzzPlan, step: Callable[[str], object] = lambda kind: None) -> None:
        """`step` is called with the kind of each input that is over."""
        self._plan = plan
        self._step = step
        self._rows: list[_Row] = []

    async def run(self) -> None:
        """Try everything.

        Raises InvalidArgument where the device or the seeds are not there, DeviceDied where the
        device does not even start.
        """
        for kind in self._plan.kinds:
            row = _Row(kind)
            self._rows.append(row)
            started_s = time.monotonic()
            try:
                await self._kind(row)
            finally:
                row.seconds = time.monotonic() - started_s

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
        start, runs = 0, self._plan.runs
        while start < runs:
            stop = min(runs, start + STRETCH)
            start = await self._stretch(row, start, stop)

    async def _stretch(self, row: _Row, start: int, stop: int) -> int:
        """Try inputs of a row in one process; returns where to go on."""
        bad: list[tuple[int, InputResult]] = []
        last = start - 1

        def done(begun: Begun, result: InputResult) -> None:
            nonlocal last
            last = begun.number
            if result.ending is not None:
                row.endings[result.ending] += 1
            else:
                bad.append((begun.number, result))
            self._step(row.kind.value)

        task = Stretch(self._plan.seed, row.kind, start, stop)
        async with self._child() as one:
            ended = await one.does(task, done)
        if ended is None:
            row.lost += 1
        else:
            row.grown_bytes += ended.grown_bytes
        for number, result in bad:
            await self._found(row, result, number)
        return last + 1 if ended is None else stop

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
            self._step(row.kind.value)

        async with self._child() as one:
            if await one.does(task, done) is None:
                row.lost += 1
        for begun, result in bad:
            await self._found(row, result, begun.number, begun.recipe, begun.digest)

    async def _found(
        self,
        row: _Row,
        result: InputResult,
        number: int,
        recipe: Recipe | None = None,
        digest: str = "",
    ) -> None:
        """Note a finding; the first one of its kind is tried again and shrunk."""
        plan, broken = self._plan, result.broken or Broken.ERROR
        plain = recipe or Recipe(row.kind, "")
        setting = plan.setting
        finding = FuzzFinding(
            setting.device, broken, result.text, plain, digest, isolate=setting.isolate
        )
        known = row.findings.get(finding.label)
        if known is not None:
            row.findings[finding.label] = msgspec.structs.replace(known, count=known.count + 1)
            return
        row.findings[finding.label] = finding
        told = await self._again(Single(recipe, plan.seed, row.kind, number), finding)
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
    """A process for single inputs, another one when it is lost."""

    def __init__(self, make: Callable[[], contextlib.AbstractAsyncContextManager[Child]]) -> None:
        self._make = make
        self._stack = contextlib.AsyncExitStack()
        self._child: Child | None = None

    async def __aenter__(self) -> _Reused:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()

    async def single(self, task: Task) -> tuple[Begun | None, InputResult | None]:
        """Try one input: what it was, and what came of it."""
        heard: list[tuple[Begun, InputResult]] = []
        if self._child is None:
            self._child = await self._stack.enter_async_context(self._make())
        ended = await self._child.does(task, lambda begun, result: heard.append((begun, result)))
        if ended is None:
            self._child = None
            await self._stack.aclose()
        return heard[0] if heard else (None, None)


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
    figures.append(SuiteFigure("grown by", row.grown_bytes / 2**20, "MiB", better=Better.LESS))
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
