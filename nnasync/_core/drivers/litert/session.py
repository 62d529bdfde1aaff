"""An interpreter of LiteRT with its tensors, and the copies between these and a caller's arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nnasync._core.drivers.litert.litert_program import Copy, Feed, Fetch, LiteRTProgram
from nnasync._core.engine_packages import imported, load_library
from nnasync._core.giving_way import giving_way
from nnasync.errors import GeneralFailure, InvalidArgument
from nnasync.hal import Array

PACKAGE = "ai_edge_litert.interpreter"

_Step = Callable[[], None]
_Pairs = tuple[tuple[memoryview, memoryview], ...]
Moves = tuple[Callable[[], Any], _Pairs, _Pairs, tuple[_Step, ...], tuple[_Step, ...]]
Places = tuple[tuple[int, Array], ...]
"""Inputs by number, and the tensors they go to, as arrays of the caller's dtype and shape."""


def package() -> Any:
    """The module of LiteRT's interpreter."""
    load_library("ai_edge_litert", "libpywrap_litert_common")
    return imported(PACKAGE)


def open_interpreter(content: bytes, threads: int, *, delegated: bool) -> Any:
    """An interpreter of a file, without memory yet; `delegated` is with XNNPACK.

    Raises RuntimeError or ValueError where LiteRT refuses the file.
    """
    engine = package()
    kinds = engine.OpResolverType
    return engine.Interpreter(
        model_content=content,
        num_threads=threads,
        experimental_op_resolver_type=(
            kinds.AUTO if delegated else kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        ),
    )


class InterpreterSession:
    """An interpreter, and those of its tensors that are written or read."""

    __slots__ = (
        "__weakref__",
        "_interpreter",
        "_numbers",
        "_program",
        "has_run",
        "invoke",
        "tensors",
    )

    def __init__(self, program: LiteRTProgram, threads: int, opened: Any = None) -> None:
        """`opened` is an interpreter of the program that has its memory already."""
        self._program = program
        self.has_run = False
        """Whether it was seen after a run that its tensors stayed where they were."""
        self._interpreter: Any = opened
        if opened is None:
            self._interpreter = open_interpreter(
                program.content, threads, delegated=program.delegated
            )
            for tensor, shape in program.resizes:
                self._interpreter.resize_tensor_input(tensor, shape)
            self._interpreter.allocate_tensors()
        self._numbers: dict[int, Array] = {}
        # The public call refuses to run while an array views a tensor; here nothing reallocates.
        self.invoke: Callable[[], Any] = giving_way(self._interpreter._interpreter.Invoke)
        places = {feed.tensor for feed in program.feeds}
        if not program.is_open:
            places |= {fetch.tensor for fetch in program.fetches}
        self.tensors: dict[int, Array] = {place: self.tensor(place) for place in places}
        if self._numbers:
            self.invoke = self._with_numbers(self.invoke)

    def tensor(self, place: int) -> Array:
        """A tensor where it lies now; one of rank 0, which cannot be viewed, in memory of ours."""
        found = self._interpreter.tensor(place)()
        if isinstance(found, np.ndarray):
            return found
        held = self._numbers.setdefault(place, np.zeros(1, found.dtype))
        held[0] = found
        return held

    def _with_numbers(self, invoke: Callable[[], Any]) -> Callable[[], Any]:
        """A run that takes and leaves tensors of rank 0 in the memory that we hold for them."""
        runner, held = self._interpreter, self._numbers
        inputs = {feed.tensor for feed in self._program.feeds} & held.keys()
        outputs = {fetch.tensor for fetch in self._program.fetches} & held.keys()

        def run() -> None:
            for place in inputs:
                runner.set_tensor(place, held[place].reshape(()))
            invoke()
            for place in outputs:
                found = np.asarray(runner.get_tensor(place)).reshape(-1)
                if found.size != 1:
                    raise RuntimeError(f"what was one number has {found.size}")
                held[place][:] = found

        return run

    def has_moved(self) -> bool:
        """Returns whether tensors have moved since a run, which then tells their shapes.

        That of a RESHAPE to a computed shape is one that LiteRT has in its place at first.
        """
        return any(
            _address(self.tensor(place)) != _address(known) for place, known in self.tensors.items()
        )

    def warm_up(self) -> None:
        """Run once, so that the first execution finds all memory in place."""
        for feed in self._program.feeds:
            self.tensors[feed.tensor][...] = 0
        try:
            self.invoke()
        except RuntimeError:
            pass  # Zeros need not be legal values, of a divisor for example.

    def moves(self, sources: Sequence[Array | None], targets: Sequence[Array]) -> Moves:
        """Returns the copies of a run before and after the call; some of them convert."""
        before: list[tuple[Array, Array]] = []
        after: list[tuple[Array, Array]] = []
        first: list[_Step] = []
        last: list[_Step] = []
        for feed in self._program.feeds:
            tensor = self.tensors[feed.tensor]
            source = _source(feed, sources)
            if feed.copy is Copy.BYTES and not source.flags.c_contiguous:
                first.append(_rows(tensor, source))
            elif feed.copy is Copy.BYTES:
                before.append((_bytes(tensor), _bytes(source)))
            else:
                first.append(_conversion(feed, tensor, source))
        for fetch in self._program.fetches:
            tensor, target = self.tensors[fetch.tensor], targets[fetch.target]
            if fetch.copy is Copy.BYTES:
                after.append((_bytes(target), _bytes(tensor)))
            else:
                last.append(delivery(fetch, target, tensor))
        return self.invoke, _joined(before), _joined(after), tuple(first), tuple(last)

    def take_in(self, sources: Sequence[Array | None]) -> None:
        """Write the inputs where they lie now: a result of another size moves all tensors."""
        for feed in self._program.feeds:
            tensor, source = self.tensor(feed.tensor), _source(feed, sources)
            if feed.copy is not Copy.BYTES:
                _conversion(feed, tensor, source)()
            elif tensor.shape == source.shape and tensor.dtype == source.dtype:
                tensor[...] = source
            else:
                tensor.reshape(source.shape).view(source.dtype)[...] = source

    def places(self, sources: Sequence[Array | None]) -> Places:
        """Returns where inputs like these are written, for a program that `reads_plainly`."""
        found: list[tuple[int, Array]] = []
        for feed in self._program.feeds:
            source = sources[feed.source]
            if source is not None:
                flat = self.tensors[feed.tensor].reshape(-1).view(source.dtype)
                found.append((feed.source, flat.reshape(source.shape)))
        return tuple(found)

    def check_sizes(self) -> None:
        """Raise GeneralFailure where the engine found other shapes than we did."""
        program = self._program
        expected = [
            (feed.tensor, program.input_shapes[feed.source] or ())
            for feed in program.feeds
            if feed.constant is None
        ]
        if not program.is_open:
            expected += [
                (fetch.tensor, program.output_shapes[fetch.target]) for fetch in program.fetches
            ]
        for place, shape in expected:
            found = self.tensors[place]
            if found.size != math.prod(shape):
                raise GeneralFailure(
                    f"LiteRT has shape {list(found.shape)} for a tensor of {list(shape)}"
                )


