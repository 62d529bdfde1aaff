"""The server: takes in clients, each with a session of its own."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

import anyio
import anyio.abc
import msgspec

from nnasync._core.arguments import check_kind, path_of, told
from nnasync._core.drivers.service.network_source import SCHEME, check_is_no_address
from nnasync._core.service.client_session import Session
from nnasync._core.service.connections import ClientConnections
from nnasync._core.service.limits import Limits
from nnasync._core.service.listening import listening
from nnasync._core.service.network_acceptor import Guard, address_of, listening_at, serve_network
from nnasync._core.service.process_resources import most_descriptors
from nnasync._core.service.rate_limit import ClientBuckets
from nnasync._core.wire.connection import peer_pid, peer_uid
from nnasync.device import Device
from nnasync.errors import InvalidArgument
from nnasync.hal import Priority

logger = logging.getLogger(__name__)

_PAUSE_S = 0.1
_OWN_DESCRIPTORS = 256
_LEAST_DESCRIPTORS = 128


async def serve_at(
    device: Device,
    path: str | os.PathLike[str],
    *,
    key: bytes | str | os.PathLike[str] | None = None,
    certificate: str | os.PathLike[str] | None = None,
    private_key: str | os.PathLike[str] | None = None,
    max_priority: Priority = Priority.HIGH,
    task_status: anyio.abc.TaskStatus[str] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve a device at a Unix socket to processes of this user, until cancelled.

    They have it by `nn.connect(path)`. With `await tasks.start(nn.serve, device, path)` the socket
    is there when that returns, which is where it is. The folder of the path is made if it is
    missing. No execution of a client gets a priority above `max_priority`, whatever the client asks
    for.

    A path like "tcp://HOST:PORT" is for clients on other machines, which need the same `key`: it is
    given itself or as the path of a file that nobody else may read, and may be missing for the own
    machine alone. With files of a `certificate` and its `private_key` connections are encrypted.
    Port 0 stands for a free one.

    Raises InvalidArgument for a path that cannot be a socket or a folder that others may enter, for
    an address without a key, and for files that cannot be used; DeviceUnavailable where another
    service listens.
    """
    if not callable(getattr(device, "prepare_model", None)):
        raise InvalidArgument(f"device is {told(device)}, it must be one, as rt.device(name) gives")
    check_kind("max_priority", max_priority, Priority, "a Priority")
    path = path_of("path", path)
    limits = Limits(priority=max_priority)
    if path.startswith(SCHEME):
        guard = Guard(key, certificate, private_key)
        async with listening_at(path, guard) as listener:
            task_status.started(address_of(listener))
            await serve_network(device, listener, guard, _within_descriptors(limits))
    if key is not None or certificate is not None or private_key is not None:
        raise InvalidArgument(f"keys are for addresses such as tcp://0.0.0.0:7007, not for {path}")
    check_is_no_address(path)
    with listening(Path(path)) as listener:
        task_status.started(path)
        await serve(device, listener, limits)


async def serve(device: Device, listener: socket.socket, limits: Limits) -> None:
    """Serves a device to every process of this user that connects, until cancelled."""
    connections = ClientConnections(limits.clients)
    buckets = ClientBuckets()
    limits = _within_descriptors(limits)

    async def attend(session: Session) -> None:
        try:
            await session.run()
        except Exception:
            logger.exception("the session of a client failed")
        finally:
            connections.leave(session)

    async with anyio.create_task_group() as tasks:
        while True:
            await anyio.wait_readable(listener)
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                # No descriptors left; sessions that end give some back.
                logger.warning("a client cannot be taken in: %s", error)
                await anyio.sleep(_PAUSE_S)
                continue
            uid, pid = peer_uid(sock), peer_pid(sock)
            if uid != os.geteuid() or not connections.has_room(pid):
                logger.warning(
                    "a client of user %d is turned away (%d clients)", uid, len(connections)
                )
                sock.close()
                continue
            name = f"process {pid}"
            session = Session(device, sock, limits, trusts=False, buckets=buckets, name=name)
            connections.come(session, pid)
            tasks.start_soon(attend, session)


async def serve_connected(device: Device, sock: socket.socket, limits: Limits) -> None:
    """Serve a device to the process at the other end, which is trusted, until it closes."""
    await Session(device, sock, limits, trusts=True).run()


def _within_descriptors(limits: Limits) -> Limits:
    """Returns the limits with fewer descriptors, so that all clients together leave some."""
    share = (most_descriptors() - _OWN_DESCRIPTORS) // limits.clients
    return msgspec.structs.replace(
        limits, descriptors=min(limits.descriptors, max(share, _LEAST_DESCRIPTORS))
    )
