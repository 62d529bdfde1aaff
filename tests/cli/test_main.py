"""The command line as a whole: help, errors in one line, exit codes."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from typing import Any, NoReturn

import pytest

import nnasync
from nnasync import cli
from nnasync.cli import main
from nnasync.errors import DeviceUnavailable, InvalidArgument


def with_command(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    class Failing:
        @staticmethod
        def add_parser(commands: Any) -> None:
            def command(_arguments: argparse.Namespace) -> NoReturn:
                raise error

            commands.add_parser("fail").set_defaults(command=command)

    monkeypatch.setattr(cli, "_COMMANDS", (Failing,))


@pytest.mark.parametrize("command", [[], ["devices"], ["run"], ["demo"]])
def test_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert "usage: nnasync" in told
    assert not command or "examples:" in told


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"nnasync {nnasync.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["run"], ["demo", "--seconds", "nan"]])
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "a.nnm", "--inputs", "x"], "nnasync run: error: .*--inputs.*mean --input[?]"),
        (["run", "a.nnm", "--inputs=x"], "nnasync run: error: .*--inputs=x.*mean --input[?]"),
        (["suite", "fuzz", "--what"], "nnasync suite: error"),
        (["verdicts", "--xyz"], "nnasync verdicts: error: unrecognized arguments: --xyz$"),
    ],
)
def test_a_misspelled_option_is_told_by_its_command(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert re.search(told, capsys.readouterr().err.strip().splitlines()[-1])


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (InvalidArgument("this is\n   wrong"), "this is wrong"),
        (DeviceUnavailable(), "DeviceUnavailable"),
        (FileNotFoundError(2, "No such file or directory", "x.nnm"), "x.nnm: No such file"),
        (ExceptionGroup("both", [ValueError("?"), InvalidArgument("inside")]), "inside"),
    ],
)
def test_expected_errors_are_one_line(
    error: Exception,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("NNASYNC_DEBUG", raising=False)
    with_command(monkeypatch, error)
    assert main(["fail"]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"nnasync: error: {line}")
    assert told.count("\n") == 1


def test_debug_shows_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNASYNC_DEBUG", "1")
    with_command(monkeypatch, InvalidArgument("wrong"))
    with pytest.raises(InvalidArgument, match="wrong"):
        main(["fail"])


def test_unexpected_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    with_command(monkeypatch, ExceptionGroup("bugs", [ZeroDivisionError("a bug")]))
    with pytest.raises(ExceptionGroup, match="bugs"):
        main(["fail"])


def test_interrupt_before_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    with_command(monkeypatch, KeyboardInterrupt())
    assert main(["fail"]) == 130


def test_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nnasync", "run", "none.nnm"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "nnasync: error: none.nnm: No such file or directory\n"
