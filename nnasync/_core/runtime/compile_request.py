"""The model that an application wants compiled, and the time that it gives for that."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable, Iterator

import msgspec

from nnasync._core import importers
from nnasync._core import model as models
from nnasync._core.clock import Deadline, now_ns
from nnasync.errors import InvalidArgument, MissedDeadlinePersistent, MissedDeadlineTransient
from nnasync.hal import Model

__all__ = ["ModelSource", "begun"]

_PIECE_BYTES = 1 << 19


class ModelSource(msgspec.Struct, frozen=True):
    """A model, or a file with one that is only loaded if it must be."""

    model: Model | None
    path: str | None
    name: str

    @classmethod
    def of(cls, given: object) -> ModelSource:
        """Raises InvalidArgument if it is neither a model nor the path of a model file."""
        if isinstance(given, Model):
            return cls(given, None, given.name)
        if not isinstance(given, (str, os.PathLike)):
            raise InvalidArgument(
                f"compile takes a model, such as nn.load(path), or a path, got {given!r}"
            )
        importers.check_suffix(given)
        path = os.fspath(given)
        return cls(None, path, os.path.splitext(os.path.basename(path))[0])

    def digest(self) -> bytes:
        """SHA-256 of the model, or of the file; raises OSError where that cannot be read."""
        if self.model is not None:
            return models.fingerprint(self.model)
        # In few large pieces: after each one the thread has to ask for the interpreter lock.
        digest, buffer = hashlib.sha256(), memoryview(bytearray(_PIECE_BYTES))
        with open(self._path, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                digest.update(buffer[:count])
        return digest.digest()

    def source(self) -> Model | Callable[[], Model]:
        """The model, or what loads it."""
        return self.model or functools.partial(importers.load, self._path)

    def whole(self) -> Callable[[], Model] | None:
        """What loads the file as one operation of its own engine, if it has one."""
        if self.path is None or not importers.has_whole_form(self.path):
            return None
        return functools.partial(importers.load, self.path, form="whole")

    @property
    def _path(self) -> str:
        return self.path or ""


@contextlib.contextmanager
def begun(deadline: Deadline | None) -> Iterator[None]:
    """The time of a compilation: late from the start is persistent, late after that transient."""
    if deadline is not None and deadline.remaining_ns(now_ns()) <= 0:
        raise MissedDeadlinePersistent("the deadline had passed before the compilation began")
    try:
        yield
    except MissedDeadlinePersistent as error:
        raise MissedDeadlineTransient(str(error)) from error
