"""Rounds of benchmarks: disturbed ones are repeated, and each machine has a page of figures."""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import pytest

from benchmarks._report import keep, publish, relative
from benchmarks._rounds import DISTURBED, Quiet, interleave, paired_ratio

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("The loop has no part in it.")]


class Told(Quiet):
    """How disturbed the next round was, as a test says."""

    def __init__(self, percent: float) -> None:
        self._percent = percent

    def disturbance(self, telling_s: float = 0.0) -> float:
        return self._percent


async def test_disturbed_rounds_are_run_again_and_the_quietest_count() -> None:
    percents = iter([0.0, 30.0, 1.0, 50.0, 0.5, 0.1])
    number = itertools.count()

    async def contestant() -> float:
        return float(next(number))

    results = await interleave({"it": contestant}, 4, watch=lambda: Told(next(percents)))
    assert results["it"] == [0.0, 5.0, 4.0, 2.0]
    assert results.repeated == 2
    assert max(results.disturbances) <= DISTURBED
    assert "4 rounds, 2 run again" in results.told()
    assert len(results.processor_s["it"]) == 4


async def test_a_machine_that_is_never_quiet_is_told() -> None:
    async def contestant() -> float:
        return 1.0

    results = await interleave({"it": contestant}, 3, watch=lambda: Told(20.0))
    assert results.repeated == 3
    assert "too much to trust" in results.told()


async def test_contestants_take_turns() -> None:
    order: list[str] = []

    def contestant(name: str) -> object:
        async def run() -> float:
            order.append(name)
            return 1.0

        return run

    contestants = {name: contestant(name) for name in "abc"}
    await interleave(contestants, 3, watch=lambda: Told(0.0))  # type: ignore[arg-type]  # Any callable.
    assert "".join(order) == "abcbcacab"


def test_what_was_too_short_disturbs_nobody(tmp_path: Path) -> None:
    facts = tmp_path / "stat"
    facts.write_text("cpu 0 0 0 0 0 0 0 0 0 0\n", encoding="utf-8")
    quiet = Quiet(facts)
    facts.write_text("cpu 10 0 0 10 0 0 0 5 0 0\n", encoding="utf-8")
    assert quiet.disturbance() == 0
    facts.write_text("cpu 0 0 0 750 0 0 0 250 0 0\n", encoding="utf-8")
    assert quiet.disturbance() == pytest.approx(25, abs=0.5)


def test_ratios_are_of_rounds() -> None:
    """Where the machine is twice as slow in some rounds, the ratio does not move."""
    base = [10.0, 20.0, 10.0, 20.0]
    assert paired_ratio([2 * each for each in base], base) == (2.0, 2.0, 2.0)


async def test_a_page_holds_the_last_figures_of_each_benchmark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def contestant() -> float:
        return 2.0

    results = await interleave({"a": contestant, "b": contestant}, 2, watch=lambda: Told(0.0))
    text = relative(results, "a", "microseconds")
    assert "1.00 (1.00-1.00)" in text
    folder = tmp_path / "benchmarks"
    options = argparse.Namespace(json=tmp_path / "figures.json", keep=True)
    publish("One", "old figures", {}, options, folder=folder)
    publish("Another", "others", {}, options, folder=folder)
    publish("One", text, {"a": 1}, options, folder=folder)
    assert json.loads(options.json.read_text(encoding="utf-8")) == {"a": 1}
    (page,) = folder.iterdir()
    kept = page.read_text(encoding="utf-8")
    assert "old figures" not in kept
    assert text in kept
    assert kept.index("## Another") < kept.index("## One")
    assert kept.count("\n# ") + kept.startswith("# ") == 1
    assert text in capsys.readouterr().out


def test_figures_with_fewer_instructions_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "benchmarks"
    keep("One", "with all", folder)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    keep("One", "with few", folder)
    (page,) = folder.iterdir()
    kept = page.read_text(encoding="utf-8")
    assert "## One, with ONEDNN_MAX_CPU_ISA=AVX2\n" in kept
    assert kept.index("with all") < kept.index("with few")
