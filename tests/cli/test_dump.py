"""`nnasync dump`."""

from __future__ import annotations

from pathlib import Path

import pytest

import nnasync as nn
from nnasync.cli import main
from tests.partition.control_flow_models import counting
from tests.rigs import doubler
from tests.validation.models import looping


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "doubler.nnm"
    nn.save(doubler(), path)
    return str(path)


def test_text_and_memory(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", model]) == 0
    told = capsys.readouterr().out
    assert "= ADD(a=%0, b=%0, activation=0)" in told
    assert "memory of one execution" in told
    assert "sharing saves" in told


def test_memory_alone(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", model, "--memory"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("memory of one execution")
    assert "ADD(" not in told


def test_graph_into_a_file(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "model.dot"
    assert main(["dump", model, "--dot", "--output", str(target)]) == 0
    assert capsys.readouterr().out == ""
    assert target.read_text(encoding="utf-8").startswith('digraph "doubler" {')


def test_a_model_whose_memory_only_the_run_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "loop.nnm"
    nn.save(looping((0,)), path)
    assert main(["dump", str(path)]) == 0
    assert "memory of one execution: the memory depends on the run" in capsys.readouterr().out
    assert main(["dump", str(path), "--memory"]) == 1
    assert "nnasync: error: the memory depends on the run" in capsys.readouterr().err


def test_wrong_arguments(model: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["dump", model, "--memory", "--plan"])
    assert caught.value.code == 2
    assert main(["dump", model, "--memory", "--format", "dot"]) == 1
    assert main(["dump", model, "--device", "nnasync-reference"]) == 1
    assert main(["dump", model, "--plan", "--device", "nobody"]) == 1
    assert main(["dump", str(tmp_path / "missing.nnm")]) == 1


def test_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "loop.nnm"
    nn.save(counting(3), path)
    assert main(["dump", str(path), "--plan", "--device", "nnasync-reference"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("plan of counting: 1 step\n  nnasync-reference ")
    assert "  runs      0 WHILE" in told
    assert "why: first device that takes the whole model" in told
    assert "nnasync-reference  whole model" in told


def test_plan_as_a_graph(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["dump", model, "--plan", "--device", "nnasync-reference"]
    assert main([*command, "--format", "dot"]) == 0
    told = capsys.readouterr().out
    assert told.startswith('digraph "plan of doubler" {')
    assert main([*command, "--dot"]) == 0
    assert capsys.readouterr().out == told
