"""What a child finds out by itself: leaks, answers that are off, slowness beside compilations."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnasync.suites.crash.degradation import degradation_percent, degrade
from nnasync.suites.crash.graph_loads import load_graphs
from nnasync.suites.crash.orders import (
    ChildAt,
    ChildBegun,
    ChildMessage,
    ChildReport,
    CrashActivity,
    DegradationOrder,
    GraphOrder,
    QuietOrder,
    StressedNetwork,
    StressOrder,
)
from nnasync.suites.crash.quiet import answer_in_quiet
from nnasync.suites.crash.stress import stress
from nnasync.suites.crash.telling import Teller
from nnasync.suites.crash.verdicts import leaks
from tests.suites.crash.rig import DEVICES, small_networks

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop(reason="children have one kind of loop"),
]
SECONDS = 0.4


async def in_quiet(device: str, folder: Path) -> ChildReport:
    networks = tuple(StressedNetwork(Path(path).stem, path) for path in small_networks(folder))
    return await answer_in_quiet(
        QuietOrder(DEVICES + device, networks, str(folder), 0), Teller(lambda message: None)
    )


async def loaded(device: str, folder: Path, seconds: float = SECONDS) -> ChildReport:
    networks = (await in_quiet("right", folder)).networks
    order = StressOrder(DEVICES + device, CrashActivity.LOAD, 1, seconds, networks, 0)
    return await stress(order, Teller(lambda message: None))


@pytest.mark.parametrize(
    ("device", "grows"), [("leaking_memory", "memory"), ("leaking_descriptors", "descriptors")]
)
async def test_a_device_that_keeps_something_of_each_load_leaks(
    device: str, grows: str, tmp_path: Path
) -> None:
    # On a busy machine it takes longer until there were enough loads to be sure.
    for seconds in (SECONDS, 4 * SECONDS, 16 * SECONDS):
        report = await loaded(device, tmp_path, seconds)
        assert not report.failures
        found = leaks(report.samples, seconds)
        if found:
            break
    assert [text.split()[0] for text in found] == [grows]


async def test_a_device_that_keeps_nothing_does_not(tmp_path: Path) -> None:
    report = await loaded("right", tmp_path)
    assert report.counts["loads"] == len(report.samples) > 0
    assert leaks(report.samples, SECONDS) == []


async def test_a_device_that_is_always_off_is_found_in_quiet(tmp_path: Path) -> None:
    report = await in_quiet("off", tmp_path)
    assert report.failures == (
        "small_0: alone and in quiet, output 0 is off by 3 % of its range",
        "small_1: alone and in quiet, output 0 is off by 3 % of its range",
    )


async def test_a_device_that_is_slow_beside_compilations_is_told(tmp_path: Path) -> None:
    networks = (await in_quiet("right", tmp_path)).networks[:1]
    order = DegradationOrder(DEVICES + "slow_beside_compilation", networks, 0.3)
    report = await degrade(order, Teller(lambda message: None))
    assert len(report.failures) == 1
    assert report.failures[0].endswith("slower while small_0 is compiled; 50 % are allowed")
    assert report.figures["degradation by small_0, %"] > 50


def test_the_degradation_is_that_of_the_medians() -> None:
    assert degradation_percent([1, 2, 100], [3, 3, 3]) == 50
    assert degradation_percent([2.0], [2.0]) == 0


@pytest.mark.parametrize("executes", [False, True])
async def test_random_graphs_say_their_seed_before_they_are_tried(executes: bool) -> None:
    said: list[ChildMessage] = []
    order = GraphOrder("nnasync-reference", "small", 7, 2, 60, executes)
    first = await load_graphs(order, Teller(said.append))
    assert said == [
        ChildBegun(),
        ChildAt("--seeds 7:8 --size small"),
        ChildAt("--seeds 8:9 --size small"),
    ]
    assert first.counts == {("compared" if executes else "loaded"): 2}
    assert first.menu
