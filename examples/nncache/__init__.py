"""The nnCache engine: a bounded map of bytes, in a file, for a driver with a cache of its own.

It is what Android hands to its drivers' authors. A driver with `cache_files` need not have it.
"""

from nncache.blobs import BlobCache, BlobLimits, Capacity, Select
from nncache.checksum import crc32c
from nncache.file import load_blobs, save_blobs

__all__ = [
    "BlobCache",
    "BlobLimits",
    "Capacity",
    "Select",
    "crc32c",
    "load_blobs",
    "save_blobs",
]
