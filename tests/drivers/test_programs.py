"""Programs by the shapes of inputs: made once, forgotten where there are many, trimmed together."""

from __future__ import annotations

from typing import cast

import pytest

from nnasync._core.drivers.cpu.program import Program, Unresolved
from nnasync._core.drivers.cpu.programs import Programs, Shapes
from nnasync.errors import ModelError


class Recorder:
    """Makes programs that count how often they are trimmed."""

    def __init__(self) -> None:
        self.made: list[Shapes] = []
        self.trimmed: list[Shapes] = []

    def make(self, shapes: Shapes) -> Program:
        self.made.append(shapes)
        if shapes == (None,):
            raise Unresolved
        if shapes == ((0,),):
            raise ModelError("operation 0 is at fault")
        return cast(Program, _Trimmed(self, shapes))


class _Trimmed:
    def __init__(self, recorder: Recorder, shapes: Shapes) -> None:
        self._recorder, self._shapes = recorder, shapes

    def trim(self) -> None:
        self._recorder.trimmed.append(self._shapes)


def test_a_program_is_made_once() -> None:
    programs, recorder = Programs(), Recorder()
    first = programs.find(((1,),), recorder.make)
    assert first is not None
    assert programs.find(((1,),), recorder.make) is first
    assert programs.find((None,), recorder.make) is None
    assert programs.find((None,), recorder.make) is None
    assert recorder.made == [((1,),), (None,)]
    programs.trim()
    assert recorder.trimmed == [((1,),)]


def test_an_error_is_passed_on_and_not_remembered() -> None:
    programs, recorder = Programs(), Recorder()
    for _ in range(2):
        with pytest.raises(ModelError, match="at fault"):
            programs.find(((0,),), recorder.make)
    assert recorder.made == [((0,),)] * 2


def test_many_shapes_do_not_pile_up() -> None:
    programs, recorder = Programs(), Recorder()
    for size in range(1, 1000):
        programs.find(((size,),), recorder.make)
    programs.trim()
    assert 1 <= len(recorder.trimmed) <= 16
