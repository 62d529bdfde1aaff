"""Which device runs which operation: the cheapest way along the operations, borders included.

The operations are taken in their order of execution, and the device of each is chosen such that
the sum of their costs and of the borders between neighbors on different devices is the least
(dynamic programming, exact for that order). A border costs a fixed amount, the call of another
engine, and more the more bytes cross it. Of equally cheap ways the one on devices that come first
wins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from nnasync._core.partition.crossing import crossing_bytes
from nnasync.errors import GeneralFailure, InvalidArgument
from nnasync.extensions import operation_label
from nnasync.hal import Model, Struct

_UNRATED = 1e18
"""What an operation costs on a device that states no figure: the last resort, but one."""


class Border(Struct, frozen=True):
    """What going from one device to another costs, in the unit of the operations' costs (ns).

    `per_byte` is for what crosses: it is written by one engine and read by another, which may have
    to bring it into a layout of its own.
    """

    fixed: float = 5_000.0
    per_byte: float = 0.05


ORDINARY = Border()


def cheapest_way(
    model: Model,
    support: Sequence[Sequence[bool]],
    costs: Sequence[Sequence[float]],
    border: Border = ORDINARY,
) -> tuple[tuple[int, ...], float]:
    """Returns the device of each operation of the main subgraph, and the cost with its borders.

    `support` and `costs` have a row for each device with an entry for each operation. A cost is at
    least 0; infinity is one that nobody stated. Raises GeneralFailure naming an operation that no
    device supports, InvalidArgument for tables of another size and costs that are none.
    """
    _check_tables(model, support, costs)
    count, crossing = len(model.main.operations), crossing_bytes(model)
    totals = [0.0] * len(support)
    origins: list[list[int]] = []
    for index in range(count):
        change = _change(border, crossing[index])
        cheapest = min(range(len(totals)), key=totals.__getitem__)
        stays = [total <= totals[cheapest] + change for total in totals]
        origins.append([d if stays[d] else cheapest for d in range(len(totals))])
        before = [
            total if stay else totals[cheapest] + change
            for total, stay in zip(totals, stays, strict=True)
        ]
        totals = [
            before[d] + min(costs[d][index], _UNRATED) if support[d][index] else math.inf
            for d in range(len(totals))
        ]
        if all(map(math.isinf, totals)):
            raise GeneralFailure(_stuck(model, index, support))
    last = min(range(len(totals)), key=totals.__getitem__)
    return _traced(origins, last), totals[last]


def _change(border: Border, nbytes: float) -> float:
    """Returns the cost of moving to another device; infinity if that is not possible."""
    return border.fixed + border.per_byte * nbytes if math.isfinite(nbytes) else math.inf


def _traced(origins: Sequence[Sequence[int]], last: int) -> tuple[int, ...]:
    """Returns the devices of all operations, traced back from that of the last one."""
    chosen = [last]
    for origin in reversed(origins[1:]):
        chosen.append(origin[chosen[-1]])
    return tuple(reversed(chosen))


def _check_tables(
    model: Model, support: Sequence[Sequence[bool]], costs: Sequence[Sequence[float]]
) -> None:
    count = len(model.main.operations)
    if not support or len(support) != len(costs):
        raise InvalidArgument(
            f"{len(support)} rows of support and {len(costs)} of costs, expected one of each for "
            "every device"
        )
    for device, (answers, row) in enumerate(zip(support, costs, strict=True)):
        if len(answers) != count or len(row) != count:
            raise InvalidArgument(
                f"device {device}: {len(answers)} answers and {len(row)} costs, expected {count}"
            )
        if not all(cost >= 0 for cost in row):
            raise InvalidArgument(f"device {device}: a cost is below 0 or not a number")


def _stuck(model: Model, index: int, support: Sequence[Sequence[bool]]) -> str:
    type = model.main.operations[index].type
    name = f"operation {index} ({operation_label(model.extension_name_to_prefix, type)})"
    if not any(answers[index] for answers in support):
        return f"none of the {len(support)} devices supports {name}"
    return (
        f"{name} is only supported by devices that cannot take over there: what would cross is "
        "of a type that only its vendor can store"
    )
