"""`nnasync device-service`: the socket, its clients, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nnasync import errors
from nnasync._core.drivers.service import connect
from nnasync._core.service import listening
from nnasync.cli import main
from tests import rigs
from tests.service.rig import Slot

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop("One loop is enough: what differs is told apart in other files."),
]

CLIENT = """
import sys
import anyio
from nnasync._core.drivers.service import connect
from tests import rigs
from tests.service.rig import Slot

async def main():
    device = await connect(sys.argv[1])
    prepared, slots = await device.prepare_model(rigs.doubler()), [Slot() for _ in range(20)]
    for slot in slots:
        await prepared.execute(slot.request)
    print("ready", flush=True)
    while True:
        await prepared.execute(slots[0].request)

anyio.run(main)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for sockets, with a short name."""
    made = tmp_path / "s"
    made.mkdir(mode=0o700)
    return made


@contextmanager
def running(*command: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process and the first line that it prints."""
    with subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline()
        finally:
            process.kill()


@contextmanager
def serving(path: Path) -> Iterator[subprocess.Popen[str]]:
    arguments = [
        "device-service",
        "--device",
        rigs.REFERENCE,
        "--socket",
        str(path),
        "--cores",
        "1",
    ]
    with running("-m", "nnasync", *arguments) as (process, line):
        assert line == f"{rigs.REFERENCE} listens at {path}\n"
        yield process


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def test_clients_come_and_go(folder: Path) -> None:
    path = folder / "reference.socket"
    with serving(path) as process:
        first, second = await connect(path), await connect(path)
        for device in (first, second):
            prepared, slot = await device.prepare_model(rigs.doubler()), Slot()
            await prepared.execute(slot.request)
            assert slot.y.tolist() == (2 * rigs.ROW).tolist()
        await second.close()
        with pytest.raises(errors.DeviceUnavailable, match="closed"):
            await second.prepare_model(rigs.doubler())
        await first.get_status()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert not path.exists()
        with pytest.raises(errors.DeviceUnavailable, match="no driver service"):
            await first.prepare_model(rigs.doubler())
        await first.close()


async def test_a_client_that_dies_leaves_nothing(folder: Path) -> None:
    path = folder / "reference.socket"
    with serving(path) as process:
        device = await connect(path)
        prepared, slot = await device.prepare_model(rigs.doubler()), Slot()
        await prepared.execute(slot.request)
        before = descriptors(process.pid)
        with running("-c", CLIENT, str(path)) as (client, line):
            assert line == "ready\n"
            assert descriptors(process.pid) >= before + 20
            client.kill()
            client.wait()
        while descriptors(process.pid) > before:
            await prepared.execute(slot.request)
        await device.close()


async def test_a_second_service_and_a_stale_socket(folder: Path) -> None:
    path = folder / "reference.socket"
    with serving(path) as process:
        with pytest.raises(errors.DeviceUnavailable, match="already"), listening(path):
            pass
        process.kill()
        process.wait()
    assert path.exists()
    with serving(path):
        device = await connect(path)
        await device.close()


def test_places_that_cannot_be(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opened = folder / "open"
    opened.mkdir(mode=0o755)
    opened.chmod(0o755)
    plain = folder / "plain"
    plain.write_text("")
    for path, match in [
        (opened / "x.socket", "open to others"),
        (plain, "no socket"),
        (plain / "x.socket", "no socket can be made"),
        (folder / ("x" * 200), "at most 107"),
    ]:
        with pytest.raises(errors.InvalidArgument, match=match), listening(path):
            pass
    assert main(["device-service", "--device", rigs.REFERENCE, "--socket", str(plain)]) == 1
    assert "no socket" in capsys.readouterr().err
    assert main(["device-service", "--device", "gpu"]) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--certificate", "nope.pem"], "cannot read nope.pem: No such file or directory"),
        (["--private-key", "x.key"], "--private-key x.key needs the --certificate"),
        (["--certificate", "pyproject.toml"], "pyproject.toml has no certificate in PEM format"),
    ],
)
def test_files_that_encrypt_nothing(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--device", rigs.REFERENCE, "--listen", "127.0.0.1:0", *arguments]
    assert main(["device-service", *given]) == 1
    assert told in capsys.readouterr().err


async def test_a_driver_that_is_not_installed_is_served(folder: Path) -> None:
    target = "nnasync._core.drivers.null:NullEngine"
    arguments = ["device-service", "--device", target, "--socket", str(folder / "null.socket")]
    with running("-m", "nnasync", *arguments) as (_, line):
        assert line == f"null listens at {folder / 'null.socket'}\n"
        device = await connect(folder / "null.socket")
        assert device.name == "null"
        await device.close()


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.socket"
    with listening(path):
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()


async def test_a_service_is_not_what_listens(folder: Path) -> None:
    path = folder / "other"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        with pytest.raises(errors.DeviceUnavailable, match="no driver service"):
            await connect(path)
