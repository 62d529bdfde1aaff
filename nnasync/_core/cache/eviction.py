"""The contents of a cache directory, and which entries to evict to stay within its limit."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

from nnasync._core.cache.directory import Directory
from nnasync._core.cache.keys import spare_token, token_of
from nnasync._core.cache.ledger import DirectoryRows
from nnasync._core.cache.outcome import Rejected

MAX_FILES = 100_000
"""Nothing is stored in a directory with more files, because listing it would delay others."""

_BLOCK_BYTES = 4096


class EvictableEntry:
    """The files of one token, whether it has a record or not."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.bytes = 0
        self.used_ns = 0

    def add(self, name: str, found: os.stat_result) -> None:
        """Count a file in; the entry was used when the latest of its files was."""
        self.names.append(name)
        self.bytes += on_disk(found.st_size)
        self.used_ns = max(self.used_ns, found.st_mtime_ns)


class Content:
    """The cache files of a directory by token, and its other names."""

    def __init__(self) -> None:
        self.entries: dict[bytes, EvictableEntry] = {}
        self.others: list[str] = []

    @property
    def total_bytes(self) -> int:
        """Returns the size of all entries on the disk."""
        return sum(entry.bytes for entry in self.entries.values())


def on_disk(size: int) -> int:
    """Bytes that a file takes, in whole blocks."""
    return -(-size // _BLOCK_BYTES) * _BLOCK_BYTES


def scan(directory: Directory) -> Content:
    """The contents of a directory; raises OSError, and Rejected if it holds too many files."""
    content = Content()
    for number, (name, found) in enumerate(directory.files()):
        if number == MAX_FILES:
            raise Rejected(f"the cache directory holds more than {MAX_FILES} files")
        token = token_of(name)
        if token is None:
            content.others.append(name)
        else:
            content.entries.setdefault(token, EvictableEntry()).add(name, found)
    return content


def victims(content: Content, recorded: Collection[bytes], limit: int) -> Iterator[bytes]:
    """The entries to delete until the others take at most `limit` bytes.

    Those without a record come first, then the least recently used.
    """
    excess = content.total_bytes - limit
    entries = content.entries
    for token in sorted(entries, key=lambda token: (token in recorded, entries[token].used_ns)):
        if excess <= 0:
            return
        excess -= entries[token].bytes
        yield token


def make_room(
    directory: Directory, rows: DirectoryRows, token: bytes, names: Collection[str], free: int
) -> None:
    """Delete old entries until the others than this one take at most `free` bytes.

    `names` are those of its new files; others that its token or the spare one names stay where they
    may still be its older files, and go else, and what killed writers left goes too. Raises
    OSError, Rejected.
    """
    content = scan(directory)
    recorded = rows.named_by()
    for name_token in (token, spare_token(token)):
        old = content.entries.pop(name_token, EvictableEntry())
        if name_token not in recorded:
            for name in set(old.names).difference(names):
                directory.remove(name)
    for victim in victims(content, recorded, free):
        if victim in recorded:
            rows.forget(recorded[victim])
        for name in content.entries[victim].names:
            directory.remove(name)
    directory.sweep(content.others)
