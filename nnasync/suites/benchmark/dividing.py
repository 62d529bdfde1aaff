"""A network divided over all of several devices, though one of them alone were faster.

Whoever benchmarks `A+B` wants to know what the border between the two costs, and whether what
passes it is right. Each device gets a stretch of operations that it takes, as even as that can be,
and runs them as it would run the whole network.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence

import anyio.to_thread

from nnasync._core.compilation.choice import Choice, Part, parse_pin, pin_of, spread
from nnasync._core.importers import load
from nnasync._core.runtime import CompileOptions, Runtime
from nnasync.device import Device, LoweringDevice
from nnasync.errors import InvalidArgument
from nnasync.hal import ExecutionPreference, Model

__all__ = ["dividing_pin"]

_Pinned = Callable[..., Awaitable[str]]


async def dividing_pin(
    runtime: Runtime, path: str, devices: tuple[str, ...], value_limit_bytes: int | None = None
) -> str | None:
    """A pin by which each of several devices of a runtime runs a part of the network in a file.

    None where a network has branches or loops, and where the devices do not take parts that make
    the whole; the runtime's own choice shows then what is possible. `value_limit_bytes` is what a
    value of the file may take, as `nnasync.load` has it. Raises what compiling raises.
    """
    model = await anyio.to_thread.run_sync(lambda: load(path, value_limit_bytes=value_limit_bytes))
    if len(devices) < 2 or model.referenced:
        return None
    pinned = functools.partial(_pin, runtime, path, value_limit_bytes=value_limit_bytes)
    digest = (await pinned(devices)).rpartition(":")[2]
    named = {device.name: device for device in runtime.devices}
    chosen = [named[name] for name in devices]
    takes = [await device.get_supported_operations(model) for device in chosen]
    owners = shares(takes)
    if owners is None:
        return None
    parts = [
        await _usual(pinned, device, model, is_whole=all(can))
        for device, can in zip(chosen, takes, strict=True)
    ]
    pin = pin_of(Choice(tuple(parts), spread(owners)), digest)
    try:
        return await pinned(devices, pin)
    except InvalidArgument:
        return None


def shares(takes: Sequence[Sequence[bool]]) -> list[int] | None:
    """Returns the number of the device that runs each operation; None if one has no device.

    Where several take an operation it is the one whose even share the operation lies in, or else
    the first.
    """
    count = len(takes[0])
    owners = []
    for place in range(count):
        able = [number for number, can in enumerate(takes) if can[place]]
        if not able:
            return None
        own = place * len(takes) // count
        owners.append(own if own in able else able[0])
    return owners if set(owners) == set(range(len(takes))) else None


async def _usual(pinned: _Pinned, device: Device, model: Model, *, is_whole: bool) -> Part:
    """The way in which a device runs a network: its best one where it takes all of it."""
    if is_whole:
        pin = await pinned((device.name,))
        return parse_pin(pin, pin.rpartition(":")[2]).parts[0]
    if not isinstance(device, LoweringDevice):
        return Part.of(device, None)
    ways = await device.lowerings(model, ExecutionPreference.SUSTAINED_SPEED)
    return Part.of(device, ways[0] if ways else None)


async def _pin(
    runtime: Runtime,
    path: str,
    devices: tuple[str, ...],
    pin: str | None = None,
    *,
    value_limit_bytes: int | None,
) -> str:
    """Returns the pin of a compilation on devices, or the pin that it followed."""
    options = CompileOptions(wait="best", pin=pin, value_limit_bytes=value_limit_bytes)
    async with runtime.compile(path, devices=devices, options=options) as net:
        return net.report().pin
