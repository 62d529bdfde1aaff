"""IF and WHILE over the plans of other engines: the control-flow interpreter.

An IF runs one of two plans, by a condition that it reads when it starts. A WHILE runs a plan for
its condition and one for its body in turns. What the body carries from turn to turn lies in two
sets of buffers: it reads one and writes the other, and then they change places.

The loop timeout is that of the stop flag. Its clock starts with the first condition and is looked
at after each condition that came out true, so that a loop that has just ended never misses it. It
goes on while a run is suspended.

A `Source` says where a value comes from: an input of the operation, by number, or a constant of the
model around it, which is copied once; None is an omitted one. All shapes are known when a call is
bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnasync._core.clock import now_ns
from nnasync._core.workers import Given, StopFlag
from nnasync.engine.contract import BoundCall, Plan, Target, deliver
from nnasync.errors import GeneralFailure, InvalidArgument, MissedDeadlineTransient
from nnasync.hal import Array

Source = int | Array | None

_ALIGNMENT = 64


class IfPlan(Plan):
    """Runs the first of two plans where a condition is true, else the second."""

    def __init__(
        self, condition: Source, then: Plan, otherwise: Plan, arguments: Sequence[Source]
    ) -> None:
        """`arguments` are what either plan reads."""
        self._condition = _kept(condition)
        self._plans = then, otherwise
        self._arguments = tuple(map(_kept, arguments))

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> BoundCall:
        """Bind both plans; raises what they raise."""
        values = _values(self._arguments, inputs)
        (condition,) = _values([self._condition], inputs)
        then, otherwise = (plan.bind(values, outputs) for plan in self._plans)
        return _IfCall(condition, then, otherwise)

    def trim(self) -> None:
        """Frees idle scratch memory of both plans."""
        for plan in self._plans:
            plan.trim()


class _IfCall(BoundCall):
    """Two bound calls; a stopped run goes on in the one in which it began."""

    __slots__ = ("_condition", "_otherwise", "_taken", "_then")

    def __init__(self, condition: Array | None, then: BoundCall, otherwise: BoundCall) -> None:
        self._condition = condition
        self._then = then
        self._otherwise = otherwise
        self._taken: BoundCall | None = None

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        if self._taken is None:
            if stop.raised:
                return False
            self._taken = self._then if _is_true(self._condition) else self._otherwise
        if not self._taken.run(stop):
            return False
        self._taken = None
        return True

    def rewind(self) -> None:
        taken, self._taken = self._taken, None
        if taken is not None:
            taken.rewind()


class WhilePlan(Plan):
    """Runs a plan for a body for as long as the plan for a condition gives true."""

    def __init__(
        self,
        condition: Plan,
        body: Plan,
        arguments: Sequence[Source],
        *,
        carried: int,
        name: str = "WHILE",
    ) -> None:
        """`arguments` are what both plans read; the body writes the first `carried` of them anew.

        Raises InvalidArgument where the body writes more values than there are.
        """
        if not 0 < carried <= len(arguments):
            raise InvalidArgument(f"a loop carries {carried} of {len(arguments)} values")
        self._condition = condition
        self._body = body
        self._arguments = tuple(map(_kept, arguments))
        self._carried = carried
        self._name = name

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> BoundCall:
        """Bind both plans to both sets of buffers; raises what they raise.

        Raises InvalidArgument where a value that the body writes anew is omitted.
        """
        values = _values(self._arguments, inputs)
        carried = [value for value in values[: self._carried] if value is not None]
        if len(carried) < self._carried:
            raise InvalidArgument(f"{self._name}: a value that a loop carries cannot be omitted")
        if len(outputs) > self._carried:
            raise InvalidArgument(
                f"{self._name}: {len(outputs)} outputs of a loop that carries {self._carried}"
            )
        fixed = values[self._carried :]
        buffers = [[_like(value) for value in carried] for _ in range(2)]
        truth = np.zeros(1, np.bool_)
        turns = tuple(
            _Turn(
                self._condition.bind([*source, *fixed], [truth]),
                self._body.bind([*source, *fixed], target),
                source,
            )
            for source, target in zip(buffers, reversed(buffers), strict=True)
        )
        return _WhileCall(self._name, carried, turns, truth, outputs)

    def trim(self) -> None:
        """Frees idle scratch memory of both plans."""
        self._condition.trim()
        self._body.trim()


class _Turn:
    """One turn of a loop: condition and body, bound to one set of buffers to read."""

    __slots__ = ("body", "condition", "values")

    def __init__(self, condition: BoundCall, body: BoundCall, values: list[Array]) -> None:
        self.condition = condition
        self.body = body
        self.values = values


class _WhileCall(BoundCall):
    """A loop bound to arrays, which can resume between and within condition and body."""

    __slots__ = (
        "_begun_ns",
        "_current",
        "_in_body",
        "_name",
        "_outputs",
        "_start",
        "_truth",
        "_turns",
    )

    def __init__(
        self,
        name: str,
        start: Sequence[Array],
        turns: Sequence[_Turn],
        truth: Array,
        outputs: Sequence[Target],
    ) -> None:
        self._name = name
        self._start = start
        self._turns = turns
        self._truth = truth
        self._outputs = outputs
        self._begun_ns: int | None = None
        self._current = 0
        self._in_body = False

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        if self._begun_ns is None:
            if stop.raised:
                return False
            for target, value in zip(self._turns[0].values, self._start, strict=True):
                np.copyto(target, value)
            self._begun_ns = now_ns()
        while True:
            turn = self._turns[self._current]
            if not self._in_body:
                if stop.raised or not turn.condition.run(stop):
                    return False
                if not _is_true(self._truth):
                    break
                self._check_time(self._begun_ns, stop.loop_timeout_ns)
                self._in_body = True
            if stop.raised or not turn.body.run(stop):
                return False
            self._in_body = False
            self._current ^= 1
        self._forget()
        deliver(self._outputs, turn.values[: len(self._outputs)])
        return True

    def rewind(self) -> None:
        turn = self._turns[self._current]
        in_body = self._in_body
        self._forget()
        (turn.body if in_body else turn.condition).rewind()

    def _forget(self) -> None:
        self._begun_ns, self._current, self._in_body = None, 0, False

    def _check_time(self, begun_ns: int, timeout_ns: int) -> None:
        if now_ns() - begun_ns > timeout_ns:
            raise MissedDeadlineTransient(
                f"{self._name}: the loop took more than {timeout_ns / 1e9:g} s"
            )


def _values(sources: Sequence[Source], inputs: Sequence[Array | None]) -> list[Array | None]:
    return [inputs[source] if isinstance(source, int) else source for source in sources]


def _kept(source: Source) -> Source:
    """Returns a copy of a constant, since engines may want aligned, writable inputs."""
    if isinstance(source, np.ndarray):
        copy = _like(source)
        np.copyto(copy, source)
        return copy
    return source


def _like(value: Array) -> Array:
    """Returns memory for an array like this one, aligned to a cache line."""
    raw = np.empty(value.nbytes + _ALIGNMENT, np.uint8)
    start = -raw.__array_interface__["data"][0] % _ALIGNMENT
    return raw[start : start + value.nbytes].view(value.dtype).reshape(value.shape)


def _is_true(condition: Array | None) -> bool:
    if condition is None or condition.size != 1:
        raise GeneralFailure("a condition must be one boolean")
    return bool(condition.reshape(1).view(np.uint8)[0])
