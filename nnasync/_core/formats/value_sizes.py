"""How large the values may be that a file of a model makes engines compute.

A file of a few bytes can ask for terabytes: a picture enlarged 65,536 times, a row and a column
that are added. Engines find that out when they have begun to allocate, and end the process. So the
sizes of all values that follow from a file are compared with a limit before an engine sees it. What
a caller asks for, with inputs of sizes that the file leaves open, is not known by then.
"""

from __future__ import annotations

import math

from nnasync import hal
from nnasync.errors import ModelError
from nnasync.hal import Model, OperandLifeTime, Shape

_LEAST_BYTES, _SHARE = 512 << 20, 4
_COMPUTED = (
    OperandLifeTime.TEMPORARY_VARIABLE,
    OperandLifeTime.SUBGRAPH_INPUT,
    OperandLifeTime.SUBGRAPH_OUTPUT,
)


def check_value(label: str, shape: Shape, nbytes: int, file_bytes: int) -> None:
    """Raise ModelError for a value that is larger than a file of this size may have."""
    most = _LEAST_BYTES + _SHARE * file_bytes
    if nbytes > most:
        raise ModelError(
            f"{label} of shape {list(shape)} takes {nbytes} bytes, a value of a file of"
            f" {file_bytes} bytes may take {most}"
        )


def check_model(model: Model, file_bytes: int) -> None:
    """Raise ModelError where an operand of a model from a file is larger than it may be.

    What the file brought along from others beside it, such as weights, counts as part of it.
    """
    constants = memoryview(model.operand_values).nbytes + sum(pool.size for pool in model.pools)
    file_bytes = max(file_bytes, constants)
    for subgraph in (model.main, *model.referenced):
        for index, operand in enumerate(subgraph.operands):
            shape = operand.dimensions
            if operand.lifetime in _COMPUTED and math.prod(shape) * 16 > _LEAST_BYTES:
                nbytes = math.prod(shape) * _element_bytes(operand.type)
                check_value(f"operand {index}", shape, nbytes, file_bytes)


def _element_bytes(type: int) -> int:
    return 8 if hal.is_extension(type) else hal.dtype_of(type).itemsize
