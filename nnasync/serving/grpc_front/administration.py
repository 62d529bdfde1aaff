"""What clients ask besides inferences: health, metadata, statistics, models, memory, settings.

An answer is made as what JSON would have, which is what the core gives, and converted: none of
these calls is in a hurry.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec
from google.protobuf import json_format

from nnasync.serving.grpc_front.conversion import parameters_of, parsed
from nnasync.serving.grpc_front.descriptors import message_class
from nnasync.serving.problems import invalid
from nnasync.serving.server import ModelServer
from nnasync.serving.shared_memory import SharedMemory, no_cuda


async def answered(server: ModelServer, name: str, message: bytes, client: str) -> bytes:
    """Returns the answer to the call of `CALLS` with this name; raises ServingError."""
    request = parsed(message_class(f"{name}Request"), message)
    if name in _OF_MEMORY:
        fields = _OF_MEMORY[name](server.memory_of(client), request)
    else:
        fields = ANSWERS[name](server, request)
    if inspect.isawaitable(fields):
        fields = await fields
    answer = message_class(f"{name}Response")()
    # In words of JSON alone: older versions of protobuf take lists, and no tuples.
    told = msgspec.json.decode(msgspec.json.encode(fields or {}))
    json_format.ParseDict(told, answer, ignore_unknown_fields=True)
    return bytes(answer.SerializeToString())


def _model_metadata(server: ModelServer, request: Any) -> Any:
    return msgspec.to_builtins(server.model_metadata(request.name, request.version))


def _model_config(server: ModelServer, request: Any) -> Any:
    return {"config": server.model_config(request.name, request.version)}


def _model_statistics(server: ModelServer, request: Any) -> Any:
    return server.model_statistics(request.name, request.version)


def _index(server: ModelServer, request: Any) -> Any:
    return {"models": msgspec.to_builtins(server.index(ready=request.ready))}


async def _load(server: ModelServer, request: Any) -> Any:
    await server.load(request.model_name, parameters_of(request.parameters))


async def _unload(server: ModelServer, request: Any) -> Any:
    await server.unload(request.model_name)


def _memory_status(memory: SharedMemory, request: Any) -> Any:
    regions = memory.status(request.name or None)
    return {"regions": {region.name: msgspec.to_builtins(region) for region in regions}}


def _register(memory: SharedMemory, request: Any) -> Any:
    memory.register(request.name, request.key, request.offset, request.byte_size)


def _unregister(memory: SharedMemory, request: Any) -> Any:
    memory.unregister(request.name or None)


def _register_cuda(server: ModelServer, request: Any) -> Any:
    raise invalid(no_cuda(request.name))


def _trace(server: ModelServer, request: Any) -> Any:
    changes: dict[str, Any] = {}
    for name, setting in request.settings.items():
        values = list(setting.value)
        changes[name] = values if name == "trace_level" else "".join(values)
        if not values:
            changes[name] = None
    settings = server.trace.changed(changes)
    return {
        "settings": {
            name: {"value": value if isinstance(value, list) else [value]}
            for name, value in settings.items()
        }
    }


def _log(server: ModelServer, request: Any) -> Any:
    settings = server.log.changed(parameters_of(request.settings))
    return {"settings": {name: _log_value(value) for name, value in settings.items()}}


def _log_value(value: bool | int | str) -> dict[str, bool | int | str]:
    if isinstance(value, bool):
        return {"bool_param": value}
    return {"uint32_param" if isinstance(value, int) else "string_param": value}


_OF_MEMORY: dict[str, Callable[[SharedMemory, Any], Any]] = {
    "SystemSharedMemoryStatus": _memory_status,
    "SystemSharedMemoryRegister": _register,
    "SystemSharedMemoryUnregister": _unregister,
}
"""By name, what is asked of the regions that the client itself has."""

ANSWERS: dict[str, Callable[[ModelServer, Any], Any]] = {
    "ServerLive": lambda server, request: {"live": True},
    "ServerReady": lambda server, request: {"ready": server.is_ready},
    "ModelReady": lambda server, request: {
        "ready": server.model_ready(request.name, request.version)
    },
    "ServerMetadata": lambda server, request: server.metadata(),
    "ModelMetadata": _model_metadata,
    "ModelConfig": _model_config,
    "ModelStatistics": _model_statistics,
    "RepositoryIndex": _index,
    "RepositoryModelLoad": _load,
    "RepositoryModelUnload": _unload,
    "CudaSharedMemoryStatus": lambda server, request: {},
    "CudaSharedMemoryRegister": _register_cuda,
    "CudaSharedMemoryUnregister": lambda server, request: {},
    "TraceSetting": _trace,
    "LogSettings": _log,
}
"""By name, what gives the fields of the response; inferences are the other two calls."""

CALLS = (*ANSWERS, *_OF_MEMORY)
"""The names of all calls but inferences."""
