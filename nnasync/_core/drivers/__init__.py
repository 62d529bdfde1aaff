"""The devices by name: those that come with nnasync, and those that other packages bring.

A driver is imported when its device is wanted.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from nnasync._core.drivers.entry_points import DriverOffer, Made, make, make_target, offers
from nnasync._core.engine_device.late import LateEngine
from nnasync._core.packages import is_importable, version_of
from nnasync.engine import Engine
from nnasync.errors import DeviceUnavailable, GeneralFailure, InvalidArgument, NNError
from nnasync.hal import DeviceType, Struct

logger = logging.getLogger(__name__)


class Driver(Struct, frozen=True):
    """The facts about a device that comes with nnasync, known without importing its driver.

    `target` says where its engine is, as "module:class". `package` is what the engine imports,
    `extra` brings it, and the version of `distribution` is the engine's. `known_gaps` are
    conformance cases that fail, by globs of their names, and why; with `exact_coupling`, signed and
    unsigned 8-bit tensors give the very same results, shifted by 128. `loads_in_ms` is the
    engine's.
    """

    target: str
    package: str = ""
    extra: str = ""
    distribution: str = ""
    computes: bool = True
    known_gaps: Mapping[str, str] = msgspec.field(default_factory=dict)
    exact_coupling: bool = False
    loads_in_ms: float = 0.0


DRIVERS: dict[str, Driver] = {
    "litert-cpu": Driver(
        "nnasync._core.drivers.litert:LiteRTEngine",
        "ai_edge_litert",
        "litert",
        "ai-edge-litert",
        loads_in_ms=20,
    ),
    "openvino-cpu": Driver(
        "nnasync._core.drivers.openvino:OpenVinoEngine",
        "openvino",
        "openvino",
        "openvino",
        loads_in_ms=400,
    ),
    "onnxruntime-cpu": Driver(
        "nnasync._core.drivers.onnxruntime:OnnxRuntimeEngine",
        "onnxruntime",
        "onnxruntime",
        "onnxruntime",
        exact_coupling=True,
        loads_in_ms=100,
    ),
    "nnasync-reference": Driver(
        "nnasync._core.drivers.cpu:ReferenceEngine", distribution="nnasync", exact_coupling=True
    ),
    "null": Driver("nnasync._core.drivers.null:NullEngine", computes=False),
}
"""The devices that come with nnasync, by name.

Those that compute and whose packages are there are the devices of a runtime that names none, in
this order.
"""


def is_installed(name: str) -> bool:
    """Returns whether the package that a device needs is installed; does not import it."""
    driver = DRIVERS.get(name)
    return driver is None or not driver.package or is_importable(driver.package)


def absence(name: str) -> str:
    """Returns why a device of nnasync's is missing, and what brings it; empty if it is there."""
    if is_installed(name):
        return ""
    driver = DRIVERS[name]
    return (
        f"device {name} needs {driver.package}, which is not installed:"
        f" pip install 'nnasync[{driver.extra}]'"
    )


def check_installed(name: str) -> None:
    """Raise InvalidArgument that says how to install the package that a device needs."""
    if reason := absence(name):
        raise InvalidArgument(reason)


def default_devices(foreign: Iterable[str] = ()) -> tuple[str, ...]:
    """The devices of a runtime that does not name any, the reference last.

    They are our own whose packages are there, and then those of others.
    """
    *ours, reference = (
        name for name, driver in DRIVERS.items() if driver.computes and is_installed(name)
    )
    return (*ours, *foreign, reference)


def built_in(name: str) -> Engine:
    """The engine of a device that comes with nnasync.

    Raises InvalidArgument if the package that it needs is not installed.
    """
    check_installed(name)
    module, _, factory = DRIVERS[name].target.partition(":")
    engine: Engine = getattr(importlib.import_module(module), factory)()
    return engine


