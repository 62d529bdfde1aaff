"""A call of a network that is answered, or refused, before anything waits; or not begun at all."""

from __future__ import annotations

from typing import Any

from nnasync._core.clock import Deadline
from nnasync._core.execution.net import Net
from nnasync.errors import NNError
from nnasync.hal import Array, Priority


def call_now(
    net: Net[Any], array: Array, deadline: Deadline | None, out: Array | None = None
) -> Any:
    """Returns the result of a call, or None where it would not run here and at once.

    `out`, which must fit the only output, is written instead of a fresh array. For callers that
    prepare for waiting, at a cost, only where they have to. It counts as a call where it gives
    something or raises, and raises what a call raises.
    """
    quick = net._quick
    if quick is None:
        return None
    tally = net._tally
    try:
        value = quick.call((array,), deadline, out)
    except BaseException as error:
        tally.calls += 1
        tally.ended(error, deadline)
        raise
    if value is not None:
        tally.calls += 1
        tally.completed += 1
    return value


def check_call(net: Net[Any], deadline: Deadline, priority: Priority) -> None:
    """Raises what a call would raise on its arrival, such as a deadline that cannot be met.

    For callers that `call_now` gave None; without an error nothing has happened.
    """
    inline = net._inline
    if inline is None:
        return
    try:
        inline.check_room(priority, deadline.at_ns)
    except NNError as error:
        tally = net._tally_at(priority)
        tally.calls += 1
        tally.ended(error, deadline)
        raise
