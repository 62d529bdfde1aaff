"""A file that LiteRT runs, bound to arrays.

An execution borrows an interpreter, copies inputs into its tensors and outputs out of them.
Interpreters are made as executions overlap; all but one are dropped when the plan is idle. One that
failed is not used again.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
import numpy as np

from nnasync._core.drivers.litert.litert_program import Copy, Fetch, LiteRTProgram, Shapes
from nnasync._core.drivers.litert.session import (
    InterpreterSession,
    Moves,
    Places,
    check_narrow,
    delivery,
)
from nnasync.engine import BoundCall, Given, OutputBuffer, Phase, Plan, StopFlag, Target, fit, span
from nnasync.errors import GeneralFailure, InvalidArgument, ModelError
from nnasync.hal import Array, Shape, has_dimensions
from nnasync.tracing import SWITCH

MOST_SHAPES = 16
"""For so many sets of input shapes interpreters are kept, besides the usual ones."""


class ModelFileSource(Protocol):
    """Makes the file of a model for the shapes of its inputs."""

    warms_up: bool
    """Whether the plan is to run once before it is used."""

    def usual(self) -> Shapes:
        """The shapes that are to be expected."""

    def opened(self, shapes: Shapes, threads: int) -> tuple[LiteRTProgram, Any]:
        """The file for these shapes, and an interpreter of it or None; raises ModelError."""

    def why_open(self) -> str:
        """Returns why other shapes may come; empty where they may not."""


class LiteRTPlan(Plan):
    """A compiled model, of which several calls may run at once.

    Raises GeneralFailure, with what LiteRT says, where it refuses the file.
    """

    def __init__(self, source: ModelFileSource, threads: int) -> None:
        self.source = source
        self.threads = threads
        usual = source.usual()
        with span(Phase.TRANSFORMATION, "lower the operations"):
            pool = self._pool(usual)
        pool.begin(warms_up=source.warms_up)
        self._usual = usual
        self._pools: dict[Shapes, _InterpreterPool] = {usual: pool}

    def reads_in_place(self, array: Array) -> bool:
        """Returns True.

        Every execution copies its inputs into the engine, row by row if need be.
        """
        return array.dtype.itemsize == 1 or array.flags.c_contiguous

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> BoundCall:
        """A call on C-contiguous arrays of the operands' dtypes and shapes.

        Raises InvalidArgument for arrays that do not fit the model, OutputInsufficientSize.
        """
        shapes = tuple(None if each is None or not each.size else each.shape for each in inputs)
        pool = self._pools.get(shapes)
        if pool is None:
            pool = self._pool(shapes)
            pool.begin()
        if shapes != self._usual:
            self._keep(shapes, pool)
        if pool.program.is_open:
            return pool.open_call(inputs, outputs)
        found = pool.program.output_shapes
        for position, (target, shape) in enumerate(zip(outputs, found, strict=True)):
            known = target.dimensions if isinstance(target, OutputBuffer) else target.shape
            _check(f"output {position}", known, shape)
        return pool.call(inputs, fit(outputs, found))

    @property
    def program(self) -> LiteRTProgram:
        """The file for the usual shapes."""
        return self.pools[0].program

    @property
    def pools(self) -> tuple[_InterpreterPool, ...]:
        """The interpreters for each set of input shapes that was met."""
        return tuple(self._pools.values())

    def _pool(self, shapes: Shapes) -> _InterpreterPool:
        program, opened = self.source.opened(shapes, self.threads)
        return _InterpreterPool(program, self.threads, opened)

    def _keep(self, shapes: Shapes, pool: _InterpreterPool) -> None:
        """Have a pool be the one that is dropped last; calls on one that is dropped keep it."""
        pools = self._pools
        pools.pop(shapes, None)
        pools[shapes] = pool
        for old in list(pools)[1 : max(len(pools) - MOST_SHAPES, 1)]:
            pools.pop(old, None)

    def trim(self) -> None:
        """Drop all idle interpreters but one."""
        for pool in list(self._pools.values()):
            pool.trim()


class _InterpreterPool:
    """The interpreters of a file, and the calls that use them."""

    def __init__(self, program: LiteRTProgram, threads: int, opened: Any) -> None:
        """`opened` is an interpreter that the first session takes, or None."""
        self.program = program
        self.is_open = program.is_open
        """Whether its results have other shapes from run to run; it is asked for each run."""
        self._threads = threads
        self._opened = opened
        self._calls: weakref.WeakSet[_Call] = weakref.WeakSet()
        self.idle: list[InterpreterSession] = []

    def begin(self, *, warms_up: bool = False) -> None:
        """Make the first session; it runs once if it `warms_up`."""
        session = self.session()
        if warms_up and not self.program.is_open:
            session.warm_up()
            if session.has_moved():
                self.open_up()
        self.idle.append(session)

    def call(self, sources: Sequence[Array | None], targets: Sequence[Array]) -> _Call:
        """A call on these arrays."""
        call = _Call(self, sources, targets)
        self._calls.add(call)
        for session in self.idle[:1]:
            call.prepare(session)
        return call

    def open_call(self, sources: Sequence[Array | None], targets: Sequence[Target]) -> BoundCall:
        """A call of which only a run tells the shapes of the results."""
        return _OpenCall(self, sources, targets)

    def open_up(self) -> None:
        """Have all calls look for the results of each run, since a run has moved them."""
        self.program = msgspec.structs.replace(self.program, finds_shapes=True)
        self.is_open = True

    def trim(self) -> None:
        """Drop all idle interpreters but one."""
        del self.idle[1:]
        self.forget()

    def forget(self) -> None:
        """Have all calls let go of interpreters that are used no longer."""
        for call in list(self._calls):
            call.forget()

    def session(self) -> InterpreterSession:
        """A new interpreter."""
        opened, self._opened = self._opened, None
        try:
            session = InterpreterSession(self.program, self._threads, opened)
        except (RuntimeError, ValueError) as error:
            raise GeneralFailure(f"LiteRT refuses the model: {error}") from error
        session.check_sizes()
        return session


class _Call(BoundCall):
    """A plan bound to arrays; runs to the end once begun."""

    __slots__ = (
        "__weakref__",
        "_give",
        "_moves",
        "_open",
        "_places",
        "_pool",
        "_sources",
        "_take",
        "_targets",
        "reads_given",
    )

    def __init__(
        self, pool: _InterpreterPool, sources: Sequence[Array | None], targets: Sequence[Array]
    ) -> None:
        self._pool = pool
        self._sources = sources
        self._targets = targets
        self._open: _OpenCall | None = None
        self._moves: dict[InterpreterSession, Moves] = {}
        self._places: dict[InterpreterSession, Places] = {}
        self.reads_given = pool.program.reads_plainly
        self._take = pool.idle.pop
        self._give = pool.idle.append

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        """Run to the end, unless the stop flag is up already; raises GeneralFailure."""
        if stop.raised:
            return False
        if self._pool.is_open:
            return self._opened().run(stop, given)
        try:
            session = self._take()
        except IndexError:
            session = self._pool.session()
        try:
            moves = self._moves[session]
        except KeyError:
            moves = self.prepare(session)
        if given is not None:
            return self._run_on(session, moves, given)
        if SWITCH.on:
            return self._traced(session, moves, partial(_take_in, moves))
        for target, source in moves[1]:
            target[:] = source
        if moves[3]:
            for step in moves[3]:
                step()
        return self._finish(session, moves)

    def rewind(self) -> None:
        """Does nothing, since a run is never left half done."""

    def forget(self) -> None:
        """Let go of interpreters that are used no longer."""
        self._moves = {}
        self._places = {}

    def _run_on(self, session: InterpreterSession, moves: Moves, given: Sequence[Array]) -> bool:
        """Run on arrays that are written to the tensors of the engine at once."""
        places = self._places.get(session)
        if places is None:
            places = self._places[session] = session.places(self._sources)
        if SWITCH.on:
            return self._traced(session, moves, partial(_put, places, given))
        for number, tensor in places:
            tensor[...] = given[number]
        return self._finish(session, moves)

    def _finish(self, session: InterpreterSession, moves: Moves) -> bool:
        """Run once the inputs are in place, and bring the outputs where they belong."""
        invoke, _, after, _, last = moves
        try:
            invoke()
        except RuntimeError as error:
            self._pool.forget()
            raise GeneralFailure(f"LiteRT failed: {error}") from error
        if not session.has_run:
            if session.has_moved():
                self._pool.open_up()
                self._opened().deliver(session)
                return True
            session.has_run = True
        for target, source in after:
            target[:] = source
        if last:
            for step in last:
                step()
        self._give(session)
        return True

    def _opened(self) -> _OpenCall:
        """Returns a call for the case that only a run tells the shapes of the results."""
        if self._open is None:
            self._open = _OpenCall(self._pool, self._sources, self._targets)
            self.forget()
        return self._open

    def _traced(
        self, session: InterpreterSession, moves: Moves, take_in: Callable[[], object]
    ) -> bool:
        """Runs with spans around the parts."""
        invoke, _, after, _, last = moves

        def compute() -> None:
            with span(Phase.COMPUTATION, "invoke LiteRT"):
                invoke()

        def bring() -> None:
            with span(Phase.RESULTS, "copy outputs"):
                for target, source in after:
                    target[:] = source
                for step in last:
                    step()

        with span(Phase.INPUTS_AND_OUTPUTS, "copy inputs"):
            take_in()
        return self._finish(session, (compute, (), (), (), (bring,)))

    def prepare(self, session: InterpreterSession) -> Moves:
        """Returns the copies that a run with this interpreter makes; they are remembered."""
        moves = session.moves(self._sources, self._targets)
        self._moves[session] = moves
        return moves


class _OpenCall(BoundCall):
    """A plan bound to memory for results whose shapes only a run tells."""

    __slots__ = ("_pool", "_sources", "_targets")

    def __init__(
        self, pool: _InterpreterPool, sources: Sequence[Array | None], targets: Sequence[Target]
    ) -> None:
        self._pool = pool
        self._sources = sources
        self._targets = targets

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        """Run to the end, unless the stop flag is up already; raises GeneralFailure."""
        if stop.raised:
            return False
        pool = self._pool
        targets = None if pool.program.finds_shapes else fit(self._targets, self._shapes())
        session = pool.idle.pop() if pool.idle else pool.session()
        session.take_in(self._sources if given is None else given)
        try:
            session.invoke()
        except (RuntimeError, ValueError) as error:
            raise GeneralFailure(f"LiteRT failed: {error}") from error
        self.deliver(session, targets)
        return True

    def deliver(self, session: InterpreterSession, targets: Sequence[Array] | None = None) -> None:
        """Bring the results of a run to their places, in the shapes that it gave them.

        Raises GeneralFailure where they have others than the model states, or too many numbers.
        """
        try:
            fetches = sorted(self._pool.program.fetches, key=lambda fetch: fetch.target)
            results = [session.tensor(fetch.tensor) for fetch in fetches]
        except (RuntimeError, ValueError) as error:
            raise GeneralFailure(f"LiteRT failed: {error}") from error
        if targets is None:
            targets = fit(self._targets, [result.shape or (1,) for result in results])
        self._bring(fetches, targets, results)
        self._pool.idle.append(session)

    def _bring(
        self, fetches: Sequence[Fetch], targets: Sequence[Array], results: Sequence[Array]
    ) -> None:
        for fetch, array, result in zip(fetches, targets, results, strict=True):
            if array.size != result.size:
                raise GeneralFailure(
                    f"a result has shape {list(result.shape)}, expected {list(array.shape)}"
                )
            if fetch.copy is Copy.SHIFT:
                delivery(fetch, array, result)()
                continue
            if array.dtype == result.dtype:
                array[...] = result.reshape(array.shape)
                continue
            with np.errstate(all="ignore"):
                array[...] = result.reshape(array.shape)
            if result.dtype == np.int64:
                check_narrow(result, array)

    def rewind(self) -> None:
        """Does nothing, since a run is never left half done."""

    def _shapes(self) -> list[Shape]:
        """The shapes of the results of this run, by the rules of the operations.

        So parameters that are not legal, or need more memory than there is, never get to LiteRT.
        """
        program, shapes = self._pool.program, []
        for position, target in enumerate(self._targets):
            rule = program.shape_rules[position]
            try:
                found = program.output_shapes[position] if rule is None else rule(self._sources)
            except ModelError as error:
                raise GeneralFailure(str(error)) from error
            known = target.dimensions if isinstance(target, OutputBuffer) else target.shape
            if not has_dimensions(found, known):
                raise GeneralFailure(f"output {position} is {list(found)}, expected {list(known)}")
            shapes.append(found)
        return shapes


def _take_in(moves: Moves) -> None:
    for target, source in moves[1]:
        target[:] = source
    for step in moves[3]:
        step()


def _put(places: Places, arrays: Sequence[Array]) -> None:
    for number, tensor in places:
        tensor[...] = arrays[number]


def _check(where: str, given: Shape, expected: Shape) -> None:
    if not has_dimensions(expected, given) and math.prod(given) != math.prod(expected):
        raise InvalidArgument(f"{where} is {list(given)}, expected {list(expected)}")
