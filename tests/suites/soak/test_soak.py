"""The soak: invented series get their verdict, and a short one runs all of its load."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nnasync._core.runtime import open_runtime
from nnasync.cli import demo_data
from nnasync.suites import Standing, SuiteRow
from nnasync.suites.crash.networks import QUANTIZED_TOLERANCE, TOLERANCE
from nnasync.suites.soak import SoakPlan, SoakSample, judge, run_soak
from nnasync.suites.soak.load import tolerance_of
from tests.suites.crash.rig import DEVICES, small_networks

MIB = 1 << 20


def samples(
    *, memory: float = 0, descriptors: float = 0, threads: float = 0, latency: float = 0
) -> list[SoakSample]:
    """An hour by samples of 5 s, with noise; each quantity grows by so much in that hour."""
    random = np.random.default_rng(0)
    found = []
    for number in range(720):
        share = number / 720
        noise = random.normal(size=4)
        found.append(
            SoakSample(
                number * 5.0,
                int((200 + memory * share + noise[0]) * MIB),
                round(40 + descriptors * share + noise[1]),
                round(12 + threads * share + noise[2] * 0.5),
                2.0 + latency * share + 0.1 * float(noise[3]),
            )
        )
    return found


def test_an_hour_of_noise_has_no_slope() -> None:
    figures, faults = judge(samples(), 300)
    assert faults == []
    assert [figure.name for figure in figures] == [
        "slope of memory",
        "slope of descriptors",
        "slope of threads",
        "slope of latency",
    ]
    assert all(figure.low is not None and figure.low <= figure.value for figure in figures)


@pytest.mark.parametrize(
    ("what", "by"), [("memory", 8), ("descriptors", 10), ("threads", 5), ("latency", 1.5)]
)
def test_what_grows_is_the_one_finding(what: str, by: float) -> None:
    _, faults = judge(samples(**{what: by}), 300)
    assert [text.split(" ")[0] for text in faults] == [what]


def test_growth_below_one_percent_is_allowed() -> None:
    assert judge(samples(memory=1.2), 300)[1] == []


def test_growth_while_it_settles_is_allowed() -> None:
    series = samples()
    early = [
        SoakSample(each.at_s, each.memory_bytes // 2, 5, 2, 9.0) if each.at_s < 300 else each
        for each in series
    ]
    assert judge(early, 300)[1] == []


def test_too_few_samples_are_no_verdict() -> None:
    assert judge(samples()[:3], 0) == ((), [])


@pytest.mark.anyio
@pytest.mark.one_loop(reason="the load runs in a child, on a loop of its own")
async def test_a_device_that_is_off_under_load_has_wrong_answers(tmp_path: Path) -> None:
    rows: list[SuiteRow] = []
    plan = SoakPlan(
        (DEVICES + "off_under_load",), small_networks(tmp_path), 1.5, sample_s=0.2, pause_s=0.01
    )
    await run_soak(plan, rows.append)
    (row,) = rows
    counts = {figure.name: figure.value for figure in row.figures}
    assert row.standing is Standing.FAILURE
    assert counts["wrong"] > 0
    assert "wrong: output 0 is off by 3 % of its range" in row.text
    assert row.findings[0].command.startswith("nnasync suite soak --device ")


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.one_loop(reason="the load runs in a child, on a loop of its own")
async def test_all_of_the_load_runs_and_nothing_is_wrong(tmp_path: Path) -> None:
    rows: list[SuiteRow] = []
    plan = SoakPlan(
        (DEVICES + "right",),
        small_networks(tmp_path),
        12,
        sample_s=0.5,
        kill_every_s=2,
        pause_s=0.05,
    )
    await run_soak(plan, rows.append)
    counts = {figure.name: figure.value for figure in rows[0].figures}
    assert counts["wrong"] == 0
    for name in ("compilations", "cached compilations", "drops", "storms", "kills", "rounds apart"):
        assert counts[name] > 0, name


@pytest.mark.anyio
@pytest.mark.one_loop(reason="nothing waits for anything")
async def test_the_reference_in_place_of_a_device_may_differ_as_in_quiet() -> None:
    """By 5 %, where the network computes on bytes: while a device that was killed is gone."""
    path = demo_data.path("detector.nnm")
    async with open_runtime(devices=["nnasync-reference"]) as rt, rt.compile(path) as net:
        assert tolerance_of(net, "nnasync-reference") == TOLERANCE
        assert tolerance_of(net, "litert-cpu") == QUANTIZED_TOLERANCE
