"""`--device module:factory`: a driver is tried before it is a package."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from nnasync.cli import main
from tests.installing import EXAMPLE

TARGET = "nnasync_dense:CachingDenseEngine"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the example is the current one, and not yet on the path."""
    monkeypatch.chdir(EXAMPLE)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each not in ("", ".")])
    monkeypatch.delitem(sys.modules, "nnasync_dense", raising=False)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("more", [[], ["--isolate"]])
def test_the_hal_suite_takes_it(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command = ["conformance", "--suite", "hal", "--device", TARGET, "--only", "basics"]
    assert main([*command, *more]) == 0
    passed = re.search(r"(\d+) passed, 0 failed", capsys.readouterr().out)
    assert passed is not None
    assert int(passed[1]) > 0


@pytest.mark.usefixtures("here")
def test_random_graphs_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["randomgraph", "--device", TARGET, "--seeds", "0:4", "--size", "single"]
    assert main([*command, "--jobs", "1", "--save", str(tmp_path)]) == 0
    assert "0 failed" in capsys.readouterr().out


@pytest.mark.usefixtures("here")
def test_a_factory_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["conformance", "--suite", "hal", "--device", "nnasync_dense:Missing"]
    assert main(command) == 1
    assert "device nnasync_dense:Missing failed: AttributeError" in capsys.readouterr().err
