"""`nnasync live` as a command: its options, and what it says when it cannot serve."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from nnasync.cli import main


def test_a_source_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["live", "--source", str(tmp_path / "nothing.mp4"), "--port", "0"]) == 1
    assert "nothing.mp4 is no file; --source takes" in capsys.readouterr().err


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str], toy_data: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["live", "--source", "demo", "--port", port, "--data", str(toy_data)]) == 1
    assert f"127.0.0.1:{port}: Address already in use" in capsys.readouterr().err


def test_missing_packages_are_told_with_what_installs_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["live"]) == 1
    told = capsys.readouterr().err
    assert "the live page needs uvicorn: pip install 'nnasync[live]'" in told


@pytest.mark.parametrize(
    "arguments",
    [["--port", "70000"], ["--low", "9"], ["--port", "x"], ["--token", "a&b"], ["--token", "ü"]],
)
def test_wrong_options(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["live", *arguments])
    assert ended.value.code == 2


def test_a_file_that_is_no_video(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, toy_data: Path
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no video")
    arguments = ["--source", str(path), "--port", "0", "--data", str(toy_data)]
    assert main(["live", *arguments]) == 1
    assert f"cannot read {path}" in capsys.readouterr().err
