"""The state that a stream carries from call to call without a copy.

An execution reads the state from one side and writes it to another; only its success makes that the
side that counts. There are two sides in memory of the application, which take turns. A device in
another process has it in buffers of its own instead (`execution.distant`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from nnasync._core.execution.ports import Port, Ports, copy_in, in_order
from nnasync._core.execution.slots import MemorySource, own_memory
from nnasync.hal import Array, Memory
from nnasync.memory import layout


class StatePlace(msgspec.Struct, frozen=True):
    """Says where one side of a state lies: in a piece of a pool, or all of a buffer (length 0)."""

    pool: Memory | int
    offset: int
    length: int


class StreamState:
    """Keeps the state of one stream; `current` is the side that the next execution reads."""

    # What an execution that reads a side writes to.
    following: tuple[int, ...] = (1, 0)

    def __init__(self, ports: Ports, memory: MemorySource = own_memory) -> None:
        self.ports: Sequence[Port] = ports.state_inputs
        self._inputs = [port.position for port in ports.state_inputs]
        self._outputs = [port.position for port in ports.state_outputs]
        sizes = [nbytes_of(port) for port in self.ports]
        offsets, total = layout(sizes * 2)
        pool, begin = memory(max(total, 1))
        offsets = [begin + offset for offset in offsets]
        count = len(sizes)
        self.places = [
            [StatePlace(pool, offsets[side * count + n], sizes[n]) for n in range(count)]
            for side in (0, 1)
        ]
        self._arrays: list[list[Array]] = [
            [
                pool.array(port.dtype, port.shape, offsets[side * count + n])
                for n, port in enumerate(self.ports)
            ]
            for side in (0, 1)
        ]
        self.current = self._before = 0
        self.begin()

    def pieces(self, side: int, inputs: int) -> list[tuple[int, StatePlace]]:
        """Returns where an execution that reads this side has its states, by place in the request.

        Positions count through the inputs, of which there are so many, and then the outputs.
        """
        read, written = self.places[side], self.places[self.following[side]]
        return [
            *zip(self._inputs, read, strict=True),
            *zip((inputs + at for at in self._outputs), written, strict=True),
        ]

    def advance(self) -> None:
        """Makes the side that the last execution wrote the current one."""
        self._before = self.current
        self.current = self.following[self._before]

    def go_back(self) -> None:
        """Undo the last `advance`, before anything else."""
        self.current = self._before

    def begin(self) -> None:
        """Sets the state to zero, which is the zero point where it is quantized."""
        for array, port in zip(self._writable(), self.ports, strict=True):
            array.fill(port.zero)

    def load(self, values: Mapping[str, Any]) -> None:
        """Sets all states by their names; raises InvalidArgument, and changes nothing then."""
        ordered = in_order(self.ports, [values], "state")
        fresh_arrays = [np.empty(port.shape, port.dtype) for port in self.ports]
        for array, value, port in zip(fresh_arrays, ordered, self.ports, strict=True):
            copy_in(array, value, port)
        for target, array in zip(self._writable(), fresh_arrays, strict=True):
            np.copyto(target, array)

    async def read(self) -> dict[str, Array]:
        """Returns copies of the states, by their names."""
        arrays = await self._readable()
        return {port.name: array.copy() for port, array in zip(self.ports, arrays, strict=True)}

    async def _readable(self) -> Sequence[Array]:
        return self._arrays[self.current]

    def _writable(self) -> Sequence[Array]:
        """Returns the arrays of the current side, for the application to write."""
        return self._arrays[self.current]


def nbytes_of(port: Port) -> int:
    """Returns the size of a state in bytes."""
    return port.dtype.itemsize * int(np.prod(port.shape))
