"""How large the values may be that a file of a model makes engines compute.

A file of a few bytes can ask for terabytes: a picture enlarged 65,536 times, a row and a column
that are added. Engines find that out when they have begun to allocate, and end the process. So the
sizes of all values that follow from a file are compared with a limit before an engine sees it. What
a caller asks for, with inputs of sizes that the file leaves open, is not known by then, or is no
fault of the file. The limit goes by the size of the file unless the caller states another one,
`value_limit_bytes`: a network may honestly have large values. A model that a program built itself
has none.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from nnasync import hal
from nnasync.errors import InvalidArgument, ModelError
from nnasync.hal import Model, Operand, OperandLifeTime, Shape

_LEAST_BYTES, _SHARE = 512 << 20, 4
_MOST_ITEM_BYTES = 16
_COMPUTED = (
    OperandLifeTime.TEMPORARY_VARIABLE,
    OperandLifeTime.SUBGRAPH_INPUT,
    OperandLifeTime.SUBGRAPH_OUTPUT,
)


def check_limit(value_limit_bytes: object) -> None:
    """Raise InvalidArgument for what is no limit: neither None nor a whole number above 0."""
    if value_limit_bytes is None:
        return
    value = value_limit_bytes
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidArgument(
            "value_limit_bytes is a number of bytes, or None for what befits the size of the file,"
            f" not {value_limit_bytes!r}"
        )


def most_bytes(file_bytes: int, value_limit_bytes: int | None = None) -> int:
    """Returns how large a value of a file of this size may be, unless a caller stated that."""
    return _LEAST_BYTES + _SHARE * file_bytes if value_limit_bytes is None else value_limit_bytes


def check_value(
    label: str, shape: Shape, nbytes: int, file_bytes: int, value_limit_bytes: int | None = None
) -> None:
    """Raise ModelError for a value that is larger than one of a file of this size may be.

    Or than the limit that the caller stated.
    """
    most = most_bytes(file_bytes, value_limit_bytes)
    if nbytes > most:
        of_file = f" of a file of {file_bytes} bytes" if value_limit_bytes is None else ""
        raise ModelError(
            f"{label} of shape {list(shape)} takes {nbytes} bytes, a value{of_file} may take"
            f" {most}: if the file is trusted, load it with value_limit_bytes={nbytes} or more"
        )


def check_model(
    model: Model,
    file_bytes: int,
    asked: Collection[str] = (),
    value_limit_bytes: int | None = None,
) -> None:
    """Raise ModelError where an operand of a model from a file is larger than it may be.

    What the file brought along from others beside it, such as weights, counts as part of it, and so
    do inputs with the names `asked`: a caller gave their shapes.
    """
    constants = memoryview(model.operand_values).nbytes + sum(pool.size for pool in model.pools)
    inputs = (model.main.operands[index] for index in model.main.input_indexes)
    file_bytes = max(file_bytes, constants)
    file_bytes += sum(_bytes(each) for each in inputs if each.name in asked)
    least = _LEAST_BYTES if value_limit_bytes is None else value_limit_bytes
    for subgraph in (model.main, *model.referenced):
        for index, operand in enumerate(subgraph.operands):
            shape = operand.dimensions
            if operand.lifetime in _COMPUTED and math.prod(shape) * _MOST_ITEM_BYTES > least:
                size = _bytes(operand)
                check_value(f"operand {index}", shape, size, file_bytes, value_limit_bytes)


def _bytes(operand: Operand) -> int:
    is_foreign = hal.is_extension(operand.type)
    each = 8 if is_foreign else hal.dtype_of(operand.type).itemsize
    return math.prod(operand.dimensions) * each