def _source(feed: Feed, sources: Sequence[Array | None]) -> Array:
    """Returns what is written to a tensor; raises InvalidArgument for an omitted input."""
    source = sources[feed.source] if feed.constant is None else feed.constant
    if source is None:
        raise InvalidArgument(f"input {feed.source} is needed, but was omitted")
    return source


def _bytes(array: Array) -> Array:
    flat: Array = array.reshape(-1).view(np.uint8)
    return flat


def _joined(copies: list[tuple[Array, Array]]) -> _Pairs:
    """Copies as one where they follow each other on both sides, as the states of a stream do.

    Both sides lay out the values of a model one behind the other, and each copy has its price.
    """
    joined: list[tuple[Array, Array]] = []
    if len(copies) < 2:
        return tuple((_view(target), _view(source)) for target, source in copies)
    for target, source in sorted(copies, key=lambda pair: _address(pair[0])):
        if joined and _follows(target, joined[-1][0]) and _follows(source, joined[-1][1]):
            size = joined[-1][0].size + target.size
            # Past the end of the first array, into the next: the session, or call, keeps both.
            joined[-1] = _longer(joined[-1][0], size), _longer(joined[-1][1], size)
        else:
            joined.append((target, source))
    return tuple((_view(target), _view(source)) for target, source in joined)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _follows(array: Array, other: Array) -> bool:
    return array.size > 0 and _address(array) == _address(other) + other.size


def _longer(array: Array, size: int) -> Array:
    return as_strided(array, (size,), writeable=array.flags.writeable)


def _view(array: Array) -> memoryview:
    buffer: Any = array
    return memoryview(buffer)


def _rows(tensor: Array, source: Array) -> _Step:
    """Write a tensor from an image with padded rows, row by row."""
    return _assignment(tensor.reshape(source.shape).view(source.dtype), source)


def _conversion(feed: Feed, tensor: Array, source: Array) -> _Step:
    """Write a tensor whose values or memory have another form than the caller's."""
    if feed.copy is Copy.CONVERT:
        return _assignment(tensor, source)
    inner, outer = _memory(tensor, feed.columns), _memory(source, feed.columns)
    return _assignment(inner[:, 1:], outer[:, :-1])


def delivery(fetch: Fetch, target: Array, tensor: Array) -> _Step:
    """Read a tensor whose values or memory have another form than the caller's."""
    if fetch.copy is Copy.CONVERT:
        move = _assignment(target, tensor)
        return move if tensor.dtype != np.int64 else _checked(move, target, tensor)
    inner, outer = _memory(tensor, fetch.columns), _memory(target, fetch.columns)
    move = _assignment(outer[:, :-1], inner[:, 1:])

    def shift() -> None:
        move()
        outer[:, -1] = 0

    return shift


def _checked(move: _Step, target: Array, tensor: Array) -> _Step:
    """Read integers of 64 bits, of which the caller has 32; GeneralFailure where one is larger."""

    def step() -> None:
        move()
        check_narrow(tensor, target)

    return step


def check_narrow(wide: Array, narrow: Array) -> None:
    """Raise GeneralFailure where integers are not what they were before they were cut."""
    if not np.array_equal(wide.reshape(-1), narrow.reshape(-1)):
        raise GeneralFailure("an output of int64 has numbers that are no int32")


def _assignment(target: Array, source: Array) -> _Step:
    if target.flags.c_contiguous and source.flags.c_contiguous:
        target, source = target.reshape(-1), source.reshape(-1)

    def assign() -> None:
        with np.errstate(all="ignore"):
            target[...] = source

    return assign


def _memory(state: Array, columns: int) -> Array:
    """The state of an SVDF: a row for each feature, the oldest value first."""
    return state.reshape(-1, columns)
