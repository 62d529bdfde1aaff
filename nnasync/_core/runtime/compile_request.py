"""What an application asks to be compiled: the model, options, the time; the network to come."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, cast

import msgspec

from nnasync._core import importers
from nnasync._core import model as models
from nnasync._core.clock import Deadline, now_ns
from nnasync._core.deferred import deferred
from nnasync._core.execution import Net
from nnasync._core.execution.ports import R
from nnasync._core.formats.value_sizes import check_limit
from nnasync._core.importers.files_beside import files_beside
from nnasync._core.wakeup import shield
from nnasync.device import PreparedModel
from nnasync.errors import (
    InvalidArgument,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    ModelError,
    NNError,
)
from nnasync.fences import Fence
from nnasync.hal import Model

if TYPE_CHECKING:
    from nnasync._core.model import float_ports
else:
    float_ports = deferred("nnasync._core.model.float_ports")

logger = logging.getLogger(__name__)

Begin = Callable[[Callable[[], object], str], Fence | None]
"""Has another thread do something that is named; the fence is settled when that is over."""

_PIECE_BYTES = 1 << 19
_MOST_BYTES = 1 << 31
"""Of a file that is read at once; larger ones are none, or have weights behind what is read."""
_WITH_FLOATS = b"with floats outside"


class FileState(NamedTuple):
    """The identity of a file and when it was changed: equal where its bytes are."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileState:
        """Returns the state of an open file, or of the one at a path."""
        return cls(
            status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        )


class _Reading(NamedTuple):
    """The states of a model's files when they were read, and the digest of all."""

    states: Mapping[str, FileState]
    digest: bytes


class ModelSource(msgspec.Struct):
    """A model, or a file with one that is only loaded if it must be, with floats outside or not.

    The file is read again whenever the model is needed: another contest, a device that died. By
    then it must hold what was digested, for everything is kept under that name, and so must the
    files beside it that have its weights.
    """

    model: Model | None
    path: str | None
    name: str
    has_float_ports: bool = False
    value_limit_bytes: int | None = None
    _read: _Reading | None = None
    _content: bytes | None = None
    _ahead: Model | None = None

    @classmethod
    def of(
        cls, given: object, io: str | None = None, options: CompileOptions | None = None
    ) -> ModelSource:
        """Returns the source for a model, or for the path of a model file.

        Raises InvalidArgument for anything else, for an `io` that is neither None nor "float", and
        for `options` that are no CompileOptions.
        """
        value_limit_bytes = checked(options).value_limit_bytes
        check_limit(value_limit_bytes)
        if io not in (None, "float"):
            raise InvalidArgument(f"io must be None or 'float', got {io!r}")
        if isinstance(given, Model):
            model = given if io is None else float_ports.with_float_ports(given)
            return cls(model, None, given.name)
        if not isinstance(given, (str, os.PathLike)):
            raise InvalidArgument(
                f"compile takes a model, such as nn.load(path), or a path, got {given!r}"
            )
        importers.check_suffix(given)
        path = os.fspath(given)
        name = os.path.splitext(os.path.basename(path))[0]
        return cls(
            None,
            path,
            name,
            has_float_ports=io is not None,
            value_limit_bytes=value_limit_bytes,
        )

    def digest(self, begin: Begin | None = None) -> bytes:
        """SHA-256 of the model, or of the file and what is made of it; raises OSError.

        With `begin`, which has another thread do something, the file is read at once, to be loaded
        as one operation; one that takes long to digest is loaded meanwhile.
        """
        if self.model is not None:
            return models.fingerprint(self.model)
        self._read = _read(self._path) if begin is None else self._taken_in(begin)
        digest = self._read.digest
        return hashlib.sha256(_WITH_FLOATS + digest).digest() if self.has_float_ports else digest

    def _taken_in(self, begin: Begin) -> _Reading:
        """Reads the file, whose content is kept, and those beside it; returns states and digest."""
        with open(self._path, "rb", buffering=0) as file:
            state = FileState.of(os.fstat(file.fileno()))
            if state.size > _MOST_BYTES:
                return _read(self._path)
            content = self._content = file.read()
        # Before they are read to load it: what has changed since then is found out.
        beside = _digested_beside(self._path, content)
        if len(content) <= _PIECE_BYTES:
            return _together(self._path, (state, hashlib.sha256(content).digest()), beside)
        todo, found = [hashlib.sha256], list[bytes]()

        def digest() -> None:
            with contextlib.suppress(IndexError):
                sha256 = todo.pop()
                found.append(sha256(content).digest())

        fence = begin(digest, self.name)
        with contextlib.suppress(NNError, OSError):  # What is wrong is told later.
            self._ahead = self._loaded_whole(content)
        digest()  # If no thread was free for it: then nobody may wait for one.
        if fence is not None and not found:
            fence.wait_blocking()
        digested = found[0] if found else hashlib.sha256(content).digest()
        return _together(self._path, (state, digested), beside)

    def source(self) -> Model | Callable[[], Model]:
        """Returns the model, or the function that loads it."""
        return self.model or self._load

    def whole(self) -> Callable[[], Model] | None:
        """Returns what loads the file as one operation of its own engine, or None."""
        if self.path is None or self.has_float_ports or not importers.has_whole_form(self.path):
            return None
        return self._whole

    def forget_ahead(self) -> None:
        """Drops what was read or loaded ahead and not used, since a plan was there."""
        self._ahead = self._content = None

    def _whole(self) -> Model:
        ahead, content = self._ahead, self._content
        self.forget_ahead()
        if ahead is not None:
            self._check_unchanged()  # What an importer maps is the file, not what was read of it.
            return ahead
        return self._unchanged(functools.partial(self._loaded_whole, content))

    def _loaded_whole(self, content: bytes | None) -> Model:
        return importers.load_whole(self._path, content, value_limit_bytes=self.value_limit_bytes)

    def _loaded(self) -> Model:
        return importers.load(self._path, value_limit_bytes=self.value_limit_bytes)

    def _load(self) -> Model:
        model = self._unchanged(self._loaded)
        return float_ports.with_float_ports(model) if self.has_float_ports else model

    def _unchanged(self, load: Callable[[], Model]) -> Model:
        """Loads the model; raises ModelError where the file is not what was digested any more."""
        try:
            model = load()
        except ModelError:
            self._check_unchanged()
            raise
        self._check_unchanged()
        return model

    def _check_unchanged(self) -> None:
        if self._read is None:
            return
        states = self._read.states
        if all(FileState.of(os.stat(path)) == state for path, state in states.items()):
            return
        found = _read(self._path)
        if found.digest != self._read.digest:
            what = "the file" if len(states) == 1 else "the file, or one with its weights,"
            raise ModelError(f"{self._path}: {what} was changed since it was compiled")
        self._read = found

    @property
    def _path(self) -> str:
        return self.path or ""


