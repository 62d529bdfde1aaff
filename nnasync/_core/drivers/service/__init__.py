"""Devices in processes of their own: the client's half.

    device = await connect(path)              # `nnasync device-service --socket PATH` runs there
    device = await isolate("litert-cpu")      # a process is started for it

Either is an ordinary Device. When its process dies, every pending call ends with DeviceDied and
prepared models stay dead. A process that was started is started again at once, a socket is
connected again by the next compilation.
"""

from __future__ import annotations

import os

from nnasync._core.drivers.service.child import Address, Child
from nnasync._core.drivers.service.device import ServiceDevice
from nnasync._core.drivers.service.heartbeat import HANG_AFTER_S

__all__ = ["Address", "Child", "ServiceDevice", "connect", "isolate"]


async def connect(
    path: str | os.PathLike[str], *, hang_after_s: float = HANG_AFTER_S
) -> ServiceDevice:
    """The device that is served at a socket.

    A service that gives no sign of life for `hang_after_s` while something is awaited of it counts
    as dead (0: never). Raises DeviceUnavailable where none of this user and this version listens.
    """
    return await ServiceDevice.open(Address(path), hang_after_s=hang_after_s)


async def isolate(
    name: str, settings: str = "{}", *, hang_after_s: float = HANG_AFTER_S
) -> ServiceDevice:
    """A device in a process that is started for it, and again after it died.

    `settings` are options of its runtime as JSON. A process that gives no sign of life for
    `hang_after_s` while something is awaited of it is killed (0: never). Raises DeviceUnavailable
    where it does not start.
    """
    return await ServiceDevice.open(Child(name, settings), name, hang_after_s=hang_after_s)
