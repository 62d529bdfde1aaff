"""Plans of an engine in cache files, and back: what makes a device cache its compilations.

The first model cache file is an envelope: which engine of which version wrote the others, how the
model was compiled, and a skeleton of the model, which is what a prepared model needs to check
requests. So a hit needs neither the model nor the operations of it. The other files are the
engine's own.

Model cache files are verified before they come here, bit by bit; the envelope is decoded strictly
all the same. Descriptors belong to the caller, who may close them as soon as a call is answered,
while a thread that missed its deadline still uses them: it works on duplicates.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from nnasync import hal
from nnasync._core.cache import Miss, fill, view
from nnasync._core.deferred import deferred
from nnasync._core.model.description import ModelDescription, describe
from nnasync._core.packages import version_of
from nnasync._core.workers import contained
from nnasync.device import Lowering
from nnasync.engine.contract import CacheFiles, CachingEngine, Plan
from nnasync.engine.problems import check_plan
from nnasync.errors import BadState, GeneralFailure, InvalidArgument, NNError
from nnasync.hal import (
    MAX_NUMBER_OF_CACHE_FILES,
    ExecutionPreference,
    Model,
    Operation,
    Priority,
    Struct,
    Subgraph,
)
from nnasync.hal.decoders import msgpack_decoder
from nnasync.tracing import vlog

if TYPE_CHECKING:
    from nnasync._core.cache import handles
else:
    handles = deferred("nnasync._core.cache.handles")

_FORMAT = 2

Replace = Callable[[Sequence[bytes | memoryview], Sequence[bytes | memoryview]], str]
"""Stores the contents of model cache and data cache files; why that failed, or ""."""


class Compiled(Struct, frozen=True):
    """How a plan was made: from which model, in which lowering, for which preference."""

    model: Model
    lowering: Lowering | None = None
    preference: ExecutionPreference = ExecutionPreference.FAST_SINGLE_ANSWER
    priority: Priority = Priority.MEDIUM


class Restored(Struct, frozen=True):
    """A plan that was loaded from files, and how it was made; its model is a skeleton."""

    plan: Plan
    compiled: Compiled


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """The contents of the first model cache file."""

    format: int
    writer: str
    lowering: Lowering | None
    preference: ExecutionPreference
    priority: Priority
    model: ModelDescription


def skeleton_of(model: Model) -> Model:
    """Returns the model as requests see it: ports and states, without constants and operations.

    It has one operation at most, a WHILE without operands, which says that a run may loop.
    """
    main = model.main
    kept = list(dict.fromkeys((*main.input_indexes, *main.output_indexes)))
    place = {index: position for position, index in enumerate(kept)}
    operations = (operation for each in (main, *model.referenced) for operation in each.operations)
    loop = hal.OperationType.WHILE
    loops = any(operation.type == loop for operation in operations)
    skeleton = Subgraph(
        operands=tuple(main.operands[index] for index in kept),
        operations=(Operation(loop, (), ()),) if loops else (),
        input_indexes=tuple(place[index] for index in main.input_indexes),
        output_indexes=tuple(place[index] for index in main.output_indexes),
    )
    return msgspec.structs.replace(
        model, main=skeleton, referenced=(), operand_values=b"", pools=()
    )


class Descriptors:
    """Duplicates of a caller's descriptors; the first to claim them closes them.

    Raises OSError for a number that is no open descriptor.
    """

    def __init__(self, model: Sequence[int], data: Sequence[int]) -> None:
        self._lock = threading.Lock()
        self._claimed = False
        self._fds: list[int] = []
        try:
            for fd in (*model, *data):
                self._fds.append(_duplicate(fd))
        except BaseException:
            self.close()
            raise
        self.model, self.data = tuple(self._fds[: len(model)]), tuple(self._fds[len(model) :])

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Use them in the block and close them; raises BadState where they are closed already."""
        with self._lock:
            if self._claimed:
                raise BadState("the caller has given up")
            self._claimed = True
        try:
            yield
        finally:
            for fd in self._fds:
                os.close(fd)

    def close(self) -> None:
        """Close them, unless a user of them will."""
        with contextlib.suppress(BadState), self.claimed():
            pass


def _duplicate(fd: int) -> int:
    try:
        return os.dup(fd)
    except (OverflowError, TypeError) as error:
        raise OSError(f"{fd!r} is no file descriptor") from error


