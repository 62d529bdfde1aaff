"""Runtimes that show themselves: sockets of this user alone, and none that stay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

import nnasync as nn
from nnasync.cli.top.reading import parse, read
from nnasync.errors import InvalidArgument
from nnasync.tracing import monitored, monitors
from tests import rigs


@pytest.fixture(autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where sockets are, in a short path, as sockets want it."""
    base = tmp_path_factory.mktemp("r")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    return base / "nnasync"


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def names_in(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


@pytest.mark.anyio
async def test_a_runtime_is_there_while_its_block_runs(folder: Path) -> None:
    assert monitors() == []
    async with rigs.runtime() as rt, monitored(rt) as shown:
        net = await rt.compile(rigs.doubler(), name="doubler")
        await net(rigs.ONES)
        (found,) = monitors()
        assert found.pid == os.getpid()
        assert shown.url == f"unix:{found.socket}"
        assert [mode_of(each) for each in (folder, Path(found.socket))] == [0o700, 0o600]
        with anyio.fail_after(rigs.GUARD_S):
            text = await anyio.to_thread.run_sync(read, shown.url)
        labels = (("network", "doubler"), ("device", "nnasync-reference"), ("priority", "medium"))
        assert parse(text)["nnasync_calls_total", labels] == 1
    assert names_in(folder) == []


@pytest.mark.anyio
async def test_several_runtimes_of_a_process_have_sockets_of_their_own() -> None:
    async with rigs.runtime() as one, rigs.runtime() as two, monitored(one), monitored(two):
        assert len(monitors()) == 2


def test_what_a_killed_process_left_is_removed(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait(rigs.GUARD_S)
    folder.mkdir(mode=0o700)
    (folder / f"{gone.pid}-0.monitor").touch()
    (folder / "device.socket").touch()
    assert monitors() == []
    assert names_in(folder) == ["device.socket"]


def test_a_folder_that_others_may_enter_is_refused(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(InvalidArgument, match="nobody else may enter"):
        monitored(nn.open_runtime())


@pytest.mark.anyio
async def test_a_relative_runtime_folder_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "run")
    monkeypatch.setenv("NNASYNC_STATE_DIR", str(tmp_path / "s"))
    async with rigs.runtime() as rt, monitored(rt) as shown:
        assert shown.url.startswith(f"unix:{tmp_path}/s/run/")
