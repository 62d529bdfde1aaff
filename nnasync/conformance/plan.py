"""A conformance run as data, and carrying out one part of it in this process."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path as FilePath

from nnasync._core.drivers import driver_facts
from nnasync._core.runtime import Options, open_runtime
from nnasync.conformance.cases import Case, Selection, case_files, read_cases
from nnasync.conformance.paths import Path
from nnasync.conformance.results import CaseResult
from nnasync.conformance.runner import Runner
from nnasync.hal import Struct


class Plan(Struct, frozen=True):
    """Which cases to run on which device, and how.

    `place` is a case file or a folder of them. The first `skip` of the selected cases are left out.
    With `isolate` the device runs in a process of its own, with `lowering` in that one, or in all.
    """

    place: str
    device: str
    selection: Selection = Selection()
    paths: tuple[Path, ...] = (Path.SYNC,)
    timing: bool = False
    skip: int = 0
    isolate: bool = False
    lowering: str | None = None


async def run_plan(
    plan: Plan,
    done: Callable[[CaseResult], object],
    begun: Callable[[Case], object] = lambda case: None,
) -> None:
    """Run the cases of a plan on a runtime of their own; tell of each when it begins and is done.

    Where compilations are cached, what the device keeps of them is deleted at the end. Raises
    InvalidArgument for an unknown device, and for a file that is not as it should be.
    """
    exact = driver_facts(plan.device).exact_coupling
    async with contextlib.AsyncExitStack() as stack:
        options = Options(cores=1)
        if Path.CACHED in plan.paths:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="nnasync-"))
            options = Options(cores=1, state_dir=folder)
        runtime = await stack.enter_async_context(
            open_runtime(
                devices=[plan.device],
                isolate=[plan.device] if plan.isolate else [],
                options=options,
            )
        )
        runner = Runner(
            runtime,
            runtime.devices[0],
            paths=plan.paths,
            timing=plan.timing,
            exact_coupling=exact,
            lowering=plan.lowering,
        )
        for case in _cases(plan):
            begun(case)
            done(await runner.run(case))


def _cases(plan: Plan) -> Iterator[Case]:
    skipped = 0
    for path in case_files(FilePath(plan.place)):
        for case in read_cases(path, plan.selection):
            if skipped < plan.skip:
                skipped += 1
            else:
                yield case
