"""The devices that come with nnasync, by name; a driver is imported when its device is wanted."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from nnasync.errors import InvalidArgument

__all__ = ["DRIVERS", "EXTRAS", "check_installed", "default_devices", "is_installed"]

DRIVERS: dict[str, str] = {
    "nnasync-reference": "nnasync.drivers.cpu:ReferenceEngine",
    "onnxruntime-cpu": "nnasync.drivers.onnxruntime:OnnxRuntimeEngine",
    "null": "nnasync.drivers.null:NullEngine",
    "litert-cpu": "nnasync.drivers.litert:LiteRTEngine",
    "openvino-cpu": "nnasync.drivers.openvino:OpenVinoEngine",
}
"""Name of each device and where its engine is, as "module:class"."""

EXTRAS: Mapping[str, tuple[str, str]] = {
    "litert-cpu": ("ai_edge_litert", "litert"),
    "openvino-cpu": ("openvino", "openvino"),
    "onnxruntime-cpu": ("onnxruntime", "onnxruntime"),
}
"""The package that a device needs, and the extra of nnasync that brings it."""

_ORDER = ("litert-cpu", "openvino-cpu", "onnxruntime-cpu", "nnasync-reference")


def is_installed(name: str) -> bool:
    """Whether the package that a device needs is there; it is not imported."""
    return name not in EXTRAS or importlib.util.find_spec(EXTRAS[name][0]) is not None


def check_installed(name: str) -> None:
    """Raise InvalidArgument that says how to install the package that a device needs."""
    if not is_installed(name):
        package, extra = EXTRAS[name]
        raise InvalidArgument(
            f"device {name} needs {package}, which is not installed: pip install 'nnasync[{extra}]'"
        )


def default_devices() -> tuple[str, ...]:
    """The devices of a runtime that does not name any: all whose packages are there."""
    return tuple(name for name in _ORDER if is_installed(name))
