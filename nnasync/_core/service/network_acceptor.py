"""The server for clients on other machines: each has to prove that it has the key.

Until then a connection has ten seconds, is read in pieces of a fixed size, and gives way to newer
ones where sixteen are amid their handshakes (`service.connections`); shares and limits are those of
clients of the own machine after that. An address stands for the process of a client.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc

from nnasync._core.drivers.service.network_source import (
    host_and_port,
    is_loopback,
    keep_alive,
    key_of,
)
from nnasync._core.service.connections import ClientConnections
from nnasync._core.service.limits import Limits
from nnasync._core.service.network_session import NetworkSession
from nnasync._core.service.rate_limit import ClientBuckets
from nnasync._core.wire.handshake import WITHIN_S, Handshake, Steps
from nnasync._core.wire.tls_layer import TlsLayer, server_context
from nnasync.device import Device
from nnasync.errors import DeviceUnavailable, GeneralFailure, InvalidArgument, NNError

logger = logging.getLogger(__name__)

_BACKLOG = 32
_PAUSE_S = 0.1


class Guard:
    """Checks what a client has to prove, and encrypts its connection."""

    def __init__(
        self,
        key: bytes | str | os.PathLike[str] | None = None,
        certificate: str | os.PathLike[str] | None = None,
        private_key: str | os.PathLike[str] | None = None,
    ) -> None:
        """Raises InvalidArgument for a key or files that cannot be used."""
        self.key = key_of(key)
        self._tls: tuple[ssl.SSLContext, bytes] | None = None
        if certificate is not None:
            own_key = None if private_key is None else Path(private_key)
            self._tls = server_context(Path(certificate), own_key)
        elif private_key is not None:
            raise InvalidArgument(f"{private_key}: a private key needs its certificate")

    def layer(self) -> TlsLayer | None:
        """Returns what encrypts one connection; None where that is not asked for."""
        if self._tls is None:
            return None
        context, own = self._tls
        return TlsLayer(context, is_server=True, own=own)


class _Arrival:
    """A connection from an address, from its first moment on (`connections.ClientConnection`)."""

    def __init__(self, sock: socket.socket, address: str) -> None:
        self.socket = sock
        self.address = address
        self.session: NetworkSession | None = None

    @property
    def is_greeted(self) -> bool:
        return self.session is not None and self.session.is_greeted

    @property
    def has_asked(self) -> bool:
        return self.session is not None and self.session.has_asked

    def disconnect(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # It has gone by itself.


@asynccontextmanager
async def listening_at(address: str, guard: Guard) -> AsyncIterator[socket.socket]:
    """Opens a socket that listens at "tcp://HOST:PORT"; port 0 stands for a free one.

    Raises InvalidArgument where nobody can listen, or a key is missing: other machines can come
    there. Raises DeviceUnavailable where somebody listens already.
    """
    host, port = host_and_port(address)
    if not guard.key and not is_loopback(host):
        raise InvalidArgument(
            f"{address} can be reached from other machines: a key is needed, such as "
            "`openssl rand -hex 32` writes"
        )
    try:
        family, kind, proto, _, where = (
            await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )[0]
        sock = socket.socket(family, kind, proto)
    except OSError as error:
        raise InvalidArgument(f"{address}: nobody can listen there: {error}") from error
    with sock:
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(where)
            sock.listen(_BACKLOG)
            sock.setblocking(False)
        except OSError as error:
            raise DeviceUnavailable(f"{address}: nobody can listen there: {error}") from error
        yield sock


def address_of(listener: socket.socket) -> str:
    """Returns the address at which a socket listens, as clients write it."""
    host, port = listener.getsockname()[:2]
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


async def serve_network(
    device: Device, listener: socket.socket, guard: Guard, limits: Limits
) -> None:
    """Serves a device to everyone who connects and has the key, until cancelled."""
    connections = ClientConnections(limits.clients)
    buckets = ClientBuckets()

    async def attend(arrival: _Arrival) -> None:
        try:
            await _attended(device, arrival, guard, limits, buckets)
        except Exception:
            logger.exception("the session of a client failed")
        finally:
            connections.leave(arrival)
            arrival.socket.close()

    async with anyio.create_task_group() as tasks:
        while True:
            await anyio.wait_readable(listener)
            try:
                sock, where = listener.accept()
            except (BlockingIOError, ConnectionError):
                continue
            except OSError as error:
                # No descriptors left; sessions that end give some back.
                logger.warning("a client cannot be taken in: %s", error)
                await anyio.sleep(_PAUSE_S)
                continue
            origin = int(ipaddress.ip_address(where[0].partition("%")[0]))
            if not connections.has_room(origin):
                logger.warning(
                    "a client at %s is turned away (%d clients)", where[0], len(connections)
                )
                sock.close()
                continue
            arrival = _Arrival(sock, where[0])
            connections.come(arrival, origin)
            tasks.start_soon(attend, arrival)


async def _attended(
    device: Device, arrival: _Arrival, guard: Guard, limits: Limits, buckets: ClientBuckets
) -> None:
    """Lets a client in, and serves it until its connection ends."""
    sock, tls = arrival.socket, guard.layer()
    sock.setblocking(False)
    keep_alive(sock)
    handshake = Handshake(guard.key, tls)
    try:
        with anyio.fail_after(WITHIN_S):
            await _shaken(sock, handshake, handshake.service())
    except (OSError, NNError) as error:
        logger.info("a client was not let in: %s", error)
        return
    arrival.session = NetworkSession(
        device, sock, limits, tls=tls, buckets=buckets, name=arrival.address
    )
    await arrival.session.run()


async def _shaken(sock: socket.socket, handshake: Handshake, steps: Steps) -> None:
    """Makes a handshake; raises OSError, TimeoutError among them, and GeneralFailure."""
    data: bytes | None = None
    try:
        while True:
            wanted = steps.send(data)  # type: ignore[arg-type]  # None begins it.
            await _sent(sock, handshake.to_send())
            await anyio.wait_readable(sock)
            data = sock.recv(wanted)
            if not data:
                raise GeneralFailure("it ended the connection amid the handshake")
    except StopIteration:
        await _sent(sock, handshake.to_send())


async def _sent(sock: socket.socket, data: bytes) -> None:
    while data:
        try:
            data = data[sock.send(data) :]
        except BlockingIOError:
            await anyio.wait_writable(sock)
