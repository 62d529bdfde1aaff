"""The soak: invented series get their verdict, and a short one runs all of its load."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.compilation.report import Candidate, Fallback, Fate, Partition, Report
from nnasync.cli import demo_data
from nnasync.suites import Standing, SuiteRow
from nnasync.suites.crash.networks import QUANTIZED_TOLERANCE, TOLERANCE
from nnasync.suites.page.figures import common_titles
from nnasync.suites.soak import SoakPlan, SoakSample, judge, run_soak
from nnasync.suites.soak.load import tolerance_of
from tests.suites.crash.rig import DEVICES, small_networks

MIB = 1 << 20


def samples(
    *,
    memory: float = 0,
    descriptors: float = 0,
    threads: float = 0,
    latency: float = 0,
    in_flight: float = 0,
    seed: int = 0,
) -> list[SoakSample]:
    """An hour by samples of 5 s, with noise; each quantity grows by so much in that hour.

    Work takes up to `in_flight` MiB more.
    """
    random = np.random.default_rng(seed)
    found = []
    for number in range(720):
        share = number / 720
        noise = random.normal(size=4)
        found.append(
            SoakSample(
                number * 5.0,
                int((200 + memory * share + noise[0] + random.uniform(0, in_flight)) * MIB),
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
        "cores that others had, median",
        "slope of memory",
        "slope of descriptors",
        "slope of threads",
        "slope of latency",
    ]
    assert all(figure.low is not None and figure.low <= figure.value for figure in figures[1:])


@pytest.mark.parametrize(
    ("what", "by"), [("memory", 8), ("descriptors", 10), ("threads", 5), ("latency", 1.5)]
)
def test_what_grows_is_the_one_finding(what: str, by: float) -> None:
    _, faults = judge(samples(**{what: by}, seed=0), 300)
    assert [text.split(" ")[0] for text in faults] == [what]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("by", "in_flight"), [(2.5, 0), (4, 10)])
def test_a_leak_of_little_more_than_one_percent_an_hour_is_found(
    by: float, in_flight: float, seed: int
) -> None:
    """Of 200 MiB; what work in flight takes beside it makes the growth less sure."""
    _, faults = judge(samples(memory=by, in_flight=in_flight, seed=seed), 300)
    assert [text.split(" ")[0] for text in faults] == ["memory"]


@pytest.mark.parametrize("seed", range(10))
def test_work_that_comes_and_goes_is_no_leak(seed: int) -> None:
    assert judge(samples(in_flight=10, seed=seed), 300)[1] == []


def test_memory_that_has_come_to_its_level_is_no_leak() -> None:
    """Half of the last 4 MiB came in each five minutes: most of it while the load settled."""
    series = [
        msgspec.structs.replace(
            each, memory_bytes=each.memory_bytes - int(4 * MIB * 0.5 ** (each.at_s / 300))
        )
        for each in samples()
    ]
    assert judge(series, 300)[1] == []


def test_calls_that_are_slow_beside_others_have_not_become_slower() -> None:
    """Others come for the last third of the hour."""
    slow = [
        msgspec.structs.replace(each, latency_ms=(each.latency_ms or 0) * 3, foreign=0.6)
        if each.at_s > 2400
        else each
        for each in samples()
    ]
    assert judge(slow, 300)[1] == []
    unknown = [msgspec.structs.replace(each, foreign=0.0) for each in slow]
    assert [text.split(" ")[0] for text in judge(unknown, 300)[1]] == ["latency"]


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
    figures, faults = judge(samples()[:3], 0)
    assert [figure.name for figure in figures] == ["cores that others had, median"]
    assert faults == []
    assert judge([], 0) == ((), [])


def test_a_time_in_which_others_had_all_cores_is_left_out() -> None:
    """Ten minutes without load, at the start: that it is there again is no growth."""
    starved = [
        msgspec.structs.replace(
            each, memory_bytes=each.memory_bytes - 20 * MIB, threads=each.threads - 5, foreign=0.95
        )
        if 200 < each.at_s < 800
        else each
        for each in samples()
    ]
    figures, faults = judge(starved, 300)
    assert faults == []
    assert {each.name: each.value for each in figures}[
        "samples left out, as others had all cores"
    ] == 119
    unknown = [msgspec.structs.replace(each, foreign=0.0) for each in starved]
    assert [text.split(" ")[0] for text in judge(unknown, 300)[1]] == ["memory", "threads"]


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
    assert "wrong" in common_titles(rows)  # What matters most is in the table of the page.


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


LITERT = Partition("litert-cpu", (0,), "")


def considered(way: str, fate: Fate) -> Candidate:
    return Candidate("litert-cpu", way, None, "not measured", fate.value, fate=fate)


@pytest.mark.parametrize(
    ("report", "tolerance"),
    [
        (Report((LITERT,), (considered("xnnpack", Fate.CHOSEN),)), TOLERANCE),
        (Report((Partition("nnasync-reference", (0,), ""),)), QUANTIZED_TOLERANCE),
        (
            Report((LITERT,), fallbacks=(Fallback("litert-cpu", (0,), "full", "it died", 1),)),
            QUANTIZED_TOLERANCE,
        ),
        (
            Report((LITERT,), (considered("xnnpack", Fate.FAILED), considered("own", Fate.CHOSEN))),
            QUANTIZED_TOLERANCE,
        ),
    ],
    ids=["as in quiet", "compiled for the reference", "fell back", "died as it prepared"],
)
def test_what_computes_in_place_of_a_killed_device_may_differ_as_engines_do(
    report: Report, tolerance: float
) -> None:
    """By 5 %, where the network computes on bytes."""
    model = nn.load(demo_data.path("detector.nnm"))
    assert tolerance_of(report, model, "litert-cpu") == tolerance
