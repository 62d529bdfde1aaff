"""`nnasync conformance --suite hal`: the direct tests of the HAL against a device."""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Sequence

import anyio

from nnasync.cli.interruption import interruptible
from nnasync.cli.progress import Progress
from nnasync.cli.text import json_text, table
from nnasync.conformance.hal_suite import (
    CheckResult,
    GroupCounts,
    SuitePlan,
    SuiteReport,
    run_suite,
)
from nnasync.errors import InvalidArgument

_SHOWN_PER_GROUP = 10
_REASON_WIDTH = 240
_TOLD_EVERY = 5000


async def run_hal_suite(arguments: argparse.Namespace) -> int:
    """Run the suite as the command line says; returns the exit code."""
    plan = SuitePlan(
        arguments.device,
        only=arguments.only or "*",
        cases=arguments.cases,
        isolate=arguments.isolate,
    )
    report = SuiteReport()
    latest = ""

    def line() -> str:
        return f"{progress.done} checks, {report.counts.failed} failed: {latest}"

    def done(result: CheckResult) -> None:
        nonlocal latest
        latest = result.group
        report.add(result)
        progress.step()

    progress = Progress(line, every=_TOLD_EVERY)
    started_s = time.monotonic()
    async with interruptible() as interruption:
        await run_suite(plan, done)
    progress.close()
    duration_s = time.monotonic() - started_s
    if not progress.done and not interruption.signal:
        raise InvalidArgument(f"no check of the HAL suite is called {plan.only!r}")
    if arguments.json:
        data = {"device": plan.device, "duration_s": round(duration_s, 1), **report.as_data()}
        await anyio.Path(arguments.json).write_bytes(json_text(data).encode() + b"\n")
    print(_text(report, plan.device, duration_s))
    return interruption.exit_code or int(bool(report.counts.failed))


def _text(report: SuiteReport, device: str, duration_s: float) -> str:
    rows = [(group, *_cells(counts)) for group, counts in report.groups().items()]
    rows.append(("all checks", *_cells(report.counts)))
    parts = [table(("group", "passed", "failed", "skipped"), rows)]
    if report.failures:
        parts.append("\n".join(_failure_lines(report.failures)))
    skipped = [
        f"{group}: {count} skipped: {reason}"
        for group, reasons in report.skipped().items()
        for reason, count in reasons.items()
    ]
    if skipped:
        parts.append("\n".join(skipped))
    counts = report.counts
    parts.append(
        f"{device}: {counts.passed} passed, {counts.failed} failed, {counts.skipped} skipped, "
        f"in {duration_s:.1f} s"
    )
    return "\n\n".join(parts)


def _cells(counts: GroupCounts) -> tuple[str, ...]:
    return tuple(str(number) for number in (counts.passed, counts.failed, counts.skipped))


def _failure_lines(failures: Sequence[CheckResult]) -> list[str]:
    """The first failures of each group."""
    seen: dict[str, int] = {}
    lines: list[str] = []
    for failure in failures:
        seen[failure.group] = seen.get(failure.group, 0) + 1
        if seen[failure.group] <= _SHOWN_PER_GROUP:
            reason = textwrap.shorten(failure.reason, _REASON_WIDTH, placeholder=" ...")
            lines.append(f"{failure.group}/{failure.name}: {reason}")
    left = len(failures) - len(lines)
    return [*lines, f"... and {left} more, which --json lists"] if left else lines
