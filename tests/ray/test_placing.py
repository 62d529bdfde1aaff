"""A device that stands for one elsewhere, as a runtime takes it: opened with it, and closed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import anyio
import pytest

import nnasync as nn
from nnasync._core.drivers.service import NetworkAddress, NetworkDevice
from nnasync.errors import DeviceUnavailable
from nnasync.ray.device_host import DeviceHost
from tests import rigs

pytestmark = pytest.mark.anyio

KEY = b"a key that is long enough"
ACTOR = f"""
import sys
from nnasync.ray.device_host import DeviceHost

print(DeviceHost({rigs.REFERENCE!r}, {KEY!r}, 1, "127.0.0.1").address(), flush=True)
sys.stdin.read()
"""


class Placed:
    """Opens a device at an address, as one on a node is opened."""

    name = rigs.REFERENCE

    def __init__(self, address: str, key: bytes = KEY) -> None:
        self._source = NetworkAddress(address, key=key)

    async def open_device(self) -> NetworkDevice:
        return await NetworkDevice.open(self._source, self.name)


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    """The address of the service of an actor, which has a process of its own and ends with it."""
    command = [sys.executable, "-c", ACTOR]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip()
        process.kill()


async def test_a_runtime_opens_and_closes_it(host: str) -> None:
    async with nn.open_runtime(devices=[Placed(host)], options=rigs.POOL) as runtime:
        net = await runtime.compile(rigs.doubler())
        assert (await net(rigs.ROW)).tolist() == (2 * rigs.ROW).tolist()
        far = runtime.devices[0]
    with pytest.raises(DeviceUnavailable, match="closed"):
        await far.prepare_model(rigs.doubler())


async def test_one_that_cannot_be_had(host: str) -> None:
    with pytest.raises(DeviceUnavailable, match="another key"):
        async with nn.open_runtime(devices=[Placed(host, b"not the key of the host")]):
            pass


def test_a_host_without_its_device() -> None:
    host = DeviceHost("no such device", KEY, 1, "127.0.0.1")
    with pytest.raises(nn.errors.InvalidArgument, match="no such device"):
        host.address()


async def test_two_of_which_one_fails(host: str) -> None:
    """What was opened before the one that fails is closed again."""
    opened: list[NetworkDevice] = []

    class Noted(Placed):
        async def open_device(self) -> NetworkDevice:
            opened.append(await super().open_device())
            return opened[-1]

    with pytest.raises(DeviceUnavailable):
        async with nn.open_runtime(devices=[Noted(host), Placed(host, b"not the key of the host")]):
            pass
    with anyio.fail_after(rigs.GUARD_S):
        await opened[0].link.ended
