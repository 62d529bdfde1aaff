"""What a device says of itself when it is found: asked once, checked, and kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

from nnasync import hal
from nnasync._core.device_helpers import Answers
from nnasync._core.validation import newest_capabilities, validate_extension
from nnasync.errors import GeneralFailure, NNError
from nnasync.hal import (
    Capabilities,
    Capabilities10,
    Capabilities11,
    Capabilities12,
    DeviceType,
    Extension,
    HalVersion,
    OperandPerformance,
    OperandType,
    PerformanceInfo,
)

PATIENCE_S = 10.0
"""How long a device may take to say what it is."""

_UNKNOWN_VERSION = "UNKNOWN"
_FORMS: dict[HalVersion, type[Any]] = {
    HalVersion.V1_0: Capabilities10,
    HalVersion.V1_1: Capabilities11,
    HalVersion.V1_2: Capabilities12,
    HalVersion.V1_3: Capabilities,
}

T = TypeVar("T")


async def examine(device: Any, *, patience_s: float = PATIENCE_S) -> Answers:
    """Ask a device what it is; raises GeneralFailure that says what is wrong with its answers.

    It is asked for its capabilities, version, type, extensions and numbers of cache files, in this
    order; before HAL 1.2 only for its capabilities, and the rest is made up.
    """
    name = _asked("name", "device", lambda: device.name)
    if not isinstance(name, str) or not name:
        raise GeneralFailure(f"a device has the name {name!r}; it must be a text, not empty")
    level = _level_of(device, name)
    capabilities = _checked_capabilities(
        await _answer("capabilities", name, device.get_capabilities, patience_s), level, name
    )
    if level < HalVersion.V1_2:
        return Answers(name, _UNKNOWN_VERSION, DeviceType.OTHER, level, capabilities)
    version = _asked("version", name, lambda: device.version)
    if not isinstance(version, str) or not version:
        raise GeneralFailure(f"{name} says its version is {version!r}: it must be a text")
    type = _asked("type", name, lambda: device.type)
    if not isinstance(type, DeviceType):
        kinds = ", ".join(kind.name for kind in DeviceType)
        raise GeneralFailure(f"{name} says its type is {type!r}: it must be one of {kinds}")
    extensions = _checked_extensions(
        await _answer("extensions", name, device.get_supported_extensions, patience_s), name
    )
    ask = device.get_number_of_cache_files_needed
    files = _checked_files(await _answer("cache files", name, ask, patience_s), name)
    is_late = _asked("caches_late", name, lambda: getattr(device, "caches_late", False)) is True
    return Answers(name, version, type, level, capabilities, extensions, files, is_late)


def _asked(what: str, name: str, ask: Callable[[], object]) -> object:
    """Returns the value of an attribute; raises GeneralFailure where reading it fails."""
    try:
        return ask()
    except Exception as error:
        raise GeneralFailure(f"{name} cannot say its {what}: {error}") from error


async def _answer(what: str, name: str, ask: Callable[[], Awaitable[T]], patience_s: float) -> T:
    """The answer to a question; raises GeneralFailure where it fails or does not come."""
    try:
        with anyio.fail_after(patience_s):
            return await ask()
    except Exception as error:
        if isinstance(error, TimeoutError) and not isinstance(error, NNError):
            text = f"{name} did not say its {what} within {patience_s:g} s"
            raise GeneralFailure(text) from error
        kind = "" if isinstance(error, NNError) else f"{type(error).__name__}: "
        raise GeneralFailure(f"{name} cannot say its {what}: {kind}{error}") from error


def _level_of(device: Any, name: str) -> HalVersion:
    level: Any = _asked("feature level", name, lambda: device.feature_level)
    try:
        return HalVersion(level)
    except ValueError as error:
        known = ", ".join(f"{int(each)} ({hal.version_name(each)})" for each in HalVersion)
        raise GeneralFailure(f"{name} has feature level {level!r}; known are {known}") from error


def _checked_capabilities(found: Any, level: HalVersion, name: str) -> Capabilities:
    """Capabilities in the form of HAL 1.3; raises GeneralFailure that names the figure."""
    form = _FORMS[level]
    if type(found) is not form:
        raise GeneralFailure(
            f"{name} states its capabilities as {type(found).__name__}; {hal.version_name(level)} "
            f"has {form.__name__}"
        )
    fault = _capabilities_fault(found)
    if fault is not None:
        raise GeneralFailure(f"{name} states capabilities that cannot be: {fault}")
    return newest_capabilities(found)


def _capabilities_fault(found: Any) -> str | None:
    for field in found.__struct_fields__:
        value = getattr(found, field)
        if field != "operand_performance":
            fault = _info_fault(value)
            if fault is not None:
                return f"{field} {fault}"
    table = getattr(found, "operand_performance", ())
    if not isinstance(table, tuple) or not all(isinstance(e, OperandPerformance) for e in table):
        return "operand_performance is no tuple of OperandPerformance"
    for index, entry in enumerate(table):
        name = hal.type_name(entry.type)
        if entry.type not in list(OperandType) or entry.type == OperandType.SUBGRAPH:
            return f"operand_performance has an entry for {name}, which has no figures"
        if index and table[index - 1].type >= entry.type:
            before = hal.type_name(table[index - 1].type)
            return f"operand_performance is not sorted by type: {name} comes after {before}"
        fault = _info_fault(entry.info)
        if fault is not None:
            return f"the figures of {name} {fault}"
    return None


def _info_fault(info: Any) -> str | None:
    if not isinstance(info, PerformanceInfo):
        return f"are {info!r}, not a PerformanceInfo"
    for field in ("exec_time", "power_usage"):
        value = getattr(info, field)
        # A NaN is not above 0 either.
        if not isinstance(value, int | float) or not value > 0:
            return f"say {field} = {value!r}: it must be a number above 0"
    return None


def _checked_extensions(found: Any, name: str) -> tuple[Extension, ...]:
    if not isinstance(found, tuple) or not all(isinstance(each, Extension) for each in found):
        raise GeneralFailure(
            f"{name} states its extensions as {found!r}; it must be a tuple of Extension"
        )
    names = [each.name for each in found]
    if len(set(names)) != len(names):
        raise GeneralFailure(f"{name} states an extension twice: {', '.join(names)}")
    for each in found:
        try:
            validate_extension(each)
        except NNError as error:
            raise GeneralFailure(f"{name} states an extension that cannot be: {error}") from error
    return found


def _checked_files(found: Any, name: str) -> tuple[int, int]:
    most = hal.MAX_NUMBER_OF_CACHE_FILES
    right = isinstance(found, tuple | list) and len(found) == 2
    if not right or not all(type(n) is int and 0 <= n <= most for n in found):
        raise GeneralFailure(
            f"{name} needs {found!r} cache files: it must be two numbers, each from 0 to {most}"
        )
    return found[0], found[1]
