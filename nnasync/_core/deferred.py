"""Modules that are imported when something of them is first used.

A process that loads compiled models from a cache needs little of what compiles them, and starts
sooner without the rest. The importing module says what it needs at its top, as always:

    if TYPE_CHECKING:
        from nnasync._core.compilation import compiler
    else:
        compiler = deferred("nnasync._core.compilation.compiler")
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


class _Deferred:
    def __init__(self, name: str) -> None:
        self._name = name
        self._module: ModuleType | None = None

    def __getattr__(self, attribute: str) -> Any:
        if self._module is None:
            self._module = importlib.import_module(self._name)
        value = getattr(self._module, attribute)
        if callable(value):
            # Functions and classes stay what they are: to come by here costs half a microsecond.
            self.__dict__[attribute] = value
        return value


def deferred(name: str) -> Any:
    """The module of this name, by its attributes."""
    return _Deferred(name)


def names(
    package: str, homes: Mapping[str, str], extras: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """A `__getattr__` for a module that offers names of others: `homes` says where each one is.

    A home is a module of the package itself, or the whole name of one of nnasync's. `extras` says
    which extra of nnasync brings a package of others that homes import; where that is missing, the
    ModuleNotFoundError has the line that installs it.
    """

    # The name that Python looks for in a module, made here for several of them.
    def __getattr__(name: str) -> Any:  # noqa: N807
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        module = home if home.startswith("nnasync.") else f"{package}.{home}"
        try:
            value = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            raise _with_line(error, f"{package}.{name}", extras or {}) from error
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__


def _with_line(
    error: ModuleNotFoundError, wanted: str, extras: Mapping[str, str]
) -> ModuleNotFoundError:
    missing = (error.name or "").partition(".")[0]
    if missing not in extras:
        return error
    line = f"pip install 'nnasync[{extras[missing]}]'"
    return ModuleNotFoundError(
        f"{wanted} needs {missing}, which is not installed: {line}", name=missing
    )
