"""`nnasync dump`."""

from __future__ import annotations

from pathlib import Path

import pytest

import nnasync as nn
from nnasync.cli import main
from tests.rigs import doubler
from tests.validation.models import looping


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "doubler.nnm"
    nn.save(doubler(), path)
    return str(path)


def test_text_and_plan(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", model]) == 0
    told = capsys.readouterr().out
    assert "= ADD(a=%0, b=%0, activation=0)" in told
    assert "memory of one execution" in told
    assert "sharing saves" in told


def test_plan_alone(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", model, "--plan"]) == 0
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
    assert main(["dump", str(path), "--plan"]) == 1
    assert "nnasync: error: the memory depends on the run" in capsys.readouterr().err


def test_wrong_arguments(model: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["dump", model, "--dot", "--plan"])
    assert caught.value.code == 2
    assert main(["dump", str(tmp_path / "missing.nnm")]) == 1
