"""The compilation cache of one directory: entries are looked up and written as a whole.

Two places are kept apart. The files lie in a directory of the client, who may do with it what he
likes; the records that they are checked against lie in the ledger, in the user's state folder. An
entry counts from the moment when its record is committed, which is after all its files have their
names. Those of an older writing have other names and go afterwards, so a writer may be killed at
any moment, and one entry or the other is there. Writers of one installation take turns at that
step; of several that write one entry the last wins, unless it wanted to replace another one.

No failure of the cache fails a compilation: a lookup answers Miss with a reason, a writing has a
reason afterwards. Raised is only what the caller can set right: InvalidArgument for a directory
that is refused and for wrong arguments. Everything is synchronous and waits for the file system,
which may be slow or dead: call it in a thread, with a limit of your own.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from nnasync._core.cache.directory import Directory
from nnasync._core.cache.entry_files import NewFiles, entry_contents, entry_handles
from nnasync._core.cache.entry_records import FORMAT, HEADER_BYTES, Record, check_record
from nnasync._core.cache.installation import Installation
from nnasync._core.cache.keys import CacheKey, check_counts, derive_token, file_names, slot
from nnasync._core.cache.ledger import CacheLedger, DirectoryRows
from nnasync._core.cache.outcome import (
    DEFAULT_LIMIT_BYTES,
    Contents,
    ForeignFile,
    Hit,
    Miss,
    Rejected,
)
from nnasync._core.cache.transfer import Cipher, size_of
from nnasync._core.deferred import deferred
from nnasync.errors import InvalidArgument

if TYPE_CHECKING:
    from nnasync._core.cache import eviction, writing
    from nnasync._core.cache.writing import Writing
else:
    eviction = deferred("nnasync._core.cache.eviction")
    writing = deferred("nnasync._core.cache.writing")

T = TypeVar("T")


_NO_FILES = "the device has no cache files"


class Store:
    """Entries in `directory`, their records in `state_directory`.

    Neither is touched before the first call. The directory is made, for its owner only, when the
    first entry is written. Any thread and any number of processes may use it at once.

    encrypt: keep files encrypted (AES-GCM, with a key from the secret of the installation).
    Raises InvalidArgument for what cannot be a path, or a limit below 1.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        state_directory: str | os.PathLike[str],
        *,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
        encrypt: bool = False,
    ) -> None:
        if limit_bytes < 1:
            raise InvalidArgument(f"the limit of a cache is 1 byte or more, got {limit_bytes}")
        self.path = _absolute(directory)
        self.limit_bytes = limit_bytes
        self.encrypt = encrypt
        self._installation = Installation(_absolute(state_directory))
        self._ledger = CacheLedger(self._installation)

    @staticmethod
    def get_ready() -> None:
        """Import what the first look into any directory needs; it may be done at any moment."""
        with contextlib.suppress(ImportError):
            import sqlite3  # noqa: F401 - a missing one is reported where it is used

    def lookup(
        self, key: CacheKey, model_digest: bytes, counts: tuple[int, int] | None = None
    ) -> Hit | Miss:
        """The files of an entry, or why there are none; close the hit after use.

        `counts`: numbers of model cache and data cache files that the device wants. Raises
        InvalidArgument for a directory that is refused.
        """
        return self._found(key, model_digest, counts, entry_handles)

    def read(
        self,
        key: CacheKey,
        model_digest: bytes,
        counts: tuple[int, int] | None = None,
        *,
        found: Callable[[], object] | None = None,
    ) -> Contents | Miss:
        """Returns an entry to a reader of this process, who needs no descriptors.

        `found` is called when there is an entry, before what is in it is read, which takes longer.
        """
        take = functools.partial(entry_contents, found=found)
        return self._found(key, model_digest, counts, take)

    def _found(
        self,
        key: CacheKey,
        model_digest: bytes,
        counts: tuple[int, int] | None,
        take: Callable[[Directory, bytes, Record, Cipher | None], T],
    ) -> T | Miss:
        try:
            if counts == (0, 0):
                raise Rejected(_NO_FILES)
            with Directory(self.path) as directory:
                return self._taken(directory, key, model_digest, counts, take)
        except Rejected as reason:
            return Miss(str(reason))
        except OSError as error:
            return Miss(f"the cache directory cannot be read: {error.strerror}")

    def _taken(
        self,
        directory: Directory,
        key: CacheKey,
        model_digest: bytes,
        counts: tuple[int, int] | None,
        take: Callable[[Directory, bytes, Record, Cipher | None], T],
    ) -> T:
        token = derive_token(key)

        def verified(rows: DirectoryRows | None) -> T:
            record = rows.find(token) if rows else None
            if rows is None or record is None:
                others = rows.same_slot(slot(key)) if rows else []
                raise Rejected(_why_none(directory, key, token, others))
            check_record(record, key, model_digest, counts=counts, encrypt=self.encrypt)
            return take(directory, token, record, self._cipher())

        try:
            with self._ledger.reading(self._place()) as rows:
                return verified(rows)
        except ForeignFile:
            # A writer may be between its files and its record: wait for it, and keep others out.
            with self._ledger.writing(self._place()) as rows:
                return verified(rows)

    def _place(self) -> bytes:
        """Name of the directory in the ledger."""
        return os.fsencode(os.path.realpath(self.path))

    def _cipher(self) -> Cipher | None:
        if not self.encrypt:
            return None
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        secret = self._installation.make_secret()
        return AESGCM(hmac.digest(secret, b"nnasync cache encryption", "sha256"))

    def generation(self, key: CacheKey) -> bytes:
        """Returns a value that changes with each writing of an entry; empty where there is none."""
        with contextlib.suppress(Rejected), self._ledger.reading(self._place()) as rows:
            record = _current(rows, derive_token(key)) if rows else None
            return record.generation if record else b""
        return b""

    @contextlib.contextmanager
    def write(
        self,
        key: CacheKey,
        model_digest: bytes,
        counts: tuple[int, int],
        *,
        replaces: bytes | None = None,
    ) -> Iterator[Writing]:
        """Write an entry: fill the descriptors in the block; it is stored when the block is left.

        An exception in the block stores nothing. Where the entry cannot be written there are no
        descriptors from the beginning; `Writing.reason` says why. With `replaces` it is stored only
        if the entry is still of that generation then, b"" where there was none. Raises
        InvalidArgument for a directory that is refused and for more than 32 files of a kind.
        """
        check_counts(counts)
        with writing.Writing() as entry:
            with entry.explained():
                self._begin(entry, counts)
            yield entry
            if not entry.reason:
                with entry.explained():
                    self._commit(entry, key, model_digest, replaces)

    def _begin(self, entry: Writing, counts: tuple[int, int]) -> None:
        if counts == (0, 0):
            raise Rejected(_NO_FILES)
        with Directory(self.path, create=True) as directory:
            directory.create_temporary().close()
        self._installation.make_secret()
        entry.open(counts)

    def _commit(
        self, entry: Writing, key: CacheKey, model_digest: bytes, replaces: bytes | None
    ) -> None:
        try:
            self._store(entry, key, model_digest, replaces)
            entry.stored = True
        except InvalidArgument as error:
            # The directory was in order when the block began: nothing for the caller to act on now.
            raise Rejected(str(error)) from error

    def _store(
        self, entry: Writing, key: CacheKey, model_digest: bytes, replaces: bytes | None
    ) -> None:
        token = derive_token(key)
        size = sum(eviction.on_disk(size_of(fd) + HEADER_BYTES) for fd in entry.fds)
        if size > self.limit_bytes:
            raise Rejected(
                f"the entry takes {size} bytes, more than the limit of {self.limit_bytes}"
            )
        cipher = self._cipher()
        with (
            Directory(self.path) as directory,
            contextlib.closing(NewFiles(directory)) as files,
        ):
            entry.generation, model, data = files.write(entry.model_fds, entry.data_fds, cipher)
            with self._ledger.writing(self._place()) as rows:
                old = _current(rows, token)
                if replaces is not None and replaces != (old.generation if old else b""):
                    raise Rejected("the entry was written anew by somebody else meanwhile")
                record = Record(
                    format=FORMAT,
                    library_version=key.library_version,
                    device_name=key.device_name,
                    device_version=key.device_version,
                    model_digest=model_digest,
                    generation=entry.generation,
                    encrypted=cipher is not None,
                    model=model,
                    data=data,
                    spare=old is not None and not old.spare,
                )
                names = file_names(record.named_by(token), record.counts)
                eviction.make_room(directory, rows, token, names, self.limit_bytes - size)
                files.publish(record.named_by(token))
                rows.put(token, slot(key), record)
            if old is not None:
                self._remove(directory, token, old)

    def _remove(self, directory: Directory, token: bytes, old: Record) -> None:
        """Delete the files of an older writing, which is no matter if it fails."""
        with (
            contextlib.suppress(Rejected, InvalidArgument),
            self._ledger.writing(self._place()) as rows,
        ):
            current = _current(rows, token)
            if current is None or current.spare != old.spare:
                for name in file_names(old.named_by(token), old.counts):
                    directory.remove(name)


def _current(rows: DirectoryRows, token: bytes) -> Record | None:
    """The record of an entry; None too where it is not genuine."""
    with contextlib.suppress(Rejected):
        return rows.find(token)
    return None


def _absolute(path: str | os.PathLike[str]) -> str:
    try:
        name: object = os.path.expanduser(os.fspath(path))
    except TypeError:
        name = None
    if not isinstance(name, str) or not name or "\0" in name or not _is_encodable(name):
        raise InvalidArgument(f"a directory is given by its path, got {path!r}")
    return os.path.abspath(name)


def _is_encodable(name: str) -> bool:
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def _why_none(directory: Directory, key: CacheKey, token: bytes, others: list[Record]) -> str:
    for other in others:
        if other.device_version != key.device_version:
            return f"other driver version {key.device_version}, was {other.device_version}"
    if any(map(directory.has, (*file_names(token, (1, 0)), *file_names(token, (0, 1))))):
        return "no record of these files: written by another installation, or not completely"
    return "no entry"
