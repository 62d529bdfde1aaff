"""A response over HTTP: for applications a list of fields, for a connection the bytes of them."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from nnasync.serving.json_protocol import BINARY, JSON, LENGTH_HEADER
from nnasync.serving.messages import Bytes

Head: TypeAlias = list[tuple[bytes, bytes]]

LENGTH = LENGTH_HEADER.lower().encode()
CLOSE = (b"connection", b"close")
_JSON, _BINARY = JSON.encode(), BINARY.encode()
_JSON_TEXT = b"content-type: %b\r\ncontent-length: %%d\r\n" % _JSON
_BINARY_TEXT = b"content-type: %b\r\n%b: %%d\r\ncontent-length: %%d\r\n" % (_BINARY, LENGTH)


class Reply(msgspec.Struct, frozen=True, gc=False):
    """A whole response: its status, the pieces of its body and their size in bytes.

    `json_bytes` are those of the JSON where tensors follow it, -1 where the body is JSON alone;
    `more` are fields besides the type and the lengths.
    """

    status: int
    pieces: list[Bytes]
    size: int
    json_bytes: int = -1
    more: tuple[tuple[bytes, bytes], ...] = ()

    def fields(self) -> Head:
        """Returns the header as ASGI has it, a list of fields."""
        length = (b"content-length", b"%d" % self.size)
        if self.json_bytes < 0:
            return [(b"content-type", _JSON), length, *self.more]
        return [(b"content-type", _BINARY), (LENGTH, b"%d" % self.json_bytes), length, *self.more]

    def text(self) -> bytes:
        """Returns the header as the bytes of its lines."""
        if self.json_bytes < 0:
            text = _JSON_TEXT % self.size
        else:
            text = _BINARY_TEXT % (self.json_bytes, self.size)
        if not self.more:
            return text
        return b"".join((text, *(b"%b: %b\r\n" % field for field in self.more)))

    @property
    def is_last(self) -> bool:
        """Returns whether the response ends the connection."""
        return CLOSE in self.more
