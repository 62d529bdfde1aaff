"""Every lowering of a device is held to the cases, not only the one that it takes by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

import nnasync as nn
from nnasync._core.drivers.null import NullEngine
from nnasync._core.engine_device.reasons import explained
from nnasync.cli import main
from nnasync.conformance import Path as Way
from nnasync.conformance.lowerings import ALL, InLowering, names_of, ways
from nnasync.conformance.random_graphs import GraphVerdict, Inspector, Size, generate
from nnasync.conformance.results import CaseOutcome
from nnasync.conformance.runner import Runner
from nnasync.errors import InvalidArgument
from tests.compilation.rig import FakeEngine, ManualClock, way
from tests.conformance.small_cases import addition, case
from tests.rigs import doubler

pytestmark = pytest.mark.anyio


def engine() -> FakeEngine:
    """Right by itself, and wrong in its second lowering."""
    return FakeEngine("two-ways", ManualClock(), way("careful"), way("hasty", error=0.5))


async def run_case(lowering: str | None, *paths: Way) -> tuple[CaseOutcome, list[tuple[str, str]]]:
    async with nn.open_runtime(devices=[engine()]) as rt:
        runner = Runner(rt, rt.devices[0], paths=paths or (Way.SYNC,), lowering=lowering)
        result = await runner.run(case(addition()))
        return result.outcome, [(run.lowering, run.outcome.value) for run in result.runs]


async def test_without_one_the_second_is_never_run() -> None:
    outcome, runs = await run_case(None)
    assert outcome is CaseOutcome.PASSED
    assert {lowering for lowering, _ in runs} == {""}


async def test_with_all_the_wrong_one_is_found() -> None:
    outcome, runs = await run_case(ALL)
    assert outcome is CaseOutcome.FAILED
    assert {("careful", "passed"), ("hasty", "failed")} <= set(runs)
    assert ("careful", "failed") not in runs


async def test_one_by_name() -> None:
    assert (await run_case("careful"))[0] is CaseOutcome.PASSED
    assert (await run_case("hasty"))[0] is CaseOutcome.FAILED
    assert (await run_case("no such"))[0] is CaseOutcome.UNSUPPORTED


async def test_one_that_is_not_offered_is_not_prepared_and_says_so() -> None:
    async with nn.open_runtime(devices=[engine()]) as rt:
        device = InLowering(rt.devices[0], "no such")
        answers = await device.get_supported_operations(doubler())
        assert answers == (False,)
        (reason,) = await explained(device, doubler(), answers)
        assert reason == "ADD: no lowering 'no such' for this model, but: careful, hasty"
        with pytest.raises(InvalidArgument, match="does not offer 'no such'"):
            await device.prepare_model(doubler())


async def test_a_device_without_lowerings_is_run_as_it_is() -> None:
    async with nn.open_runtime(devices=[NullEngine()]) as rt:
        (device,) = rt.devices
        assert await names_of(device, doubler()) == []
        assert await ways(device, doubler(), ALL) == [device]


async def test_random_graphs_find_the_wrong_one_too(tmp_path: Path) -> None:
    graph = generate(Size.SINGLE, 0, "float32")
    async with nn.open_runtime(devices=[engine()]) as rt:
        for lowering, verdict in ((None, GraphVerdict.COMPARED), (ALL, GraphVerdict.FAILED)):
            inspector = Inspector(rt.devices[0], tmp_path, lowering=lowering)
            found, _ = await inspector.examined(graph)
            assert found.verdict is verdict
        assert found.reason.startswith("in hasty: ")


def test_the_runtime_takes_no_lowering(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["conformance", "cases", "--device", "nnasync-reference", "--lowering", "all"]
    assert main([*command, "--path", "runtime"]) == 1
    assert "--lowering is not for --path runtime" in capsys.readouterr().err
