"""The devices that come with nnasync, by name; a driver is imported when its device is wanted."""

from __future__ import annotations

__all__ = ["DEFAULT_DEVICES", "DRIVERS"]

DRIVERS: dict[str, str] = {
    "nnasync-reference": "nnasync.drivers.cpu:ReferenceEngine",
    "null": "nnasync.drivers.null:NullEngine",
}
"""Name of each device and where its engine is, as "module:class"."""

DEFAULT_DEVICES: tuple[str, ...] = ("nnasync-reference",)
"""The devices of a runtime that does not name any."""
