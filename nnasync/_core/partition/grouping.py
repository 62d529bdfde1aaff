"""Operations with their devices, grouped into steps: as few as are found.

An operation is ready when all that it reads is there. A step takes every operation of its device
that is ready, those included that become ready by it. Which device comes first is tried out for
each; after that it is the one whose step would be the largest. For two devices that is the least
possible number of steps. What the control-flow interpreter runs is a step by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnasync._core.partition.control_flow import INTERPRETER
from nnasync.errors import InvalidArgument
from nnasync.hal import Model, Struct


class Group(Struct, frozen=True):
    """Operations that one device, or the interpreter, runs in one go, in order of execution."""

    device: int
    operations: tuple[int, ...]


def grouped(model: Model, assignment: Sequence[int]) -> tuple[Group, ...]:
    """Returns the steps in order of execution; raises InvalidArgument for a wrong assignment."""
    count = len(model.main.operations)
    if len(assignment) != count:
        raise InvalidArgument(f"{len(assignment)} operations are assigned, expected {count}")
    if any(device < INTERPRETER for device in assignment):
        raise InvalidArgument(f"there is no device {min(assignment)}")
    owners = [
        INTERPRETER - index if device == INTERPRETER else device
        for index, device in enumerate(assignment)
    ]
    devices = sorted(set(owners))
    if len(devices) == 1:
        return (Group(max(devices[0], INTERPRETER), tuple(range(count))),)
    graph = _Graph(model, owners)
    ways = [_walked(graph, first) for first in devices if graph.is_ready(first)]
    return tuple(
        Group(max(group.device, INTERPRETER), group.operations) for group in min(ways, key=len)
    )


class _Graph:
    """The dependencies between operations."""

    def __init__(self, model: Model, assignment: Sequence[int]) -> None:
        operations = model.main.operations
        writers = {
            operand: index for index, each in enumerate(operations) for operand in each.outputs
        }
        waits = [{writers[i] for i in each.inputs if i in writers} for each in operations]
        self.device_of = tuple(assignment)
        self.waiting = [len(each) for each in waits]
        self.followers: list[list[int]] = [[] for _ in operations]
        for index, others in enumerate(waits):
            for other in others:
                self.followers[other].append(index)

    def is_ready(self, device: int) -> bool:
        """Returns whether an operation of the device can run now."""
        ready = zip(self.waiting, self.device_of, strict=True)
        return any(not count and each == device for count, each in ready)


def _walked(graph: _Graph, first: int) -> tuple[Group, ...]:
    """Returns the steps if this device comes first."""
    waiting = list(graph.waiting)
    ready: dict[int, list[int]] = {}
    for index, count in enumerate(waiting):
        if not count:
            ready.setdefault(graph.device_of[index], []).append(index)
    groups, device = [], first
    while ready:
        taken = _reachable(graph, device, ready[device], waiting)
        groups.append(Group(device, tuple(sorted(taken))))
        del ready[device]
        for index in taken:
            for follower in graph.followers[index]:
                waiting[follower] -= 1
                other = graph.device_of[follower]
                if not waiting[follower] and other != device:
                    ready.setdefault(other, []).append(follower)
        device = max(
            sorted(ready),
            key=lambda each: len(_reachable(graph, each, ready[each], waiting)),
            default=first,
        )
    return tuple(groups)


def _reachable(
    graph: _Graph, device: int, ready: Sequence[int], waiting: Sequence[int]
) -> list[int]:
    """Returns the ready operations that the device can run without another device."""
    left: dict[int, int] = {}
    taken = list(ready)
    for index in taken:
        for follower in graph.followers[index]:
            if graph.device_of[follower] == device:
                left[follower] = left.get(follower, waiting[follower]) - 1
                if not left[follower]:
                    taken.append(follower)
    return taken
