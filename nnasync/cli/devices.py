"""`nnasync devices`: which devices there are, and what they say of themselves."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from typing import Any

from nnasync import open_runtime, run
from nnasync.cli.text import HelpFormatter, json_text, table
from nnasync.device import Device
from nnasync.devices import REFERENCE, EngineDevice, installed
from nnasync.errors import NNError
from nnasync.hal import Capabilities, HalVersion, PerformanceInfo, type_name

_EXAMPLES = """examples:
  nnasync devices
  nnasync devices --json
"""
_OURS = "nnasync"
_ESTIMATES = "estimates"
_NOT_INSTALLED, _UNUSABLE = "NOT_INSTALLED", "UNUSABLE"
_COLUMNS = {
    "float32": "TENSOR_FLOAT32",
    "relaxed": "relaxed_float32_to_float16",
    "float16": "TENSOR_FLOAT16",
    "quant8": "TENSOR_QUANT8_ASYMM",
    "signed8": "TENSOR_QUANT8_ASYMM_SIGNED",
    "int32": "TENSOR_INT32",
    "bool8": "TENSOR_BOOL8",
    "IF": "if",
    "WHILE": "while",
}
"""What the table shows of the figures; --json has them all."""


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    parser = commands.add_parser(
        "devices",
        help="list the devices",
        description="List the devices, nnasync's own and those that other packages bring: type, "
        "version, HAL version, numbers of model and data cache files (one model file more than the "
        "engine's own: in it nnasync keeps how the plan was made), extensions, and performance "
        "as ratio to the reference (lower is better), as `nnasync calibrate` measured it here; "
        "before that nnasync's own devices have estimates. --json has the figures of all operand "
        "types. Devices that are not installed or do not start are listed with the reason.",
        epilog=_EXAMPLES,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=_command)


def _command(arguments: argparse.Namespace) -> int:
    found = installed()
    sources = {each.name: each.source for each in found if not each.absence}
    described: list[dict[str, Any]] = run(_describe_all, tuple(sources), sources)
    missing = [each for each in found if each.absence]
    described += [
        _missing(each.name, each.source, _NOT_INSTALLED, each.absence)
        for each in missing
        if each.source == _OURS
    ]
    ignored = [each.absence for each in missing if each.source != _OURS]
    if arguments.json:
        print(json_text(described))
    else:
        print(_text(described, ignored))
    return 0


# -- asking


async def _describe_all(names: Sequence[str], sources: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns descriptions of all devices; one that fails beside others is opened alone."""
    try:
        return await _describe_open(names, sources)
    except NNError:
        return [each for name in names for each in await _describe_one(name, sources)]


async def _describe_one(name: str, sources: Mapping[str, str]) -> list[dict[str, Any]]:
    try:
        return await _describe_open([name], sources)
    except NNError as error:
        return [_missing(name, sources[name], _UNUSABLE, " ".join(str(error).split()))]


async def _describe_open(names: Sequence[str], sources: Mapping[str, str]) -> list[dict[str, Any]]:
    async with open_runtime(devices=names) as runtime:
        return [
            {**await describe(device), "source": sources[device.name], "reason": ""}
            for device in runtime.devices
        ]


async def describe(device: Device) -> dict[str, Any]:
    """Returns the description of a device as plain data."""
    model_files, data_files = await device.get_number_of_cache_files_needed()
    extensions = await device.get_supported_extensions()
    return {
        "name": device.name,
        "type": device.type.name,
        "version": device.version,
        "feature_level": int(device.feature_level),
        "hal_version": _hal(device.feature_level),
        "status": (await device.get_status()).name,
        "extensions": [extension.name for extension in extensions],
        "cache_files": {"model": model_files, "data": data_files},
        "calibrated": isinstance(device, EngineDevice) and device.is_calibrated,
        "performance": _performance(await device.get_capabilities()),
    }


def _missing(name: str, source: str, status: str, reason: str) -> dict[str, Any]:
    """A device that is not there, in the form of one that is."""
    return {
        "name": name,
        "type": "UNKNOWN",
        "version": "",
        "feature_level": 0,
        "hal_version": "",
        "status": status,
        "extensions": [],
        "cache_files": {"model": 0, "data": 0},
        "calibrated": False,
        "performance": {},
        "source": source,
        "reason": reason,
    }


def _hal(version: HalVersion) -> str:
    return version.name.lstrip("V").replace("_", ".")


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


# -- telling


def _text(described: Sequence[Mapping[str, Any]], ignored: Sequence[str]) -> str:
    there = [each for each in described if not each["reason"]]
    away = [_absence_line(each["name"], each["reason"]) for each in described if each["reason"]]
    parts = [_identities(there), _ratios(there)]
    if away or ignored:
        parts.append("\n".join(["not there:", *(f"  {line}" for line in (*away, *ignored))]))
    return "\n\n".join(parts)


def _absence_line(name: str, reason: str) -> str:
    return reason if name in reason else f"{name}: {reason}"


def _identities(devices: Sequence[Mapping[str, Any]]) -> str:
    heads = ("device", "type", "version", "feature level", "cache files", "extensions", "from")
    rows = [
        (
            device["name"],
            device["type"],
            device["version"],
            f"{device['feature_level']} (HAL {device['hal_version']})",
            "{model} model, {data} data".format(**device["cache_files"]),
            "\n".join(device["extensions"]) or "-",
            device["source"] if device["status"] == "AVAILABLE" else device["status"].lower(),
        )
        for device in devices
    ]
    note = (
        "cache files: one of the model files is nnasync's, with how the plan was made; "
        "the others are the engine's"
    )
    return f"{table(heads, rows)}\n{note}"


def _ratios(devices: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            device["name"],
            *(_ratio(device["performance"].get(key)) for key in _COLUMNS.values()),
            _origin(device),
        )
        for device in devices
    ]
    head = "time of an operation, as ratio to the reference's"
    text = f"{head}:\n\n{table(('device', *_COLUMNS, 'figures'), rows)}"
    if all(_origin(device) != _ESTIMATES for device in devices):
        return text
    return (
        f"{text}\n\n{_ESTIMATES}: round constants, until `nnasync calibrate` measures this machine"
    )


def _origin(device: Mapping[str, Any]) -> str:
    if device["name"] == REFERENCE:
        return "1 by definition"
    if device["calibrated"]:
        return "measured here"
    return _ESTIMATES if device["source"] == _OURS else "as it states"


def _ratio(figures: Mapping[str, float | None] | None) -> str:
    time = None if figures is None else figures["exec_time"]
    return "-" if time is None else f"{time:.2f}"
