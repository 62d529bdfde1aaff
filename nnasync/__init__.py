"""nnasync: neural networks on live streams, awaited.

Public are the names of this module and the modules asgi, audio, batching, conformance, device,
devices, dump, engine, errors, experiments, extensions, fences, hal, machine, memory, ray, serving,
streaming, suites, sync, tracing and vision; `burst`, `kernels` and `scheduler` may be imported too,
but change more often. Everything in `nnasync._core` is internal; the command line is a program like
others: it imports public modules only.

The layers, top to bottom; a module imports only from rows below its own:

    cli                                        the command line
    ray                                        web applications on Ray Serve
    asgi                                       networks in web applications
    suites                                     what devices are worth
    experiments                                a scheduling policy, asked what-if questions
    serving                                    models over the network
    streaming, conformance, devices, service, sync    streams; suites; devices; calls that block
    batching                                   calls that wait, joined where that pays
    vision, audio                              between pictures, or sound, and networks
    runtime                                    open_runtime(): the composition root
    execution                                  calls, launches, bursts of a compiled network
    dump                                       models and plans as text and Graphviz
    compilation                                model + devices -> prepared model and report
    partition                                  a model over several devices
    drivers, importers                         reference, engines, service, null; tflite, onnx
    formats, engine_device, versions           tables; an Engine, or older Device, made a Device
    plans                                      plans that wrap plans
    engine                                     the contract of a driver
    device_helpers, wire, request_headers      what devices would write alike; what processes say
    device                                     the contract of the HAL
    model                                      build, save, load
    validation                                 what is legal
    kernels                                    the operations
    extensions, accuracy                       operations of vendors; tolerances
    burst                                      the burst protocol
    message_queue, workers                     rings; threads and their cores
    fences, memory, cache, scheduler, machine    sync fences; pools; kept files; who is next; costs
    wakeup                                     from threads into loops
    giving_way, due_turn                       workers with real time; loops that are late
    tracing, clock, lag, timeslice, os_threads, packages, engine_packages, kin, child_process, heap
    real_time, sole_wait   the system's real-time priority for threads; how a task waits
    arguments                                  checks of what users give
    errors, callbacks                          the exception tree; callbacks that raise
    hal                                        the words of HAL 1.3
    collecting, deferred, endings, notebook, pages, pickling, state_files, words  garbage

The names of this module are loaded when they are first used, so importing it costs next to nothing.
"""

from __future__ import annotations

import gc
import importlib
import sys
import warnings
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nnasync import audio as audio
    from nnasync import errors as errors
    from nnasync import hal as hal
    from nnasync import streaming as streaming
    from nnasync import sync as sync
    from nnasync import vision as vision
    from nnasync._core.clock import Deadline as Deadline
    from nnasync._core.clock import now_ns as now_ns
    from nnasync._core.clock import within as within
    from nnasync._core.compilation import Fate as Fate
    from nnasync._core.compilation import Report as Report
    from nnasync._core.drivers.service import connect as connect
    from nnasync._core.execution import Burst as Burst
    from nnasync._core.execution import Execution as Execution
    from nnasync._core.execution import Net as Net
    from nnasync._core.execution import Port as Port
    from nnasync._core.execution.buffer import Buffer as Buffer
    from nnasync._core.importers import describe as describe
    from nnasync._core.importers import load as load
    from nnasync._core.model import ModelBuilder as ModelBuilder
    from nnasync._core.model import Value as Value
    from nnasync._core.model import save as save
    from nnasync._core.runtime import CompileOptions as CompileOptions
    from nnasync._core.runtime import Options as Options
    from nnasync._core.runtime import Runtime as Runtime
    from nnasync._core.runtime import open_runtime as open_runtime
    from nnasync._core.runtime import run as run
    from nnasync._core.service import serve_at as serve
    from nnasync.errors import BadState as BadState
    from nnasync.errors import CallerError as CallerError
    from nnasync.errors import Cancelled as Cancelled
    from nnasync.errors import DeviceDied as DeviceDied
    from nnasync.errors import DeviceError as DeviceError
    from nnasync.errors import DeviceUnavailable as DeviceUnavailable
    from nnasync.errors import ExperimentError as ExperimentError
    from nnasync.errors import GeneralFailure as GeneralFailure
    from nnasync.errors import InvalidArgument as InvalidArgument
    from nnasync.errors import MissedDeadline as MissedDeadline
    from nnasync.errors import MissedDeadlinePersistent as MissedDeadlinePersistent
    from nnasync.errors import MissedDeadlineTransient as MissedDeadlineTransient
    from nnasync.errors import ModelError as ModelError
    from nnasync.errors import NNError as NNError
    from nnasync.errors import OutputInsufficientSize as OutputInsufficientSize
    from nnasync.errors import Refused as Refused
    from nnasync.errors import ResourceExhausted as ResourceExhausted
    from nnasync.errors import ResourceExhaustedPersistent as ResourceExhaustedPersistent
    from nnasync.errors import ResourceExhaustedTransient as ResourceExhaustedTransient
    from nnasync.fences import Fence as Fence
    from nnasync.fences import merge as merge
    from nnasync.hal import ErrorStatus as ErrorStatus
    from nnasync.hal import ExecutionPreference as Preference
    from nnasync.hal import Model as Model
    from nnasync.hal import OperandType as OperandType
    from nnasync.hal import OperationType as OperationType
    from nnasync.hal import Priority as Priority
    from nnasync.hal import Timing as Timing

    __version__: str

if sys.version_info < (3, 11):  # noqa: UP036 - pip sees to it, a path does not
    raise ImportError("nnasync needs Python 3.11 or later")

