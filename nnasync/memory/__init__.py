"""Memory pools that models and requests refer to, and typed pieces of them as numpy arrays."""

from __future__ import annotations

from nnasync.memory.image import ImageFormat, ImageLayout
from nnasync.memory.mapping import MemoryStatistics, count_copied, statistics
from nnasync.memory.pool import IMAGE, Pool, Unusable, mapped, to_rgb
from nnasync.memory.region import ALIGNMENT, Region, layout

__all__ = [
    "ALIGNMENT",
    "IMAGE",
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
