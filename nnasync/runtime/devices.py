"""The devices of a runtime: what was wanted and found, each asked once what it is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from nnasync.compilation import REFERENCE, calibrated, read_calibration
from nnasync.deferred import deferred
from nnasync.device import Device
from nnasync.drivers import DRIVERS, built_in, default_devices, foreign_devices
from nnasync.engine import Engine, EngineDevice
from nnasync.errors import InvalidArgument, NNError
from nnasync.workers import Workers

if TYPE_CHECKING:
    from nnasync import versions
    from nnasync.versions import Errands, OlderDevice
else:
    versions = deferred("nnasync.versions")

__all__ = ["Devices"]

logger = logging.getLogger(__name__)

_OURS = frozenset(f"{place.partition(':')[0]}.engine" for place in DRIVERS.values())
"""Modules of engines that come with nnasync."""


class Devices:
    """The devices of one runtime, which share its workers.

    `wanted` are names, engines and devices; None stands for all that are there.
    """

    def __init__(
        self,
        wanted: Sequence[str | Engine | Device | OlderDevice] | None,
        workers: Workers,
        folder: Path,
    ) -> None:
        """In `folder` are measured figures, and the digests of cache files."""
        self.all: tuple[Device, ...] = ()
        self._wanted = None if wanted is None else _checked_list(wanted)
        self._workers = workers
        self._folder = folder
        self._figures: dict[str, Any] = {}
        self._foreign: dict[str, Engine | Device] = {}
        self._admissions: dict[int, Device] = {}
        self._judge: Device | None = None

    async def look_around(self) -> None:
        """Find what is there; what may take long, such as third parties' drivers, on a thread."""

        def look() -> None:
            self._figures = read_calibration(self._folder)
            self._foreign = foreign_devices(self._wanted)

        await anyio.to_thread.run_sync(look, abandon_on_cancel=True)

    async def discover(self, errands: Callable[[], Errands]) -> None:
        """Make the devices; one that cannot say what it is, is left out unless it was asked for.

        `errands` are made where a device of others needs them. Raises InvalidArgument for an
        unknown name, or one that two devices have.
        """
        self._errands = errands
        found: list[Device] = []
        wanted = default_devices(self._foreign) if self._wanted is None else self._wanted
        for item in wanted:
            try:
                found.append(await self._admitted(self._device(item)))
            except NNError as error:
                if self._wanted is not None:
                    raise
                logger.warning("device %s is left out: %s", item, error)
        names = [device.name for device in found]
        if len(set(names)) != len(names):
            raise InvalidArgument(f"two devices have the same name: {names}")
        self.all = tuple(found)

    def named(self, name: str) -> Device:
        """The device of that name; raises InvalidArgument and lists the names there are."""
        for device in self.all:
            if device.name == name:
                return device
        names = ", ".join(device.name for device in self.all)
        raise InvalidArgument(f"no device {name!r} in this runtime; there are: {names}")

    async def candidates(
        self, wanted: Sequence[str | Device | OlderDevice] | None
    ) -> Sequence[Device]:
        """The devices that a compilation may use, in the order in which they are tried."""
        if wanted is None:
            # The reference is the fallback: it comes last where nothing is measured.
            return sorted(self.all, key=lambda device: device.name == REFERENCE)
        return [
            self.named(item) if isinstance(item, str) else await self._admitted(_checked(item))
            for item in _checked_list(wanted)
        ]

    def reference(self) -> Device:
        """The device that says what is right; it runs nothing else if it is not ours to use."""
        for device in self.all:
            if device.name == REFERENCE:
                return device
        if self._judge is None:
            self._judge = self._device(REFERENCE)
        return self._judge

    async def _admitted(self, device: Device) -> Device:
        """A device as one of HAL 1.3 that was asked once what it is; our own need not be."""
        if isinstance(device, EngineDevice):
            if type(device.engine).__module__ not in _OURS:
                await versions.examine(device)
            return device
        known = self._admissions.get(id(device))
        if known is None:
            known = self._admissions[id(device)] = await versions.admit(device, self._errands())
        return known

    def _device(self, wanted: str | Engine | Device | OlderDevice) -> Device:
        if isinstance(wanted, str):
            engine = self._foreign.get(wanted) or built_in(wanted)
            if not isinstance(engine, Engine):
                return _checked(engine)
            figures = self._figures.get(wanted, {}) if wanted != REFERENCE else {}
            measured = calibrated(engine.capabilities, figures) if figures else None
            return self._over(engine, measured)
        return self._over(wanted) if isinstance(wanted, Engine) else _checked(wanted)

    def _over(self, engine: Engine, capabilities: Any = None) -> EngineDevice:
        return EngineDevice(
            engine, self._workers, capabilities=capabilities, state_directory=self._folder
        )


def _checked_list(wanted: Any) -> Sequence[Any]:
    if isinstance(wanted, str) or not isinstance(wanted, Sequence):
        raise InvalidArgument(f"devices= takes a list, such as [{REFERENCE!r}], got {wanted!r}")
    return wanted


def _checked(wanted: Any) -> Device:
    if not isinstance(getattr(wanted, "name", None), str) or not hasattr(wanted, "prepare_model"):
        raise InvalidArgument(f"devices= takes names and devices of a runtime, got {wanted!r}")
    device: Device = wanted
    return device
