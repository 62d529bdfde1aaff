"""The HAL suite on one device: which checks there are, and running them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

import anyio

from nnasync._core.runtime import Options, open_runtime
from nnasync.conformance.cases import Case, case_files, read_cases
from nnasync.conformance.hal_suite.basics import basics
from nnasync.conformance.hal_suite.bursts import bursts
from nnasync.conformance.hal_suite.caching import caching
from nnasync.conformance.hal_suite.check import Check, CheckResult, CheckVerdict, Skipped
from nnasync.conformance.hal_suite.domains import domains
from nnasync.conformance.hal_suite.fixture import Bench
from nnasync.conformance.hal_suite.models import models
from nnasync.conformance.hal_suite.quality import quality
from nnasync.conformance.hal_suite.requests import requests
from nnasync.conformance.hal_suite.subjects import random_models, subjects
from nnasync.conformance.trial import error_text
from nnasync.device import Device
from nnasync.errors import MissedDeadline
from nnasync.hal import Struct

LIMIT_S = 60.0
"""A device that needs longer for one check hangs."""

GROUPS: Mapping[str, Callable[[Bench], Iterator[Check]]] = {
    "basics": basics,
    "models": models,
    "requests": requests,
    "bursts": bursts,
    "quality of service": quality,
    "caching": caching,
    "memory domains": domains,
}
"""What makes the checks of a group, by its name."""

_EVERY_CASE = 100
"""One of so many cases of a folder is taken as a subject."""


class SuitePlan(Struct, frozen=True):
    """What to run on which device.

    `only` is a glob of checks, as "group/name", or of whole groups. `cases` is a folder of
    conformance cases, some of which become subjects as well. `every` tries one of so many
    mutations; `rounds` is how often races are run, and limits what else is done to caches. With
    `isolate` the device runs in a process of its own.
    """

    device: str
    only: str = "*"
    cases: str | None = None
    every: int = 1
    rounds: int = 100
    isolate: bool = False


async def run_suite(plan: SuitePlan, done: Callable[[CheckResult], object]) -> None:
    """Run the suite on a device of a runtime of its own; tell of each check when it is done.

    What the device keeps from run to run is in a folder that is deleted at the end. Raises
    InvalidArgument for an unknown device, and for cases that are not as they should be.
    """
    with tempfile.TemporaryDirectory(prefix="nnasync-") as folder:
        options = Options(cores=1, state_dir=folder)
        isolate = [plan.device] if plan.isolate else []
        async with open_runtime(devices=[plan.device], isolate=isolate, options=options) as runtime:
            await run_on(runtime.devices[0], plan, done)


async def run_on(device: Device, plan: SuitePlan, done: Callable[[CheckResult], object]) -> None:
    """Run the suite on this device, whatever the plan's is called."""
    cases = [] if plan.cases is None else list(_some_cases(Path(plan.cases)))
    bench = Bench(
        device,
        [*subjects(), *cases],
        random_models(),
        every=plan.every,
        rounds=plan.rounds,
    )
    try:
        await run_checks(_selected(bench, plan.only), done)
    finally:
        with anyio.CancelScope(shield=True):
            await bench.close()


async def run_checks(checks: Iterable[Check], done: Callable[[CheckResult], object]) -> None:
    """Run checks one after the other; raises nothing that a device does."""
    for check in checks:
        verdict, reason = await _outcome(check)
        done(CheckResult(check.group, check.name, verdict, reason))


async def _outcome(check: Check) -> tuple[CheckVerdict, str]:
    try:
        with anyio.fail_after(LIMIT_S):
            await check.run()
    except Skipped as skipped:
        return CheckVerdict.SKIPPED, str(skipped)
    except MissedDeadline as error:
        return CheckVerdict.FAILED, error_text(error)
    except TimeoutError:
        return CheckVerdict.FAILED, f"no answer within {LIMIT_S:g} s"
    except Exception as error:
        return CheckVerdict.FAILED, error_text(error)
    return CheckVerdict.PASSED, ""


def _selected(bench: Bench, only: str) -> Iterator[Check]:
    for group, checks in GROUPS.items():
        if fnmatchcase(group, only):
            yield from checks(bench)
        elif fnmatchcase(group, only.partition("/")[0]):
            for check in checks(bench):
                if fnmatchcase(f"{group}/{check.name}", only):
                    yield check


def _some_cases(place: Path) -> Iterator[Case]:
    number = 0
    for path in case_files(place):
        for case in read_cases(path):
            if number % _EVERY_CASE == 0:
                yield case
            number += 1
