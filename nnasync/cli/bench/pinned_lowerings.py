"""The lowerings of a device as contestants of their own, each named by a pin."""

from __future__ import annotations

from nnasync import EngineDevice
from nnasync._core.compilation.choice import Choice, Part, tell_lowering
from nnasync._core.compilation.pins import pin_of
from nnasync.cli.bench.contestant import Setting
from nnasync.device import Device
from nnasync.errors import NNError
from nnasync.hal import ExecutionPreference, Model

__all__ = ["lowering_settings"]


async def lowering_settings(
    device: Device, model: Model, preference: ExecutionPreference, precision: str | None, pin: str
) -> list[Setting]:
    """A setting for each lowering of a device that has several; else none.

    `pin` is that of any compilation of the model, and says which model it is.
    """
    if not isinstance(device, EngineDevice):
        return []
    try:
        lowerings = await device.lowerings(model, preference)
    except NNError:
        return []
    digest = pin.rpartition(":")[2]
    return [
        Setting(
            f"{device.name} {tell_lowering(lowering)}",
            (device.name,),
            preference,
            precision,
            pin_of(Choice((_part(device, lowering.name, lowering.threads),)), digest),
        )
        for lowering in (lowerings if len(lowerings) > 1 else ())
    ]


def _part(device: EngineDevice, lowering: str, threads: int) -> Part:
    return Part(device.name, device.version, lowering, threads)
