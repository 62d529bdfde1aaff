"""The programs that a subgraph was given, for each set of input shapes that it met lately."""

from __future__ import annotations

from collections.abc import Callable

from nnasync._core.drivers.cpu.program import Program, Unresolved
from nnasync.hal import Shape

Shapes = tuple[Shape | None, ...]
"""The shapes of all inputs, None for an omitted one."""

_REMEMBERED = 16
"""So many sets of shapes are remembered."""


class Programs:
    """Programs by input shapes; safe on any thread, where one made twice is merely a waste."""

    __slots__ = ("_by_shapes",)

    def __init__(self) -> None:
        self._by_shapes: dict[Shapes, Program | None] = {}

    def find(self, shapes: Shapes, make: Callable[[Shapes], Program]) -> Program | None:
        """The program for these shapes, made where it is new; None where only the run tells.

        What `make` raises is passed on, but for Unresolved.
        """
        try:
            return self._by_shapes[shapes]
        except KeyError:
            pass
        program: Program | None = None
        try:
            program = make(shapes)
        except Unresolved:
            pass
        self.remember(shapes, program)
        return program

    def remember(self, shapes: Shapes, program: Program | None) -> None:
        """Keep a program, or that there is none."""
        if len(self._by_shapes) >= _REMEMBERED:
            self._by_shapes.clear()
        self._by_shapes[shapes] = program

    def trim(self) -> None:
        """Give the idle memory of all programs back."""
        for program in list(self._by_shapes.values()):
            if program is not None:
                program.trim()
