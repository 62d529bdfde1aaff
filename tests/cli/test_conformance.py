"""`nnasync conformance`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nnasync._core import validation
from nnasync._core.drivers import DRIVERS
from nnasync.cli import conformance, main
from tests.conformance.small_cases import addition, impossible, quantized_sum, rectified, write
from tests.installing import install, installing

REFERENCE = "nnasync-reference"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "a.jsonl", [addition(), quantized_sum(), impossible()])
    write(tmp_path / "b.jsonl.gz", [rectified(version="V1_2")])
    return tmp_path


ONLY_ADD = """
from nnasync.devices import ReferenceEngine
from nnasync.hal import OperationType

class OnlyAdd(ReferenceEngine):
    name = "only-add"

    def supported_operations(self, model):
        return [each.type == OperationType.ADD for each in model.main.operations]

def make():
    return OnlyAdd()
"""


def call(folder: Path, *options: str, device: str = REFERENCE) -> int:
    return main(["conformance", str(folder), "--device", device, *options])


def rows(text: str) -> dict[str, list[str]]:
    """The rows of the printed tables by their first cell."""
    cells = [[cell for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]
    return {row[0]: [cell.strip() for cell in row[1:]] for row in cells if len(row) > 1}


def test_counts_per_operation(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(folder, "--jobs", "1") == 0
    told = rows(capsys.readouterr().out)
    assert told["ADD"] == ["3", "0", "0", "0"]
    assert told["RELU"] == ["1", "0", "0", "0"]
    assert told["all cases"] == ["4", "0", "0", "0"]
    assert told["as given, sync"] == ["3", "0", "0"]
    assert told["signed twin, sync"] == ["2", "0", "0"]


def test_all_paths_with_timing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(folder, "--jobs", "1", "--path", "all", "--timing") == 0
    told = rows(capsys.readouterr().out)
    for path in ("sync", "async", "fenced", "burst", "cached", "runtime"):
        assert told[f"as given, {path}"] == ["3", "0", "0"]
        assert told[f"as given, {path}, measured"] == ["3", "0", "0"]


def test_failures_are_told_and_exit_with_1(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "c.jsonl", [addition(f"wrong_{n}", wrong=1) for n in range(5)])
    assert call(folder, "--jobs", "2") == 1
    told = capsys.readouterr().out
    assert rows(told)["ADD"][:2] == ["3", "5"]
    lines = [line for line in told.splitlines() if "wrong_" in line]
    assert len(lines) == 3
    assert all(line.startswith("ADD: c.jsonl: wrong_") for line in lines)
    difference = "as given, sync: output 0 'y': 1 of 4 differ, the first at [1, 1]: 24, expected 25"
    assert all(difference in line for line in lines)
    assert "... and 2 more, which --json lists" in told
    assert f"{REFERENCE}: 4 passed, 5 failed, 0 unsupported" in told


def test_json(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / "c.jsonl", [addition("wrong", wrong=1)])
    result = tmp_path / "result.json"
    assert call(folder, "--jobs", "1", "--json", str(result)) == 1
    data: dict[str, Any] = msgspec.json.decode(result.read_bytes())
    assert data["device"] == REFERENCE
    assert data["cases"] == {"passed": 4, "failed": 1, "unsupported": 0, "known_gaps": 0}
    assert [failure["name"] for failure in data["failures"]] == ["wrong"]
    assert data["duration_s"] >= 0


def test_known_gaps_do_not_fail(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gaps = {"wrong*": "it never adds up", "relu*": "was broken once"}
    driver = msgspec.structs.replace(DRIVERS["nnasync-reference"], known_gaps=gaps)
    monkeypatch.setitem(DRIVERS, "nnasync-reference", driver)
    write(folder / "c.jsonl", [addition("wrong", wrong=1)])
    assert call(folder, "--jobs", "1") == 0
    told = capsys.readouterr().out
    assert rows(told)["ADD"] == ["3", "0", "0", "1"]
    assert "known gap: wrong: it never adds up" in told
    assert "relu*: listed as a known gap, but passes" in told


def test_a_device_that_computes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(folder, "--jobs", "1", device="null") == 1
    assert rows(capsys.readouterr().out)["RELU"][:2] == ["0", "1"]


def test_operations_of_which_no_case_is_taken_are_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "package"
    install(source, {"only-add": "only:make"}, {"only": ONLY_ADD})
    with installing(source):
        assert call(folder, "--jobs", "1", device="only-add") == 0
    told = capsys.readouterr().out
    assert rows(told)["ADD"] == ["3", "0", "0", "0"]
    assert "RELU" not in rows(told)
    assert "no case is taken of: RELU" in told.splitlines()


def test_selection(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(folder, "--jobs", "1", "--spec", "re*") == 0
    assert rows(capsys.readouterr().out)["all cases"][0] == "1"
    for text in ("1.2", "V1_2"):
        assert call(folder, "--jobs", "1", "--version", text) == 0
        assert rows(capsys.readouterr().out)["all cases"][0] == "1"
    assert call(folder / "a.jsonl", "--jobs", "1") == 0
    assert rows(capsys.readouterr().out)["all cases"][0] == "3"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--spec", "none*"], "no case in"),
        (["--version", "none"], "no case in"),
    ],
)
def test_nothing_selected(
    folder: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(folder, "--jobs", "1", *options) == 1
    assert message in capsys.readouterr().err


def test_expected_errors(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(folder, device="nothing") == 1
    assert "no device 'nothing'; there are: litert-cpu" in capsys.readouterr().err
    assert call(folder / "none") == 1
    assert "no case files" in capsys.readouterr().err
    (folder / "c.jsonl").write_text("{}\n")
    for jobs in ("1", "2"):
        assert call(folder, "--jobs", jobs) == 1
        assert "c.jsonl:1: not a conformance case" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [["--jobs", "0"], ["--version", "2.0"], ["--path", "pigeon"], ["--jobs", "x"]],
)
def test_wrong_arguments(
    folder: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        call(folder, *options)
    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["conformance", "--help"])
    told = capsys.readouterr().out
    assert "examples:" in told
    assert "{async,sync,fenced,burst,cached,runtime,all}" in told


def test_progress(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conformance, "_TOLD_EVERY", 2)
    assert call(folder, "--jobs", "1") == 0
    told = capsys.readouterr().err.splitlines()
    assert told == ["2 cases, 0 failed, 0 unsupported", "4 cases, 0 failed, 0 unsupported"]


def test_progress_on_a_terminal(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert call(folder, "--jobs", "1") == 0
    told = capsys.readouterr().err
    assert told.startswith("\r1 cases, 0 failed, 0 unsupported")
    assert told.endswith("\r")


HANGS_AT_ADD = """
import os

