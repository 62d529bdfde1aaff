"""Which device runs which operation, inside IF and WHILE as well.

An IF or a WHILE goes to the cheapest device that takes all of it. Where that is the reference, or
nobody does, and it can be interpreted, it goes to the control-flow interpreter instead, and its
subgraphs are assigned operation by operation, as the main one is. Where all of them would end on
the reference, it keeps the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from nnasync._core.partition.assignment import Border, cheapest_way
from nnasync._core.partition.control_flow import (
    INTERPRETER,
    ROLES,
    find_control_flow,
    view,
)
from nnasync._core.partition.costs import control_flow_cost
from nnasync._core.partition.submodel import compact
from nnasync.errors import GeneralFailure
from nnasync.extensions import operation_label
from nnasync.hal import Model, Struct
from nnasync.hal.performance import referred

Rate = Callable[[Model], Sequence[Sequence[float]]]
"""The costs of the operations of a main subgraph, a row for each device."""

_Found = dict[int, tuple[tuple[int, ...], float]]
"""The devices of the operations of subgraphs, and what they cost."""


class Support(Struct, frozen=True):
    """The operations that a device takes, in the main subgraph and in bodies as own models.

    `bodies` is by number of the subgraph; one that is not there is not supported at all.
    """

    main: tuple[bool, ...]
    bodies: Mapping[int, tuple[bool, ...]] = msgspec.field(default_factory=dict)


class Assignment(Struct, frozen=True):
    """For each operation the number of its device, or INTERPRETER.

    `bodies` are the subgraphs that the interpreter runs, by number.
    """

    main: tuple[int, ...]
    bodies: Mapping[int, tuple[int, ...]] = msgspec.field(default_factory=dict)

    @property
    def devices(self) -> tuple[int, ...]:
        """Returns the devices that have an operation, in order of appearance."""
        rows = (self.main, *self.bodies.values())
        found = dict.fromkeys(device for row in rows for device in row)
        return tuple(device for device in found if device != INTERPRETER)


def distribute(
    model: Model,
    support: Sequence[Support],
    rate: Rate,
    *,
    reference: int | None = None,
    border: Border | None = None,
) -> Assignment:
    """Returns the cheapest assignment of a legal model; `reference` is that device's number.

    Raises GeneralFailure naming an operation that no device supports.
    """
    flow = find_control_flow(model)
    way = _Ways(model, support, rate, reference, border or Border())
    found: _Found = {}
    for number, operations in flow.bodies.items():
        answers = [each.bodies.get(number, ()) for each in support]
        try:
            found[number] = way.through(view(model, number), answers, operations, found)
        except GeneralFailure:
            continue
    main, _ = way.through(model, [each.main for each in support], flow.main, found)
    return _with_bodies(model, main, {number: row for number, (row, _) in found.items()})


def as_much_as_possible(model: Model, support: Support) -> Assignment:
    """Assigns all that a device takes, however dear, to device 0, and the rest to device 1.

    An IF or a WHILE that it does not take whole is interpreted where it takes any of the bodies.
    """
    flow = find_control_flow(model)
    found: dict[int, tuple[int, ...]] = {}

    def owners(place: Model, answers: Sequence[bool], operations: frozenset[int]) -> list[int]:
        return [
            0
            if taken
            else INTERPRETER
            if index in operations and _any_on(0, found, referred(place.main, operation))
            else 1
            for index, (operation, taken) in enumerate(
                zip(place.main.operations, answers, strict=True)
            )
        ]

    for number, operations in flow.bodies.items():
        place = view(model, number)
        answers = support.bodies.get(number) or (False,) * len(place.main.operations)
        found[number] = tuple(owners(place, answers, operations))
    return _with_bodies(model, tuple(owners(model, support.main, flow.main)), found)


class _Ways:
    """Finds the cheapest ways through the subgraphs of one model."""

    def __init__(
        self,
        model: Model,
        support: Sequence[Support],
        rate: Rate,
        reference: int | None,
        border: Border,
    ) -> None:
        self._model = model
        self._count = len(support)
        self._rate = rate
        self._reference = reference
        self._border = border

    def through(
        self,
        place: Model,
        answers: Sequence[Sequence[bool]],
        operations: frozenset[int],
        found: _Found,
    ) -> tuple[tuple[int, ...], float]:
        """Returns the way through a main subgraph, with the interpreter as one more device."""
        count = len(place.main.operations)
        support = [list(row) or [False] * count for row in answers]
        costs = [list(row) for row in self._rate(compact(place))]
        interpreted, prices = [False] * count, [0.0] * count
        for index in operations:
            bodies = referred(place.main, place.main.operations[index])
            if self._is_to_interpret(bodies, index, support, costs, found):
                interpreted[index] = True
                prices[index] = self._price(place.main.operations[index].type, bodies, found)
                if self._reference is not None:
                    support[self._reference][index] = False
        self._check_all_run(place, support, interpreted, operations)
        way, total = cheapest_way(place, [*support, interpreted], [*costs, prices], self._border)
        return tuple(INTERPRETER if owner == self._count else owner for owner in way), total

    def _check_all_run(
        self,
        place: Model,
        support: Sequence[Sequence[bool]],
        interpreted: Sequence[bool],
        operations: frozenset[int],
    ) -> None:
        """Raises GeneralFailure that names an operation without a device."""
        for index, operation in enumerate(place.main.operations):
            if interpreted[index] or any(row[index] for row in support):
                continue
            text = (
                f"none of the {self._count} devices supports operation {index} "
                f"({operation_label(place.extension_name_to_prefix, operation.type)})"
            )
            if index in operations:
                text += ", nor all operations that it runs"
            elif operation.type in ROLES:
                text += ", and a size that is not known keeps it whole"
            raise GeneralFailure(text)

    def _is_to_interpret(
        self,
        bodies: Sequence[int],
        index: int,
        support: Sequence[Sequence[bool]],
        costs: Sequence[Sequence[float]],
        found: _Found,
    ) -> bool:
        """Returns whether an IF or WHILE is interpreted: only the reference would run it whole."""
        reference = self._reference
        if not all(number in found for number in bodies):
            return False
        if all(set(found[number][0]) == {reference} for number in bodies):
            return False
        able = [device for device in range(self._count) if support[device][index]]
        return not able or reference == min(
            able, key=lambda device: (costs[device][index], device != reference)
        )

    def _price(self, type: int, bodies: Sequence[int], found: _Found) -> float:
        """Returns the cost of interpreting: a border for each of the subgraphs, and their costs."""
        return control_flow_cost(
            type, 0.0, [self._border.fixed + found[number][1] for number in bodies]
        )


def _any_on(device: int, found: Mapping[int, Sequence[int]], bodies: Sequence[int]) -> bool:
    """Returns whether the device or the interpreter runs a part of the bodies."""
    return any({device, INTERPRETER}.intersection(found[number]) for number in bodies)


def _with_bodies(
    model: Model, main: tuple[int, ...], found: Mapping[int, tuple[int, ...]]
) -> Assignment:
    """Returns the assignment with the bodies that it needs, and no others."""
    needed: dict[int, None] = {}
    pending = [(model.main, main)]
    while pending:
        subgraph, row = pending.pop()
        for operation, owner in zip(subgraph.operations, row, strict=True):
            if owner != INTERPRETER:
                continue
            for number in referred(subgraph, operation):
                if number not in needed:
                    needed[number] = None
                    pending.append((model.referenced[number], found[number]))
    return Assignment(main, {number: found[number] for number in sorted(needed)})
