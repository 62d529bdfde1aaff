"""The contender that a pin names, or what differs."""

from __future__ import annotations

from collections.abc import Sequence

from nnasync.compilation.choice import Choice, Part
from nnasync.compilation.contenders import Contender
from nnasync.compilation.gathering import Field
from nnasync.device import Device
from nnasync.errors import InvalidArgument

__all__ = ["pinned"]


def pinned(choice: Choice, field: Field, devices: Sequence[Device]) -> Contender:
    """The contender of this choice; raises InvalidArgument that says why there is none."""
    for contender in field.contenders:
        if contender.choice == choice:
            return contender
    for part in choice.parts:
        _check_part(part, devices)
    raise InvalidArgument(f"the pin cannot be followed: {_difference(choice, field)}")


def _check_part(part: Part, devices: Sequence[Device]) -> None:
    named = {device.name: device.version for device in devices}
    if part.device not in named:
        raise InvalidArgument(
            f"the pin names the device {part.device}, which is not among: {', '.join(named)}"
        )
    if part.version != named[part.device]:
        raise InvalidArgument(
            f"the pin is for version {part.version} of {part.device}, here is version "
            f"{named[part.device]}"
        )


def _difference(choice: Choice, field: Field) -> str:
    part = choice.parts[0]
    wanted = f"{part.device} with {part.lowering}, threads: {part.threads}"
    if len(choice.parts) > 1:
        wanted = "this partition over " + ", ".join(each.device for each in choice.parts)
    offers = [f"{each.name} with {each.lowering}" for each in field.contenders]
    refused = [f"{each.device} with {each.lowering} ({each.verdict})" for each in field.candidates]
    text = f"{wanted} is not offered here; offered: {'; '.join(offers) or 'nothing'}"
    return text + (f"; turned down: {'; '.join(refused[:8])}" if refused else "")
