"""Every engine behind TCP: what passes in process passes at a distance, over TLS, too."""

from __future__ import annotations

from pathlib import Path as FilePath

import anyio
import pytest

import nnasync as nn
from nnasync._core.drivers import DRIVERS, is_installed
from nnasync.conformance import CaseOutcome, Path, Selection, case_files, read_cases
from nnasync.conformance.hal_suite import SuitePlan
from nnasync.conformance.hal_suite.check import CheckResult, CheckVerdict
from nnasync.conformance.hal_suite.suite import GROUPS, run_on
from nnasync.conformance.runner import Runner
from tests import certificates
from tests.network.distance import KEY, distant

pytestmark = pytest.mark.slow

COMPUTING = [name for name in DRIVERS if DRIVERS[name].computes and is_installed(name)]
PATHS = tuple(path for path in Path if path is not Path.CACHED)
"""Cache files do not travel."""
OPTIONS = nn.Options(cores=1)


async def outcomes(
    name: str, shared: FilePath, folder: FilePath, *, parts: int
) -> list[tuple[str, CaseOutcome]]:
    """How each case of a part ends at a distance, and how in process, where that differs."""
    certificate, private = certificates.self_signed(folder)
    serving = {"certificate": certificate, "private_key": private, "key": KEY}
    differences = []
    count = 0
    async with (
        distant(
            name,
            options=OPTIONS,
            serving=serving,
            connecting={"ca": certificate, "key": KEY},
            guarded=False,
        ) as there,
        nn.open_runtime(devices=[there.device], options=OPTIONS) as far,
        nn.open_runtime(devices=[name], options=OPTIONS) as near,
    ):
        runners = [
            Runner(runtime, runtime.devices[0], paths=PATHS, timing=False)
            for runtime in (near, far)
        ]
        for file in case_files(shared / "cts"):
            for case in read_cases(file, Selection(part=3, parts=parts)):
                here, away = [(await each.run(case)).outcome for each in runners]
                count += 1
                if here is not away:
                    differences.append((f"{case.name}: {here.name} here", away))
    assert count > 5
    return differences


@pytest.mark.parametrize("name", COMPUTING)
def test_cases_end_as_in_process(name: str, shared: FilePath, tmp_path: FilePath) -> None:
    assert anyio.run(lambda: outcomes(name, shared, tmp_path, parts=200)) == []


@pytest.mark.parametrize("group", [group for group in GROUPS if group != "models"])
@pytest.mark.parametrize("name", COMPUTING)
def test_the_hal_suite(name: str, group: str) -> None:
    results: list[CheckResult] = []

    async def suite() -> None:
        async with (
            distant(name, options=OPTIONS, guarded=False) as there,
            nn.open_runtime(devices=[there.device], options=OPTIONS) as runtime,
        ):
            plan = SuitePlan(name, only=group, every=25, rounds=3)
            await run_on(runtime.devices[0], plan, results.append)

    anyio.run(suite)
    assert results
    assert [each for each in results if each.verdict is CheckVerdict.FAILED] == []
