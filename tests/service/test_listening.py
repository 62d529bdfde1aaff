"""Where a service may listen and a client may connect, and what else can be at the path."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from nnasync import errors
from nnasync._core.drivers.service import child, connect
from nnasync._core.service import Limits, acceptor, listening, serve
from nnasync._core.wire.connection import peer_uid
from tests import rigs

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("Paths do not know the loop.")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for sockets, with a short name."""
    made = tmp_path / "s"
    made.mkdir(mode=0o700)
    return made


def a_folder(path: Path) -> None:
    path.mkdir()


def a_file(path: Path) -> None:
    path.write_text("precious")


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to(path.with_name("nothing"))


def a_link_to_a_file(path: Path) -> None:
    path.with_name("target").write_text("precious")
    path.symlink_to(path.with_name("target"))


def a_queue(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    "make",
    [a_folder, a_file, a_link_to_nothing, a_link_to_a_file, a_queue],
    ids=lambda f: f.__name__,
)
async def test_something_else_is_at_the_path(make: Callable[[Path], None], folder: Path) -> None:
    path = folder / "x"
    make(path)
    before = os.lstat(path)
    with pytest.raises(errors.InvalidArgument, match="no socket of this user"), listening(path):
        pass
    with pytest.raises(errors.DeviceUnavailable, match="no driver service"):
        await connect(path)
    assert os.lstat(path).st_ino == before.st_ino
    if make in (a_file, a_link_to_a_file):
        with open(path) as precious:  # noqa: ASYNC230  # a few bytes that are cached
            assert precious.read() == "precious"


def test_a_socket_of_another_user_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "x"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    lstat = os.lstat

    def foreign(which: Any) -> os.stat_result:
        found = list(lstat(which))
        found[4] = os.geteuid() + 1
        return os.stat_result(found)

    monkeypatch.setattr(os, "lstat", foreign)
    with pytest.raises(errors.InvalidArgument, match="no socket of this user"), listening(path):
        pass
    monkeypatch.undo()
    assert path.is_socket()


def test_a_folder_of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with (
        pytest.raises(errors.InvalidArgument, match=f"belongs to user {uid}, not"),
        listening(folder / "x"),
    ):
        pass


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702, 0o701])
def test_a_folder_that_others_may_use(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    told = pytest.raises(errors.InvalidArgument, match=f"open to others .*{mode:o}")
    with told, listening(folder / "x"):
        pass
    assert list(folder.iterdir()) == []


def test_the_longest_path(folder: Path) -> None:
    space = 107 - len(os.fsencode(folder)) - 1
    longest = folder / ("x" * space)
    with listening(longest):
        assert longest.is_socket()
    letters = folder / ("\u00e4" * (space // 2 + 1))
    for path in (folder / ("x" * (space + 1)), letters):
        with pytest.raises(errors.InvalidArgument, match="at most 107 bytes"), listening(path):
            pass


@pytest.mark.parametrize("name", ["nul\0in it", "half \ud800 a pair", ""])
def test_what_is_no_path(folder: Path, name: str) -> None:
    with pytest.raises(errors.InvalidArgument), listening(folder / name):
        pass


@pytest.mark.parametrize("name", ["nul\0in it", "half \ud800 a pair", "", "x" * 108, "/"])
async def test_what_a_client_cannot_connect_to(name: str) -> None:
    with pytest.raises(errors.DeviceUnavailable, match="no driver service"):
        await connect(name)


def test_a_path_that_somebody_else_took_is_not_removed(folder: Path) -> None:
    path = folder / "x"
    with listening(path):
        path.rename(folder / "old")
        path.write_text("precious")
    assert path.read_text() == "precious"


async def test_a_service_of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.geteuid() + 1
    monkeypatch.setattr(child, "peer_uid", lambda _: uid)
    told = pytest.raises(errors.DeviceUnavailable, match=f"is of user {uid}")
    with listening(folder / "x"), told:
        await connect(folder / "x")


async def test_a_client_of_another_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, path = peer_uid, folder / "x"
    async with rigs.runtime(rigs.REFERENCE) as runtime, anyio.create_task_group() as tasks:
        with listening(path) as listener:
            tasks.start_soon(serve, runtime.devices[0], listener, Limits())
            monkeypatch.setattr(acceptor, "peer_uid", lambda sock: real(sock) + 1)
            with pytest.raises(errors.DeviceUnavailable, match="before it served"):
                await connect(path)
            monkeypatch.undo()
            device = await connect(path)
            assert device.name == rigs.REFERENCE
            await device.close()
            tasks.cancel_scope.cancel()


async def test_more_clients_than_there_may_be(folder: Path) -> None:
    path = folder / "x"
    async with rigs.runtime(rigs.REFERENCE) as runtime, anyio.create_task_group() as tasks:
        with listening(path) as listener:
            tasks.start_soon(serve, runtime.devices[0], listener, Limits(clients=1))
            first = await connect(path)
            with pytest.raises(errors.DeviceUnavailable, match="before it served"):
                await connect(path)
            await first.get_status()
            await first.close()
            tasks.cancel_scope.cancel()
