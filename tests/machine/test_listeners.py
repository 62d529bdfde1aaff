"""Who of ours listens: sockets in the folder, and ports of processes that name nnasync."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.machine.listeners import Listener, listeners
from tests.machine.rig import machine_in

UNIX_HEAD = "Num       RefCount Protocol Flags    Type St Inode Path"
TCP_HEAD = (
    "sl local_address rem_address st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode"
)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nn") as made:
        yield Path(made)


def port(address: str, state: str, inode: int) -> str:
    return (
        f"0: {address} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 {inode} 1"
    )


def test_a_service_that_lives_and_one_that_was_left_behind(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(folder / "alive one.socket"))
        alive.listen()
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(folder / "dead.socket"))
        (folder / "note.txt").touch()
        found = [each for each in listeners(str(folder)) if each.kind == "device service"]
        assert found == [
            Listener("device service", str(folder / "alive one.socket")),
            Listener("device service", str(folder / "dead.socket"), is_alive=False),
        ]


def test_monitored_runtimes_by_their_process(tmp_path: Path, folder: Path) -> None:
    for name in ("41-0.monitor", "x-0.monitor"):
        (folder / name).touch()
    line = f"0: 00000002 00000000 00010000 0001 01 99 {folder}/41-0.monitor"
    root = machine_in(tmp_path, {"proc/net/unix": f"{UNIX_HEAD}\n{line}"})
    first, second = listeners(str(folder), root)
    assert (first.pid, first.is_alive) == (41, True)
    assert (second.pid, second.is_alive) == (0, False)


@pytest.mark.parametrize(
    ("table", "address", "told", "is_open"),
    [
        ("tcp", "0100007F:1F40", "127.0.0.1:8000", False),
        ("tcp", "00000000:1F40", "0.0.0.0:8000", True),
        ("tcp6", "0" * 24 + "01000000:1F40", "[::1]:8000", False),
        ("tcp6", "0" * 16 + "FFFF00000100007F:1F40", "127.0.0.1:8000", False),
        ("tcp6", "0" * 32 + ":1F40", "[::]:8000", True),
    ],
)
def test_ports_of_our_processes(
    tmp_path: Path, table: str, address: str, told: str, is_open: bool
) -> None:
    other, established = port("00000000:0050", "0A", 8), port(address, "01", 9)
    lines = "\n".join([TCP_HEAD, port(address, "0A", 7), other, established])
    commands = {7: "python\0-m\0nnasync\0serve", 8: "nginx", 9: "nnasync\0serve"}
    files = {f"proc/{pid}/cmdline": command for pid, command in commands.items()}
    root = machine_in(tmp_path, {f"proc/net/{table}": lines, **files})
    for pid in commands:
        (tmp_path / f"proc/{pid}/fd").mkdir()
        (tmp_path / f"proc/{pid}/fd/3").symlink_to(f"socket:[{pid}]")
    assert listeners("/no/such/folder", root) == [Listener("port", told, True, is_open, 7)]


@given(st.text(max_size=80), st.text(max_size=80))
def test_whatever_tables_say_is_survived(
    tmp_path_factory: pytest.TempPathFactory, unix: str, tcp: str
) -> None:
    root = tmp_path_factory.mktemp("machine")
    (root / "proc/net").mkdir(parents=True)
    (root / "proc/net/unix").write_bytes(f"\n{unix}".encode("utf-8", "surrogatepass"))
    (root / "proc/net/tcp").write_bytes(f"\n{tcp}".encode("utf-8", "surrogatepass"))
    (root / "1.socket").touch()
    assert [each.is_alive for each in listeners(str(root), str(root))] == [False]
