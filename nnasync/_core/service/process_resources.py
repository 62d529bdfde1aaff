"""What a process asks of the system, and of its runtime, that does nothing but serve."""

from __future__ import annotations

import contextlib
import resource
from typing import Any

import msgspec

from nnasync._core.runtime import Options
from nnasync.errors import InvalidArgument


def options_of(settings: str) -> Options:
    """Returns the options of a runtime from their JSON; raises InvalidArgument."""
    try:
        return Options(**msgspec.json.decode(settings, type=dict[str, Any]))
    except (msgspec.MsgspecError, TypeError) as error:
        raise InvalidArgument(f"--settings: {error}") from error


def for_service(options: Options) -> Options:
    """Returns options for the runtime of a service: LOW work runs at the lowest OS priority.

    A thread that holds the interpreter lock and gets no core holds up all others of its process:
    the loop of an application, or work of higher priority in a service.
    """
    return msgspec.structs.replace(options, low_os_priority="alone")


def for_contests(options: Options) -> Options:
    """Returns options for a process that holds contests, so that it stays behind the application.

    The loop's thread computes short networks itself, and would be ahead of all other programs.
    """
    return msgspec.structs.replace(options, contest_process=False, real_time=False)


def limit_memory(limit_bytes: int | None) -> None:
    """Limits the private memory of this process for good; None limits nothing.

    Memory that it shares with others, and files that it only reads, do not count.
    """
    if limit_bytes is not None:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        most = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def most_descriptors() -> int:
    """Raises the limit of descriptors as far as is allowed, and returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
