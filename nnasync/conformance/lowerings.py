"""A device in one of its lowerings, so that each of them is held to what the first one is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from nnasync._core.device_helpers import ForwardingDevice
from nnasync.device import (
    DEFAULT_PREPARE,
    Device,
    Lowering,
    LoweringDevice,
    PreparedModel,
    PrepareModelConfig,
)
from nnasync.errors import InvalidArgument
from nnasync.hal import ExecutionPreference, Model

ALL = "all"
"""Stands for every lowering that a device offers for a model."""

_FAST = ExecutionPreference.FAST_SINGLE_ANSWER


async def names_of(device: Device, model: Model) -> list[str]:
    """The names of the lowerings that a device offers for a model that it supports."""
    if not isinstance(device, LoweringDevice):
        return []
    return list(dict.fromkeys(each.name for each in await device.lowerings(model, _FAST)))


async def ways(device: Device, model: Model, lowering: str | None) -> Sequence[Device]:
    """The device as it is, in one lowering, or once for each that it offers for the model.

    Of one without lowerings, and for a model that it does not support, the device as it is.
    """
    if lowering is None:
        return [device]
    if lowering != ALL:
        return [InLowering(device, lowering)]
    if not all(await device.get_supported_operations(model)):
        return [device]
    return [InLowering(device, name) for name in await names_of(device, model)] or [device]


class InLowering(ForwardingDevice):
    """A device that supports what this lowering is offered for, and prepares it in no other."""

    def __init__(self, inner: Device, lowering: str) -> None:
        super().__init__(inner)
        self.lowering = lowering

    async def get_supported_operations(self, model: Model) -> tuple[bool, ...]:
        """Returns the device's answers; False where it does not offer the lowering."""
        answers = tuple(await self.inner.get_supported_operations(model))
        if all(answers) and self.lowering not in await names_of(self.inner, model):
            return (False,) * len(answers)
        return answers

    async def why_not(self, model: Model) -> Sequence[str | None]:
        """Returns the device's reasons, or that it does not offer the lowering."""
        answers = await self.inner.get_supported_operations(model)
        if all(answers):
            offered = ", ".join(await names_of(self.inner, model)) or "none"
            return [f"no lowering {self.lowering!r} for this model, but: {offered}"] * len(answers)
        ask: Any = getattr(self.inner, "why_not", None)
        return [None] * len(answers) if ask is None else await ask(model)

    async def prepare_model(
        self, model: Model, config: PrepareModelConfig = DEFAULT_PREPARE
    ) -> PreparedModel:
        """Compile in the lowering; raises InvalidArgument where it is not offered."""
        found = await self._offered(model, config.preference)
        return await self.inner.prepare_model(model, replace(config, lowering=found))

    async def _offered(self, model: Model, preference: ExecutionPreference) -> Lowering:
        if isinstance(self.inner, LoweringDevice):
            for each in await self.inner.lowerings(model, preference):
                if each.name == self.lowering:
                    return each
        raise InvalidArgument(f"{self.name} does not offer {self.lowering!r} for this model")
