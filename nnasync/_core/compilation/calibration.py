"""Performance figures that were measured on this machine, kept until they are measured again.

There is a file for each machine that shares the folder. It is read as if a stranger had written it:
with anything in it that makes no sense the devices report what they were shipped with.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping

import msgspec

from nnasync._core.state_files import machine, read_state, write_state
from nnasync.hal import Capabilities, OperandType, PerformanceInfo, lookup, update
from nnasync.hal.decoders import json_decoder

RELAXED = "relaxed"
"""Stands, among names of operand types, for float32 that may be computed in float16."""

_FORMAT = 1
_MAX_BYTES = 1 << 16
_LARGEST = 1e6


class Calibration(msgspec.Struct, frozen=True):
    """Figures of devices by name, and of each by the name of an operand type or RELAXED."""

    machine: str
    devices: dict[str, dict[str, PerformanceInfo]]
    format: int = _FORMAT


def read_calibration(folder: str | os.PathLike[str]) -> dict[str, dict[str, PerformanceInfo]]:
    """Returns this machine's figures by device; empty where there are none that make sense."""
    data = read_state(_path(folder), _MAX_BYTES)
    if data is None:
        return {}
    try:
        found = json_decoder(Calibration).decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}
    if found.format != _FORMAT or found.machine != machine():
        return {}
    return found.devices if all(map(_is_sound, found.devices.values())) else {}


def write_calibration(
    folder: str | os.PathLike[str], devices: dict[str, dict[str, PerformanceInfo]]
) -> bool:
    """Replaces the figures of this machine; returns False if that failed."""
    data = msgspec.json.encode(Calibration(machine(), devices))
    return write_state(_path(folder), data)


def calibrated(capabilities: Capabilities, figures: Mapping[str, PerformanceInfo]) -> Capabilities:
    """Returns the capabilities of a device with measured figures in place of its own."""
    table = capabilities.operand_performance
    for name, info in figures.items():
        if name == RELAXED:
            continue
        table = update(table, OperandType[name], info)
    changes = {"operand_performance": table}
    found = msgspec.structs.replace(capabilities, **changes)
    if RELAXED not in figures:
        return found
    return msgspec.structs.replace(
        found, relaxed_float32_to_float16_performance_tensor=figures[RELAXED]
    )


def figures_in(capabilities: Capabilities, names: Iterable[str]) -> dict[str, PerformanceInfo]:
    """Returns the figures for these operand types, and for RELAXED."""
    relaxed = capabilities.relaxed_float32_to_float16_performance_tensor
    table = capabilities.operand_performance
    return {
        name: relaxed if name == RELAXED else lookup(table, OperandType[name]) for name in names
    }


def _path(folder: str | os.PathLike[str]) -> str:
    return os.path.join(folder, f"calibration-{machine()}.json")


def _is_sound(figures: Mapping[str, PerformanceInfo]) -> bool:
    known = {type.name for type in OperandType if type != OperandType.SUBGRAPH} | {RELAXED}
    return all(
        name in known and _is_ratio(info.exec_time) and _is_ratio(info.power_usage)
        for name, info in figures.items()
    )


def _is_ratio(value: float) -> bool:
    return math.isfinite(value) and 0 < value <= _LARGEST
