"""Headers of requests that were read before, found again by their bytes.

A client that keeps its connection sends the same header with each request, but for a length now and
then. What a parser makes of it, field by field, costs more than the rest of a small request. So the
header of a request that was answered where it was read is remembered with what was found in it, and
the same bytes are not parsed again.

The bytes alone decide, so nothing is taken for a header that a parser would read in another way.
Where it ends must be as certain: the parser may take single line feeds for ends of lines, and would
end such a header before the empty line that is looked for. Those are not remembered.
"""

from __future__ import annotations

import msgspec

_MOST = 256
_LONGEST = 1024
_METHOD = b"POST "
_END = b"\r\n\r\n"
_OFFER = b"upgrade"


class KnownHead(msgspec.Struct, frozen=True, gc=False):
    """What was found in a header: model, version, its fields, and how many bytes the body has."""

    target: tuple[str, str]
    headers: dict[bytes, bytes]
    size: int


def head_in(data: bytes) -> bytes:
    """Returns the header at the beginning of these bytes; empty if it is incomplete or too long."""
    end = data.find(_END, 0, _LONGEST)
    return data[: end + len(_END)] if end > 0 else b""


class KnownHeads:
    """Remembers the headers that were met last, at most a fixed number of them."""

    def __init__(self) -> None:
        self._heads: dict[bytes, KnownHead] = {}
        self.find = self._heads.get
        """What is known of the bytes of a header; None if nothing is."""

    def note(self, head: bytes, known: KnownHead) -> None:
        """Remembers a header, as `head_in` returned it, with what a parser found in it."""
        if not head.startswith(_METHOD) or head.count(b"\n") != head.count(b"\r\n"):
            return
        if _OFFER in head.lower():
            return  # The parser has read another one instead: see `other_protocols`.
        if len(self._heads) >= _MOST:
            del self._heads[next(iter(self._heads))]
        self._heads[head] = known
