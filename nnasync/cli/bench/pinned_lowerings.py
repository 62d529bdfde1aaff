"""The lowerings of a device as contestants of their own, each named by a pin."""

from __future__ import annotations

from nnasync import Report
from nnasync.cli.bench.contestant import Setting
from nnasync.device import Device
from nnasync.devices import EngineDevice, lowering_pin
from nnasync.errors import NNError
from nnasync.hal import ExecutionPreference, Model


async def lowering_settings(
    device: Device,
    model: Model,
    preference: ExecutionPreference,
    precision: str | None,
    report: Report,
) -> list[Setting]:
    """A setting for each lowering of a device that has several; else none.

    `report` is that of any compilation of the model.
    """
    if not isinstance(device, EngineDevice):
        return []
    try:
        lowerings = await device.lowerings(model, preference)
    except NNError:
        return []
    return [
        Setting(
            f"{device.name} {lowering}",
            (device.name,),
            preference,
            precision,
            lowering_pin(report, device, lowering),
        )
        for lowering in (lowerings if len(lowerings) > 1 else ())
    ]
