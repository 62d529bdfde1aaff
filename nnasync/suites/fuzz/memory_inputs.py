"""What is done with driver-managed buffers, right or wrong, as a list of acts."""

from __future__ import annotations

import enum

import msgspec

from nnasync.hal import BufferRole, Model, Shape
from nnasync.suites.fuzz.edits import NUMBERS, Editor

_SIZES = (0, 1, 3, 4, 16, 64, 1000, 65536)


class MemoryDeed(enum.Enum):
    """What an act does."""

    ALLOCATE = "allocate"
    COPY_IN = "copy in"
    COPY_OUT = "copy out"
    EXECUTE = "execute"
    CLOSE = "close"


class MemoryAct(msgspec.Struct, frozen=True):
    """One act; those that take a buffer take number `which`, modulo how many there are.

    dimensions, inputs, outputs: of an allocation; dimensions of a copy, too. size: of the memory
    that is copied from or to, None for what fits the operand. token: what an execution names in
    place of the buffer's own token, None for that one. offset, length: what its argument says.
    """

    deed: MemoryDeed
    which: int = 0
    dimensions: Shape = ()
    inputs: tuple[BufferRole, ...] = ()
    outputs: tuple[BufferRole, ...] = ()
    size: int | None = None
    token: int | None = None
    is_input: bool = True
    place: int = 0
    offset: int = 0
    length: int = 0


_DEEDS = (
    MemoryDeed.COPY_IN,
    MemoryDeed.COPY_IN,
    MemoryDeed.COPY_OUT,
    MemoryDeed.EXECUTE,
    MemoryDeed.EXECUTE,
    MemoryDeed.EXECUTE,
    MemoryDeed.CLOSE,
)


def memory_acts(editor: Editor, model: Model) -> tuple[MemoryAct, ...]:
    """One allocation or two, and up to six acts on them."""
    acts = [_allocation(editor, model) for _ in range(editor.random.randint(1, 2))]
    return (*acts, *(_act(editor, model) for _ in range(editor.random.randint(0, 6))))


def _allocation(editor: Editor, model: Model) -> MemoryAct:
    main, source = model.main, editor.random
    inputs, outputs = len(main.input_indexes), len(main.output_indexes)
    is_input = bool(inputs) and source.random() < 0.5
    index = source.randrange(max(1, inputs if is_input else outputs))
    role = BufferRole(0, index)
    own = (main.input_indexes if is_input else main.output_indexes)[index : index + 1]
    dimensions = main.operands[own[0]].dimensions if own else ()
    if source.random() < 0.3:
        dimensions = editor.dimensions(dimensions)
    elif source.random() < 0.3:
        dimensions = ()
    roles = [role]
    if source.random() < 0.2:
        odd = BufferRole(
            editor.pick((0, 0, 1, -1, *NUMBERS)),
            editor.pick((0, 1, *NUMBERS)),
            editor.pick((1.0, 0.5, 0.0, -1.0, 2.0, float("nan"))),
        )
        roles = list(editor.listed(roles, (odd,)))
    given = tuple(roles)
    return MemoryAct(
        MemoryDeed.ALLOCATE,
        dimensions=dimensions,
        inputs=given if is_input else (),
        outputs=() if is_input else given,
    )


def _act(editor: Editor, model: Model) -> MemoryAct:
    source = editor.random
    is_odd = source.random() < 0.4
    main = model.main
    ends = len(main.input_indexes) + len(main.output_indexes)
    return MemoryAct(
        editor.pick(_DEEDS),
        which=source.randrange(2),
        dimensions=editor.dimensions((2, 3)) if is_odd and source.random() < 0.5 else (),
        size=editor.pick(_SIZES) if is_odd and source.random() < 0.5 else None,
        token=editor.pick(NUMBERS) if is_odd and source.random() < 0.3 else None,
        is_input=source.random() < 0.5,
        place=source.randrange(max(1, ends)),
        offset=editor.pick((0, 0, 0, 1, 4, *NUMBERS)) if is_odd else 0,
        length=editor.pick((0, 0, 0, 4, *NUMBERS)) if is_odd else 0,
    )
