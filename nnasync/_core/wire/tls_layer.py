"""TLS between frames and a socket, without a socket: bytes in, bytes out.

Whoever owns the connection moves bytes; so one thread may read while another writes, under the
lock of the connection, and what a socket's `poll` says is true.
"""

from __future__ import annotations

import contextlib
import hashlib
import ssl
from pathlib import Path

from nnasync.errors import InvalidArgument

_RECORD = 1 << 14


class TlsLayer:
    """One end of an encrypted connection; raises ssl.SSLError for what is none."""

    def __init__(
        self, context: ssl.SSLContext, *, is_server: bool, host: str = "", own: bytes = b""
    ) -> None:
        """`own` is the certificate of a server in DER form, `host` the name a client looks for."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=is_server, server_hostname=host or None
        )
        self._own = own

    def shake(self) -> bool:
        """Continues the handshake; returns whether it is over."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    @property
    def binding(self) -> bytes:
        """Returns a digest of the server's certificate, which is the same at both ends."""
        return hashlib.sha256(self._own or self._object.getpeercert(True) or b"").digest()

    def received(self, data: bytes) -> None:
        """Takes bytes that came over the network."""
        self._incoming.write(data)

    def to_send(self) -> bytes:
        """Returns bytes for the network."""
        return self._outgoing.read()

    def read(self, most: int) -> bytes:
        """Returns at most so much of what the peer has written, which may be nothing yet."""
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            return self._object.read(most)
        return b""

    def read_into(self, view: memoryview) -> int:
        """Reads what the peer has written into memory; returns the number of bytes."""
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            return self._object.read(view.nbytes, view)  # type: ignore[return-value]  # With a buffer, a count.
        return 0

    def write(self, view: memoryview) -> int:
        """Encrypts the beginning of data; returns how many bytes of it."""
        return self._object.write(view[:_RECORD])


def server_context(certificate: Path, private_key: Path | None) -> tuple[ssl.SSLContext, bytes]:
    """Returns a service's TLS context, and its certificate in DER form; raises InvalidArgument."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_cert_chain(certificate, private_key)
        text = certificate.read_text(encoding="ascii")
        begin = text.index(ssl.PEM_HEADER)
        end = text.index(ssl.PEM_FOOTER, begin) + len(ssl.PEM_FOOTER)
        own = ssl.PEM_cert_to_DER_cert(text[begin:end])
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"{certificate} and {private_key or certificate} cannot be used for TLS: {error}"
        ) from error
    return context, own


def client_context(authority: Path) -> ssl.SSLContext:
    """Returns a client's TLS context that trusts this file of certificates.

    Raises InvalidArgument.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(authority)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{authority} has no certificates in PEM format: {error}") from error
    return context
