"""A device on another machine, and a network between that is cut in earnest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

import nnasync as nn
from nnasync.errors import DeviceDied, DeviceError
from tests import rigs
from tests.namespaces import Namespace, namespace
from tests.network.distance import KEY

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop("Each needs a machine of its own."),
    pytest.mark.slow,
]

HANG_AFTER_S = 0.5
PATIENCE_S = 60
OPTIONS = nn.Options(cores=1, competition_budget_ms=0, revive=True)


@contextmanager
def served(there: Namespace, folder: Path) -> Iterator[str]:
    """A service in a namespace, and its address."""
    key = folder / "key"
    key.write_bytes(KEY)
    key.chmod(0o600)
    command = ["-m", "nnasync", "device-service", "--device", rigs.REFERENCE]
    where = ["--listen", f"{there.there}:0", "--key-file", str(key)]
    process = subprocess.Popen(
        there.command(sys.executable, *command, *where), stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert "listens at" in line
            yield line.split()[-1]
        finally:
            os.kill(process.pid, signal.SIGKILL)


async def test_a_partition_in_earnest(tmp_path: Path) -> None:
    """Calls end with DeviceDied after the time of silence, and go on when the network is back."""
    with namespace() as there, served(there, tmp_path) as address:
        device = await nn.connect(address, key=KEY, hang_after_s=HANG_AFTER_S)
        with anyio.fail_after(PATIENCE_S):
            async with nn.open_runtime(devices=[device], options=OPTIONS) as runtime:
                net = await runtime.compile(rigs.doubler())
                for _ in range(2):
                    assert (await net(rigs.ROW)).tolist() == (2 * rigs.ROW).tolist()
                    there.cut()
                    with pytest.raises(DeviceDied, match=f"no sign of life for {HANG_AFTER_S} s"):
                        await net(rigs.ROW)
                    there.mend()
                    await answered(net)
        await device.close()


async def answered(net: nn.Net) -> None:
    """Call until there is an answer."""
    while True:
        try:
            assert (await net(rigs.ROW)).tolist() == (2 * rigs.ROW).tolist()
        except DeviceError:
            await anyio.lowlevel.checkpoint()
        else:
            return


async def test_a_deadline_holds_in_a_partition(tmp_path: Path) -> None:
    with namespace() as there, served(there, tmp_path) as address:
        device = await nn.connect(address, key=KEY, hang_after_s=PATIENCE_S)
        with anyio.fail_after(PATIENCE_S):
            async with nn.open_runtime(devices=[device], options=OPTIONS) as runtime:
                net = await runtime.compile(rigs.doubler())
                await net(rigs.ROW)
                there.cut()
                with pytest.raises(nn.MissedDeadline):
                    await net(rigs.ROW, deadline=nn.within(ms=50))
                there.mend()
                assert (await net(rigs.ROW)).tolist() == (2 * rigs.ROW).tolist()
        await device.close()
