"""Several calls of a network as one, and its answer taken apart again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync._core.execution.network import Network
from nnasync._core.execution.ports import Port, as_array, in_order
from nnasync.errors import InvalidArgument
from nnasync.hal import Array, Shape


def check_is_open(net: Network) -> None:
    """Raise InvalidArgument unless all inputs leave their first dimension open."""
    for port in net.inputs:
        if port.is_settled or not port.shape or port.shape[0] != 0:
            raise InvalidArgument(
                f"input {port.name!r} has shape {list(port.shape)}: requests are joined along the "
                "first dimension, which has to be open (0) in all inputs"
            )


def fitting(ports: Sequence[Port], arguments: Sequence[Any]) -> tuple[list[Array], int]:
    """Returns the checked arrays of a call, and how many rows they have.

    Raises InvalidArgument; so a wrong call fails before anybody is joined to it.
    """
    values = in_order(ports, arguments, "input")
    arrays = [as_array(value, port) for value, port in zip(values, ports, strict=True)]
    for array, port in zip(arrays, ports, strict=True):
        if not _fits(array.shape, port.shape):
            raise InvalidArgument(
                f"input {port.name!r} has shape {list(array.shape)}, should be {list(port.shape)} "
                "(0: any size)"
            )
    counts = {array.shape[0] for array in arrays}
    if len(counts) != 1 or 0 in counts:
        raise InvalidArgument(
            f"inputs have {sorted(counts)} rows; all must have as many, 1 or more"
        )
    return arrays, counts.pop()


def _fits(shape: Shape, wanted: Shape) -> bool:
    return len(shape) == len(wanted) and all(
        size in (0, given) for size, given in zip(wanted, shape, strict=True)
    )


def joined(calls: Sequence[Sequence[Array]]) -> list[Array]:
    """Returns the inputs of several calls joined to those of one."""
    return [np.concatenate(parts) for parts in zip(*calls, strict=True)]


def taken_apart(result: Any, rows: Sequence[int]) -> list[Any] | None:
    """Returns the answer of each call; None where there is not a row for each row of the inputs.

    Each gets arrays of its own, so that none keeps those of the others alive.
    """
    outputs = result if isinstance(result, tuple) else (result,)
    total = sum(rows)
    if any(np.ndim(each) == 0 or len(each) != total for each in outputs):
        return None
    ends = np.cumsum(rows)
    parts = [
        tuple(each[end - count : end].copy() for each in outputs)
        for count, end in zip(rows, ends, strict=True)
    ]
    return parts if isinstance(result, tuple) else [part[0] for part in parts]


def sample_of(ports: Sequence[Port]) -> list[Array] | None:
    """Returns one row for each input, to measure with; None where more than the rows is open.

    Floats are random, so that answers can be compared; what may be an index is 0.
    """
    random = np.random.default_rng(0)
    arrays = []
    for port in ports:
        if 0 in port.shape[1:]:
            return None
        shape = (1, *port.shape[1:])
        if port.dtype.kind == "f":
            arrays.append(random.random(shape).astype(port.dtype))
        else:
            arrays.append(np.full(shape, port.zero, port.dtype))
    return arrays


def can_be_tried(net: Network) -> bool:
    """Returns whether a call of one row can be made up to measure with: only the rows are open."""
    return not any(0 in port.shape[1:] for port in net.inputs)


def agree(alone: Any, together: Any) -> bool:
    """Returns whether a call has the answer it would have alone, as near as engines compute."""
    firsts = alone if isinstance(alone, tuple) else (alone,)
    seconds = together if isinstance(together, tuple) else (together,)
    return len(firsts) == len(seconds) and all(
        a.shape == b.shape and np.allclose(a, b, rtol=1e-2, atol=_tolerance(a), equal_nan=True)
        for a, b in zip(firsts, seconds, strict=True)
    )


def _tolerance(array: Array) -> float:
    """Returns the tolerance: one step for whole numbers, else a thousandth of the largest."""
    if array.dtype.kind != "f":
        return 1.0
    return 1e-3 * float(np.max(np.abs(array), initial=0.0))
