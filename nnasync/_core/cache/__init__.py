"""Compilation cache: compiled models and their data, kept from run to run in a client's directory.

    keys, records       pure: what an entry is found by, and what its files are checked against
    store, writing      one directory of entries: lookup -> Hit or Miss, write
    ledger              the records, signed, in the user's state folder, shared by processes
    handles             the same for cache handles that a HAL client passes to a driver
    late                entries that drivers amend after they were written

Whoever can write the cache directory can cause misses, never the loading of a model cache file that
differs by a bit from what was written for this token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnasync._core.cache.keys import CacheKey, FileKind, derive_token, file_name, operations_digest
from nnasync._core.cache.outcome import DEFAULT_LIMIT_BYTES, Contents, Hit, Miss
from nnasync._core.cache.sealed import fill, view
from nnasync._core.deferred import names

if TYPE_CHECKING:
    from nnasync._core.cache.handles import HandleCache as HandleCache
    from nnasync._core.cache.store import Store as Store
    from nnasync._core.cache.writing import Writing as Writing

__all__ = [
    "DEFAULT_LIMIT_BYTES",
    "CacheKey",
    "Contents",
    "FileKind",
    "HandleCache",
    "Hit",
    "Miss",
    "Store",
    "Writing",
    "derive_token",
    "file_name",
    "fill",
    "operations_digest",
    "view",
]

__getattr__ = names(__name__, {"HandleCache": "handles", "Store": "store", "Writing": "writing"})
