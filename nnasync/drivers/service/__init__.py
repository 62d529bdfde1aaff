"""Devices in processes of their own: the client's half.

    device = await connect(path)              # `nnasync serve --socket PATH` runs there
    device = await isolate("litert-cpu")      # a process is started for it

Either is an ordinary Device. When its process dies, every pending call ends with DeviceDied,
prepared models stay dead, and the next compilation finds a new process.
"""

from __future__ import annotations

import os

from nnasync.drivers.service.device import ServiceDevice
from nnasync.drivers.service.process import Address, Child

__all__ = ["Address", "Child", "ServiceDevice", "connect", "isolate"]


async def connect(path: str | os.PathLike[str]) -> ServiceDevice:
    """The device that is served at a socket.

    Raises DeviceUnavailable where nothing of this user and this version listens.
    """
    return await ServiceDevice.open(Address(path))


async def isolate(name: str, settings: str = "{}") -> ServiceDevice:
    """A device in a process that is started for it, and again after it died.

    `settings` are options of its runtime as JSON. Raises DeviceUnavailable where it does not start.
    """
    return await ServiceDevice.open(Child(name, settings), name)
