"""The memory of a network's first call, made and bound on the thread that made its plan.

A plan that answers first is wanted at once, and a thread that is there already can do this in less
time than it takes to hand it to another one.
"""

from __future__ import annotations

import contextlib

import msgspec

from nnasync._core.execution.ports import ports_of
from nnasync._core.execution.prepared_kinds import is_inline
from nnasync._core.execution.slots import Slot, private_memory
from nnasync.device import PreparedModel
from nnasync.errors import NNError
from nnasync.hal import Model


class Ahead(msgspec.Struct, frozen=True):
    """Holds a slot made ahead of a call, and the prepared model that its request is bound to."""

    prepared: PreparedModel
    slot: Slot


def bound_ahead(model: Model, prepared: PreparedModel) -> Ahead | None:
    """Returns a bound slot for a first call of a model; may run on any thread.

    Returns None where shapes are open, or the model was prepared elsewhere. A failure is raised by
    the call itself.
    """
    ports = ports_of(model)
    if not ports.are_settled or not is_inline(prepared):
        return None
    slot = Slot(model, ports, private_memory, peer=None)
    with contextlib.suppress(NNError):
        prepared.bind(slot.request, tries=False)
    return Ahead(prepared, slot)
