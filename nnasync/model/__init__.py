"""Models: built by hand with `ModelBuilder`, kept in `.nnm` files, told apart by `fingerprint`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from nnasync.model.file import fingerprint, load_nnm, save

if TYPE_CHECKING:
    from nnasync.model.builder import ModelBuilder as ModelBuilder
    from nnasync.model.graph import Value as Value

__all__ = ["ModelBuilder", "Value", "fingerprint", "load_nnm", "save"]

_BUILDING = {"ModelBuilder": "nnasync.model.builder", "Value": "nnasync.model.graph"}


def __getattr__(name: str) -> object:
    """What builds models is imported when it is first used."""
    if name not in _BUILDING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_BUILDING[name]), name)
    globals()[name] = value
    return value