def late(name: str) -> Engine | LateEngine:
    """The engine of a device whose package is installed, not imported before it is needed.

    It is where nothing else says what an engine must say of itself.
    """
    distribution = DRIVERS[name].distribution
    version = version_of(distribution) if distribution else None
    if version is None:
        return built_in(name)
    make = functools.partial(built_in, name)
    return LateEngine(name, version, DeviceType.CPU, make, DRIVERS[name].loads_in_ms)


def comes_with_nnasync(engine: Engine | LateEngine) -> bool:
    """Returns whether an engine is one of this table, and not another's made of its class."""
    return type(engine).__module__.startswith("nnasync.") and engine.name in DRIVERS


def foreign_offers() -> tuple[dict[str, DriverOffer], tuple[tuple[DriverOffer, str], ...]]:
    """The devices of third parties by name, in the order of names, and what is ignored and why.

    Raises GeneralFailure if the metadata of the installation cannot be read.
    """
    found: dict[str, DriverOffer] = {}
    ignored = []
    for offer in offers():
        if offer.name in DRIVERS:
            ignored.append((offer, f"{offer} is ignored: nnasync has a device of this name"))
        elif offer.name in found:
            reason = f"{offer} is ignored: {found[offer.name].distribution} offers it too"
            ignored.append((offer, reason))
        else:
            found[offer.name] = offer
    return found, tuple(ignored)


def foreign_devices(
    wanted: Sequence[object] | None, apart: Collection[str] = ()
) -> dict[str, Made | None]:
    """Makes third parties' devices: those that a list of devices names, or all; it may take long.

    Those `apart` are only looked for, and None here: other processes make them. With None as
    `wanted`, one that cannot be made is skipped and the log says why. Else raises InvalidArgument
    for an unknown name, and what `entry_points.make` raises. A name may be "module:factory", too.
    """
    if wanted is None:
        return _all_foreign(apart)
    names = [each for each in wanted if isinstance(each, str) and each not in DRIVERS]
    if not names:
        return {}
    found = need_known(names)
    return {name: None if name in apart else _made(name, found) for name in names}


def _made(name: str, found: Mapping[str, DriverOffer]) -> Made:
    return make(found[name]) if name in found else make_target(name)


def need_known(names: Iterable[str]) -> dict[str, DriverOffer]:
    """Returns all offers of third parties; raises InvalidArgument if a name is nobody's device.

    A "module:factory" that is not installed as a device may stand for a name.
    """
    found, _ = foreign_offers()
    for name in names:
        if name not in DRIVERS and name not in found and ":" not in name:
            raise InvalidArgument(f"no device {name!r}; there are: {', '.join([*DRIVERS, *found])}")
    return found


def driver_facts(name: str) -> Driver:
    """Returns the facts of a device's driver; a third party's module states its own.

    Such a module may have `KNOWN_GAPS` and `EXACT_COUPLING`, which are these fields of a `Driver`.
    Raises InvalidArgument for an unknown device, GeneralFailure if the import fails.
    """
    if name in DRIVERS:
        return DRIVERS[name]
    offer = need_known([name]).get(name) or DriverOffer(name, name, "no package")
    try:
        module = importlib.import_module(offer.module)
    except (Exception, SystemExit) as error:
        raise GeneralFailure(f"{offer} failed: {type(error).__name__}: {error}") from error
    return Driver(
        offer.target,
        known_gaps=dict(getattr(module, "KNOWN_GAPS", {})),
        exact_coupling=bool(getattr(module, "EXACT_COUPLING", False)),
    )


def _all_foreign(apart: Collection[str]) -> dict[str, Made | None]:
    try:
        found, ignored = foreign_offers()
    except NNError as error:
        logger.warning("%s", error)
        return {}
    for _, reason in ignored:
        logger.warning("%s", reason)
    made: dict[str, Made | None] = {}
    for name, offer in found.items():
        try:
            made[name] = None if name in apart else make(offer)
        except DeviceUnavailable as error:
            logger.info("%s", error)
        except NNError as error:
            logger.warning("%s; it is left out", error)
    return made
