"""How the two ends of a network connection make sure of one another, before any frame: pure.

The client sends a magic number and 32 random bytes, the service answers with the same. Then each
proves that it has the key, the client first: HMAC-SHA256 over its role, both random parts and the
certificate of the service, so that a proof is of use neither in the other direction nor on another
connection, nor through somebody in between who has another certificate. No end takes more than 40
bytes before that, nor reads a length that the other one says. Where there is no key, which is for
the own machine alone, the proofs are made with an empty one.

A side is a generator: it yields how many bytes it wants from the network, and is sent some; what
it has for the network meanwhile is in `to_send`.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Generator

from nnasync._core.wire.tls_layer import TlsLayer
from nnasync.errors import DeviceUnavailable, GeneralFailure

WITHIN_S = 10.0
"""How long a handshake may take."""
LEAST_KEY_BYTES = 16
_MAGIC = b"nnasync\x01"
_RANDOM = 32
_AT_ONCE = 1 << 14

Steps = Generator[int, bytes, None]


class Handshake:
    """One end of a handshake, over TLS where there is a layer for that."""

    def __init__(self, key: bytes, tls: TlsLayer | None) -> None:
        self._key = key
        self._tls = tls
        self._out = bytearray()

    def to_send(self) -> bytes:
        """Returns the bytes to be sent now."""
        if self._tls is not None:
            return self._tls.to_send()
        out, self._out = bytes(self._out), bytearray()
        return out

    def client(self) -> Steps:
        """Makes the client's part; raises DeviceUnavailable for a service that it cannot trust."""
        yield from self._encrypted()
        ours = secrets.token_bytes(_RANDOM)
        self._put(_MAGIC + ours)
        theirs = yield from self._greeting("the service")
        self._put(self._proof(b"client", ours, theirs))
        proof = yield from self._exactly(hashlib.sha256().digest_size)
        if not hmac.compare_digest(proof, self._proof(b"service", ours, theirs)):
            raise DeviceUnavailable("the service does not have the key")

    def service(self) -> Steps:
        """Makes the service's part; raises GeneralFailure for a client that is not let in."""
        yield from self._encrypted()
        theirs = yield from self._greeting("a client")
        ours = secrets.token_bytes(_RANDOM)
        self._put(_MAGIC + ours)
        proof = yield from self._exactly(hashlib.sha256().digest_size)
        if not hmac.compare_digest(proof, self._proof(b"client", theirs, ours)):
            raise GeneralFailure("a client does not have the key")
        self._put(self._proof(b"service", theirs, ours))

    def _encrypted(self) -> Steps:
        while self._tls is not None and not self._tls.shake():
            self._tls.received((yield _AT_ONCE))

    def _greeting(self, who: str) -> Generator[int, bytes, bytes]:
        data = yield from self._exactly(len(_MAGIC) + _RANDOM)
        if not data.startswith(_MAGIC):
            raise GeneralFailure(f"{who} does not speak this protocol")
        return data[len(_MAGIC) :]

    def _exactly(self, count: int) -> Generator[int, bytes, bytes]:
        data = b""
        while len(data) < count:
            if self._tls is None:
                data += yield count - len(data)
                continue
            data += self._tls.read(count - len(data))
            if len(data) < count:
                self._tls.received((yield _AT_ONCE))
        return data

    def _put(self, data: bytes) -> None:
        if self._tls is None:
            self._out += data
        else:
            self._tls.write(memoryview(data))

    def _proof(self, role: bytes, client: bytes, service: bytes) -> bytes:
        binding = b"" if self._tls is None else self._tls.binding
        return hmac.digest(self._key, role + client + service + binding, "sha256")
