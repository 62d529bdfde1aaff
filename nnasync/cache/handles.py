"""Cache handles as the HAL passes them to a driver: what was written is remembered by its token.

At the HAL it is the client who opens the files and the driver who must not trust them. A driver
keeps the digests of what it wrote in the ledger, and loads nothing that differs by a bit. The
files have no header: their whole content is the driver's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from nnasync.cache.files import load_each
from nnasync.cache.installation import Installation
from nnasync.cache.keys import FileKind, check_token
from nnasync.cache.ledger import Ledger
from nnasync.cache.outcome import Hit, Miss, Rejected
from nnasync.cache.records import FORMAT, GENERATION_BYTES, FileRecord, Record, digest_of
from nnasync.cache.sealed import fill
from nnasync.cache.transfer import load, size_of

__all__ = ["HandleCache"]

_Content = bytes | bytearray | memoryview


class HandleCache:
    """The digests of one driver; `name` and `version` tell drivers apart in a state directory."""

    def __init__(self, state_directory: str | os.PathLike[str], name: str, version: str) -> None:
        self._ledger = Ledger(Installation(os.path.abspath(os.fspath(state_directory))))
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
            _check_numbers((len(model_fds), len(data_fds)), (len(model), len(data)))
            record = self._record(model, data)
            for fd, content in zip((*model_fds, *data_fds), (*model, *data), strict=True):
                fill(fd, content)
            with self._ledger.writing(self._place) as rows:
                rows.put(token, b"", record)
        except Rejected as error:
            return str(error)
        except OSError as error:
            return f"a cache handle cannot be written: {error.strerror}"
        return ""

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
        """What `save` wrote with this token, copied to sealed memory, or why not.

        Raises InvalidArgument for a token that is not 32 bytes.
        """
        check_token(token)
        handles = {FileKind.MODEL: model_fds, FileKind.DATA: data_fds}

        def one(kind: FileKind, index: int, file: FileRecord) -> int:
            fd = handles[kind][index]
            if size_of(fd) != file.size:
                raise Rejected("of another size than it was")
            return load(fd, kind, file)

        try:
            record = self._find(token)
            _check_numbers((len(model_fds), len(data_fds)), record.counts)
            return load_each(record, one)
        except Rejected as error:
            return Miss(str(error))

    def _find(self, token: bytes) -> Record:
        with self._ledger.reading(self._place) as rows:
            record = rows.find(token) if rows else None
            if rows is None or record is None:
                raise Rejected("no entry")
        if (record.format, record.device_version) != (FORMAT, self._version):
            raise Rejected(f"other driver version {self._version}, was {record.device_version}")
        return record


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
