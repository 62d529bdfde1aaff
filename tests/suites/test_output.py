"""Where suites' results go, whatever ends the suite."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from xml.etree import ElementTree as Xml

import anyio
import pytest

from nnasync.cli import main
from nnasync.cli.suite.output import add_output_options, open_output, run_suite
from nnasync.errors import InvalidArgument
from nnasync.suites import Gathering, Standing, read_suite, write_suite
from tests.suites.samples import result, row


def arguments(*words: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_output_options(parser)
    given = [str(word) for word in words]
    return parser.parse_args(given, argparse.Namespace(words=["suite", "benchmark", *given]))


def all_files(folder: Path) -> list[object]:
    names = ("json", "html", "junit")
    return [word for name in names for word in (f"--{name}", folder / f"a.{name}")]


async def two_rows(gathering: Gathering) -> None:
    gathering.expected = 2
    gathering.add(row())
    gathering.step("the second one")
    gathering.add(row(Standing.SKIPPED, "words"))


def test_all_files_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_suite("benchmark", arguments(*all_files(tmp_path)), two_rows) == 0
    found = read_suite(tmp_path / "a.json")
    assert found.rows == (row(), row(Standing.SKIPPED, "words"))
    assert found.command.startswith("nnasync suite benchmark --json ")
    assert not found.is_partial
    assert {"processor", "cores", "system"} <= set(found.machine)
    assert {"nnasync", "python", "numpy"} <= set(found.versions)
    assert "words" in (tmp_path / "a.html").read_text()
    assert Xml.parse(tmp_path / "a.junit").getroot().get("tests") == "2"
    assert "digits" in capsys.readouterr().out


async def one_failure(gathering: Gathering) -> None:
    gathering.add(row(Standing.FAILURE))


def test_a_failure_is_the_exit_code() -> None:
    assert run_suite("benchmark", arguments(), one_failure) == 1


async def interrupted(gathering: Gathering) -> None:
    gathering.add(row())
    signal.raise_signal(signal.SIGINT)
    await anyio.sleep_forever()


def test_ctrl_c_leaves_a_partial_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_suite("benchmark", arguments(*all_files(tmp_path)), interrupted) == 130
    found = read_suite(tmp_path / "a.json")
    assert (found.is_partial, found.rows) == (True, (row(),))
    assert "ended before its time" in capsys.readouterr().out
    assert len(list(tmp_path.iterdir())) == 3


async def broken(gathering: Gathering) -> None:
    gathering.add(row())
    raise KeyError("mine")


def test_an_error_leaves_a_partial_result(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="mine"):
        run_suite("benchmark", arguments(*all_files(tmp_path)), broken)
    assert read_suite(tmp_path / "a.json").is_partial


async def refused(gathering: Gathering) -> None:
    raise InvalidArgument("no such model")


def test_an_error_before_any_row_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidArgument, match="no such model"):
        run_suite("benchmark", arguments(*all_files(tmp_path)), refused)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""


def test_one_file_that_cannot_be_written_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace = os.replace

    def full(source: Path, target: Path) -> None:
        if target.suffix == ".html":
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match=r"No space left on device: .*a\.html"):
        run_suite("benchmark", arguments(*all_files(tmp_path)), two_rows)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.junit"]
    assert "words" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("--html", "absent/a.html"), "there is no folder .*absent"),
        (("--json", "."), r"\. is a folder; name a file"),
        (("--json", "a", "--junit", "./a"), "--json, --junit: two of these name the same file"),
        (("--compare", "crash.json"), "of the suite crash, not of benchmark"),
    ],
)
def test_output_that_cannot_be_is_told_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], match: str
) -> None:
    monkeypatch.chdir(tmp_path)
    gathering = Gathering("crash", "nnasync suite crash")
    write_suite(Path("crash.json"), gathering.result())
    with pytest.raises(InvalidArgument, match=match):
        open_output("benchmark", arguments(*words))


def test_an_older_result_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError):
        open_output("benchmark", arguments("--compare", "absent.json"))


def test_report_writes_files_of_an_older_run(tmp_path: Path) -> None:
    write_suite(tmp_path / "a.json", result(row()))
    words = [str(word) for word in all_files(tmp_path)[2:]]
    assert main(["suite", "report", str(tmp_path / "a.json"), *words]) == 0
    assert (tmp_path / "a.html").exists()
    assert (tmp_path / "a.junit").exists()
