"""`nnasync randomgraph`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nnasync.cli import main, randomgraph
from nnasync.conformance.random_graphs import Size, generate, menu_of, save_graph
from nnasync.hal import OperationType
from tests.installing import EXAMPLE

REFERENCE = "nnasync-reference"


def call(*options: str, device: str = REFERENCE) -> int:
    return main(["randomgraph", "--device", device, *options])


def rows(text: str) -> dict[str, list[str]]:
    """The rows of the printed table by their first cell."""
    return {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}


def test_counts_per_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "failures"
    assert call("--seeds", "0:3", "--jobs", "1", "--save", str(folder)) == 0
    told = capsys.readouterr().out
    for size in ("single", "small", "large"):
        assert rows(told)[size] == ["3", "3", "0", "0"]
    assert f"{REFERENCE}: 0 failed" in told
    assert not folder.exists()


def test_one_size_and_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--size", "single", "--type", "bool8", "--jobs", "2", "--save", str(tmp_path))
    assert call("--seeds", "5:9", *options) == 0
    told = rows(capsys.readouterr().out)
    assert told["single"] == ["4", "4", "0", "0"]
    assert not {"small", "large"} & told.keys()


def test_failures_are_told_saved_and_can_be_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--size", "single", "--type", "int32", "--jobs", "1", "--save", str(tmp_path))
    assert call("--seeds", "1:2", *options, device="null") == 1
    told = capsys.readouterr().out
    assert rows(told)["single"] == ["1", "0", "0", "1"]
    assert "single, seed 1: device: output 0" in told
    (path,) = tmp_path.glob("*.nnm")
    assert f"nnasync randomgraph --device null --replay {path}" in told
    assert call("--replay", str(path), device="null") == 1
    assert "failed: device: output 0" in capsys.readouterr().out
    assert call("--replay", str(path)) == 0
    assert "agree with the reference's" in capsys.readouterr().out


@pytest.mark.parametrize("what", ["--type int32", "--operations ADD"])
def test_what_cannot_be_saved_is_told_by_its_seed_and_what_was_asked_for(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "a file"
    place.touch()
    options = ("--size", "single", *what.split(), "--jobs", "1", "--save", str(place))
    assert call("--seeds", "1:2", *options, device="null") == 1
    again = f"nnasync randomgraph --device null --size single --seeds 1:2 {what}"
    assert again in capsys.readouterr().out


def test_many_failures_are_not_all_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(randomgraph, "_SHOWN", 2)
    options = ("--size", "single", "--type", "int32", "--jobs", "1", "--save", str(tmp_path))
    assert call("--seeds", "1:5", *options, device="null") == 1
    told = capsys.readouterr().out
    failed = int(rows(told)["single"][3])
    assert told.count("  again: ") == 2
    assert f"... and {failed - 2} more" in told


@pytest.mark.parametrize("seeds", ["5", "5:5", "9:3", "-3:2", "a:b", "1:"])
def test_seeds_that_are_no_range(seeds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        call(f"--seeds={seeds}")
    assert stop.value.code == 2
    assert "is no range of seeds" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [(), ("--seeds", "0:1", "--replay", "x.nnm"), ("--seeds", "0:1", "--jobs", "0")]
)
def test_arguments_that_do_not_go_together(options: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as stop:
        call(*options)
    assert stop.value.code == 2


def test_an_unknown_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--seeds", "0:1", device="abacus") == 1
    assert "no device 'abacus'" in capsys.readouterr().err


def test_files_that_cannot_be_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save_graph(generate(Size.SINGLE, 0), tmp_path)
    path.with_suffix(".npz").unlink()
    assert call("--replay", str(path)) == 1
    assert "No such file" in capsys.readouterr().err
    path.write_bytes(b"nothing of the kind")
    assert call("--replay", str(path)) == 1
    assert "nnasync: error: " in capsys.readouterr().err


def test_ctrl_c_tells_what_there_is(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nnasync", "randomgraph", "--device", REFERENCE]
    options = ["--seeds", "0:100000", "--size", "single", "--jobs", "1", "--save", str(tmp_path)]
    process = subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stderr is not None
    assert "100 of 100000 graphs" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate()
    assert process.returncode == 130
    assert f"{REFERENCE}: 0 failed" in told


@pytest.mark.slow
def test_graphs_are_drawn_from_what_the_device_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a device of seven operations every graph is run, the larger ones too."""
    monkeypatch.chdir(EXAMPLE)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    target = "nnasync_dense:DenseEngine"
    assert call("--seeds", "0:5", "--jobs", "1", "--save", str(tmp_path), device=target) == 0
    told = capsys.readouterr().out
    assert "larger graphs are drawn from 7 operations: ADD, FULLY_CONNECTED, MUL, RELU" in told
    for size in ("single", "small", "large"):
        assert rows(told)[size] == ["5", "5", "0", "0"]
    everything = ("--operations", "all", "--size", "large", "--seeds", "0:2")
    assert call(*everything, "--jobs", "1", "--save", str(tmp_path), device=target) == 0
    told = capsys.readouterr().out
    assert "drawn from" not in told
    assert "unsupported: 1: " in told
    assert "not among the operations of this engine" in told
    assert rows(told)["large"] == ["2", "0", "2", "0"]


@pytest.mark.slow
def test_operations_may_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--size", "large", "--operations", "TANH,MUL", "--save", str(tmp_path))
    assert call("--seeds", "0:2", "--jobs", "1", *options) == 0
    assert "larger graphs are drawn from 2 operations: MUL, TANH" in capsys.readouterr().out
    drawn = {
        each.type
        for seed in range(3)
        for each in generate(Size.LARGE, seed, None, menu_of([OperationType.TANH])).operations
    }
    assert drawn == {OperationType.TANH}


def test_operations_that_cannot_be_drawn_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call("--seeds", "0:1", "--operations", "TANH,TANG")
    assert "TANG: random graphs have no such operation" in capsys.readouterr().err
    assert call("--seeds", "0:1", "--operations", "TANH", "--type", "bool8") == 1
    assert "none of TANH works on bool8" in capsys.readouterr().err
