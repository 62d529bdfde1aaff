"""Messages of a burst that are changed: parts removed, replaced, put in; bytes cut or flipped."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import msgspec

Change = tuple[str, bytes]
"""What was done to a message, and what it is now."""

_ARGUMENTS = 2
"""Where a request has its arguments, an encoding of their own."""
_GARBAGE: tuple[Any, ...] = (None, True, -1, 2**63, 1.5, "x", b"\xff", [], {"a": 1})
_FLIPS = 64
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def changes(message: bytes) -> Iterator[Change]:
    """Yields all changed forms of a request; some mean the same, or are legal, too."""
    request = _decode(message)
    for what, changed in _mangled(request):
        yield f"request{what}", _encode(changed)
    arguments = request[_ARGUMENTS]
    for what, changed in _mangled(_decode(arguments)):
        yield f"arguments{what}", _with_arguments(request, _encode(changed))
    for length in range(len(arguments)):
        what = f"arguments cut to {length} bytes"
        yield what, _with_arguments(request, arguments[:length])
    for length in range(len(message)):
        yield f"request cut to {length} bytes", message[:length]
    for count in (1, 1 << 21):
        yield f"request with {count} more bytes", message + bytes(count)
    deep = b"\x91" * 100_000
    yield "request nested deeply", deep
    yield "arguments nested deeply", _with_arguments(request, deep)
    for seed in range(_FLIPS):
        bit = random.Random(seed).randrange(8 * len(message))
        flipped = bytearray(message)
        flipped[bit // 8] ^= 1 << bit % 8
        yield f"request with bit {bit} flipped", bytes(flipped)


def _with_arguments(request: list[Any], arguments: bytes) -> bytes:
    changed = list(request)
    changed[_ARGUMENTS] = arguments
    return _encode(changed)


def _mangled(tree: Any) -> Iterator[tuple[str, Any]]:
    """Trees in which one part is removed, replaced or preceded by something else."""
    for path in _paths(tree):
        name = "".join(f"[{key!r}]" for key in path)
        parent = _at(tree, path[:-1])
        yield f"{name} removed", _changed(tree, path, "remove")
        for garbage in (*_GARBAGE, *_neighbors(parent[path[-1]])):
            if type(garbage) is not type(parent[path[-1]]) or garbage != parent[path[-1]]:
                yield f"{name} is {garbage!r}", _changed(tree, path, "set", garbage)
            if isinstance(parent, list):
                yield f"{garbage!r} before {name}", _changed(tree, path, "insert", garbage)


def _paths(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each part of a tree of lists and mappings."""
    keys = range(len(tree)) if isinstance(tree, list) else tree if isinstance(tree, dict) else ()
    for key in keys:
        yield (*path, key)
        yield from _paths(tree[key], (*path, key))


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _neighbors(value: Any) -> tuple[Any, ...]:
    """Other values of the same kind."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return (value + 1, value // 2) if is_number else ()


def _changed(tree: Any, path: tuple[Any, ...], how: str, value: Any = None) -> Any:
    changed = copy.deepcopy(tree)
    parent, key = _at(changed, path[:-1]), path[-1]
    if how == "remove":
        del parent[key]
    elif how == "set":
        parent[key] = value
    else:
        parent.insert(key, value)
    return changed
