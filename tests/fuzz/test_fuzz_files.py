"""Changed files of models load or are refused; the command does the same at scale."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from nnasync._core.importers.onnx import translate
from nnasync._core.model import save
from nnasync.suites.fuzz.nnm_fields import changed_description
from nnasync.suites.fuzz.onnx_fields import changed_fields
from tests.fuzz.attempts import Finding, Outcome
from tests.fuzz.fuzz_files import attempt, files_in, main, mutated, one
from tests.importers.onnx.files import FLOAT, message, node, written
from tests.importers.tflite_files import Op, T, tflite_file


@pytest.fixture
def seed(tmp_path: Path) -> Path:
    """A small file of two operators."""
    weights = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensors = [T("FLOAT32", (1, 4)), T("FLOAT32", (3, 4), weights), *[T("FLOAT32", (1, 3))] * 2]
    options = {"FusedActivationFunction": 0}
    ops = [
        Op("FULLY_CONNECTED", (0, 1, -1), (2,), "FullyConnectedOptions", options),
        Op("RELU", (2,), (3,)),
    ]
    path = tmp_path / "seed.tflite"
    path.write_bytes(tflite_file(tensors, ops, [0], [3]))
    return path


def test_a_run_of_a_seed_is_always_the_same() -> None:
    data = bytes(range(256)) * 4
    first, again, other = (mutated(data, random.Random(n)) for n in (3, 3, 4))
    assert first == again != other


def test_what_is_not_changed_runs(seed: Path) -> None:
    assert files_in([str(seed.parent)]) == [seed]
    assert attempt(seed, runs=True) is Outcome.RAN


@pytest.mark.parametrize("runs", [False, True])
def test_changed_files_load_or_are_refused(seed: Path, tmp_path: Path, runs: bool) -> None:
    folder = tmp_path / "changed"
    folder.mkdir()
    found = {one([seed], folder, random.Random(n), runs=runs) for n in range(40)}
    assert {Outcome.NOT_LEGAL, Outcome.RAN} <= found


def test_too_much_memory_is_a_finding(seed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    amounts = iter((0, 4 << 30))
    monkeypatch.setattr("tests.fuzz.fuzz_files.peak_bytes", lambda: next(amounts))
    with pytest.raises(Finding, match="took 4096 MiB of memory"):
        attempt(seed, runs=False)


def test_the_command_repeats_one_run(seed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "5", str(seed)]) == 0
    assert capsys.readouterr().out.strip() in {outcome.value for outcome in Outcome}


def test_changed_fields_of_onnx_files(tmp_path: Path) -> None:
    graph = message(
        [node("Gemm", ["x", "w"], ["v"]), node("Relu", ["v"], ["y"])],
        [("x", FLOAT, (2, 3))],
        [("y", FLOAT, (2, 4))],
        {"w": np.ones((3, 4), np.float32)},
    )
    (tmp_path / "changed").mkdir()
    path = written(tmp_path, graph)
    changed = {changed_fields(path.read_bytes(), random.Random(n)) for n in range(20)}
    assert len(changed) > 15
    found = {one([path], tmp_path / "changed", random.Random(n), runs=True) for n in range(60)}
    assert {Outcome.NOT_LEGAL, Outcome.RAN} <= found


def test_changed_descriptions_of_nnm_files(tmp_path: Path) -> None:
    graph = message(
        [node("Gemm", ["x", "w"], ["y"])],
        [("x", FLOAT, (2, 3))],
        [("y", FLOAT, (2, 4))],
        {"w": np.ones((3, 4), np.float32)},
    )
    path = tmp_path / "net.nnm"
    save(translate(written(tmp_path, graph)), path)
    (tmp_path / "changed").mkdir()
    changed = {changed_description(path.read_bytes(), random.Random(n)) for n in range(20)}
    assert len(changed) > 15
    found = {one([path], tmp_path / "changed", random.Random(n), runs=True) for n in range(60)}
    assert {Outcome.NOT_LEGAL, Outcome.RAN} <= found