def _mapped(files: Descriptors) -> CacheFiles:
    """Returns the contents of files; raises GeneralFailure if they cannot be mapped."""
    try:
        return CacheFiles(tuple(map(view, files.model)), tuple(map(view, files.data)))
    except (OSError, ValueError) as error:
        raise GeneralFailure(f"a cache file cannot be mapped: {error}") from error


class _Handles:
    """Duplicates of a caller's descriptors, closed when nobody has the object any more."""

    def __init__(self, model: Sequence[int], data: Sequence[int]) -> None:
        fds: list[int] = []
        weakref.finalize(self, _close_all, fds).atexit = False
        fds.extend(map(_duplicate, (*model, *data)))
        self.model, self.data = tuple(fds[: len(model)]), tuple(fds[len(model) :])


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


class _Updates:
    """The files of a plan that its engine may replace; see LateFiles."""

    def __init__(
        self, write: Callable[[CacheFiles], str], begin: Callable[[Callable[[], None]], object]
    ) -> None:
        """Takes `begin`, which has a thread do something; `write` returns why it failed, or ""."""
        self._write = write
        self._begin = begin
        self._next: CacheFiles | None = None
        self._lock = threading.Lock()

    def update(self, files: CacheFiles) -> None:
        """Has a thread write these files."""
        self._next = files
        self._begin(self._write_next)

    def _write_next(self) -> None:
        with self._lock:
            files, self._next = self._next, None
            reason = "" if files is None else self._write(files)
        if reason:
            vlog.driver("late cache files are not kept: %s", reason)


