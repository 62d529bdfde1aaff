"""The devices by name: those that come with nnasync, and those that other packages bring.

A driver is imported when its device is wanted.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType

from nnasync.drivers.discovery import Made, Offer, make, make_target, offers
from nnasync.engine import Engine, LateEngine
from nnasync.errors import DeviceUnavailable, GeneralFailure, InvalidArgument, NNError
from nnasync.hal import DeviceType
from nnasync.packages import is_importable, version_of

__all__ = [
    "DRIVERS",
    "EXTRAS",
    "built_in",
    "check_installed",
    "default_devices",
    "driver_module",
    "foreign_devices",
    "foreign_offers",
    "is_installed",
    "late",
    "need_known",
]

logger = logging.getLogger(__name__)

DRIVERS: dict[str, str] = {
    "nnasync-reference": "nnasync.drivers.cpu:ReferenceEngine",
    "onnxruntime-cpu": "nnasync.drivers.onnxruntime:OnnxRuntimeEngine",
    "null": "nnasync.drivers.null:NullEngine",
    "litert-cpu": "nnasync.drivers.litert:LiteRTEngine",
    "openvino-cpu": "nnasync.drivers.openvino:OpenVinoEngine",
}
"""Name of each device that comes with nnasync and where its engine is, as "module:class"."""

EXTRAS: Mapping[str, tuple[str, str]] = {
    "litert-cpu": ("ai_edge_litert", "litert"),
    "openvino-cpu": ("openvino", "openvino"),
    "onnxruntime-cpu": ("onnxruntime", "onnxruntime"),
}
"""The package that a device needs, and the extra of nnasync that brings it."""

_DISTRIBUTIONS = {
    "litert-cpu": "ai-edge-litert",
    "openvino-cpu": "openvino",
    "onnxruntime-cpu": "onnxruntime",
    "nnasync-reference": "nnasync",
}
"""Distributions whose versions are those of engines on the processor."""

_ORDER = ("litert-cpu", "openvino-cpu", "onnxruntime-cpu", "nnasync-reference")


def is_installed(name: str) -> bool:
    """Whether the package that a device needs is there; it is not imported."""
    return name not in EXTRAS or is_importable(EXTRAS[name][0])


def check_installed(name: str) -> None:
    """Raise InvalidArgument that says how to install the package that a device needs."""
    if not is_installed(name):
        package, extra = EXTRAS[name]
        raise InvalidArgument(
            f"device {name} needs {package}, which is not installed: pip install 'nnasync[{extra}]'"
        )


def default_devices(foreign: Iterable[str] = ()) -> tuple[str, ...]:
    """The devices of a runtime that does not name any, the reference last.

    They are our own whose packages are there, and then those of others.
    """
    *ours, reference = (name for name in _ORDER if is_installed(name))
    return (*ours, *foreign, reference)


def built_in(name: str) -> Engine:
    """The engine of a device that comes with nnasync.

    Raises InvalidArgument if the package that it needs is not installed.
    """
    check_installed(name)
    module, _, factory = DRIVERS[name].partition(":")
    engine: Engine = getattr(importlib.import_module(module), factory)()
    return engine


def late(name: str) -> Engine | LateEngine:
    """The engine of a device whose package is installed, not imported before it is needed.

    It is where nothing else says what an engine must say of itself.
    """
    version = version_of(_DISTRIBUTIONS[name]) if name in _DISTRIBUTIONS else None
    if version is None:
        return built_in(name)
    return LateEngine(name, version, DeviceType.CPU, functools.partial(built_in, name))


def foreign_offers() -> tuple[dict[str, Offer], tuple[str, ...]]:
    """The devices of third parties by name, in the order of names, and what is ignored and why.

    Raises GeneralFailure if the metadata of the installation cannot be read.
    """
    found: dict[str, Offer] = {}
    ignored = []
    for offer in offers():
        if offer.name in DRIVERS:
            ignored.append(f"{offer} is ignored: nnasync has a device of this name")
        elif offer.name in found:
            ignored.append(f"{offer} is ignored: {found[offer.name].distribution} offers it too")
        else:
            found[offer.name] = offer
    return found, tuple(ignored)


def foreign_devices(wanted: Sequence[object] | None) -> dict[str, Made]:
    """Third parties' devices by name: those that a list of devices names, or all; it may take long.

    With None, one that cannot be made is skipped and the log says why. Else raises InvalidArgument
    for an unknown name, and what `discovery.make` raises. A name may be "module:factory" as well.
    """
    if wanted is None:
        return _all_foreign()
    names = [each for each in wanted if isinstance(each, str) and each not in DRIVERS]
    if not names:
        return {}
    found = need_known(names)
    return {name: make(found[name]) if name in found else make_target(name) for name in names}


def need_known(names: Iterable[str]) -> dict[str, Offer]:
    """All offers of third parties; raises InvalidArgument if a name is nobody's device.

    A "module:factory" that is not installed as a device may stand for a name.
    """
    found, _ = foreign_offers()
    for name in names:
        if name not in DRIVERS and name not in found and ":" not in name:
            raise InvalidArgument(f"no device {name!r}; there are: {', '.join([*DRIVERS, *found])}")
    return found


def driver_module(name: str) -> ModuleType:
    """The module that a device's driver is in, imported.

    Raises InvalidArgument for an unknown device, GeneralFailure if the import fails.
    """
    if name in DRIVERS:
        return importlib.import_module(DRIVERS[name].partition(":")[0])
    offer = need_known([name]).get(name) or Offer(name, name, "no package")
    try:
        return importlib.import_module(offer.module)
    except (Exception, SystemExit) as error:
        raise GeneralFailure(f"{offer} failed: {type(error).__name__}: {error}") from error


def _all_foreign() -> dict[str, Made]:
    try:
        found, ignored = foreign_offers()
    except NNError as error:
        logger.warning("%s", error)
        return {}
    for reason in ignored:
        logger.warning("%s", reason)
    made: dict[str, Made] = {}
    for name, offer in found.items():
        try:
            made[name] = make(offer)
        except DeviceUnavailable as error:
            logger.info("%s", error)
        except NNError as error:
            logger.warning("%s; it is left out", error)
    return made
