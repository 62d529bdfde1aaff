"""A store with small entries whose content says what it should be."""

from __future__ import annotations

from pathlib import Path

import msgspec

from nnasync._core.cache import CacheKey, Contents, Hit, Miss, Store, Writing, fill, view
from nnasync._core.cache.directory import Directory
from nnasync._core.cache.eviction import make_room, scan

KEY = CacheKey(bytes(range(32)), "device", "1.0", "0.1")
OTHER_KEY = msgspec.structs.replace(KEY, step=1)
MODEL = b"digest of the model"
Files = tuple[list[bytes], list[bytes]]
FILES: Files = ([b"code" * 50, b"more code"], [b"weights" * 99])


def write(
    store: Store,
    files: Files = FILES,
    key: CacheKey = KEY,
    model: bytes = MODEL,
    *,
    replaces: bytes | None = None,
) -> Writing:
    """Write an entry with these model and data cache files."""
    counts = len(files[0]), len(files[1])
    with store.write(key, model, counts, replaces=replaces) as writing:
        for fd, content in zip(writing.fds, files[0] + files[1], strict=False):
            fill(fd, content)
    return writing


def written(store: Store, files: Files = FILES, key: CacheKey = KEY) -> None:
    """Write an entry, which must succeed."""
    writing = write(store, files, key)
    assert (writing.stored, writing.reason) == (True, "")


WAY = "lookup"
"""The method of a store that `read` uses: lookup, or read."""


def read(store: Store, key: CacheKey = KEY, model: bytes = MODEL) -> Files | str:
    """The files of an entry, or the reason of the miss."""
    found: Hit | Contents | Miss = getattr(store, WAY)(key, model)
    if isinstance(found, Miss):
        return found.reason
    if isinstance(found, Contents):
        return list(found.model), [bytes(data) for data in found.data]
    with found:
        return contents(found)


def contents(hit: Hit) -> Files:
    """What is in the files of a hit."""
    return [bytes(view(fd)) for fd in hit.model_fds], [bytes(view(fd)) for fd in hit.data_fds]


def cache_files(directory: Path) -> list[Path]:
    """The files in a cache directory, those of the model cache first."""
    return sorted(directory.iterdir(), key=lambda path: path.name[64:])


def clear(store: Store) -> None:
    """Forget all entries, and delete their files."""
    with Directory(store.path) as directory, store._ledger.writing(store._place()) as rows:
        for token in rows.tokens():
            rows.forget(token)
        make_room(directory, rows, b"", (), free=0)


def totals(store: Store) -> tuple[int, int]:
    """How many entries have a record, and how many bytes all cache files take on the disk."""
    with Directory(store.path) as directory, store._ledger.reading(store._place()) as rows:
        return len(rows.tokens()) if rows else 0, scan(directory).total_bytes
