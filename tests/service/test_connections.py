"""Who gives way when a service is full: connections that were never used, a flood's own first."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync import errors
from nnasync._core.drivers.service import connect
from nnasync._core.service import Limits, acceptor, listening, serve
from nnasync._core.service.connections import MOST_UNGREETED, ClientConnections
from tests import rigs

pytestmark = pytest.mark.one_loop("Connections do not know the loop.")

HOSTILE, HONEST = 1000, 2000


class ClientConnection:
    """A connection as the rule sees it."""

    def __init__(self, *, is_greeted: bool = False, has_asked: bool = False) -> None:
        self.is_greeted, self.has_asked = is_greeted, has_asked
        self.is_gone = False

    def disconnect(self) -> None:
        self.is_gone = True


def full_of(
    connections: ClientConnections, count: int, pid: int, **state: bool
) -> list[ClientConnection]:
    """So many connections of a process, let in."""
    made = [ClientConnection(**state) for _ in range(count)]
    for connection in made:
        assert connections.has_room(pid)
        connections.come(connection, pid)
    return made


def gone(made: list[ClientConnection]) -> list[int]:
    return [number for number, connection in enumerate(made) if connection.is_gone]


def test_the_oldest_that_never_spoke_gives_way() -> None:
    connections = ClientConnections(3)
    silent = full_of(connections, 3, HOSTILE)
    assert connections.has_room(HONEST)
    assert gone(silent) == [0]
    assert len(connections) == 2


def test_a_greeting_that_nothing_follows_gives_way_to_another_process_only() -> None:
    connections = ClientConnections(3)
    idle = full_of(connections, 3, HOSTILE, is_greeted=True)
    assert not connections.has_room(HOSTILE)
    assert gone(idle) == []
    assert connections.has_room(HONEST)
    assert gone(idle) == [0]


def test_processes_that_have_one_connection_each_keep_it() -> None:
    connections = ClientConnections(3)
    made = [full_of(connections, 1, pid, is_greeted=True)[0] for pid in range(3)]
    assert not connections.has_room(HONEST)
    assert gone(made) == []


def test_who_works_keeps_the_connection() -> None:
    connections = ClientConnections(3)
    busy = full_of(connections, 3, HOSTILE, is_greeted=True, has_asked=True)
    assert not connections.has_room(HONEST)
    assert gone(busy) == []


def test_a_flood_drives_out_its_own() -> None:
    connections = ClientConnections(64)
    flood = full_of(connections, MOST_UNGREETED - 1, HOSTILE)
    honest = full_of(connections, 1, HONEST)
    more = full_of(connections, 100, HOSTILE)
    assert gone(honest) == []
    assert len(gone(flood)) == len(flood)
    assert len(connections) == MOST_UNGREETED
    for connection in (*flood, *more, *honest):
        connections.leave(connection)
    assert len(connections) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=60))
def test_there_are_never_more_than_there_may_be(comers: list[tuple[int, bool, bool]]) -> None:
    connections, all_of_them = ClientConnections(8), list[ClientConnection]()
    for pid, is_greeted, has_asked in comers:
        before = len(connections)
        if connections.has_room(pid):
            connection = ClientConnection(is_greeted=is_greeted, has_asked=has_asked)
            all_of_them.append(connection)
            connections.come(connection, pid)
        else:
            assert len(connections) == before == 8
        assert len(connections) == sum(not each.is_gone for each in all_of_them) <= 8
        assert not any(each.is_gone and each.is_greeted and each.has_asked for each in all_of_them)


# -- the service


@asynccontextmanager
async def service(path: Path, limits: Limits) -> AsyncIterator[None]:
    """A service that listens at a path."""
    async with rigs.runtime(rigs.REFERENCE) as runtime, anyio.create_task_group() as tasks:
        with listening(path) as listener:
            tasks.start_soon(serve, runtime.devices[0], listener, limits)
            yield
            tasks.cancel_scope.cancel()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a socket, in a folder with a short name."""
    folder = tmp_path / "s"
    folder.mkdir(mode=0o700)
    return folder / "x"


@pytest.mark.anyio
async def test_silent_connections_keep_no_newcomer_out(path: Path) -> None:
    async with service(path, Limits(clients=4)):
        silent = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        for each in silent:
            each.connect(str(path))
        device = await connect(path)
        assert await device.get_supported_operations(rigs.doubler()) == (True,)
        await device.close()
        for each in silent:
            each.close()


@pytest.mark.anyio
async def test_a_client_that_rested_and_was_sent_away_comes_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = iter([HOSTILE, HOSTILE, HONEST])
    monkeypatch.setattr(acceptor, "peer_pid", lambda _: next(pids, os.getpid()))
    left, leave = anyio.Semaphore(0), ClientConnections.leave

    def noted(connections: ClientConnections, connection: Any) -> None:
        leave(connections, connection)
        left.release()

    monkeypatch.setattr(ClientConnections, "leave", noted)
    async with service(path, Limits(clients=2)):
        resting, other = await connect(path), await connect(path)
        newcomer: Any = await connect(path)
        assert await newcomer.get_supported_operations(rigs.doubler()) == (True,)
        await resting.link.over
        await other.close()
        for _ in (resting, other):
            await left.acquire()
        assert await resting.get_supported_operations(rigs.doubler()) == (True,)
        for device in (newcomer, resting):
            await device.close()


@pytest.mark.anyio
async def test_who_is_at_work_is_not_sent_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = iter([HOSTILE, HOSTILE])
    monkeypatch.setattr(acceptor, "peer_pid", lambda _: next(pids, HONEST))
    async with service(path, Limits(clients=2)):
        devices = [await connect(path) for _ in range(2)]
        for device in devices:
            await device.get_status()
        with pytest.raises(errors.DeviceUnavailable, match="before it served"):
            await connect(path)
        for device in devices:
            await device.get_status()
            await device.close()
