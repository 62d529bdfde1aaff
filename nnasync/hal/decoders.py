"""Decoders of msgspec structs, which only one thread at a time may make.

msgspec notes what it knows of a struct in the struct itself, step by step, running Python code
meanwhile. Another thread that makes its first decoder of the same struct, or of one that holds it,
takes what is there for complete, and the process dies of it (seen as SIGSEGV with msgspec 0.22, as
soon as two threads decode their first message at once). `msgspec.json.decode(data, type=...)` makes
a decoder each time. So whoever may run on several threads takes a decoder from here.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar, overload

import msgspec

from nnasync._core.endings import renewed_in_child

T = TypeVar("T")

_lock = renewed_in_child(threading.Lock())
_msgpack: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
_json: dict[Any, msgspec.json.Decoder[Any]] = {}


@overload
def msgpack_decoder(type: type[T]) -> msgspec.msgpack.Decoder[T]: ...


@overload
def msgpack_decoder(type: Any) -> msgspec.msgpack.Decoder[Any]: ...


def msgpack_decoder(type: Any) -> msgspec.msgpack.Decoder[Any]:
    """The decoder of MessagePack for a type, always the same."""
    decoder = _msgpack.get(type)
    if decoder is None:
        with _lock:
            decoder = _msgpack[type] = msgspec.msgpack.Decoder(type)
    return decoder


@overload
def json_decoder(type: type[T]) -> msgspec.json.Decoder[T]: ...


@overload
def json_decoder(type: Any) -> msgspec.json.Decoder[Any]: ...


def json_decoder(type: Any) -> msgspec.json.Decoder[Any]:
    """The decoder of JSON for a type, always the same."""
    decoder = _json.get(type)
    if decoder is None:
        with _lock:
            decoder = _json[type] = msgspec.json.Decoder(type)
    return decoder
