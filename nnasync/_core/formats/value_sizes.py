"""How large the values may be that a file of a model makes engines compute.

A file of a few bytes can ask for terabytes: a picture enlarged 65,536 times, a row and a column
that are added. Engines find that out when they have begun to allocate, and end the process. So the
sizes of all values that follow from a file are compared with a limit before an engine sees it. What
a caller asks for, with inputs of sizes that the file leaves open, is not known by then, or is no
fault of the file.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from nnasync import hal
from nnasync.errors import ModelError
from nnasync.hal import Model, Operand, OperandLifeTime, Shape

_LEAST_BYTES, _SHARE = 512 << 20, 4
_COMPUTED = (
    OperandLifeTime.TEMPORARY_VARIABLE,
    OperandLifeTime.SUBGRAPH_INPUT,
    OperandLifeTime.SUBGRAPH_OUTPUT,
)


def most_bytes(file_bytes: int) -> int:
    """How large a value of a file of this size may be."""
    return _LEAST_BYTES + _SHARE * file_bytes


def check_value(label: str, shape: Shape, nbytes: int, file_bytes: int) -> None:
    """Raise ModelError for a value that is larger than a file of this size may have."""
    most = most_bytes(file_bytes)
    if nbytes > most:
        raise ModelError(
            f"{label} of shape {list(shape)} takes {nbytes} bytes, a value of a file of"
            f" {file_bytes} bytes may take {most}"
        )


def check_model(model: Model, file_bytes: int, asked: Collection[str] = ()) -> None:
    """Raise ModelError where an operand of a model from a file is larger than it may be.

    What the file brought along from others beside it, such as weights, counts as part of it, and so
    do inputs with the names `asked`: a caller gave their shapes.
    """
    constants = memoryview(model.operand_values).nbytes + sum(pool.size for pool in model.pools)
    inputs = (model.main.operands[index] for index in model.main.input_indexes)
    file_bytes = max(file_bytes, constants)
    file_bytes += sum(_bytes(each) for each in inputs if each.name in asked)
    for subgraph in (model.main, *model.referenced):
        for index, operand in enumerate(subgraph.operands):
            shape = operand.dimensions
            if operand.lifetime in _COMPUTED and math.prod(shape) * 16 > _LEAST_BYTES:
                check_value(f"operand {index}", shape, _bytes(operand), file_bytes)


def _bytes(operand: Operand) -> int:
    is_foreign = hal.is_extension(operand.type)
    each = 8 if is_foreign else hal.dtype_of(operand.type).itemsize
    return math.prod(operand.dimensions) * each
