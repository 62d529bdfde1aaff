"""One client on another machine: a session as any other, over frames that bring values."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any

from nnasync._core.service.client_session import Session
from nnasync._core.service.holdings import Holdings
from nnasync._core.service.limits import Limits
from nnasync._core.service.network_holdings import NetworkHoldings
from nnasync._core.service.rate_limit import ClientBuckets
from nnasync._core.wire.connection import Frame
from nnasync._core.wire.framing import FrameReader, Landing, ValueFrame
from nnasync._core.wire.messages import decode, encode
from nnasync._core.wire.network_connection import NetworkConnection
from nnasync._core.wire.network_messages import FromNetworkClient
from nnasync._core.wire.tls_layer import TlsLayer
from nnasync.device import Device
from nnasync.errors import DeviceDied, GeneralFailure, NNError

logger = logging.getLogger(__name__)


class NetworkSession(Session):
    """Serves a client that has proved that it has the key; `run` ends when the session does."""

    def __init__(
        self,
        device: Device,
        sock: socket.socket,
        limits: Limits,
        *,
        tls: TlsLayer | None = None,
        buckets: ClientBuckets | None = None,
        name: str = "",
    ) -> None:
        """`buckets` and `name` are as those of `Session`."""
        self._tls = tls
        self._network: NetworkConnection
        self._values: NetworkHoldings
        super().__init__(device, sock, limits, trusts=False, buckets=buckets, name=name)

    def send_values(
        self, message: Any, values: Sequence[memoryview], call: int, sent: Callable[[], object]
    ) -> None:
        """Sends an answer with values, which must stay as they are until `sent` is called."""
        try:
            self._network.send(encode(message), values, number=call, sent=sent)
        except DeviceDied:
            pass  # The reader sees the end as well.
        except NNError as error:
            logger.warning("a client is dropped: %s", error)
            self._network.disconnect()

    def _connected(self, sock: socket.socket) -> NetworkConnection:
        reader = FrameReader("a client", self._place, self._limits.bytes)
        self._network = NetworkConnection(sock, "a client", self._blocked, reader, self._tls)
        return self._network

    def _held(self, *, trusts: bool) -> Holdings:
        self._values = NetworkHoldings(
            self._device,
            self._limits,
            self.send,
            self._account,
            self._start,
            send_values=self.send_values,
        )
        return self._values

    def _place(self, _number: int, message: bytes, sizes: Sequence[int]) -> Landing:
        if not self.is_greeted:
            raise GeneralFailure("a client has to say hello first")
        return self._values.place(message, sizes)

    def _message(self, frame: Frame) -> Any:
        landing = frame.landing if isinstance(frame, ValueFrame) else None
        known = None if landing is None else landing.message
        return decode(frame.message, FromNetworkClient) if known is None else known
