"""Entries that change after they were written, by drivers that compile just in time.

`Amender` replaces an entry as long as it is still the one that its holder wrote or read. A device
that writes cache files itself gets a `SharedEntry`: files in memory that it may write as long as
they are open, and whose content is stored from time to time. While it writes, after its call was
answered, it holds an exclusive flock(2) of the first of them, as it got it; nothing is read
meanwhile. If it dies while it writes, the lock stays, so half of a writing is never stored.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import weakref
from collections.abc import Iterator, Sequence

from nnasync._core.cache.keys import CacheKey
from nnasync._core.cache.outcome import Hit, Rejected
from nnasync._core.cache.sealed import fill, memory_file, view
from nnasync._core.cache.store import Store
from nnasync._core.cache.transfer import chunks, size_of
from nnasync.errors import InvalidArgument

_Contents = tuple[Sequence[bytes | memoryview], Sequence[bytes | memoryview]]


class Amender:
    """Replaces the files of an entry; any thread may call it."""

    def __init__(self, store: Store, key: CacheKey, model_digest: bytes, generation: bytes) -> None:
        """`generation` is that of the entry, empty where there is none yet."""
        self._store = store
        self._key = key
        self._digest = model_digest
        self._generation = generation
        self._lock = threading.Lock()

    def replace(
        self, model: Sequence[bytes | memoryview], data: Sequence[bytes | memoryview]
    ) -> str:
        """Store these files; why that failed, "" if it did not. The old ones stay until then."""
        counts = len(model), len(data)
        try:
            with (
                self._lock,
                self._store.write(
                    self._key, self._digest, counts, replaces=self._generation
                ) as writing,
            ):
                if not writing.reason:
                    for fd, content in zip(writing.fds, (*model, *data), strict=True):
                        fill(fd, content)
        except InvalidArgument as error:
            return str(error)
        except OSError as error:
            return f"no memory for cache files: {error.strerror}"
        if writing.stored:
            self._generation = writing.generation
        return writing.reason


class SharedEntry:
    """The files of an entry in memory that a driver may write; they are closed with the object.

    A time of modification of 0 says that nobody wrote a file since it was stored. Files that are
    all empty are no entry yet.
    """

    def __init__(self, amender: Amender, counts: tuple[int, int], found: Hit | None = None) -> None:
        """`found` is what is in them at first; raises Rejected, OSError without room for them."""
        self._amender = amender
        self._counts = counts
        self._lock = threading.Lock()
        self._fds: list[int] = []
        self.is_retired = False
        self.close = weakref.finalize(self, _close_all, self._fds)
        self.close.atexit = False
        for _ in range(sum(counts)):
            self._fds.append(memory_file())
        if found is not None:
            for fd, source in zip(self._fds, (*found.model_fds, *found.data_fds), strict=True):
                fill(fd, view(source))
        self._settle()

    @property
    def model_fds(self) -> tuple[int, ...]:
        """Descriptors of the model cache files, open for reading and writing."""
        return tuple(self._fds[: self._counts[0]])

    @property
    def data_fds(self) -> tuple[int, ...]:
        """Descriptors of the data cache files."""
        return tuple(self._fds[self._counts[0] :])

    def retire(self) -> None:
        """Say that the driver writes no more; from any thread, amidst anything."""
        self.is_retired = True

    def collect(self) -> str:
        """Store what was written since the last time, unless the driver writes now.

        Says why that failed, "" if it did not. What cannot be stored waits for the next writing.
        """
        with self._lock:
            try:
                found = self._taken()
            except Rejected as error:
                return str(error)
            except OSError as error:
                return f"a cache file in memory cannot be read: {error.strerror}"
            return self._amender.replace(*found) if found else ""

    def _taken(self) -> _Contents | None:
        """Copies of the files if there is something new in them."""
        if all(os.fstat(fd).st_mtime_ns == 0 for fd in self._fds):
            return None
        with _locked(self._fds[0]) as is_ours:
            if not is_ours:
                return None
            # Copied by reading: a file that shrinks below a mapping would kill the process.
            contents = [b"".join(chunks(fd, 0, size_of(fd))) for fd in self._fds]
            self._settle()
        models = self._counts[0]
        return (contents[:models], contents[models:]) if any(contents) else None

    def _settle(self) -> None:
        for fd in self._fds:
            os.utime(fd, ns=(0, 0))


@contextlib.contextmanager
def _locked(fd: int) -> Iterator[bool]:
    """Lock a file for the block, as somebody else than the driver; False if the driver has it."""
    own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(own, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(own)


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


class SharedEntries:
    """The entries of one runtime that drivers may still write."""

    def __init__(self) -> None:
        self._entries: list[SharedEntry] = []
        self._collecting = threading.Lock()

    def add(self, entry: SharedEntry, owner: object) -> None:
        """Look after an entry as long as `owner` lives."""
        self._entries.append(entry)
        with contextlib.suppress(TypeError):  # What has no weak references lives until the end.
            weakref.finalize(owner, entry.retire).atexit = False

    def collect(self) -> None:
        """Store what drivers wrote; waits for the file system, and for nobody who does it too."""
        if not self._collecting.acquire(blocking=False):
            return
        try:
            for entry in tuple(self._entries):
                is_last = entry.is_retired
                entry.collect()
                if is_last:
                    self._entries.remove(entry)
                    entry.close()
        finally:
            self._collecting.release()

    def close(self) -> None:
        """Collect for the last time."""
        for entry in tuple(self._entries):
            entry.retire()
        self.collect()
