"""`nnasync-reference`: every operation in numpy, on the processor that Python runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnasync._core.deferred import names

if TYPE_CHECKING:
    from nnasync._core.drivers.cpu.engine import ReferenceEngine as ReferenceEngine

__getattr__ = names(__name__, {"ReferenceEngine": "engine"})
