"""The parts of compiling that run outside of the event loop, so that the loop stays free.

A first compilation imports hundreds of modules, makes samples, and in the end gives back a dozen
plans. Each takes tens of milliseconds, in which a loop that does it itself answers nobody. On a
thread all of it gives way to the loop at every switch of the interpreter. What remains are single
calls of libraries that keep the interpreter lock.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import MutableSequence
from typing import Any

from nnasync._core.wakeup import Wakeup, in_thread

__all__ = ["import_what_compiles", "let_go"]

_COMPILER = "nnasync._core.compilation.compiler"


async def import_what_compiles() -> None:
    """Import what chooses among devices, and anyio's part for this loop, on a thread."""
    if _COMPILER in sys.modules:
        return
    backend = "trio" if Wakeup.current().is_trio else "asyncio"
    names = (f"anyio._backends._{backend}", _COMPILER)

    def load() -> None:
        for name in names:
            importlib.import_module(name)

    await in_thread(load, "nnasync-importing")


async def let_go(things: MutableSequence[Any]) -> None:
    """Destroy a list of objects, such as plans, on a thread, because that can be slow."""
    if things:
        await in_thread(things.clear, "nnasync-letting-go", enters_engine=True)
