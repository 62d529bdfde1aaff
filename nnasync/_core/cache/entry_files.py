"""The files of one entry, read from and written to a cache directory."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from nnasync._core.cache.directory import Directory, TemporaryFile
from nnasync._core.cache.entry_records import (
    GENERATION_BYTES,
    HEADER_BYTES,
    FileRecord,
    Record,
    file_header,
)
from nnasync._core.cache.keys import FileKind, file_name
from nnasync._core.cache.outcome import Contents, ForeignFile, Hit, Rejected
from nnasync._core.cache.sealed import view
from nnasync._core.cache.transfer import Cipher, load, read, save, size_of

T = TypeVar("T")

_KIND_NAMES = {FileKind.MODEL: "model", FileKind.DATA: "data"}


def entry_handles(directory: Directory, token: bytes, record: Record, cipher: Cipher | None) -> Hit:
    """Returns all files of an entry in sealed memory; raises Rejected for the first misfit.

    The time of its first file says when the entry was last used.
    """
    token = record.named_by(token)

    def one(kind: FileKind, index: int, file: FileRecord) -> int:
        with _opened(directory, token, record, kind, index) as (fd, head):
            return load(fd, kind, file, offset=HEADER_BYTES, cipher=cipher, bound=head)

    hit = load_each(record, one)
    _touch(directory, token, record)
    return hit


def entry_contents(
    directory: Directory,
    token: bytes,
    record: Record,
    cipher: Cipher | None,
    found: Callable[[], object] | None = None,
) -> Contents:
    """Returns all files of an entry in memory of this process.

    `found` is called when all files are there. Raises Rejected for the first that does not fit.
    """
    token = record.named_by(token)
    with contextlib.ExitStack() as opened:

        def source(kind: FileKind, index: int, file: FileRecord) -> tuple[int, bytes]:
            return opened.enter_context(_opened(directory, token, record, kind, index))

        def sources(kind: FileKind, files: Sequence[FileRecord]) -> list[tuple[int, bytes]]:
            one = functools.partial(source, kind)
            return [_explained(one, kind, *each) for each in enumerate(files)]

        code, values = sources(FileKind.MODEL, record.model), sources(FileKind.DATA, record.data)
        if found is not None:
            found()

        def copied(index: int, file: FileRecord) -> bytes:
            fd, head = code[index]
            return read(fd, FileKind.MODEL, file, offset=HEADER_BYTES, cipher=cipher, bound=head)

        def mapped(index: int, file: FileRecord) -> memoryview:
            fd, head = values[index]
            sealed = load(fd, FileKind.DATA, file, offset=HEADER_BYTES, cipher=cipher, bound=head)
            try:
                return view(sealed)
            finally:
                os.close(sealed)

        model = [_explained(copied, FileKind.MODEL, *each) for each in enumerate(record.model)]
        data = [_explained(mapped, FileKind.DATA, *each) for each in enumerate(record.data)]
    _touch(directory, token, record)
    return Contents(tuple(model), tuple(data), record.generation)


@contextlib.contextmanager
def _opened(
    directory: Directory, token: bytes, record: Record, kind: FileKind, index: int
) -> Iterator[tuple[int, bytes]]:
    """A file of an entry, of the right size and with the right header, which comes with it."""
    file = (record.model if kind is FileKind.MODEL else record.data)[index]
    head = file_header(record.generation, kind, index, file)
    fd = directory.open_file(file_name(token, kind, index))
    try:
        if size_of(fd) != HEADER_BYTES + file.size:
            raise ForeignFile("of another size than it was")
        if os.pread(fd, HEADER_BYTES, 0) != head:
            raise ForeignFile("modified, or of another entry")
        yield fd, head
    finally:
        os.close(fd)


def _touch(directory: Directory, token: bytes, record: Record) -> None:
    directory.touch(file_name(token, FileKind.MODEL if record.model else FileKind.DATA, 0))


def load_each(record: Record, one: Callable[[FileKind, int, FileRecord], int]) -> Hit:
    """A hit of what `one` answers for each file of a record; raises Rejected with its name."""
    model: list[int] = []
    data: list[int] = []
    try:
        for kind, files, fds in (
            (FileKind.MODEL, record.model, model),
            (FileKind.DATA, record.data, data),
        ):
            load_one = functools.partial(one, kind)
            for index, file in enumerate(files):
                fds.append(_explained(load_one, kind, index, file))
    except BaseException:
        for fd in model + data:
            os.close(fd)
        raise
    return Hit(tuple(model), tuple(data), record.generation)


def _explained(
    one: Callable[[int, FileRecord], T], kind: FileKind, index: int, file: FileRecord
) -> T:
    """Returns the result of `one`; adds the name of the file to what it raises as Rejected."""
    where = f"file {index} of the {_KIND_NAMES[kind]} cache"
    try:
        return one(index, file)
    except FileNotFoundError as error:
        raise ForeignFile(f"missing: {where}") from error
    except OSError as error:
        raise Rejected(f"unreadable ({error.strerror}): {where}") from error
    except Rejected as error:
        raise type(error)(f"{error}: {where}") from error


class NewFiles:
    """The files of an entry to come, under temporary names; they go when it is closed."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._generation = os.urandom(GENERATION_BYTES)
        self._files: list[tuple[TemporaryFile, FileKind, int]] = []

    def write(
        self, model: Sequence[int], data: Sequence[int], cipher: Cipher | None
    ) -> tuple[bytes, tuple[FileRecord, ...], tuple[FileRecord, ...]]:
        """Copy what is in these descriptors; the generation, and what to record of the files.

        Raises OSError, Rejected.
        """
        return (
            self._generation,
            tuple(self._write(FileKind.MODEL, model, cipher)),
            tuple(self._write(FileKind.DATA, data, cipher)),
        )

    def _write(
        self, kind: FileKind, sources: Iterable[int], cipher: Cipher | None
    ) -> Iterable[FileRecord]:
        for index, source in enumerate(sources):
            target = self._directory.create_temporary()
            self._files.append((target, kind, index))

            def header(file: FileRecord, index: int = index) -> bytes:
                return file_header(self._generation, kind, index, file)

            record = save(source, target.fd, kind, header, cipher)
            os.fsync(target.fd)
            yield record

    def publish(self, token: bytes) -> None:
        """Give all files their names; raises OSError."""
        for file, kind, index in self._files:
            file.rename(file_name(token, kind, index))
        self._directory.sync()

    def close(self) -> None:
        """Close all files, and delete those that were not published."""
        for file, _, _ in self._files:
            file.close()
        self._files.clear()
