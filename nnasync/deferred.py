"""Modules that are imported when something of them is first used.

A process that loads compiled models from a cache needs little of what compiles them, and starts
sooner without the rest. The importing module says what it needs at its top, as always:

    if TYPE_CHECKING:
        from nnasync.compilation import compiler
    else:
        compiler = deferred("nnasync.compilation.compiler")
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["deferred"]


class _Deferred:
    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


def deferred(name: str) -> Any:
    """The module of this name, by its attributes."""
    return _Deferred(name)
