"""How a device comes into a runtime: it is examined, and made into one of HAL 1.3."""

from __future__ import annotations

from typing import Any

from nnasync._core.device_helpers import (
    Answers,
    ForwardingDevice,
    ForwardingLoweringDevice,
    KnownDevice,
)
from nnasync._core.versions.answers import examine
from nnasync._core.versions.device import Versioned
from nnasync._core.versions.errands import Errands
from nnasync.device import Device, LoweringDevice
from nnasync.hal import HalVersion


async def admit(device: Any, errands: Errands) -> Device:
    """A device of any HAL version as one of HAL 1.3 whose answers about itself do not change.

    Raises GeneralFailure that says what is wrong with what it says of itself.
    """
    if isinstance(device, Discovered | Versioned):
        return device
    answers = await examine(device)
    errands.open()
    if answers.feature_level < HalVersion.V1_3:
        return Versioned(device, answers, errands)
    if isinstance(device, LoweringDevice):
        return DiscoveredLowering(device, answers, errands)
    return Discovered(device, answers, errands)


class Discovered(KnownDevice, ForwardingDevice):
    """A device of HAL 1.3 that was asked once what it is; its status alone is asked each time."""

    def __init__(self, inner: Device, answers: Answers, errands: Errands) -> None:
        KnownDevice.__init__(self, answers)
        ForwardingDevice.__init__(self, inner)
        self.errands = errands

    @property
    def pid(self) -> int:
        """The process that a device of its own process lives in; others have no such attribute."""
        inner: Any = self.inner
        return int(inner.pid)


class DiscoveredLowering(Discovered, ForwardingLoweringDevice):
    """The same for a device that knows several ways to run a model."""
