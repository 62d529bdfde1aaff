"""What an application asks of a compilation, checked before anything is done."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from nnasync import importers
from nnasync import model as models
from nnasync.clock import Deadline, now_ns
from nnasync.compilation import fingerprints
from nnasync.device import Device
from nnasync.errors import InvalidArgument, MissedDeadlinePersistent, MissedDeadlineTransient
from nnasync.hal import BYTE_SIZE_OF_CACHE_TOKEN, ExecutionPreference, Model, Priority

if TYPE_CHECKING:
    from nnasync.versions import OlderDevice

__all__ = ["CompileRequest", "Identity", "ModelSource", "begun"]

E = TypeVar("E")

_PIECE_BYTES = 1 << 19


class ModelSource(msgspec.Struct, frozen=True):
    """A model, or a file with one that is only loaded if it must be."""

    model: Model | None
    path: str | None
    name: str

    @classmethod
    def of(cls, given: object) -> ModelSource:
        """Raises InvalidArgument for what is no model and no path of a model's file."""
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

    @property
    def _path(self) -> str:
        return self.path or ""


class Identity(msgspec.Struct, frozen=True):
    """What a compilation is remembered under, besides its options.

    digest: SHA-256 of the model, or of its file. code: fingerprints of the drivers of third
    parties, by device.
    """

    digest: bytes
    code: dict[str, str]

    @classmethod
    def of(cls, source: ModelSource, devices: Sequence[Device]) -> Identity:
        """Reads the model and the drivers' folders; raises OSError where the model cannot be."""
        return cls(source.digest(), fingerprints(devices))


class CompileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one compilation; raises InvalidArgument for those that make no sense."""

    devices: Sequence[str | Device | OlderDevice] | None = None
    preference: ExecutionPreference
    priority: Priority
    deadline: Deadline | None = None
    cache_dir: str | os.PathLike[str] | None = None
    token: bytes | None = None
    precision: str | None = None
    preemption_quantum_ms: float | None = None
    pin: str | None = None
    optimise_after: int | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        _check_type("deadline", self.deadline, Deadline, "a Deadline such as nn.within(s=5)")
        _check_type("pin", self.pin, str, "a string, as report().pin is one")
        _check_type("name", self.name, str, "a string")
        _check_type("cache_dir", self.cache_dir, (str, os.PathLike), "a path")
        token: object = self.token
        is_token = isinstance(token, bytes) and len(token) == BYTE_SIZE_OF_CACHE_TOKEN
        if token is not None and not is_token:
            raise InvalidArgument(f"token must be {BYTE_SIZE_OF_CACHE_TOKEN} bytes, got {token!r}")
        if self.precision not in (None, "exact", "bf16"):
            raise InvalidArgument(
                f"precision must be None, 'exact' or 'bf16', got {self.precision!r}"
            )
        quantum: object = self.preemption_quantum_ms
        if quantum is not None and not (
            isinstance(quantum, (int, float)) and 0 < quantum < float("inf")
        ):
            raise InvalidArgument(f"preemption_quantum_ms must be above 0: {quantum!r}")
        count: object = self.optimise_after
        if count is not None and not (type(count) is int and count >= 0):
            raise InvalidArgument(f"optimise_after must be 0 or more, got {count!r}")
        if count is not None and self.pin is not None:
            raise InvalidArgument("a pin leaves nothing to optimise: leave optimise_after out")
        _choice(ExecutionPreference, self.preference)
        _choice(Priority, self.priority)

    @property
    def quantum_ns(self) -> int | None:
        """The preemption quantum."""
        milliseconds = self.preemption_quantum_ms
        return None if milliseconds is None else int(milliseconds * 1e6)


@contextlib.contextmanager
def begun(deadline: Deadline | None) -> Iterator[None]:
    """The time of a compilation: late from the start is persistent, late after that transient."""
    if deadline is not None and deadline.remaining_ns(now_ns()) <= 0:
        raise MissedDeadlinePersistent("the deadline had passed before the compilation began")
    try:
        yield
    except MissedDeadlinePersistent as error:
        raise MissedDeadlineTransient(str(error)) from error


def _check_type(name: str, value: object, kind: type | tuple[type, ...], what: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise InvalidArgument(f"{name} must be {what}, got {value!r}")


def _choice(kind: Callable[[E], E], value: E) -> E:
    try:
        return kind(value)
    except ValueError as error:
        raise InvalidArgument(str(error)) from error
