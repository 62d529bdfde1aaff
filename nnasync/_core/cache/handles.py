"""Cache handles as the HAL passes them to a driver: what was written is remembered by its token.

At the HAL it is the client who opens the files and the driver who must not trust them. A driver
keeps the digests of what it wrote in the ledger, and loads nothing that differs by a bit. The
files have no header: their whole content is the driver's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator, Sequence

from nnasync._core.cache.entry_files import load_each
from nnasync._core.cache.entry_records import (
    FORMAT,
    GENERATION_BYTES,
    FileRecord,
    Record,
    digest_of,
)
from nnasync._core.cache.installation import Installation
from nnasync._core.cache.keys import FileKind, check_token, spare_token
from nnasync._core.cache.ledger import CacheLedger
from nnasync._core.cache.outcome import Hit, Miss, Rejected
from nnasync._core.cache.sealed import fill
from nnasync._core.cache.transfer import load, size_of

_Content = bytes | bytearray | memoryview

_LOCK_TRIES = 100
_LOCK_PAUSE_S = 0.02


class HandleCache:
    """The digests of one driver; `name` and `version` tell drivers apart in a state directory."""

    def __init__(self, state_directory: str | os.PathLike[str], name: str, version: str) -> None:
        self._ledger = CacheLedger(Installation(os.path.abspath(os.fspath(state_directory))))
        self._place = b"handles " + name.encode()
        self._name = name
        self._version = version

    def save(
        self,
        token: bytes,
        model_fds: Sequence[int],
        data_fds: Sequence[int],
        *,
        model: Sequence[_Content],
        data: Sequence[_Content],
    ) -> str:
        """Write contents to handles, from offset 0 on; why it failed, "" if it did not.

        After a failure nothing is loaded with this token. Raises InvalidArgument for a token that
        is not 32 bytes.
        """
        check_token(token)
        try:
            with self._ledger.writing(self._place) as rows:
                rows.forget(token)
                rows.forget(spare_token(token))
            _check_numbers((len(model_fds), len(data_fds)), (len(model), len(data)))
            self._fill(token, (*model_fds, *data_fds), self._record(model, data), (*model, *data))
        except Rejected as error:
            return str(error)
        except OSError as error:
            return f"a cache handle cannot be written: {error.strerror}"
        return ""

    def amend(
        self,
        token: bytes,
        model_fds: Sequence[int],
        data_fds: Sequence[int],
        *,
        model: Sequence[_Content],
        data: Sequence[_Content],
    ) -> str:
        """Write other contents later, when nobody expects it; why it failed, "" if it did not.

        The first file is locked meanwhile, for its client. What was saved before stays known, as
        the client may keep copies of the files, of before and of afterwards.
        """
        fds = *model_fds, *data_fds
        try:
            _check_numbers((len(model_fds), len(data_fds)), (len(model), len(data)))
            with _locked(fds[0]):
                with self._ledger.writing(self._place) as rows:
                    if older := rows.find(token):
                        rows.put(spare_token(token), b"", older)
                self._fill(token, fds, self._record(model, data), (*model, *data))
        except Rejected as error:
            return str(error)
        except OSError as error:
            return f"a cache handle cannot be written: {error.strerror}"
        return ""

    def _fill(
        self, token: bytes, fds: Sequence[int], record: Record, contents: Sequence[_Content]
    ) -> None:
        for fd, content in zip(fds, contents, strict=True):
            fill(fd, content)
        with self._ledger.writing(self._place) as rows:
            rows.put(token, b"", record)

    def forget(self, token: bytes) -> str:
        """Have nothing loaded with this token any more; why that failed, "" if it did not."""
        check_token(token)
        try:
            with self._ledger.writing(self._place) as rows:
                rows.forget(token)
        except Rejected as error:
            return str(error)
        except OSError as error:
            return f"the record of a cache cannot be deleted: {error.strerror}"
        return ""

    def _record(self, model: Sequence[_Content], data: Sequence[_Content]) -> Record:
        return Record(
            format=FORMAT,
            library_version="",
            device_name=self._name,
            device_version=self._version,
            model_digest=b"",
            generation=os.urandom(GENERATION_BYTES),
            encrypted=False,
            model=tuple(_file_record(FileKind.MODEL, content) for content in model),
            data=tuple(_file_record(FileKind.DATA, content) for content in data),
        )

    def load(self, token: bytes, model_fds: Sequence[int], data_fds: Sequence[int]) -> Hit | Miss:
        """Returns what `save` wrote with this token, in sealed memory, or why it cannot.

        Raises InvalidArgument for a token that is not 32 bytes.
        """
        check_token(token)
        try:
            records = self._find(token)
        except Rejected as error:
            return Miss(str(error))
        reason = ""
        for record in records:
            try:
                return _loaded(record, model_fds, data_fds)
            except Rejected as error:
                reason = reason or str(error)
        return Miss(reason)

    def _find(self, token: bytes) -> list[Record]:
        """Returns the record of a token, and the one from before it was amended, if any."""
        with self._ledger.reading(self._place) as rows:
            found = [rows.find(token), rows.find(spare_token(token))] if rows else []
        records = [record for record in found if record is not None]
        if not records:
            raise Rejected("no entry")
        for record in records:
            if (record.format, record.device_version) != (FORMAT, self._version):
                raise Rejected(f"other driver version {self._version}, was {record.device_version}")
        return records


def _loaded(record: Record, model_fds: Sequence[int], data_fds: Sequence[int]) -> Hit:
    """Returns the contents of these handles if the record matches; raises Rejected otherwise."""
    handles = {FileKind.MODEL: model_fds, FileKind.DATA: data_fds}

    def one(kind: FileKind, index: int, file: FileRecord) -> int:
        fd = handles[kind][index]
        if size_of(fd) != file.size:
            raise Rejected("of another size than it was")
        return load(fd, kind, file)

    _check_numbers((len(model_fds), len(data_fds)), record.counts)
    return load_each(record, one)


@contextlib.contextmanager
def _locked(fd: int) -> Iterator[None]:
    """Lock a file for the block; raises Rejected where its client does not release it soon."""
    pause = threading.Event()
    for _ in range(_LOCK_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        pause.wait(_LOCK_PAUSE_S)
    else:
        raise Rejected("the client holds the lock of the file")
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def _check_numbers(handles: tuple[int, int], files: tuple[int, int]) -> None:
    if handles != files:
        raise Rejected(
            f"{handles[0]} model and {handles[1]} data cache handles came for {files[0]} and "
            f"{files[1]} files"
        )


def _file_record(kind: FileKind, content: _Content) -> FileRecord:
    digest = digest_of(kind)
    digest.update(content)
    return FileRecord(memoryview(content).nbytes, digest.digest())
