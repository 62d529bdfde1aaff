"""The devices of a runtime: the wanted and the found ones, each queried once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

from nnasync._core.compilation import REFERENCE, calibrated, read_calibration
from nnasync._core.deferred import deferred
from nnasync._core.drivers import (
    DRIVERS,
    absence,
    built_in,
    check_installed,
    comes_with_nnasync,
    default_devices,
    foreign_devices,
    late,
)
from nnasync._core.engine_device import EngineDevice
from nnasync._core.engine_device.late import LateEngine
from nnasync._core.runtime.options import Options
from nnasync._core.runtime.shutdown import close_device
from nnasync._core.workers import Workers
from nnasync.device import Device
from nnasync.engine import Engine
from nnasync.engine.problems import check_engine, seems_engine
from nnasync.errors import InvalidArgument, NNError
from nnasync.fences import Fence
from nnasync.hal import Model, version_name
from nnasync.tracing import vlog

if TYPE_CHECKING:
    from nnasync import extensions
    from nnasync._core import versions
    from nnasync._core.drivers import service
    from nnasync._core.drivers.service import ServiceDevice
    from nnasync._core.versions import Errands, OlderDevice
    from nnasync.extensions import Registry
else:
    extensions = deferred("nnasync.extensions")
    service = deferred("nnasync._core.drivers.service")
    versions = deferred("nnasync._core.versions")

logger = logging.getLogger(__name__)


@runtime_checkable
class Losable(Protocol):
    """A device elsewhere, whose connection can be lost and made again."""

    @property
    def name(self) -> str:
        """Unique name."""

    @property
    def lost(self) -> Fence:
        """Returns a fence that is signaled when the present connection is over."""

    may_stay_away: bool
    """Whether it is on another machine, which may be gone for longer than a process is."""

    async def connected(self) -> None:
        """Waits for a connection; raises DeviceUnavailable where none can be had."""


@runtime_checkable
class DeviceElsewhere(Protocol):
    """Stands for a device that is opened when a runtime is, and that ends with it."""

    @property
    def name(self) -> str:
        """Returns the name of the device."""

    async def open_device(self) -> Device:
        """Opens the device, which the caller has to close; raises DeviceUnavailable."""


class Devices:
    """The devices of one runtime, which share its workers.

    `wanted` are names, engines and devices; None stands for all that are there.
    """

    def __init__(
        self,
        wanted: Sequence[str | Engine | Device | OlderDevice | DeviceElsewhere] | None,
        workers: Workers,
        folder: str,
        *,
        isolate: Sequence[str] = (),
        options: Options | None = None,
    ) -> None:
        """Takes the folder for measured figures, and for the digests of cache files.

        Devices that `isolate` names run in processes of their own, with these options.
        """
        self.all: tuple[Device, ...] = ()
        self._wanted = None if wanted is None else _checked_list(wanted)
        self._isolate = _checked_names(isolate)
        self._options = options or Options()
        self._workers = workers
        self._folder = folder
        self._figures: dict[str, Any] = {}
        self._foreign: dict[str, Engine | Device | None] = {}
        self._admissions: dict[int, Device] = {}
        self._judge: Device | None = None
        self._extensions: Registry | None = None
        self._heard: dict[int, Device] = {}
        """Engines whose extensions are in the registry: they say the same at any time."""
        self._names: dict[int, str] = {}
        self.services: list[ServiceDevice] = []
        """The devices that live in processes of their own."""
        self._opened: list[Device] = []
        self.losable: list[Losable] = []
        """Those, and devices elsewhere that the application connected."""

    async def look_around(self) -> None:
        """Finds the devices; slow ones, such as third-party drivers, on a thread."""

        def look() -> None:
            self._figures = read_calibration(self._folder)
            self._foreign = foreign_devices(self._wanted, self._isolate)

        await self._workers.helper_threads.run_unwrapped(look, "looking for devices")

    async def discover(self, errands: Callable[[], Errands]) -> None:
        """Create the devices; an unrequested one that cannot describe itself is left out.

        `errands` are made where a device of others needs them. Raises InvalidArgument for an
        unknown name, or one that two devices have.
        """
        self._errands = errands
        wanted = default_devices(self._foreign) if self._wanted is None else self._wanted
        self._check_isolated(wanted)
        try:
            self.all = await self._found(wanted)
        except BaseException:
            for device in (*self.services, *self._opened):
                await close_device(device)
            raise
        for each in self.all:
            level = version_name(each.feature_level)
            vlog.manager("found %s %s, %s, %s", each.name, each.version, each.type.name, level)

    async def _found(
        self, wanted: Sequence[str | Engine | Device | OlderDevice | DeviceElsewhere]
    ) -> tuple[Device, ...]:
        found: list[Device] = []
        for item in wanted:
            try:
                device = await self._made(item)
                found.append(await self._admitted(device))
                if isinstance(device, Losable):
                    self.losable.append(device)
                if isinstance(item, str) and item not in self._isolate:
                    self._names[id(found[-1])] = item
            except NNError as error:
                if self._wanted is not None:
                    raise
                logger.warning("device %s is left out: %s", item, error)
                vlog.manager("left out %s: %s", item, error)
        names = [device.name for device in found]
        if len(set(names)) != len(names):
            raise InvalidArgument(f"two devices have the same name: {names}")
        return tuple(found)

    async def _made(self, item: str | Engine | Device | OlderDevice | DeviceElsewhere) -> Device:
        if isinstance(item, DeviceElsewhere):
            device = await item.open_device()
            self._opened.append(device)
            return device
        return await self._isolated(item) if item in self._isolate else self._device(item)

    def named(self, name: str) -> Device:
        """Returns the device of that name; raises InvalidArgument and lists the names there are."""
        for device in self.all:
            if device.name == name:
                return device
        names = ", ".join(device.name for device in self.all)
        missing = f"; {reason}" if name in DRIVERS and (reason := absence(name)) else ""
        raise InvalidArgument(f"no device {name!r} in this runtime; there are: {names}{missing}")

    async def candidates(
        self, wanted: Sequence[str | Device | OlderDevice] | None
    ) -> Sequence[Device]:
        """Returns the devices that a compilation may use, in the order in which they are tried."""
        if wanted is None:
            # The reference is the fallback: it comes last where nothing is measured.
            return sorted(self.all, key=lambda device: device.name == REFERENCE)
        return [
            self.named(item) if isinstance(item, str) else await self._admitted(_checked(item))
            for item in _checked_list(wanted)
        ]

    def names_of(self, devices: Sequence[Device]) -> tuple[str, ...] | None:
        """Returns names by which these devices and the reference can be made again, or None."""
        names = [self._names.get(id(device)) for device in devices]
        if self.reference() in self.all and id(self.reference()) not in self._names:
            return None
        return tuple(filter(None, names)) if all(names) else None

    async def check_extensions(self, model: Model) -> None:
        """Raise InvalidArgument where devices disagree about an extension that a model uses."""
        if model.extension_name_to_prefix:
            (await self._registry()).check(model)

    async def sized(self, model: Model) -> Model:
        """Returns the model with the sizes that devices state for its ports of extension types.

        Raises InvalidArgument where devices disagree about an extension of the model, and
        GeneralFailure where none says how large the values of an input or an output are.
        """
        if not model.extension_name_to_prefix:
            return model
        registry = await self._registry()
        registry.check(model)
        return extensions.sized(model, registry.extensions, "no device of the runtime")

    async def _registry(self) -> Registry:
        """Collects what devices say of extensions; asks none of our engines for the first time."""
        if self._extensions is None:
            self._extensions = extensions.Registry()
        admitted = self._admissions.values()
        for device in {id(each): each for each in (*self.all, *admitted)}.values():
            engine = device if isinstance(device, EngineDevice) else None
            if id(device) in self._heard or (engine is not None and not engine.is_made):
                continue
            for offered in await device.get_supported_extensions():
                self._extensions.add(offered, device.name)
            if engine is not None:
                self._heard[id(device)] = device
        return self._extensions

    def reference(self) -> Device:
        """Returns the reference device; it only stands by if the application did not choose it."""
        for device in self.all:
            if device.name == REFERENCE and REFERENCE not in self._isolate:
                return device
        if self._judge is None:
            self._judge = self._device(REFERENCE)
        return self._judge

    async def _admitted(self, device: Device) -> Device:
        """Returns a device as one of HAL 1.3, queried once; our own devices need no query."""
        if isinstance(device, EngineDevice):
            if not comes_with_nnasync(device.known):
                await versions.examine(device)
            return device
        known = self._admissions.get(id(device))
        if known is None:
            known = self._admissions[id(device)] = await versions.admit(device, self._errands())
        return known

    def _device(self, wanted: str | Engine | Device | OlderDevice) -> Device:
        if isinstance(wanted, str):
            if self._wanted is not None and wanted not in self._foreign:
                check_installed(wanted)
            figures = self._figures.get(wanted, {}) if wanted != REFERENCE else {}
            make = built_in if figures else late
            engine = self._foreign.get(wanted) or make(wanted)
            if isinstance(engine, LateEngine):
                return self._over(engine)
            if not isinstance(engine, Engine):
                return _checked(engine)
            measured = calibrated(engine.capabilities, figures) if figures else None
            return self._over(engine, measured)
        if seems_engine(wanted):
            check_engine(wanted, "devices=")
        return self._over(wanted) if isinstance(wanted, Engine) else _checked(wanted)

    def _check_isolated(self, wanted: Sequence[object]) -> None:
        for name in self._isolate:
            if name not in wanted:
                _check_is_no_object(name, wanted)
                names = ", ".join(each for each in wanted if isinstance(each, str))
                why = f"; {reason}" if name in DRIVERS and (reason := absence(name)) else ""
                raise InvalidArgument(
                    f"isolate names {name!r}, which is no device of this runtime: {names}{why}"
                )

    async def _isolated(self, name: str | Engine | Device | OlderDevice) -> Device:
        """Returns a device in a process of its own, which has the settings of this runtime."""
        settings = msgspec.structs.replace(self._options, state_dir=self._folder)
        device = await service.isolate(
            str(name),
            msgspec.json.encode(settings).decode(),
            hang_after_s=self._options.hang_after_s,
        )
        self.services.append(device)
        device.observe(self._workers.tracer)
        return device

    def _over(self, engine: Engine | LateEngine, capabilities: Any = None) -> EngineDevice:
        return EngineDevice(
            engine, self._workers, capabilities=capabilities, state_directory=self._folder
        )


def _checked_list(wanted: Any) -> Sequence[Any]:
    if isinstance(wanted, str) or not isinstance(wanted, Sequence):
        raise InvalidArgument(f"devices= takes a list, such as [{REFERENCE!r}], got {wanted!r}")
    return wanted


def _checked_names(isolate: Any) -> Sequence[str]:
    if isinstance(isolate, str) or not all(isinstance(each, str) for each in isolate):
        raise InvalidArgument(f"isolate= takes names of devices, such as [{REFERENCE!r}]")
    return tuple(isolate)


def _check_is_no_object(name: str, wanted: Sequence[object]) -> None:
    """Raises InvalidArgument where a device that is to be isolated was made by the application."""
    if name in [getattr(each, "name", None) for each in wanted]:
        raise InvalidArgument(
            f"isolate names {name!r}, which devices= has as an object; another process makes its "
            "own, so give the name of the device, or its 'module:factory', in both lists"
        )


def _checked(wanted: Any) -> Device:
    if not isinstance(getattr(wanted, "name", None), str) or not hasattr(wanted, "prepare_model"):
        hint = "; an engine is given to open_runtime" if seems_engine(wanted) else ""
        raise InvalidArgument(
            f"devices= takes names, engines and devices, got {type(wanted).__name__}{hint}"
        )
    device: Device = wanted
    return device
