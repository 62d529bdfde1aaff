"""Devices that are made wrong on purpose get exactly their verdict, and findings are files."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnasync import run
from nnasync.cli import main
from nnasync.errors import DeviceDied
from nnasync.suites import Standing, read_suite
from nnasync.suites.fuzz import (
    Broken,
    Campaign,
    FuzzFinding,
    FuzzKind,
    FuzzPlan,
    Recipe,
    Setting,
    Tried,
    read_finding,
    repeat,
)
from nnasync.suites.fuzz.campaign import STRETCH
from nnasync.suites.fuzz.inputs import fuzz_seed_of
from nnasync.suites.fuzz.progress import read_progress
from nnasync.suites.fuzz.seeds import FuzzSeeds

PLACE = "tests.suites.fuzz.wrong"
SEEDS = FuzzSeeds()
ODD = next(name for name in SEEDS.names("") if name.endswith(" RELU"))
EVEN = next(name for name in SEEDS.names("") if name.endswith(" TANH"))
_MEMORY_BYTES = 64 << 20


def tried(device: str, *seeds: str, limit_s: float = 60.0) -> list[Tried]:
    setting = Setting(f"{PLACE}:{device}", memory_bytes=_MEMORY_BYTES)
    recipes = [
        FuzzFinding("x", Broken.CRASH, "", Recipe(FuzzKind.MODELS, seed), "") for seed in seeds
    ]
    return run(repeat, recipes, setting, limit_s)


@pytest.mark.parametrize(
    ("device", "broken", "text"),
    [
        ("crashing", Broken.CRASH, "the process ended: SIGSEGV; "),
        ("leaking", Broken.LEAK, "each time takes "),
        ("taking", Broken.MEMORY, "it took 1"),
        ("undefined", Broken.UNDEFINED, "outputs depend on what was in memory before"),
    ],
)
def test_each_gets_its_verdict_and_the_next_input_goes_on(
    device: str, broken: Broken, text: str
) -> None:
    odd, even = tried(device, ODD, EVEN)
    assert odd.result.broken is broken
    assert odd.result.text.startswith(text)
    assert even.result.broken is None
    assert even.result.ending is not None


def test_memory_that_grows_for_a_while_does_not_leak() -> None:
    (odd,) = tried("filling_arenas", ODD)
    assert odd.result.broken is None


def test_memory_that_grows_for_a_while_takes_no_longer_on_many_cores() -> None:
    """The C library may have eight arenas for each of them, and hardly ever has."""
    (odd,) = tried("filling_arenas_of_many_cores", ODD, limit_s=15.0)
    assert odd.result.broken is None


def test_one_that_hangs_is_ended() -> None:
    """It never answers, however long one waits; a second is enough to know."""
    (odd,) = tried("hanging", ODD, limit_s=1.0)
    assert (odd.result.broken, odd.result.text) == (Broken.HANG, "no answer within 1 s")


def test_one_that_does_not_let_go_of_a_model_is_ended() -> None:
    """The requests of a stretch have one model, which is closed behind the last of them."""
    setting = Setting(f"{PLACE}:never_ending")
    campaign = Campaign(FuzzPlan(setting, (FuzzKind.REQUESTS,), runs=3, limit_s=5.0))
    with pytest.raises(DeviceDied, match=r"lost between inputs: no answer within 5 s"):
        run(campaign.run)


def meets_odd_once(seed: int, runs: int) -> bool:
    """Whether one of the first inputs of a seed begins with the odd model."""
    return [fuzz_seed_of(seed, n, FuzzKind.CACHE, SEEDS) for n in range(runs)].count(ODD) == 1


def test_a_campaign_shrinks_what_it_finds_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed, runs = next(n for n in range(100_000) if meets_odd_once(n, 8)), 8
    setting = Setting(f"{PLACE}:undefined")
    plan = FuzzPlan(setting, (FuzzKind.CACHE,), runs, seed, out=tmp_path / "out")
    kinds: list[str] = []
    campaign = Campaign(plan, lambda kind, count: kinds.extend([kind] * count))
    run(campaign.run)
    (row,), (found,) = campaign.rows(), campaign.findings
    assert kinds == ["cache"] * runs
    assert (row.standing, row.device) == (Standing.FAILURE, setting.device)
    assert (found.broken, found.count) == (Broken.UNDEFINED, 1)
    assert (found.recipe.seed, found.recipe.decisions) == (ODD, ())
    (path,) = (tmp_path / "out").iterdir()
    assert read_finding(path) == found
    assert row.findings[0].command == f"nnasync fuzz --repeat {path}"
    assert {figure.name: figure.value for figure in row.figures}["inputs"] == runs
    assert main(["fuzz", "--repeat", str(path)]) == 1
    assert "is undefined memory: outputs depend on" in capsys.readouterr().out


def test_a_campaign_goes_on_where_an_earlier_one_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of a number of models and one of a time, which is over before the second stretch."""
    file, device = tmp_path / "progress.json", f"{PLACE}:right"
    command = ["fuzz", "--device", device, "--kind", "requests", "--out", str(tmp_path / "out")]
    command += ["--progress", str(file)]
    assert main([*command, "--runs", "3"]) == 0
    setting = Setting(device)
    first = read_progress(file, setting, 0)
    assert (first.kinds[FuzzKind.REQUESTS].next, first.inputs) == (3, 3)
    assert main([*command, "--minutes", "1e-9"]) == 0
    assert read_progress(file, setting, 0) == first
    assert main([*command, "--minutes", "1e-9", "--seed", "1"]) == 0
    assert main([*command, "--runs", "4"]) == 0
    both = read_progress(file, setting, 0)
    assert (both.kinds[FuzzKind.REQUESTS].next, both.inputs) == (7, 7)
    assert sum(both.kinds[FuzzKind.REQUESTS].endings.values()) == 7
    assert "7 inputs in all" in capsys.readouterr().out


