"""Results of a lookup: a hit with descriptors, the contents, or a miss with its reason."""

from __future__ import annotations

import os
from typing import Self

from nnasync.hal import Struct

DEFAULT_LIMIT_BYTES = 1 << 30
"""How large the entries of a directory may be together, unless an application says otherwise."""


class Rejected(Exception):
    """An entry is not accepted, or cannot be written; the text is the reason. Never leaves here."""


class ForeignFile(Rejected):
    """A file is not of the writing that the record is of, or is missing."""


class Miss(Struct):
    """There is no entry that may be used; `reason` says why, for `net.report()`."""

    reason: str


class Contents(Struct):
    """The files of an entry, checked, in memory of this process.

    model: copies of the model cache files. data: mappings, for reading, of sealed memory with what
    is in the data cache files, of which a plan may use little.
    """

    model: tuple[bytes, ...]
    data: tuple[memoryview, ...]
    generation: bytes = b""
    """Which writing of the entry they are of."""


class Hit:
    """The files of an entry, checked, as descriptors of memory that nobody can change any more.

    Each can be read from offset 0 or mapped for reading (`view`). A context manager; they are open
    until it is closed, and who needs one for longer duplicates or maps it. `generation` says which
    writing of the entry they are of.
    """

    __slots__ = ("__weakref__", "_close_fd", "data_fds", "generation", "model_fds")

    def __init__(
        self, model_fds: tuple[int, ...], data_fds: tuple[int, ...], generation: bytes = b""
    ) -> None:
        """Takes the descriptors over."""
        self.model_fds = model_fds
        self.data_fds = data_fds
        self.generation = generation
        # At the end of the interpreter a module is gone before its last object.
        self._close_fd = os.close

    def close(self) -> None:
        """Close the descriptors; may be called any number of times."""
        fds = self.model_fds + self.data_fds
        self.model_fds = self.data_fds = ()
        for fd in fds:
            self._close_fd(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "model_fds", ()) or getattr(self, "data_fds", ()):
            self.close()

    def __repr__(self) -> str:
        return f"<Hit of {len(self.model_fds)} model and {len(self.data_fds)} data cache files>"