class PlanFiles:
    """Keeps the plans of one engine in files; its methods read and write them.

    `counts` are the numbers of model cache and data cache files of one plan, (0, 0) where the
    engine keeps none.
    """

    def __init__(
        self, engine: CachingEngine, state_directory: str | os.PathLike[str] | None
    ) -> None:
        model, data = engine.cache_files
        if min(model, data) < 0 or max(model + 1, data) > MAX_NUMBER_OF_CACHE_FILES:
            raise InvalidArgument(
                f"{engine.name} asks for {model} model and {data} data cache files; the device "
                f"adds one model cache file, and {MAX_NUMBER_OF_CACHE_FILES} of a kind are the most"
            )
        self.counts = (model + 1, data) if model or data else (0, 0)
        self.keeps_digests = state_directory is not None and self.counts != (0, 0)
        self.caches_late = engine.caches_late
        self._engine = engine
        self._state_directory = state_directory

    def fill(self, plan: Plan, compiled: Compiled, files: Descriptors) -> str:
        """Writes a plan to files; returns why that failed, "" if it did not."""
        try:
            self._check_counts(files)
            contents = self._contents(plan, compiled)
            for fd, content in zip(
                (*files.model, *files.data), (*contents.model, *contents.data), strict=True
            ):
                fill(fd, content)
        except NNError as error:
            return str(error)
        except OSError as error:
            return f"a cache file cannot be written: {error.strerror}"
        return ""

    def keep_late(
        self,
        plan: Plan,
        compiled: Compiled,
        replace: Replace,
        begin: Callable[[Callable[[], None]], object],
    ) -> None:
        """Let a plan replace its files later, where the engine compiles just in time.

        `begin` has a thread do something. Raises a typed error where the engine fails.
        """
        if not self.caches_late:
            return

        def write(files: CacheFiles) -> str:
            try:
                contents = self._enveloped(files, compiled)
            except NNError as error:
                return str(error)
            return replace(contents.model, contents.data)

        try:
            plan.kept_in(_Updates(write, begin))
        except Exception as error:
            raise contained(error, f"{self._engine.name}, told of its cache files,") from error

    def amender(self, token: bytes, model: Sequence[int], data: Sequence[int]) -> Replace:
        """Returns a function that writes a client's files again, for `keep_late`.

        Raises OSError.
        """
        files = _Handles(model, data)
        return lambda model, data: self._handles.amend(
            token, files.model, files.data, model=model, data=data
        )

    def get_ready(self) -> None:
        """Imports and makes ahead of time what `restore` needs."""
        self._engine.get_ready()
        msgpack_decoder(_Envelope)

    def restore(self, files: CacheFiles) -> Restored:
        """Loads the plan from files which are verified, with how it was made.

        Raises InvalidArgument for wrong numbers of files, GeneralFailure where the files are not of
        this engine, its version and that of this library.
        """
        self._check_counts(files)
        compiled = self._opened(files.model[0])
        contents = CacheFiles(files.model[1:], files.data)
        try:
            plan = check_plan(
                self._engine.deserialize(contents, compiled.lowering),
                self._engine.name,
                "deserialize",
            )
        except Exception as error:
            failure = contained(error, f"{self._engine.name}, loading from its cache,")
            raise failure from failure.__cause__
        return Restored(plan, compiled)

    def save(self, token: bytes, plan: Plan, compiled: Compiled, files: Descriptors) -> str:
        """Saves a plan to a client's files with their digests; returns why that failed, or ""."""
        cache = self._handles
        try:
            self._check_counts(files)
            contents = self._contents(plan, compiled)
        except NNError as error:
            cache.forget(token)
            return str(error)
        return cache.save(token, files.model, files.data, model=contents.model, data=contents.data)

    def load(self, token: bytes, files: Descriptors) -> Restored:
        """Loads the plan that `save` wrote with this token.

        Raises InvalidArgument for wrong numbers of files, GeneralFailure where the files differ
        from what was written, or are of other versions.
        """
        self._check_counts(files)
        found = self._handles.load(token, files.model, files.data)
        if isinstance(found, Miss):
            raise GeneralFailure(f"{self._engine.name} does not take the cache: {found.reason}")
        with found:
            verified = Descriptors(found.model_fds, found.data_fds)
        with verified.claimed():
            return self.restore(_mapped(verified))

    @functools.cached_property
    def _handles(self) -> handles.HandleCache:
        if self._state_directory is None:
            raise GeneralFailure(f"{self._engine.name} has no directory for digests")
        return handles.HandleCache(self._state_directory, self._engine.name, self._writer)

    @functools.cached_property
    def _writer(self) -> str:
        return f"{self._engine.name} {self._engine.version}, nnasync {library_version()}"

    def _check_counts(self, files: Descriptors | CacheFiles) -> None:
        given = (len(files.model), len(files.data))
        if given != self.counts:
            raise InvalidArgument(
                f"{self._engine.name} needs {self.counts[0]} model and {self.counts[1]} data cache "
                f"files, got {given[0]} and {given[1]}"
            )

    def _contents(self, plan: Plan, compiled: Compiled) -> CacheFiles:
        """Returns the contents of all files; raises typed errors."""
        try:
            files = self._engine.serialize(plan)
        except Exception as error:
            failure = contained(error, self._engine.name)
            raise failure from failure.__cause__
        return self._enveloped(files, compiled)

    def _enveloped(self, files: object, compiled: Compiled) -> CacheFiles:
        """Returns an engine's files with the envelope as the first; raises GeneralFailure."""
        if not isinstance(files, CacheFiles):
            kind = type(files).__name__
            raise GeneralFailure(f"{self._engine.name} gave {kind}, which is no CacheFiles")
        model = skeleton_of(compiled.model)
        if (len(files.model) + 1, len(files.data)) != self.counts:
            raise GeneralFailure(
                f"{self._engine.name} gave {len(files.model)} model and {len(files.data)} data "
                f"cache files, not {self.counts[0] - 1} and {self.counts[1]} as it had said"
            )
        envelope = _Envelope(
            format=_FORMAT,
            writer=self._writer,
            lowering=compiled.lowering,
            preference=compiled.preference,
            priority=compiled.priority,
            model=describe(model),
        )
        return CacheFiles((msgspec.msgpack.encode(envelope), *files.model), files.data)

    def _opened(self, data: bytes | memoryview) -> Compiled:
        """Decodes an envelope; raises GeneralFailure for one that another version wrote."""
        try:
            envelope = msgpack_decoder(_Envelope).decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise GeneralFailure(
                f"the cache has no envelope that is known here: {error}"
            ) from error
        if (envelope.format, envelope.writer) != (_FORMAT, self._writer):
            raise GeneralFailure(
                f"the cache was written by {envelope.writer}, this is {self._writer}"
            )
        model = envelope.model.model()
        return Compiled(model, envelope.lowering, envelope.preference, envelope.priority)


@functools.cache
def library_version() -> str:
    """Returns the version of nnasync, which determines the format of cached plans."""
    return version_of("nnasync") or "uninstalled"
