"""Requests that were answered before, asked again with other elements in their only tensor.

A client that keeps asking sends the same bytes each time, but for the elements at the end. All that
a server finds out on the way of a request but for the answer itself follows from those bytes: the
model, the types and shapes, what of the answer comes ahead of its elements. So that is remembered
by them, and what is left to do is to call the network.

What comes once may be one of many that never come again, as where a client numbers its requests: so
a request is remembered from the second time on, and those push out nothing that is of use.

The bytes alone decide. They end with the length of the elements, which is compared with what is
there, so nothing is taken for such a request that would be read in another way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnasync.hal import Shape, Struct
from nnasync.serving.messages import InferRequest
from nnasync.serving.served_model import ServedModel

_MOST = 256
_LONGEST = 1024


class Repeat(Struct, frozen=True):
    """What messages that differ in the elements of their only tensor share, with their answers.

    `request` has no elements; they begin at `offset` of the message, which has `size` bytes.
    `heads` are what an answer has ahead of the elements of each output.
    """

    model: ServedModel
    request: InferRequest
    dtype: np.dtype[Any]
    shape: Shape
    offset: int
    size: int
    heads: tuple[bytes, ...]
    is_timed: bool


class Repeats:
    """Remembers the messages that were met last, at most a fixed number of them."""

    def __init__(self) -> None:
        self._starts: dict[int, int] = {}
        """Where the elements begin in messages of a length: in the last one that was met."""
        self._known: dict[bytes, Repeat] = {}
        self._met: set[bytes] = set()
        """How messages began that were met; forgotten from time to time."""

    def find(self, message: bytes) -> Repeat | None:
        """Returns what is remembered for messages like this one; None if nothing is."""
        size = len(message)
        start = self._starts.get(size)
        if start is None:
            return None
        repeat = self._known.get(message[:start])
        return repeat if repeat is not None and repeat.size == size else None

    def meets_again(self, message: bytes, elements: int) -> bool:
        """Returns whether a message with the same beginning came before; notes this one.

        The beginning is all but the last `elements` bytes, which are the elements of its tensor.
        Returns False where it is too long to be remembered.
        """
        offset = len(message) - elements
        if offset > _LONGEST:
            return False
        start = message[:offset]
        if start in self._met:
            return True
        if len(self._met) >= _MOST:
            self._met.clear()
        self._met.add(start)
        return False

    def note(self, message: bytes, repeat: Repeat) -> None:
        """Remembers a message that ends with its elements.

        A message whose beginning is too long is not remembered.
        """
        if repeat.offset > _LONGEST:
            return
        if len(self._known) >= _MOST:
            self._forget()
        self._starts[repeat.size] = repeat.offset
        self._known[message[: repeat.offset]] = repeat

    def clear(self) -> None:
        """Forgets all messages."""
        self._forget()
        self._met.clear()

    def _forget(self) -> None:
        self._starts.clear()
        self._known.clear()


def may_repeat(model: ServedModel, request: InferRequest) -> bool:
    """Returns whether answering such a request is a call of the network and nothing else.

    The request was answered that way once, so it fits the model.
    """
    signature = model.signature
    if not model.runs_plainly or request.id or request.sequence_id or len(request.inputs) != 1:
        return False
    given, port = request.inputs[0], signature.inputs[0]
    if given.raw is None or given.shape != port.shape or len(given.raw) != port.plain_bytes:
        return False
    wanted = [(each.name, each.classification, each.region) for each in request.outputs]
    if wanted and wanted != [(port.name, 0, None) for port in signature.outputs]:
        return False
    if model.settings.priority_of(request.priority) is not model.net.priority:
        return False
    return all(port.plain_bytes > 0 for port in signature.outputs)
