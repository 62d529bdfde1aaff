"""Memory pools that models and requests refer to, and typed pieces of them as numpy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnasync._core.deferred import names
from nnasync.memory.layout import ALIGNMENT, layout
from nnasync.memory.mapping import MemoryStatistics, count_copied, statistics
from nnasync.memory.pool import IMAGE, Pool, Region, Unusable, mapped, to_rgb
from nnasync.memory.shared_arena import SharedArena

if TYPE_CHECKING:
    from nnasync.memory.image import ImageFormat as ImageFormat
    from nnasync.memory.image import ImageLayout as ImageLayout

__all__ = [
    "ALIGNMENT",
    "IMAGE",
    "SharedArena",
    "ImageFormat",
    "ImageLayout",
    "MemoryStatistics",
    "Pool",
    "Region",
    "Unusable",
    "count_copied",
    "layout",
    "mapped",
    "statistics",
    "to_rgb",
]

__getattr__ = names(__name__, {"ImageFormat": "image", "ImageLayout": "image"})
