"""Devices of third parties: entry points of the group `nnasync.devices`, found and made.

An entry point names a device and where its factory is: `acme-npu = acme_npu:NpuEngine`. The factory
takes no arguments and returns an `Engine` or a `Device` of that name.
"""

from __future__ import annotations

from typing import Any

from nnasync._core.packages import entry_points
from nnasync.device import Device
from nnasync.engine import Engine
from nnasync.engine.problems import check_engine, seems_engine
from nnasync.errors import DeviceUnavailable, GeneralFailure, InvalidArgument
from nnasync.hal import Struct

GROUP = "nnasync.devices"
"""The group of entry points."""

Made = Engine | Device
"""What a factory returns."""


class DriverOffer(Struct, frozen=True):
    """An entry point: a device's name, its factory as "module:factory", and who installed it."""

    name: str
    target: str
    distribution: str

    @property
    def module(self) -> str:
        """Name of the module that the factory is in."""
        return self.target.partition(":")[0].strip()

    def __str__(self) -> str:
        if not self.name:
            return f"device {self.target}"
        return f"device {self.name} of {self.distribution} ({self.target})"


def offers() -> tuple[DriverOffer, ...]:
    """Returns what installed distributions offer, by name and distribution; imports nothing.

    Raises GeneralFailure if the metadata of the installation cannot be read.
    """
    try:
        found = entry_points(GROUP)
    except Exception as error:
        raise GeneralFailure(f"cannot look for devices: {type(error).__name__}: {error}") from error
    return tuple(DriverOffer(point.name, point.target, point.distribution) for point in found)


def make(offer: DriverOffer) -> Made:
    """Import what an entry point names and call it.

    Raises InvalidArgument if that gives anything but an engine or a device of this name,
    DeviceUnavailable if the factory does, and GeneralFailure for whatever else goes wrong.
    """
    made = _checked(_called(offer), offer)
    if made.name != offer.name:
        raise InvalidArgument(f"{offer} calls itself {made.name!r}; the two names must be the same")
    return made


def make_target(target: str) -> Made:
    """Returns what the factory "module:factory" makes; it need not be an installed entry point.

    The device has the name that it says. Raises what `make` does.
    """
    offer = DriverOffer("", target, "no package")
    return _checked(_called(offer), offer)


def _called(offer: DriverOffer) -> Any:
    from importlib import metadata

    try:
        return metadata.EntryPoint(offer.name, offer.target, GROUP).load()()
    except DeviceUnavailable as error:
        raise DeviceUnavailable(f"{offer}: {error}") from error
    except (Exception, SystemExit) as error:
        told = " ".join(str(error).split())
        raise GeneralFailure(f"{offer} failed: {type(error).__name__}: {told}") from error


def _checked(made: Any, offer: DriverOffer) -> Made:
    try:
        is_engine = isinstance(made, Engine)
    except Exception as error:
        raise GeneralFailure(f"{offer} failed: {type(error).__name__}: {error}") from error
    if seems_engine(made) and not isinstance(made, type):
        check_engine(made, f"{offer}: what its factory returns")
    if isinstance(made, type) or not (is_engine or hasattr(made, "prepare_model")):
        kind = made.__name__ if isinstance(made, type) else type(made).__name__
        raise InvalidArgument(f"{offer}: its factory must return an engine or a device, not {kind}")
    name = getattr(made, "name", None)
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"{offer} calls itself {name!r}; a name is a text, not empty")
    device: Made = made
    return device
