"""The constants of a model under construction: small ones are copied, large ones share one pool.

Constants that are already mapped (a part of a model file) stay where they are.
"""

from __future__ import annotations

import numpy as np

from nnasync.hal import Array, DataLocation, Memory, OperandLifeTime
from nnasync.memory import Pool, layout

MAX_COPIED_BYTES = 128
"""Constants up to this size live in `Model.operand_values`."""

_COPY_ALIGNMENT = 8


class Constants:
    """Collects constants; `finish` puts each in its place."""

    def __init__(self) -> None:
        self._arrays: list[Array] = []
        self._mapped: dict[int, tuple[Memory, DataLocation]] = {}

    def add(self, array: Array) -> int:
        """Take an array (kept, not copied, until `finish`); returns its number."""
        self._arrays.append(np.ascontiguousarray(array))
        return len(self._arrays) - 1

    def add_mapped(self, pool: Memory, offset: int, array: Array) -> int:
        """Take an array that is a view of a pool; it is copied only if it is small."""
        number = self.add(array)
        if array.nbytes > MAX_COPIED_BYTES:
            location = DataLocation(offset=offset, length=array.nbytes)
            self._mapped[number] = (pool, location)
        return number

    def array(self, number: int) -> Array:
        """The value of a constant."""
        return self._arrays[number]

    def finish(
        self,
    ) -> tuple[bytes, tuple[Memory, ...], list[tuple[OperandLifeTime, DataLocation]]]:
        """Operand values, pools, and the place of each constant by number."""
        pools: list[Memory] = list(dict.fromkeys(pool for pool, _ in self._mapped.values()))
        places = [(OperandLifeTime.CONSTANT_REFERENCE, DataLocation())] * len(self._arrays)
        for number, (pool, location) in self._mapped.items():
            where = DataLocation(pools.index(pool), location.offset, location.length)
            places[number] = (OperandLifeTime.CONSTANT_REFERENCE, where)
        small = [n for n, a in enumerate(self._arrays) if a.nbytes <= MAX_COPIED_BYTES]
        large = [
            n
            for n, a in enumerate(self._arrays)
            if a.nbytes > MAX_COPIED_BYTES and n not in self._mapped
        ]
        offsets, total = layout([self._arrays[n].nbytes for n in small], _COPY_ALIGNMENT)
        values = bytearray(total)
        for number, offset in zip(small, offsets, strict=True):
            data = self._arrays[number].tobytes()
            values[offset : offset + len(data)] = data
            where = DataLocation(0, offset, len(data))
            places[number] = (OperandLifeTime.CONSTANT_COPY, where)
        if large:
            pools.append(self._fill_pool(large, len(pools), places))
        return bytes(values), tuple(pools), places

    def _fill_pool(
        self, numbers: list[int], index: int, places: list[tuple[OperandLifeTime, DataLocation]]
    ) -> Pool:
        offsets, total = layout([self._arrays[number].nbytes for number in numbers])
        pool = Pool.allocate(total)
        for number, offset in zip(numbers, offsets, strict=True):
            array = self._arrays[number]
            pool.array(array.dtype, array.shape, offset)[...] = array
            where = DataLocation(index, offset, array.nbytes)
            places[number] = (OperandLifeTime.CONSTANT_REFERENCE, where)
        return pool
