"""The nnCache engine: a bounded map of bytes to bytes that a driver may keep for itself; pure.

Limits hold for keys, values and the sum of both. When a new entry does not fit, a policy says how
much is cleaned away and what: at random (the default, since it needs no bookkeeping and cannot be
led astray) or the least recently used; down to half of the limit (the default), just enough for the
new entry, or whichever of these is lower. Cleaning to half is only possible above half: otherwise
the new entry is not stored.

As a block of bytes (`flatten`) the map begins with a header that has the build of whoever wrote
it, and is loaded by no other build.
"""

from __future__ import annotations

import enum
import random
import struct

import msgspec

from nnasync.errors import InvalidArgument

__all__ = ["BlobCache", "BlobLimits", "Capacity", "Select"]

_MAGIC = (ord("_") << 24) + (ord("B") << 16) + (ord("b") << 8) + ord("$")
_VERSION = 3
_DEVICE_VERSION = 1
_HEADER = struct.Struct("<IIIxxxxQi")
_ENTRY = struct.Struct("<QQ")
_ALIGNMENT = 8


class Select(enum.Enum):
    """Which entries are cleaned away."""

    RANDOM = "random"
    LRU = "least recently used"


class Capacity(enum.Enum):
    """How much is cleaned away."""

    HALVE = "halve"
    FIT = "fit"
    FIT_HALVE = "fit or halve, whichever leaves less"


class BlobLimits(msgspec.Struct, frozen=True):
    """Sizes in bytes; `max_total` bounds the sum of all keys and values."""

    max_key: int
    max_value: int
    max_total: int


class BlobCache:
    """A bounded map of bytes to bytes. Not thread-safe."""

    def __init__(
        self,
        limits: BlobLimits,
        *,
        select: Select = Select.RANDOM,
        capacity: Capacity = Capacity.HALVE,
        build_id: str = "",
        seed: int | None = None,
    ) -> None:
        """`seed` makes the random choice repeatable. Raises InvalidArgument for limits below 1."""
        if min(limits.max_key, limits.max_value, limits.max_total) < 1:
            raise InvalidArgument(f"the limits of a blob cache are 1 byte or more, got {limits}")
        self.limits = limits
        self._select = select
        self._capacity = capacity
        self._build_id = build_id.encode()
        self._random = random.Random(seed)
        self._values: dict[bytes, bytes] = {}  # the least recently used first
        self._total = 0

    @property
    def total_bytes(self) -> int:
        """Sum of all keys and values."""
        return self._total

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, None without one; a use."""
        value = self._values.pop(key, None)
        if value is not None:
            self._values[key] = value
        return value

    def set(self, key: bytes, value: bytes) -> bool:
        """Store a value; whether it is there afterwards.

        An empty or too large key or value, and an entry for which no room can be made, are ignored.
        A cleaning that the new value of a key causes may take the old one away as well.
        """
        limits = self.limits
        sized = 0 < len(key) <= limits.max_key and 0 < len(value) <= limits.max_value
        if not sized or len(key) + len(value) > limits.max_total:
            return False
        while True:
            old = self._values.get(key)
            growth = len(value) - len(old) if old is not None else len(key) + len(value)
            if self._total + growth <= limits.max_total:
                break
            if not self._is_cleanable():
                return False
            self._clean(growth)
        self._values.pop(key, None)
        self._values[bytes(key)] = bytes(value)
        self._total += growth
        return True

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()
        self._total = 0

    def _is_cleanable(self) -> bool:
        floor = self.limits.max_total // 2 if self._capacity is Capacity.HALVE else 0
        return self._total > floor

    def _clean(self, growth: int) -> None:
        goal = self._goal(growth)
        order = list(self._values)
        if self._select is Select.RANDOM:
            self._random.shuffle(order)
        for key in order:
            if self._total <= goal:
                return
            self._total -= len(key) + len(self._values.pop(key))

    def _goal(self, growth: int) -> int:
        half = self.limits.max_total // 2
        fit = max(self.limits.max_total - growth, 0)
        return {
            Capacity.HALVE: half,
            Capacity.FIT: fit,
            Capacity.FIT_HALVE: min(half, fit),
        }[self._capacity]

    def flatten(self) -> bytes:
        """All entries as one block, ordered by the size of the key, then by its bytes."""
        parts = [
            _HEADER.pack(_MAGIC, _VERSION, _DEVICE_VERSION, len(self._values), len(self._build_id))
            + self._build_id
        ]
        for key in sorted(self._values, key=lambda key: (len(key), key)):
            value = self._values[key]
            parts.append(_ENTRY.pack(len(key), len(value)) + key + value)
        return b"".join(part + bytes(-len(part) % _ALIGNMENT) for part in parts)

    def unflatten(self, block: bytes) -> None:
        """Replace all entries by those of a block; none if it is of another version or build.

        Raises InvalidArgument, and is empty then, where the block is no such one or is damaged.
        Entries beyond the limits of this cache are left out.
        """
        self.clear()
        try:
            for key, value in _entries(block, self._build_id):
                if self._total + len(key) + len(value) <= self.limits.max_total:
                    self.set(key, value)
        except InvalidArgument:
            self.clear()
            raise


def _entries(block: bytes, build_id: bytes) -> list[tuple[bytes, bytes]]:
    if len(block) < _HEADER.size:
        raise InvalidArgument(
            f"a blob cache has a header of {_HEADER.size} bytes: {len(block)} came"
        )
    magic, version, device_version, count, id_length = _HEADER.unpack_from(block)
    if magic != _MAGIC:
        raise InvalidArgument(f"a blob cache begins with {_MAGIC:#x}, not {magic:#x}")
    if (version, device_version) != (_VERSION, _DEVICE_VERSION):
        return []
    if id_length != len(build_id) or block[_HEADER.size : _HEADER.size + id_length] != build_id:
        return []
    offset = _aligned(_HEADER.size + id_length)
    found = []
    for index in range(count):
        if offset + _ENTRY.size > len(block):
            raise InvalidArgument(f"the blob cache ends before entry {index} of {count}")
        key_size, value_size = _ENTRY.unpack_from(block, offset)
        middle = offset + _ENTRY.size + key_size
        end = middle + value_size
        if end > len(block):
            raise InvalidArgument(f"the blob cache ends within entry {index} of {count}")
        found.append((block[middle - key_size : middle], block[middle:end]))
        offset = _aligned(end)
    return found


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT
