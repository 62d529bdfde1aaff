"""`nnasync devices`: which devices there are, and what they say of themselves."""

from __future__ import annotations

import argparse
import math
from typing import Any

import msgspec

from nnasync.cli.text import table
from nnasync.device import Device
from nnasync.engine import EngineDevice
from nnasync.hal import Capabilities, PerformanceInfo, type_name
from nnasync.runtime import open_runtime, run

__all__ = ["add_parser"]

_EXAMPLES = """examples:
  nnasync devices
  nnasync devices --json
"""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser = commands.add_parser(
        "devices",
        help="list the devices",
        description="List the devices: name, type, version, feature level, extensions, numbers of "
        "cache files, and performance as ratio to the reference (lower is better), as `nnasync "
        "calibrate` measured it or as it was shipped.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=_command)


def _command(arguments: argparse.Namespace) -> int:
    described: list[dict[str, Any]] = run(_describe_all)
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(described)).decode())
    else:
        print(_text(described))
    return 0


async def _describe_all() -> list[dict[str, Any]]:
    async with open_runtime() as runtime:
        return [await describe(device) for device in runtime.devices]


async def describe(device: Device) -> dict[str, Any]:
    """What a device says of itself, as plain data."""
    model_files, data_files = await device.get_number_of_cache_files_needed()
    extensions = await device.get_supported_extensions()
    return {
        "name": device.name,
        "type": device.type.name,
        "version": device.version,
        "feature_level": int(device.feature_level),
        "hal_version": device.feature_level.name.lstrip("V").replace("_", "."),
        "status": (await device.get_status()).name,
        "extensions": [extension.name for extension in extensions],
        "cache_files": {"model": model_files, "data": data_files},
        "calibrated": isinstance(device, EngineDevice) and device.is_calibrated,
        "performance": _performance(await device.get_capabilities()),
    }


def _performance(capabilities: Capabilities) -> dict[str, Any]:
    by_type = {type_name(p.type): _figures(p.info) for p in capabilities.operand_performance}
    return {
        "relaxed_float32_to_float16": _figures(
            capabilities.relaxed_float32_to_float16_performance_tensor
        ),
        "if": _figures(capabilities.if_performance),
        "while": _figures(capabilities.while_performance),
        **by_type,
    }


def _figures(info: PerformanceInfo) -> dict[str, float | None]:
    return {
        "exec_time": info.exec_time if math.isfinite(info.exec_time) else None,
        "power_usage": info.power_usage if math.isfinite(info.power_usage) else None,
    }


def _text(described: list[dict[str, Any]]) -> str:
    heads = ("device", "type", "version", "feature level", "status", "extensions", "cache files")
    rows = [
        (
            device["name"],
            device["type"],
            device["version"],
            f"{device['feature_level']} (HAL {device['hal_version']})",
            device["status"].lower(),
            ", ".join(device["extensions"]) or "none",
            "{model} model, {data} data".format(**device["cache_files"]),
        )
        for device in described
    ]
    parts = [table(heads, rows)]
    for device in described:
        figures = _grouped(device["performance"])
        lines = [(", ".join(names), time, power) for (time, power), names in figures.items()]
        how = "measured here" if device["calibrated"] else "as shipped"
        head = f"performance of {device['name']}, {how}"
        parts.append(table((head, "time", "power"), lines, wide=60))
    return "\n\n".join(parts)


def _grouped(performance: dict[str, Any]) -> dict[tuple[str, str], list[str]]:
    """The types that share their figures, together."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for name, figures in performance.items():
        key = (_ratio(figures["exec_time"]), _ratio(figures["power_usage"]))
        grouped.setdefault(key, []).append(name)
    return grouped


def _ratio(value: float | None) -> str:
    return "unsupported" if value is None else f"{value:.2f}"
