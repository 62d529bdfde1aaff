"""ONNX Runtime's execution providers, and sessions on one of them."""

from __future__ import annotations

import functools
import os
import platform
import sys
from typing import Any

from nnasync._core.engine_packages import imported, load_library
from nnasync._core.packages import version_of
from nnasync.errors import GeneralFailure, InvalidArgument
from nnasync.hal import DeviceType

CPU = "CPUExecutionProvider"
PROVIDERS: dict[str, str] = {
    "onnxruntime-cpu": CPU,
    "onnxruntime-cuda": "CUDAExecutionProvider",
    "onnxruntime-tensorrt": "TensorrtExecutionProvider",
    "onnxruntime-migraphx": "MIGraphXExecutionProvider",
    "onnxruntime-openvino": "OpenVINOExecutionProvider",
    "onnxruntime-coreml": "CoreMLExecutionProvider",
    "onnxruntime-xnnpack": "XnnpackExecutionProvider",
    "onnxruntime-qnn": "QNNExecutionProvider",
}
"""Device names and the execution providers behind them."""

_GPUS = ("onnxruntime-cuda", "onnxruntime-tensorrt", "onnxruntime-migraphx")
_ON_CPU = ("onnxruntime-cpu", "onnxruntime-openvino", "onnxruntime-xnnpack")
_DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-qnn")
_NOWHERE = "/nonexistent"
_FATAL = 4


def package() -> Any:
    """The package onnxruntime, without its telemetry; InvalidArgument if it is not installed."""
    loaded = sys.modules.get("onnxruntime")
    if loaded is not None:
        return loaded
    # Else it keeps a database of what it was used for, and reports it.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    load_library("onnxruntime", "capi/onnxruntime_pybind11_state")
    try:
        return imported("onnxruntime")
    except ImportError as error:
        raise InvalidArgument(
            "onnxruntime is not installed: pip install 'nnasync[onnxruntime]'"
        ) from error


def version() -> str:
    """Version of the installed package, under whichever name it was installed."""
    return next(filter(None, map(version_of, _DISTRIBUTIONS)), "uninstalled")


def device_type(device: str) -> DeviceType:
    """The kind of hardware behind a device name."""
    if device in _ON_CPU:
        return DeviceType.CPU
    return DeviceType.GPU if device in _GPUS else DeviceType.ACCELERATOR


def check_provider(device: str) -> str:
    """The execution provider of a device name; raises InvalidArgument where it is not to be had.

    The package is only asked, which means imported, for other providers than the CPU's.
    """
    if device not in PROVIDERS:
        raise InvalidArgument(f"no device {device!r}; there are: {', '.join(PROVIDERS)}")
    provider = PROVIDERS[device]
    if provider != CPU:
        available = package().get_available_providers()
        if provider not in available:
            raise InvalidArgument(
                f"device {device} needs an onnxruntime built with {provider}; the installed one"
                f" has only {', '.join(available)}"
            )
    return provider


def open_session(file: bytes, provider: str, threads: int) -> Any:
    """An InferenceSession of the bytes of a file.

    Raises GeneralFailure with ONNX Runtime's own words where it refuses the file.
    """
    runtime = package()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _FATAL
    # Without spinning a network of short operations is half as fast again; it ends with the run.
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(threads > 1)))
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if _saturates():
        options.add_session_config_entry("session.x64quantprecision", "1")
    # A hostile file must not read others: what it keeps elsewhere is looked for in no folder.
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", _NOWHERE
    )
    try:
        # With a fallback the package prints what it refuses, and tries it on another provider.
        session = runtime.InferenceSession(file, options, providers=[provider], enable_fallback=0)
    except Exception as error:
        raise GeneralFailure(f"ONNX Runtime refuses the model: {error}") from error
    if provider not in session.get_providers():
        raise GeneralFailure(f"ONNX Runtime cannot use {provider} on this machine")
    return session


@functools.cache
def _saturates() -> bool:
    """Returns whether sums of products of bytes may saturate: on x86, unless it says it has VNNI.

    ONNX Runtime has exact kernels for these processors, which take more than twice as long.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            flags = file.read().split()
    except OSError:
        return True
    return "avx512_vnni" not in flags and "avx_vnni" not in flags