from nnasync.devices import ReferenceEngine
from nnasync.hal import OperationType

class HangsAtAdd(ReferenceEngine):
    name = "hangs-at-add"

    def compile(self, model, *arguments):
        if any(each.type == OperationType.ADD for each in model.main.operations):
            os.read(os.pipe()[0], 1)
        return super().compile(model, *arguments)
"""


def test_interrupted_run_tells_what_it_has(tmp_path: Path) -> None:
    cases = [*(rectified(f"relu_{n}") for n in range(500)), addition("add_1"), addition("add_2")]
    write(tmp_path / "many.jsonl", cases)
    source = tmp_path / "package"
    install(source, {"hangs-at-add": "hangs:HangsAtAdd"}, {"hangs": HANGS_AT_ADD})
    command = [sys.executable, "-m", "nnasync", "conformance", str(tmp_path / "many.jsonl")]
    with (
        installing(source),
        subprocess.Popen(
            [*command, "--device", "hangs-at-add", "--jobs", "2"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        ) as process,
    ):
        assert process.stderr is not None
        assert process.stderr.readline() == "500 cases, 0 failed, 0 unsupported\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the workers get it too
        told, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert int(rows(told)["all cases"][0]) == 500


# -- the HAL suite


def hal(*options: str, device: str = REFERENCE) -> int:
    return main(["conformance", "--suite", "hal", "--device", device, *options])


def test_hal_suite(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    assert hal("--only", "basics", "--json", str(result)) == 0
    told = capsys.readouterr().out
    passed = int(rows(told)["basics"][0])
    assert passed > 10
    assert rows(told)["all checks"] == [str(passed), "0", "0"]
    assert f"{REFERENCE}: {passed} passed, 0 failed, 0 skipped" in told
    data: dict[str, Any] = msgspec.json.decode(result.read_bytes())
    assert data["groups"] == {"basics": {"passed": passed, "failed": 0, "skipped": 0}}
    assert data["failures"] == []


def test_hal_suite_with_cases(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hal("--only", "requests/sync/add_float*", "--cases", str(folder)) == 0
    assert int(rows(capsys.readouterr().out)["requests"][0]) > 10


def test_hal_suite_with_a_case_that_is_to_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a.jsonl", [impossible()])
    assert hal("--only", "*/*add_impossible*", "--cases", str(tmp_path)) == 0
    told = rows(capsys.readouterr().out)
    assert told["requests"] == ["4", "0", "0"]
    assert told["all checks"] == ["4", "0", "0"]


def test_hal_suite_tells_failures_and_what_it_skipped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "validate_priority", lambda priority: None)
    assert hal("--only", "models/priority/[fI]*") == 1
    told = capsys.readouterr().out
    failed = int(rows(told)["models"][1])
    assert failed > 2
    wanted = "must be refused with InvalidArgument, but is taken"
    assert f"models/priority/float network: priority -1: {wanted}" in told
    assert hal("--only", "caching/no caching/*") == 0
    assert "caching: 1 skipped: the device has a compilation cache" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--spec", "x"], "--spec is not for --suite hal"),
        (["cases/"], "CASES_DIR is not for --suite hal; --cases names a folder of cases"),
        (["--timing"], "--timing is not for --suite hal"),
        (["--only", "nothing"], "no check of the HAL suite is called 'nothing'"),
        (["--cases", "nowhere/"], "no case files"),
    ],
)
def test_hal_suite_refuses(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hal(*options) == 1
    assert message in capsys.readouterr().err


def test_cases_take_no_options_of_the_hal_suite(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(folder, "--only", "basics") == 1
    assert "--only is not for --suite cases" in capsys.readouterr().err


def test_the_cases_that_come_with_nnasync_are_the_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["conformance", "--device", REFERENCE, "--spec", "abs", "--jobs", "1"]) == 0
    assert re.search(r"[1-9]\d* passed, 0 failed, 0 unsupported", capsys.readouterr().out)
