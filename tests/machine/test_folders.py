"""Folders: what they hold, and whether more goes in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nnasync.machine import folders
from nnasync.machine.folders import examine_folder


def test_what_a_folder_holds(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir(0o700)
    (tmp_path / "inner" / "a").write_bytes(bytes(1000))
    (tmp_path / "b").write_bytes(bytes(24))
    os.chmod(tmp_path, 0o700)
    found = examine_folder("cache", str(tmp_path))
    assert (found.exists, found.problem, found.is_ours) == (True, "", True)
    assert (found.size_bytes, found.files) == (1024, 2)
    assert found.free_bytes
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "inner"]


def test_a_folder_that_will_be_made(tmp_path: Path) -> None:
    found = examine_folder("cache", str(tmp_path / "deeper" / "cache"))
    assert (found.exists, found.problem, found.is_ours, found.files) == (False, "", True, 0)
    assert found.free_bytes
    assert not (tmp_path / "deeper").exists()


@pytest.mark.parametrize("name", ["file", "file/cache", "loop", "loop/cache"])
def test_something_else_is_in_its_place(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    found = examine_folder("cache", str(tmp_path / name))
    assert found.problem.endswith("is no folder")


def test_a_folder_that_takes_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(dir: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders.tempfile, "TemporaryFile", full)  # type: ignore[attr-defined]
    assert examine_folder("cache", str(tmp_path)).problem == "No space left on device"


def test_a_folder_that_others_may_write(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)
    assert not examine_folder("cache", str(tmp_path)).is_ours


def test_counting_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_MOST_FILES", 3)
    for number in range(5):
        (tmp_path / f"{number}").touch()
    assert examine_folder("cache", str(tmp_path)).files == 3
