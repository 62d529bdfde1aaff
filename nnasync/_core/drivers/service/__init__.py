"""Devices in processes of their own, here or on other machines: the client's half.

    device = await connect(path)              # `nnasync device-service --socket PATH` runs there
    device = await isolate("litert-cpu")      # a process is started for it
    device = await connect("tcp://10.0.0.5:7007", key="key.txt", ca="ca.pem")  # another machine

Each is an ordinary Device. When its process dies, every pending call ends with DeviceDied and
prepared models stay dead. A process that was started is started again at once, a socket is
connected again by the next compilation.
"""

from __future__ import annotations

import os

from nnasync._core.arguments import check_kind, check_number, path_of
from nnasync._core.drivers.service.child import Address, Child
from nnasync._core.drivers.service.device import ServiceDevice
from nnasync._core.drivers.service.heartbeat import HANG_AFTER_S
from nnasync._core.drivers.service.network_device import NetworkDevice
from nnasync._core.drivers.service.network_source import SCHEME, NetworkAddress, check_is_no_address
from nnasync.errors import InvalidArgument

__all__ = [
    "Address",
    "Child",
    "NetworkAddress",
    "NetworkDevice",
    "ServiceDevice",
    "connect",
    "isolate",
]


async def connect(
    path: str | os.PathLike[str],
    *,
    key: bytes | str | os.PathLike[str] | None = None,
    ca: str | os.PathLike[str] | None = None,
    called: str = "",
    hang_after_s: float = HANG_AFTER_S,
) -> ServiceDevice:
    """The device that is served at a socket, or on another machine at "tcp://HOST:PORT".

    It has its own name, or the one that it is `called`: a runtime tells devices apart by names.

    Such a service has a `key`, which is given itself or as the path of a file that nobody else may
    read; with `ca`, the path of a file of certificates, the connection is encrypted, and the
    service has to be who they say. A service that gives no sign of life for `hang_after_s` while
    something is awaited of it counts as dead (0: never). Raises DeviceUnavailable where none of
    this version answers, of this user or with this key; InvalidArgument for an address that is
    none, and for a key or certificates that cannot be used.
    """
    path = path_of("path", path)
    check_kind("called", called, str, "a str")
    check_number("hang_after_s", hang_after_s, 0)
    if path.startswith(SCHEME):
        source = NetworkAddress(path, key=key, ca=ca)
        return await NetworkDevice.open(source, called=called, hang_after_s=hang_after_s)
    if key is not None or ca is not None:
        raise InvalidArgument(f"key= and ca= are for addresses such as tcp://10.0.0.5:7007: {path}")
    check_is_no_address(path)
    return await ServiceDevice.open(Address(path), called=called, hang_after_s=hang_after_s)


async def isolate(
    name: str, settings: str = "{}", *, hang_after_s: float = HANG_AFTER_S
) -> ServiceDevice:
    """A device in a process that is started for it, and again after it died.

    `settings` are options of its runtime as JSON. A process that gives no sign of life for
    `hang_after_s` while something is awaited of it is killed (0: never). Raises DeviceUnavailable
    where it does not start.
    """
    return await ServiceDevice.open(Child(name, settings), name, hang_after_s=hang_after_s)