def test_time_is_spent_on_the_kinds_in_turn() -> None:
    """So much time that one stretch of each begins, by a clock that jumps."""
    plan = FuzzPlan(Setting("nnasync-reference"), (FuzzKind.REQUESTS, FuzzKind.MEMORY), seconds=1.0)
    campaign = Campaign(plan, now_s=iter((0.0, 0.1, 0.9, 1.0)).__next__)
    run(campaign.run)
    assert {kind: each.next for kind, each in campaign.progress.kinds.items()} == {
        FuzzKind.REQUESTS: STRETCH,
        FuzzKind.MEMORY: STRETCH,
    }


def test_what_does_not_say_how_far_fuzzing_came_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "progress.json"
    path.write_text('{"format": 2}')
    command = ["fuzz", "--device", "nnasync-reference", "--progress", str(path)]
    assert main(command) == 1
    assert f"{path} has format 2; this version reads 1" in capsys.readouterr().err
    path.write_text("[]")
    assert main(command) == 1
    assert f"{path} does not say how far fuzzing came" in capsys.readouterr().err


def test_what_is_no_finding_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "finding.json"
    path.write_text('{"device": "x"}')
    assert main(["fuzz", "--repeat", str(path)]) == 1
    assert f"{path} is no finding of nnasync fuzz" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--device", "missing", "--runs", "1"], "missing"),
        (["--device", "nnasync-reference", "--corpus", "/missing"], "no folder of files"),
        (["--repeat", "x.json", "--device", "a", "--device", "b"], "takes one --device"),
    ],
)
def test_what_is_not_there_is_told(
    options: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fuzz", *options]) == 1
    found = capsys.readouterr()
    assert text in found.err
    assert "success" not in found.out


@pytest.mark.parametrize("options", [["--kind", "models,nothing"], ["--limit", "0"]])
def test_wrong_arguments(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["fuzz", *options])
    assert "is no" in capsys.readouterr().err


def test_ctrl_c_leaves_a_partial_result(tmp_path: Path) -> None:
    """It comes in the middle of an input, from the device itself."""
    seed = next(n for n in range(100_000) if meets_odd_once(n, 3))
    result = tmp_path / "result.json"
    command = ["fuzz", "--device", f"{PLACE}:interrupting", "--kind", "cache", "--runs", "100"]
    command += ["--out", str(tmp_path / "out"), "--json", str(result)]
    assert main([*command, "--seed", str(seed)]) == 130
    read = read_suite(result)
    assert read.is_partial
    (row,) = read.rows
    inputs = next(figure.value for figure in row.figures if figure.name == "inputs")
    assert inputs < 3
    assert not (tmp_path / "out").exists()


def test_guided_fuzzing_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nnasync.suites.fuzz.guided.is_importable", lambda name: False)
    assert main(["fuzz", "--device", "nnasync-reference", "--guided"]) == 1
    told = capsys.readouterr().err
    assert "needs atheris, which is not installed: pip install 'nnasync[fuzz]'" in told


def test_coverage_chooses_the_inputs(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="needs the extra fuzz")
    plan = FuzzPlan(
        Setting("nnasync-reference"), (FuzzKind.MODELS,), 20, out=tmp_path, is_guided=True
    )
    campaign = Campaign(plan)
    run(campaign.run)
    (row,) = campaign.rows()
    assert row.standing is Standing.SUCCESS
    assert {figure.name: figure.value for figure in row.figures}["inputs"] == 20
