"""The devices that are there: what is installed, engines that come with nnasync, and their figures.

`installed()` lists the devices of a runtime that names none, and says why others are missing.
`verdicts()` lists who won for which model; `forget_verdicts(model)` has them compared again, and
`digests_of(model)` are the names under which they know one.
`EngineDevice(engine)` makes a whole device of an engine; `ReferenceEngine`, `NullEngine` and
`OnnxRuntimeEngine` are engines that programs make themselves, with settings or for tests. The
contract of a device is in `nnasync.device`, that of an engine in `nnasync.engine`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nnasync._core.arguments import check_kind
from nnasync._core.compilation import (
    REFERENCE,
    RELAXED,
    Report,
    figures_in,
    read_calibration,
    state_folder,
    write_calibration,
)
from nnasync._core.compilation.choice import Choice, Part, pin_of
from nnasync._core.compilation.verdict_list import (
    KnownVerdict,
    UnreadableVerdict,
    forget_verdicts,
    verdicts,
)
from nnasync._core.compilation.verdicts import DIGEST_DIGITS
from nnasync._core.deferred import names
from nnasync._core.drivers import DRIVERS, absence, default_devices, foreign_offers
from nnasync._core.runtime.compile_request import ModelSource
from nnasync.device import Device, Lowering
from nnasync.errors import GeneralFailure
from nnasync.hal import Model, PerformanceInfo, Struct

if TYPE_CHECKING:
    from nnasync._core.drivers.cpu import ReferenceEngine as ReferenceEngine
    from nnasync._core.drivers.null import NullEngine as NullEngine
    from nnasync._core.drivers.onnxruntime import OnnxRuntimeEngine as OnnxRuntimeEngine
    from nnasync._core.engine_device import EngineDevice as EngineDevice

__all__ = [
    "REFERENCE",
    "RELAXED",
    "EngineDevice",
    "InstalledDevice",
    "KnownVerdict",
    "NullEngine",
    "OnnxRuntimeEngine",
    "ReferenceEngine",
    "UnreadableVerdict",
    "digests_of",
    "figures_in",
    "forget_verdicts",
    "installed",
    "keep_figures",
    "lowering_pin",
    "state_folder",
    "verdicts",
]

_OURS = "nnasync"

__getattr__ = names(
    __name__,
    {
        "EngineDevice": "nnasync._core.engine_device",
        "NullEngine": "nnasync._core.drivers.null",
        "OnnxRuntimeEngine": "nnasync._core.drivers.onnxruntime",
        "ReferenceEngine": "nnasync._core.drivers.cpu",
    },
)


def digests_of(model: Model | str | os.PathLike[str]) -> tuple[str, ...]:
    """The digests under which `verdicts()` knows a model, or a file, with and without float ports.

    One of a file is that of all its content and of the files beside it that have its weights;
    programs that load the model first have the one of that. It reads files. Raises OSError,
    InvalidArgument for what is no model, ModelError for one that is not legal.
    """
    sources = [ModelSource.of(model, io) for io in (None, "float")]
    return tuple(dict.fromkeys(each.digest().hex()[:DIGEST_DIGITS] for each in sources))


class InstalledDevice(Struct, frozen=True):
    """A device by name, and the distribution that brings it.

    `absence` says why a runtime that names no devices does not have it; empty where it does.
    """

    name: str
    source: str
    absence: str = ""


def installed() -> tuple[InstalledDevice, ...]:
    """The devices of a runtime that names none, in its order, and then those that are missing.

    No driver is imported, so one that is listed may still fail to start. Raises GeneralFailure if
    the metadata of the installation cannot be read.
    """
    offers, ignored = foreign_offers()
    there = default_devices(offers)
    found = [
        InstalledDevice(name, offers[name].distribution if name in offers else _OURS)
        for name in there
    ]
    found += [InstalledDevice(name, _OURS, reason) for name in DRIVERS if (reason := absence(name))]
    found += [InstalledDevice(each.name, each.distribution, reason) for each, reason in ignored]
    return tuple(found)


def keep_figures(figures: Mapping[str, Mapping[str, PerformanceInfo]]) -> str:
    """Have devices report these figures from now on, on this machine; returns where they are kept.

    `figures` are by device and by name of an operand type or RELAXED, as ratios to the reference;
    devices that are not named keep theirs. Raises GeneralFailure where nothing can be written.
    """
    check_kind("figures", figures, Mapping, "a dict of the figures of devices by name")
    folder = state_folder()
    kept = read_calibration(folder) | {name: dict(each) for name, each in figures.items()}
    if not write_calibration(folder, kept):
        raise GeneralFailure(f"{folder} cannot be written")
    return folder


def lowering_pin(report: Report, device: Device, lowering: Lowering) -> str:
    """The pin that has `compile` use one lowering of one device, for the model of a report."""
    digest = report.pin.rpartition(":")[2]
    return pin_of(Choice((Part.of(device, lowering),)), digest)
