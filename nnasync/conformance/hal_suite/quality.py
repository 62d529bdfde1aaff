"""Group "quality of service": priorities, deadlines and time limits.

A deadline that has passed, or passes soon, may be met or missed; without one nothing may be missed.
"""

from __future__ import annotations

from collections.abc import Iterator

from nnasync._core.clock import Deadline, now_ns
from nnasync.conformance.cases import Case
from nnasync.conformance.hal_suite.check import Check, refused
from nnasync.conformance.hal_suite.fixture import PATHS, Bench
from nnasync.conformance.hal_suite.subjects import endless_loop
from nnasync.conformance.paths import CaseBuffers, Path
from nnasync.conformance.trial import Fault
from nnasync.device import PrepareModelConfig
from nnasync.errors import MissedDeadline
from nnasync.hal import ExecutionConfig, Priority
from nnasync.scheduler import at_ns

GROUP = "quality of service"
SHORT_NS = 5_000_000
DEADLINES = ("now", "short", "unlimited")


def quality(bench: Bench) -> Iterator[Check]:
    """The checks of the group."""
    for case in bench.legal_subjects:
        for priority in Priority:
            yield _priority(bench, case, priority)
        for name in DEADLINES:
            yield _prepare(bench, case, name)
            for path in PATHS:
                yield _execute(bench, case, name, path)
    for how in ("loop timeout", "deadline", "duration"):
        yield _endless(bench, how)


def deadline_of(name: str) -> Deadline | None:
    """A deadline by its name, reckoned from now."""
    if name == "unlimited":
        return None
    return Deadline(now_ns() + (SHORT_NS if name == "short" else 0))


def _priority(bench: Bench, case: Case, priority: Priority) -> Check:
    async def run() -> None:
        await bench.check_supported(case.model)
        prepared = await bench.device.prepare_model(
            case.model, PrepareModelConfig(priority=priority)
        )
        await bench.check_serves(case, prepared)

    return Check(GROUP, f"priority {priority.name}/{case.name}", run)


def _prepare(bench: Bench, case: Case, name: str) -> Check:
    async def run() -> None:
        await bench.check_supported(case.model)
        deadline = deadline_of(name)
        try:
            prepared = await bench.device.prepare_model(
                case.model, PrepareModelConfig(deadline=deadline)
            )
        except MissedDeadline:
            if deadline is None:
                raise
            return
        await bench.check_serves(case, prepared)

    return Check(GROUP, f"prepare, deadline {name}/{case.name}", run)


def _execute(bench: Bench, case: Case, name: str, path: Path) -> Check:
    async def check() -> None:
        ready = await bench.ready(case)
        ready.check_path(path)
        ready.buffers.clear()
        deadline = deadline_of(name)
        try:
            config = ExecutionConfig(deadline_ns=at_ns(deadline))
            await ready.execute(path, ready.request, config)
        except MissedDeadline as error:
            if deadline is None:
                raise Fault(f"no deadline was given, but it is missed: {error}") from error
        else:
            ready.check_outputs()
        await ready.run()

    return Check(GROUP, f"{path.value}, deadline {name}/{case.name}", check)


def _endless(bench: Bench, how: str) -> Check:
    """A loop without an end is ended by each of the time limits, and the device goes on."""

    async def run() -> None:
        case = endless_loop()
        await bench.check_supported(case.model)
        prepared = await bench.device.prepare_model(case.model)
        buffers = CaseBuffers(case)
        request = buffers.request()
        try:
            if how == "duration":
                execution = await prepared.execute_fenced(
                    request, (), ExecutionConfig(duration_ns=SHORT_NS)
                )
                await refused(execution.fence, MissedDeadline)
            elif how == "deadline":
                limit = ExecutionConfig(deadline_ns=now_ns() + SHORT_NS)
                await refused(prepared.execute(request, limit), MissedDeadline)
            else:
                limit = ExecutionConfig(loop_timeout_ns=1_000_000)
                call = prepared.execute_synchronously(request, limit)
                await refused(call, MissedDeadline)
        finally:
            await prepared.close()
            buffers.close()

    return Check(GROUP, f"endless loop, {how}", run)
