"""What each engine takes of a model, inside IF and WHILE as well.

Engines are asked about a model as a whole, and most know neither operation. So they are asked about
the subgraphs that the control-flow interpreter could run, each as a model of its own.
"""

from __future__ import annotations

from nnasync.compilation.contenders import Wish
from nnasync.compilation.gathering import Field, has_plans
from nnasync.engine_device import EngineDevice
from nnasync.errors import NNError
from nnasync.hal import Model
from nnasync.partition import Support, body_model, find_control_flow
from nnasync.workers.helping import in_helper_thread

__all__ = ["Ability", "abilities"]

Ability = tuple[EngineDevice, Support]
"""A device and what it supports."""


async def abilities(field: Field, wish: Wish) -> list[Ability]:
    """The engines that take a part of the model, in the order of the devices."""
    bodies = await in_helper_thread(_bodies, wish.model)
    found = []
    for device, answers in field.support:
        if isinstance(device, EngineDevice) and has_plans(device):
            support = Support(answers, await _supported(device, bodies))
            if any(answers) or any(map(any, support.bodies.values())):
                found.append((device, support))
    return found


def _bodies(model: Model) -> dict[int, Model]:
    """The subgraphs that can be interpreted, by number."""
    return {number: body_model(model, number) for number in find_control_flow(model).bodies}


async def _supported(device: EngineDevice, bodies: dict[int, Model]) -> dict[int, tuple[bool, ...]]:
    """What a device answers; a subgraph that it fails on is not there."""
    found = {}
    for number, body in bodies.items():
        try:
            found[number] = await device.get_supported_operations(body)
        except NNError:
            continue
    return found
