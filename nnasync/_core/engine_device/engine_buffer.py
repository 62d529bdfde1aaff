"""A device-managed buffer as the clients of an engine's device have it."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable

from nnasync._core.engine_device.buffers import Buffers, ManagedBuffer
from nnasync._core.workers.helper_threads import HelperThreads
from nnasync.hal import Memory, Shape

INLINE_COPY_BYTES = 1 << 17
"""Copies up to this size are made on the caller's thread, because changing threads costs more."""


class EngineBuffer:
    """A buffer of an engine's device (`device.Buffer`); one that is dropped is closed."""

    def __init__(
        self, buffers: Buffers, managed: ManagedBuffer, helper_threads: HelperThreads, name: str
    ) -> None:
        self.managed = managed
        self._helper_threads = helper_threads
        self._name = name
        self._free = weakref.finalize(self, buffers.free, managed.token)
        self._free.atexit = False

    @property
    def token(self) -> int:
        """Returns the number that stands for the buffer in requests."""
        return self.managed.token

    @property
    def dimensions(self) -> Shape:
        """Returns the dimensions of the contents, or without contents those of the allocation."""
        return self.managed.dimensions

    @property
    def is_initialized(self) -> bool:
        """Returns whether the buffer has contents."""
        return self.managed.is_initialized

    async def copy_to(self, memory: Memory) -> None:
        """Copy the contents out; raises what `ManagedBuffer.copy_to` raises."""
        await self._copied(functools.partial(self.managed.copy_to, memory), memory)

    async def copy_from(self, memory: Memory, dimensions: Shape = ()) -> None:
        """Copy contents in; raises what `ManagedBuffer.copy_from` raises.

        A cancelled copy may still be made.
        """
        copy = functools.partial(self.managed.copy_from, memory, tuple(dimensions))
        await self._copied(copy, memory)

    async def close(self) -> None:
        """Frees the buffer; executions that use it go on."""
        self._free()

    async def _copied(self, copy: Callable[[], None], memory: Memory) -> None:
        if memory.size <= INLINE_COPY_BYTES:
            copy()
        else:
            await self._helper_threads.run(copy, f"a copy of a buffer of {self._name}")