def _digested(path: str) -> tuple[FileState, bytes]:
    """Returns a file's state, taken before it is read, and its SHA-256."""
    # In few large pieces: after each one the thread has to ask for the interpreter lock.
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_PIECE_BYTES))
    with open(path, "rb", buffering=0) as file:
        state = FileState.of(os.fstat(file.fileno()))
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return state, digest.digest()


def _digested_beside(
    path: str, content: bytes | None = None
) -> Mapping[str, tuple[FileState, bytes]]:
    """Returns the states and digests of the files beside a file that belong to it."""
    return {each: _digested(each) for each in files_beside(path, content)}


def _together(
    path: str, file: tuple[FileState, bytes], beside: Mapping[str, tuple[FileState, bytes]]
) -> _Reading:
    """Returns the combined reading of a file and of those beside it."""
    state, digest = file
    states = {path: state, **{name: found for name, (found, _) in beside.items()}}
    if beside:
        digest = hashlib.sha256(b"".join([digest, *(each for _, each in beside.values())])).digest()
    return _Reading(states, digest)


def _read(path: str) -> _Reading:
    """Reads the states and digests of a file and those beside it."""
    return _together(path, _digested(path), _digested_beside(path))


@contextlib.contextmanager
def begun(deadline: Deadline | None) -> Iterator[None]:
    """Bounds a compilation by its deadline: late at the start is persistent, later is transient."""
    if deadline is not None and deadline.remaining_ns(now_ns()) <= 0:
        raise MissedDeadlinePersistent("the deadline had passed before the compilation began")
    try:
        yield
    except MissedDeadlinePersistent as error:
        raise MissedDeadlineTransient(str(error)) from error


