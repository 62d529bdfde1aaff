"""Models: built by hand with `ModelBuilder`, kept in `.nnm` files, told apart by `fingerprint`."""

from __future__ import annotations

from nnasync.model.builder import ModelBuilder
from nnasync.model.file import fingerprint, load_nnm, save
from nnasync.model.graph import Value

__all__ = ["ModelBuilder", "Value", "fingerprint", "load_nnm", "save"]
