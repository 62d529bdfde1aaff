"""`nnasync suite crash` and `nnasync suite soak` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnasync.cli import main
from nnasync.suites import Standing, read_suite
from tests.suites.crash.rig import DEVICES, small_networks


def test_a_mode_is_run_on_each_device_and_its_result_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_networks(tmp_path, 1)
    file = tmp_path / "crash.json"
    words = ["suite", "crash", "model-loading-stress", "--models", str(tmp_path), "--scale", "1e-6"]
    words += ["--device", "nnasync-reference", "--device", DEVICES + "right", "--json", str(file)]
    assert main(words) == 0
    result = read_suite(file)
    subjects = ["answers in quiet", "model-loading-stress: 1 client"]
    assert [(row.device, row.subject) for row in result.rows] == [
        (device, subject)
        for device in ("nnasync-reference", DEVICES + "right")
        for subject in subjects
    ]
    assert result.standing is Standing.SUCCESS
    assert subjects[1] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["crash", "no-such-mode"], "there is no mode no-such-mode; there are: parallel-inf"),
        (["crash", "--models", "/no/such/folder"], "--models /no/such/folder is no folder"),
        (["soak", "--models", "/no/such/folder"], "--models /no/such/folder is no folder"),
    ],
)
def test_what_is_not_there_is_told(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["suite", *words]) != 0
    assert told in capsys.readouterr().err


def test_a_folder_without_networks_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["suite", "crash", "--models", str(tmp_path)]) != 0
    assert "has no file with .nnm, .tflite, .onnx" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["crash", "--scale", "0"], ["soak", "--hours", "nan"]])
def test_times_are_positive(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["suite", *words])
    assert "is not a positive number" in capsys.readouterr().err