F = TypeVar("F", bound=Callable[..., Any])


class CompileOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Rare settings of one compilation, for `rt.compile(model, options=...)`.

    wait: for what `compile` waits where nothing is known of the model yet. With "first", the
    default, the engine that is ready soonest answers, the devices are compared in the background,
    and the best takes over; `await net.optimized()` waits for that. With "best" `compile` itself
    does. pin: `report().pin` of an earlier compilation, whose choice is reproduced.
    preemption_quantum_ms: the plan is cut into segments of about this length, so that
    more urgent executions wait no longer. token: 32 bytes that name the model in the cache, by
    default its SHA-256. value_limit_bytes: what a value of the file at a path may take, as
    `nnasync.load` has it. `compile` raises InvalidArgument for values that make no sense.
    """

    wait: Literal["first", "best"] | None = None
    pin: str | None = None
    preemption_quantum_ms: float | None = None
    token: bytes | None = None
    value_limit_bytes: int | None = None
    optimize_after: int | None = None
    """An older form of wait="first"."""

    def __post_init__(self) -> None:
        if self.optimize_after is not None:
            text = 'optimize_after is wait="first" now, which is the default'
            warnings.warn(text, DeprecationWarning, stacklevel=2)


DEFAULT_WAIT = "first"
"""For what a compilation waits that does not say so."""

_OLD = ("pin", "preemption_quantum_ms", "token")
_COUNTS = ("optimize_after", "optimise_after")


def taking_old_keywords(compile: F) -> F:
    """Returns `compile` taking fields of CompileOptions as keywords too, with a warning."""

    @functools.wraps(compile)
    def call(*arguments: Any, **keywords: Any) -> Any:
        old = {name: keywords.pop(name) for name in _OLD if name in keywords}
        if [keywords.pop(name) for name in _COUNTS if name in keywords]:
            old["wait"] = "first"
        if old:
            text = f"compile takes options=nn.CompileOptions({', '.join(old)}=...) now"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            options = checked(keywords.get("options"))
            keywords["options"] = msgspec.structs.replace(options, **old)
        return compile(*arguments, **keywords)

    return cast(F, call)


def checked(options: CompileOptions | None) -> CompileOptions:
    """Returns a compilation's `options=`, or the defaults.

    Raises InvalidArgument for other types.
    """
    if options is None:
        return CompileOptions()
    given: object = options
    if not isinstance(given, CompileOptions):
        raise InvalidArgument(f"options must be nn.CompileOptions(...), got {given!r}")
    return options


def spec_fields(options: CompileOptions | None) -> dict[str, Any]:
    """Returns a compilation's `options=` as fields of its spec; raises as `checked` does."""
    found = checked(options)
    is_older = found.wait is None and found.optimize_after is not None
    return {
        "wait": found.wait or ("first" if is_older else DEFAULT_WAIT),
        "pin": found.pin,
        "preemption_quantum_ms": found.preemption_quantum_ms,
        "token": found.token,
    }


class PendingNet(Coroutine[Any, Any, Net[R]]):
    """What `rt.compile` returns: await it, or enter it with `async with`, which closes the network.

    It begins when it is awaited or entered, as a coroutine does.
    """

    def __init__(self, work: Coroutine[Any, Any, Net[R]]) -> None:
        self._work = work
        self._net: Net[R] | None = None

    def __await__(self) -> Generator[Any, Any, Net[R]]:
        return self._work.__await__()

    def send(self, value: Any) -> Any:
        """Resumes, as a coroutine does."""
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        """Raises an error where it waits, as in a coroutine."""
        return self._work.throw(*error)

    def close(self) -> None:
        """Ends the compilation, as closing a coroutine does."""
        self._work.close()

    async def __aenter__(self) -> Net[R]:
        self._net = await self._work
        return self._net

    async def __aexit__(self, *exception: object) -> None:
        if self._net is not None:
            await self._net.aclose()


@contextlib.asynccontextmanager
async def closed_on_failure(prepared: PreparedModel) -> AsyncIterator[None]:
    """Close a prepared model if the code that uses it fails or is cancelled."""
    try:
        yield
    except BaseException:
        with shield():
            try:
                await prepared.close()
            except Exception:
                logger.exception("closing a prepared model failed")
        raise
