"""A service on another machine, by its address: how a client connects, and when again.

An address that did not answer is tried again after a quarter of a second at the earliest, then
after twice as long each time, up to four seconds; who asks meanwhile is told at once.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

from nnasync._core.drivers.service.child import Peer
from nnasync._core.wire.framing import FrameReader, Landing
from nnasync._core.wire.handshake import LEAST_KEY_BYTES, WITHIN_S, Handshake, Steps
from nnasync._core.wire.model_transfer import Offer
from nnasync._core.wire.network_connection import NetworkConnection
from nnasync._core.wire.network_models import ValueOffer
from nnasync._core.wire.tls_layer import TlsLayer, client_context
from nnasync.errors import DeviceUnavailable, InvalidArgument, NNError
from nnasync.hal import Model

SCHEME = "tcp://"
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 4.0
_NOWHERE = Landing()


def host_and_port(address: str) -> tuple[str, int]:
    """Splits "tcp://HOST:PORT" or HOST:PORT; raises InvalidArgument for anything else."""
    host, colon, port = address.removeprefix(SCHEME).rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise InvalidArgument(
            f"{address!r} is no address; one is like tcp://10.0.0.5:7007 or tcp://[::1]:7007"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    """Returns whether only processes of this machine can reach this host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def key_of(key: bytes | str | os.PathLike[str] | None) -> bytes:
    """The key that a service and its clients share: itself, or what is in a file.

    Raises InvalidArgument for one that is too short, and for a file that others may read.
    """
    if key is None:
        return b""
    content, where = (key, "the key") if isinstance(key, bytes) else (_content(Path(key)), str(key))
    if len(content) < LEAST_KEY_BYTES:
        raise InvalidArgument(
            f"{where} has {len(content)} bytes; at least {LEAST_KEY_BYTES} are needed, such as "
            "`openssl rand -hex 32` writes"
        )
    return content


def _content(path: Path) -> bytes:
    try:
        mode = path.stat().st_mode
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"the file of a key cannot be read: {error}") from error
    if mode & 0o077:
        raise InvalidArgument(
            f"{path} is open to others (mode {mode & 0o777:o}); a key is in a file of mode 600"
        )
    return content.strip()


def keep_alive(sock: socket.socket) -> None:
    """Have a connection end whose other end has gone without a word, within half a minute."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, number in (
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", 30_000),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, option, number)


class NetworkPeer(Peer):
    """A service that has proved that it has the key; nobody here can kill it."""

    def __init__(self, sock: socket.socket, tls: TlsLayer | None, round_trip_ns: int) -> None:
        super().__init__(sock)
        self._tls = tls
        self.trip_ns = round_trip_ns // 2
        """What a message took to get there."""
        self.landings: dict[int, Landing] = {}
        """Where the values of answers go, by the numbers of the calls."""

    @property
    def pid(self) -> int:
        return 0

    def connection(self, who: str, on_blocked: Callable[[], object]) -> NetworkConnection:
        """Returns what carries messages."""
        reader = FrameReader(who, lambda number, *_: self.landings.get(number, _NOWHERE))
        return NetworkConnection(self.socket, who, on_blocked, reader, self._tls)

    def offer(self, model: Model) -> Offer:
        """A model with its constants as values."""
        return ValueOffer(model)


def check_is_no_address(path: str) -> None:
    """Raise InvalidArgument for an address of another kind in the place of the path of a socket."""
    if "://" in path:
        raise InvalidArgument(
            f"{path!r} is neither the path of a socket nor an address such as tcp://10.0.0.5:7007"
        )


class NetworkAddress:
    """The address where a service listens, and the credentials that it asks for."""

    restarts = False

    def __init__(
        self,
        address: str,
        *,
        key: bytes | str | os.PathLike[str] | None = None,
        ca: str | os.PathLike[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises InvalidArgument for what is no address, key or file of certificates."""
        self._address = address
        self._host, self._port = host_and_port(address)
        self._key = key_of(key)
        self._context = None if ca is None else client_context(Path(ca))
        if not self._key and not is_loopback(self._host):
            raise InvalidArgument(
                f"{address} is on the network: a service there has a key, give it as key="
            )
        self._clock = clock
        self._lock = threading.Lock()
        self._pause_s = 0.0
        self._not_before_s = 0.0

    def open(self) -> NetworkPeer:
        """Connect; raises DeviceUnavailable where no service with this key answers."""
        with self._lock:
            wait_s = self._not_before_s - self._clock()
            if self._pause_s and wait_s > 0:
                raise DeviceUnavailable(
                    f"{self} did not answer; it is tried again in {wait_s:.2f} s at the earliest"
                )
            try:
                peer = self._opened()
            except BaseException:
                self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
                self._not_before_s = self._clock() + self._pause_s
                raise
            self._pause_s = 0.0
            return peer

    def __str__(self) -> str:
        return self._address

    def _opened(self) -> NetworkPeer:
        try:
            sock = socket.create_connection((self._host, self._port), WITHIN_S)
        except OSError as error:
            raise DeviceUnavailable(f"{self}: no driver service: {error}") from error
        try:
            sock.settimeout(WITHIN_S)
            keep_alive(sock)
            tls = None
            if self._context is not None:
                tls = TlsLayer(self._context, is_server=False, host=self._host)
            handshake = Handshake(self._key, tls)
            return NetworkPeer(sock, tls, _shake(sock, handshake, handshake.client()))
        except BaseException as error:
            sock.close()
            if isinstance(error, ssl.SSLError):
                raise DeviceUnavailable(f"{self}: no encrypted connection: {error}") from error
            if isinstance(error, OSError):
                raise DeviceUnavailable(f"{self}: no handshake: {error}") from error
            if isinstance(error, NNError):
                raise DeviceUnavailable(f"{self}: {error}") from error
            raise


def _shake(sock: socket.socket, handshake: Handshake, steps: Steps) -> int:
    """Have a handshake, which blocks; the shortest time that an answer took."""
    shortest_ns, data = int(WITHIN_S * 1e9), None
    try:
        while True:
            wanted = steps.send(data)  # type: ignore[arg-type]  # None begins it.
            sock.sendall(handshake.to_send())
            began_ns = time.monotonic_ns()
            data = sock.recv(wanted)
            shortest_ns = min(shortest_ns, time.monotonic_ns() - began_ns)
            if not data:
                raise DeviceUnavailable(
                    "the service ended the connection amid the handshake: it has another key, or "
                    "speaks with TLS where the client does not, or the other way round"
                )
    except StopIteration:
        sock.sendall(handshake.to_send())
    return shortest_ns
