"""What a device takes, as a menu to draw random graphs from.

A graph is run only where the device takes all of it, so that of graphs drawn from everything a
device of few operations runs next to none. It is asked about a few models of one operation, for
each operation and type of data. What it takes of any of them is drawn for graphs of one operation,
and what it takes of all of them for larger graphs.
"""

from __future__ import annotations

from nnasync.conformance.random_graphs.generation import (
    KINDS,
    Menu,
    Size,
    generate,
    generated_operations,
)
from nnasync.conformance.random_graphs.graph import model_of
from nnasync.device import Device
from nnasync.errors import NNError

_ROUNDS = 4
_FIRST = 1_000_000
"""Seeds of these models, divided by the number of operations, are from here on."""


async def survey(device: Device, kind: str | None = None) -> Menu:
    """The operations that a device takes, on one kind of data or on all."""
    taken: dict[tuple[int, int], list[bool]] = {}
    for name in KINDS if kind is None else [kind]:
        operations = generated_operations(name)
        for number in range(_ROUNDS * len(operations)):
            seed = _FIRST * len(operations) + number
            answer = await _takes(device, seed, name)
            pair = (operations[number % len(operations)], KINDS[name])
            taken.setdefault(pair, []).append(answer)
    single = frozenset(pair for pair, answers in taken.items() if any(answers))
    larger = frozenset(pair for pair, answers in taken.items() if all(answers))
    return Menu(single, larger or single)


async def _takes(device: Device, seed: int, kind: str) -> bool:
    """Returns whether a device takes the graph of a seed; failures show in later graphs."""
    try:
        model = model_of(generate(Size.SINGLE, seed, kind))
        return all(await device.get_supported_operations(model))
    except NNError:
        return False
