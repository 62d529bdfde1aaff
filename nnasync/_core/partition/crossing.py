"""How much data crosses a cut between two operations that follow each other."""

from __future__ import annotations

import math
from itertools import accumulate

from nnasync import hal
from nnasync.hal import Model, OperandLifeTime

UNKNOWN_BYTES = 1 << 26
"""The assumed size of a value of unknown size: a cut there costs more than almost any other."""


def crossing_bytes(model: Model) -> list[float]:
    """Returns the bytes alive across each cut, from before the first operation to after the last.

    What counts are temporaries that an operation before the cut writes and one behind it reads:
    inputs and outputs of the model have memory anyway. A value that nobody but its vendor can
    store, of an extension's type, makes a cut impossible: infinity.
    """
    count = len(model.main.operations)
    changes = [0.0] * (count + 2)
    forbidden = [0] * (count + 2)
    written: dict[int, int] = {}
    last: dict[int, int] = {}
    for index, operation in enumerate(model.main.operations):
        written.update((operand, index) for operand in operation.outputs)
        last.update((operand, index) for operand in operation.inputs if operand in written)
    for operand, reader in last.items():
        first = written[operand] + 1
        described = model.main.operands[operand]
        if not hal.has_dtype(described.type):
            forbidden[first] += 1
            forbidden[reader + 1] -= 1
        elif described.lifetime == OperandLifeTime.TEMPORARY_VARIABLE:
            nbytes = _bytes(described)
            changes[first] += nbytes
            changes[reader + 1] -= nbytes
    alive, impossible = accumulate(changes), accumulate(forbidden)
    found = zip(alive, impossible, strict=True)
    return [math.inf if no else nbytes for nbytes, no in found][: count + 1]


def _bytes(operand: hal.Operand) -> float:
    known = hal.is_fully_specified(operand.type, operand.dimensions)
    return hal.byte_size(operand.type, operand.dimensions) if known else UNKNOWN_BYTES
