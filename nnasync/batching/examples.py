"""Several examples for a network that takes one, a run for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import numpy as np

from nnasync._core.arguments import check_whole
from nnasync._core.clock import Deadline
from nnasync._core.execution.network import Network, check_network
from nnasync._core.execution.ports import Port, as_array, in_order
from nnasync.errors import InvalidArgument, NNError
from nnasync.hal import Array, Priority


async def one_by_one(
    net: Network,
    *arrays: Any,
    at_once: int = 8,
    deadline: Deadline | None = None,
    priority: Priority | None = None,
) -> Any:
    """Run a network that takes one example once for each of n; the n results, joined.

    Takes what the network takes, with n in place of the first dimension of each input, which has to
    be 1 there, and of each output. `at_once` calls are in flight, which the runtime spreads over
    the cores. It is a loop of calls, and no cheaper than these; one `deadline` holds for all. The
    first call that fails ends the others, and its error is raised. Raises InvalidArgument for
    shapes that do not fit, and what the network raises.
    """
    check_network("net", net)
    rows = _rows(net, arrays)
    check_whole("at_once", at_once, 1)
    answers: list[tuple[Array, ...]] = [()] * len(rows)
    waiting = iter(enumerate(rows))
    failed: list[NNError] = []

    async def work(scope: anyio.CancelScope) -> None:
        try:
            for number, row in waiting:
                answer = await net(*row, deadline=deadline, priority=priority)
                answers[number] = answer if isinstance(answer, tuple) else (answer,)
        except NNError as error:
            failed.append(error)
            scope.cancel()

    async with anyio.create_task_group() as tasks:
        for _ in range(min(at_once, len(rows))):
            tasks.start_soon(work, tasks.cancel_scope)
    if failed:
        raise failed[0]
    joined = tuple(np.concatenate(column) for column in zip(*answers, strict=True))
    return joined if len(joined) > 1 else joined[0]


def _rows(net: Network, arrays: Sequence[Any]) -> list[tuple[Array, ...]]:
    """Returns the arguments of each call; raises InvalidArgument where shapes do not allow that."""
    for port in (*net.inputs, *net.outputs):
        if port.shape[:1] != (1,):
            raise InvalidArgument(
                f"{port.name!r} has shape {list(port.shape)}: a network that takes one example has "
                "1 as the first dimension of all inputs and outputs"
            )
    values = [
        _checked(port, value)
        for port, value in zip(net.inputs, in_order(net.inputs, arrays, "input"), strict=True)
    ]
    counts = {len(value) for value in values}
    if len(counts) != 1 or 0 in counts:
        raise InvalidArgument(
            f"inputs have {sorted(counts)} examples; all must have as many, 1 or more"
        )
    return [tuple(value[at : at + 1] for value in values) for at in range(counts.pop())]


def _checked(port: Port, value: Any) -> Array:
    array = as_array(value, port)
    if array.ndim != len(port.shape) or array.shape[1:] != port.shape[1:]:
        raise InvalidArgument(
            f"input {port.name!r} has shape {list(array.shape)}, should be {['n', *port.shape[1:]]}"
        )
    return array
