"""All engines of this machine as one, which share each graph among themselves.

Whom an operation goes to, of those that support it, is drawn by lot from the model's own digest:
so borders lie anywhere, and the same model is always shared in the same way. The reference only
gets what nobody else takes, now and then something else, and all that goes into an operation whose
result says nothing when its inputs differ by a rounding, such as a hash.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from nnasync._core.drivers import built_in, default_devices
from nnasync._core.model import fingerprint
from nnasync._core.partition import CompositeEngine, split
from nnasync._core.validation import find_operation
from nnasync.engine import Engine, EngineBase, Plan
from nnasync.errors import GeneralFailure
from nnasync.extensions import operation_label
from nnasync.hal import (
    DeviceType,
    ExecutionPreference,
    Extension,
    Model,
)

TEAM = "all"
"""Name of the device that is all of them together."""

_SHARE_OF_LAST = 0.15
"""How often the last engine, which takes everything, gets what others take too."""


class TeamEngine(EngineBase):
    """An engine over several, the last of which takes any model; all that are installed."""

    name = TEAM
    type = DeviceType.OTHER
    extensions: tuple[Extension, ...] = ()
    concurrency = 0

    def __init__(self, engines: Sequence[Engine] | None = None) -> None:
        self._engines = list(engines or map(built_in, default_devices()))
        self.version = "+".join(f"{engine.name} {engine.version}" for engine in self._engines)
        self.capabilities = self._engines[-1].capabilities

    def supported_operations(self, model: Model) -> list[bool]:
        """Returns whether anybody supports each operation of the main subgraph."""
        return [any(answers) for answers in zip(*self._support(model), strict=True)]

    def compile(self, model: Model, preference: ExecutionPreference) -> Plan:
        """Share the operations out and compile every part; raises what the engines raise."""
        owners = self.owners(model)
        return CompositeEngine(split(model, owners), self._engines).compile(model, preference)

    def owners(self, model: Model) -> list[int]:
        """The number of the engine of each operation; raises GeneralFailure if one has none."""
        lot = random.Random(fingerprint(model))
        last = len(self._engines) - 1
        exact = _needed_exactly(model)
        owners = []
        for index, answers in enumerate(zip(*self._support(model), strict=True)):
            able = [number for number, answer in enumerate(answers) if answer]
            if not able:
                type = model.main.operations[index].type
                name = operation_label(model.extension_name_to_prefix, type)
                raise GeneralFailure(f"nobody supports operation {index} ({name})")
            others = [number for number in able if number != last]
            prefers_others = index not in exact and lot.random() > _SHARE_OF_LAST
            if others and (last not in able or prefers_others):
                able = others
            elif last in able:
                able = [last]
            owners.append(lot.choice(able))
        return owners

    def _support(self, model: Model) -> list[list[bool]]:
        return [engine.supported_operations(model) for engine in self._engines]


def _needed_exactly(model: Model) -> set[int]:
    """The operations that something fragile depends on."""
    operations = model.main.operations
    makers = {
        output: index for index, operation in enumerate(operations) for output in operation.outputs
    }
    found: set[int] = set()
    pending = [index for index, each in enumerate(operations) if _is_fragile(model, each.type)]
    while pending:
        index = pending.pop()
        if index not in found:
            found.add(index)
            pending += [makers[value] for value in operations[index].inputs if value in makers]
    return found


def _is_fragile(model: Model, type: int) -> bool:
    operation = find_operation(model, type)
    return operation is not None and operation.facts.fragile
