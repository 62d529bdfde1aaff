"""Requests that offer to go on in another protocol: they are answered in HTTP/1.1, as they may be.

Clients that know HTTP/2 send their first request with `Upgrade: h2c` (Java's own does so unless it
is told not to, `curl --http2` too), body and all. A parser takes what follows such a header for the
other protocol, and the body would be lost. So it is given the header once more, without the offer.
"""

from __future__ import annotations

from collections.abc import Iterable

_OFFER = frozenset((b"upgrade", b"http2-settings", b"connection"))
_OTHER_FOR_GOOD = b"CONNECT"


def without_offer(
    method: bytes, url: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]
) -> bytes:
    """Returns the header of a request without its offer of another protocol.

    Returns no bytes where the method is none of HTTP. `headers` have lower-case names.
    """
    if method == _OTHER_FOR_GOOD:
        return b""
    lines = [b"%b %b HTTP/%b" % (method, url, version.encode())]
    for name, value in headers:
        if name not in _OFFER:
            lines.append(b"%b: %b" % (name, value))
        elif name == b"connection" and b"close" in map(bytes.strip, value.lower().split(b",")):
            lines.append(b"connection: close")
    return b"".join((b"\r\n".join(lines), b"\r\n\r\n"))