__all__ = [
    "BadState",
    "Buffer",
    "Burst",
    "CallerError",
    "Cancelled",
    "CompileOptions",
    "Deadline",
    "DeviceDied",
    "DeviceError",
    "DeviceUnavailable",
    "ErrorStatus",
    "Execution",
    "ExperimentError",
    "Fate",
    "Fence",
    "GeneralFailure",
    "InvalidArgument",
    "MissedDeadline",
    "MissedDeadlinePersistent",
    "MissedDeadlineTransient",
    "Model",
    "ModelBuilder",
    "ModelError",
    "NNError",
    "Net",
    "OperandType",
    "OperationType",
    "Options",
    "OutputInsufficientSize",
    "Port",
    "Preference",
    "Priority",
    "Refused",
    "Report",
    "ResourceExhausted",
    "ResourceExhaustedPersistent",
    "ResourceExhaustedTransient",
    "Runtime",
    "Timing",
    "Value",
    "connect",
    "describe",
    "load",
    "merge",
    "now_ns",
    "open_runtime",
    "run",
    "save",
    "serve",
    "within",
]

_HOMES: dict[str, str] = {
    "BadState": "errors:BadState",
    "Buffer": "_core.execution.buffer:Buffer",
    "Burst": "_core.execution:Burst",
    "CallerError": "errors:CallerError",
    "Cancelled": "errors:Cancelled",
    "CompileOptions": "_core.runtime:CompileOptions",
    "Deadline": "_core.clock:Deadline",
    "DeviceDied": "errors:DeviceDied",
    "DeviceError": "errors:DeviceError",
    "DeviceUnavailable": "errors:DeviceUnavailable",
    "ErrorStatus": "hal:ErrorStatus",
    "Execution": "_core.execution:Execution",
    "ExperimentError": "errors:ExperimentError",
    "Fate": "_core.compilation:Fate",
    "Fence": "fences:Fence",
    "GeneralFailure": "errors:GeneralFailure",
    "InvalidArgument": "errors:InvalidArgument",
    "MissedDeadline": "errors:MissedDeadline",
    "MissedDeadlinePersistent": "errors:MissedDeadlinePersistent",
    "MissedDeadlineTransient": "errors:MissedDeadlineTransient",
    "Model": "hal:Model",
    "ModelBuilder": "_core.model:ModelBuilder",
    "ModelError": "errors:ModelError",
    "NNError": "errors:NNError",
    "Net": "_core.execution:Net",
    "OperandType": "hal:OperandType",
    "OperationType": "hal:OperationType",
    "Options": "_core.runtime:Options",
    "OutputInsufficientSize": "errors:OutputInsufficientSize",
    "Port": "_core.execution:Port",
    "Preference": "hal:ExecutionPreference",
    "Priority": "hal:Priority",
    "Refused": "errors:Refused",
    "Report": "_core.compilation:Report",
    "ResourceExhausted": "errors:ResourceExhausted",
    "ResourceExhaustedPersistent": "errors:ResourceExhaustedPersistent",
    "ResourceExhaustedTransient": "errors:ResourceExhaustedTransient",
    "Runtime": "_core.runtime:Runtime",
    "Timing": "hal:Timing",
    "Value": "_core.model:Value",
    "connect": "_core.drivers.service:connect",
    "describe": "_core.importers:describe",
    "load": "_core.importers:load",
    "merge": "fences:merge",
    "now_ns": "_core.clock:now_ns",
    "open_runtime": "_core.runtime:open_runtime",
    "run": "_core.runtime:run",
    "save": "_core.model:save",
    "serve": "_core.service:serve_at",
    "within": "_core.clock:within",
}
"""Where each name is, as "module:name"."""

_MOVED: dict[str, tuple[str, str]] = {
    "EngineDevice": ("devices:EngineDevice", "nnasync.devices.EngineDevice"),
    "NullEngine": ("devices:NullEngine", "nnasync.devices.NullEngine"),
    "OnnxRuntimeEngine": ("devices:OnnxRuntimeEngine", "nnasync.devices.OnnxRuntimeEngine"),
    "ReferenceEngine": ("devices:ReferenceEngine", "nnasync.devices.ReferenceEngine"),
    "convert_onnx": ("_core.importers.onnx.conversion:convert", "load(path, form='translated')"),
    "fingerprint": ("engine:fingerprint", "nnasync.engine.fingerprint"),
    "graph_dump": ("dump:graph_dump", "nnasync.dump.graph_dump"),
    "operand_value": ("engine:operand_value", "nnasync.engine.operand_value"),
    "wrap_onnx": ("_core.importers.onnx:wrap", "load(path, form='whole')"),
}
"""Names of before: where each is, and what is to be used now."""

_MODULES = frozenset({"audio", "errors", "hal", "streaming", "sync", "vision"})
"""Modules that are meant to be used by their own names, such as `nn.streaming`."""


if not TYPE_CHECKING:  # who checks types is told of names that are not there

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return _imported(f"nnasync.{name}")
        if name == "__version__":
            return _imported("nnasync._core.packages").VERSION
        if name in _MOVED:
            home, now = _MOVED[name]
            warnings.warn(f"nnasync.{name}: use {now}", DeprecationWarning, stacklevel=2)
            return _found(home)
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = _found(_HOMES[name])
        return value


def _found(home: str) -> object:
    module, _, attribute = home.partition(":")
    value: object = getattr(_imported(f"nnasync.{module}"), attribute)
    return value


def _imported(module: str) -> ModuleType:
    # Modules live forever; with the collector off, importing takes a tenth less time.
    collects = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if collects:
            if not gc.get_freeze_count():
                # Into the oldest generation; else the next three looks would go through it.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def __dir__() -> list[str]:
    special = (name for name in globals() if name.startswith("__"))
    return sorted({*special, "__version__", *__all__, *_MODULES})
