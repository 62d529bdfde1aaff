"""The OpenVINO package: imported when a plan needs it, one core for the process, typed errors."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, cast

from nnasync._core.engine_packages import imported, load_library
from nnasync._core.packages import version_of
from nnasync.errors import GeneralFailure
from nnasync.machine.facts import processor_flags

PACKAGE = "openvino"
_OPSET = "openvino.opset15"
_WIDE_BFLOAT16 = frozenset(("avx512f", "avx512bw", "avx512dq", "avx512vl"))
"""With these it has instructions for it, or imitates them."""
_NARROW_BFLOAT16 = frozenset(("avx_ne_convert", "avx_vnni_int8"))


@functools.cache
def module() -> Any:
    """The package itself, imported without its telemetry.

    That would fork this process at the import, to report it to somebody on the network, and while
    a large process is forked nothing else of it runs.
    """
    load_library(PACKAGE, "_pyopenvino")
    with _missing("openvino_telemetry"):
        return imported(PACKAGE)


def _part(name: str) -> Any:
    """A module of the package, which is imported first as it should be."""
    module()
    return importlib.import_module(name)


@contextlib.contextmanager
def _missing(name: str) -> Iterator[None]:
    """Let a package seem not to be installed, unless the application has imported it already."""
    modules = cast("dict[str, ModuleType | None]", sys.modules)
    if name in modules:
        yield
        return
    modules[name] = None
    try:
        yield
    finally:
        del modules[name]


@functools.cache
def opset() -> Any:
    """Functions that make the nodes of a graph."""
    return _part(_OPSET)


def element_type(name: str) -> Any:
    """A type of elements by its name, such as f32."""
    return getattr(module().Type, name)


@functools.cache
def request_type() -> Any:
    """The request without the layer in Python above it, which costs a microsecond or two."""
    return _part(f"{PACKAGE}._pyopenvino").InferRequest


@functools.cache
def core() -> Any:
    """The one core of this process."""
    return module().Core()


@functools.cache
def has_bfloat16() -> bool:
    """Returns whether OpenVINO computes in bfloat16 on this processor.

    Where the processor is one of x86 its flags tell, as they tell OpenVINO, and it is not imported.
    """
    flags = processor_flags()
    if flags:
        return flags.issuperset(_WIDE_BFLOAT16) or flags.issuperset(_NARROW_BFLOAT16)
    with faults("asking the processor"):
        return "BF16" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


@functools.cache
def version() -> str:
    """Version of the installed package; empty if there is none."""
    return version_of(PACKAGE) or ""


@contextlib.contextmanager
def faults(what: str) -> Iterator[None]:
    """Turn what the package raises into GeneralFailure with the package's own words."""
    try:
        yield
    except (RuntimeError, TypeError, ValueError) as error:
        raise GeneralFailure(f"OpenVINO failed {what}: {_error_text(error)}") from error


def _error_text(error: Exception) -> str:
    """The last line of a message that says something; those before are places in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
