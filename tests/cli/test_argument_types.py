"""What arguments are is told in words, also where they are not even numbers."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import nnasync as nn
from nnasync.cli import main
from tests.rigs import doubler


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["serve", "m.tflite", "--port", "abc"], "abc is not a port, which is a number from 0"),
        (["serve", "m.tflite", "--port", "65536"], "65536 is not a port"),
        (["serve", "m.tflite", "--drain", "soon"], "soon is not a number of seconds"),
        (["live", "--port", "abc"], "abc is not a port"),
        (["run", "m.tflite", "--repeat", "twice"], "twice is not a positive number"),
        (["run", "m.tflite", "--deadline-ms", "soon"], "soon is not a finite number"),
        (["bench", "m.tflite", "--seconds", "x"], "x is not a positive number"),
        (["demo", "--seconds", "x"], "x is not a positive number"),
        (["fuzz", "--minutes", "x"], "x is not a positive number"),
        (["suite", "benchmark", "--scale", "x"], "x is not a positive number"),
        (["suite", "crash", "--scale", "nan"], "nan is not a positive number"),
        (["top", "--interval", "x"], "an interval is 0.05 to 3600 seconds"),
    ],
)
def test_what_is_no_number_is_told(
    command: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


DRIVER = Path(__file__).resolve().parents[2] / "examples/driver_package/nnasync_dense.py"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["run"], "on dense-cpu"),
        (["dump", "--plan"], "dense-cpu 1.0"),
        (["bench", "--seconds", "0.01"], "dense-cpu"),
    ],
)
def test_a_device_of_the_current_folder(
    command: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As one has it who writes a driver, and has not installed it."""
    shutil.copy(DRIVER, tmp_path / "dense_in_a_folder.py")
    nn.save(doubler(), tmp_path / "doubler.nnm")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    name, *options = command
    found = [name, "doubler.nnm", *options, "--device", "dense_in_a_folder:DenseEngine"]
    assert main(found) == 0
    assert told in capsys.readouterr().out
