"""Targets in processes of their own, so that what kills or stops a device ends one row.

A child lives as long as its target answers: engines are loaded once for all networks. One that dies
or takes longer than the rules can need is gone; the next network finds a new one.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

import anyio
import msgspec

from nnasync._core.child_process import ChildProcess, ending
from nnasync._core.runtime import Runtime
from nnasync.errors import NNError
from nnasync.suites.benchmark.child_lines import (
    MOVED,
    OUTPUTS,
    TIMES,
    AnswerLine,
    ChildHello,
    FailedLine,
    MeasuredLine,
    MeasureOrder,
    StepLine,
)
from nnasync.suites.benchmark.data import read_arrays, write_arrays
from nnasync.suites.benchmark.measuring import (
    DeviceMeasurement,
    Inputs,
    MeasureJob,
    measure,
    unsupported,
)
from nnasync.suites.benchmark.targets import BenchTarget
from nnasync.suites.results import Standing

CHILD = ("-m", "nnasync.suites.benchmark.child")
"""What the interpreter runs as a child."""

_MAX_LINE = 1 << 20
_answers: msgspec.json.Decoder[AnswerLine] = msgspec.json.Decoder(AnswerLine)


class NotMeasured(msgspec.Struct, frozen=True):
    """Why there is no measurement: skipped, failed, a hang or a crash."""

    standing: Standing
    text: str


class MeasureBench(Protocol):
    """Measures a job on a target."""

    async def run(
        self, target: BenchTarget, job: MeasureJob, inputs: Inputs, tell: Callable[[str], object]
    ) -> DeviceMeasurement | NotMeasured:
        """Measure; what a device does wrong is an answer, not an error."""
        ...


class InThisProcess:
    """Measures in this process, on a runtime that is open; for devices that are objects."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def run(
        self, target: BenchTarget, job: MeasureJob, inputs: Inputs, tell: Callable[[str], object]
    ) -> DeviceMeasurement | NotMeasured:
        """Measure; see `MeasureBench`."""
        job = msgspec.structs.replace(job, devices=target.devices)
        try:
            return await measure(self._runtime, job, inputs, tell)
        except NNError as error:
            names = target.devices or ()
            devices = [each for each in self._runtime.devices if not names or each.name in names]
            lacking = await unsupported(devices, job)
            return _not_done(FailedLine(lacking or str(error), bool(lacking)))


class Children:
    """Measures in child processes, one for each target; made by `open_children`."""

    def __init__(self, folder: Path, patience_s: float | None) -> None:
        self._folder = folder
        self._patience_s = patience_s
        self._children: dict[str, ChildProcess] = {}

    async def run(
        self, target: BenchTarget, job: MeasureJob, inputs: Inputs, tell: Callable[[str], object]
    ) -> DeviceMeasurement | NotMeasured:
        """Measure; see `MeasureBench`."""
        folder = self._folder / "answers"
        folder.mkdir(exist_ok=True)
        given = self._folder / "inputs.npz"
        await anyio.to_thread.run_sync(write_arrays, given, inputs)
        order = MeasureOrder(job, str(given), str(folder))
        limit = self._patience_s or job.rules.patience_s
        try:
            with anyio.fail_after(limit):
                child = await self._child(target)
                answer = await _carried_out(child, order, tell)
        except TimeoutError:
            await self._end(target)
            return NotMeasured(Standing.HANG, f"no answer within {limit:g} s")
        except BaseException:
            await self._end(target)
            raise
        if isinstance(answer, NotMeasured):
            await self._end(target)
            return answer
        return _not_done(answer) if isinstance(answer, FailedLine) else _whole(answer, folder)

    async def close(self) -> None:
        """End all children."""
        for child in self._children.values():
            await child.close()
        self._children.clear()

    async def _child(self, target: BenchTarget) -> ChildProcess:
        child = self._children.get(target.name)
        if child is None:
            state = self._folder / "state"
            state.mkdir(exist_ok=True)
            child = self._children[target.name] = await ChildProcess.start(CHILD)
            await child.say(msgspec.json.encode(ChildHello(target, str(state))))
        return child

    async def _end(self, target: BenchTarget) -> None:
        child = self._children.pop(target.name, None)
        if child is not None:
            await child.close()


@contextlib.asynccontextmanager
async def open_children(*, patience_s: float | None = None) -> AsyncIterator[Children]:
    """Children that end with the block; one that needs longer than `patience_s` is killed.

    Without it, what the rules of a job can need is the limit.
    """
    with tempfile.TemporaryDirectory(prefix="nnasync-bench-") as folder:
        children = Children(Path(folder), patience_s)
        try:
            yield children
        finally:
            with anyio.CancelScope(shield=True):
                await children.close()


async def _carried_out(
    child: ChildProcess, order: MeasureOrder, tell: Callable[[str], object]
) -> MeasuredLine | FailedLine | NotMeasured:
    """The answer to an order; a crash if the process ends before it."""
    await child.say(msgspec.json.encode(order))
    at = "start"
    while True:
        line = await child.line(_MAX_LINE)
        if line is None:
            died = f"the process died ({ending(await child.ended())}): {at}"
            return NotMeasured(Standing.CRASH, died)
        answer = _answers.decode(line)
        if not isinstance(answer, StepLine):
            return answer
        at = answer.text
        tell(at)


def _whole(answer: MeasuredLine, folder: Path) -> DeviceMeasurement:
    return msgspec.structs.replace(
        answer.measurement,
        outputs=tuple(read_arrays(folder / OUTPUTS)),
        moved=tuple(read_arrays(folder / MOVED)),
        latencies=tuple(read_arrays(folder / TIMES)[0][0].tolist()),
    )


def _not_done(answer: FailedLine) -> NotMeasured:
    standing = Standing.SKIPPED if answer.is_unsupported else Standing.FAILURE
    return NotMeasured(standing, answer.text)
