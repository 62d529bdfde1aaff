"""Traces as `nnasync.tracing.write_trace` writes them, read from files.

Files are hostile until they are read: they have a limited size, times that can be times of a
machine, and what is wrong about one is an InvalidArgument that names it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from nnasync.errors import InvalidArgument
from nnasync.hal import Struct

LARGEST_BYTES = 2**30
_LONGEST_US = 2**53

Microseconds = Annotated[float, msgspec.Meta(ge=-_LONGEST_US, le=_LONGEST_US)]


class Event(Struct):
    """What is read of an event of Chrome's trace format; `args` is JSON still."""

    ph: str
    name: str = ""
    cat: str = ""
    ts: Microseconds = 0.0
    dur: Microseconds = 0.0
    id: int | str = 0
    pid: int | str = 0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class TraceFile(Struct):
    """A file of events."""

    events: tuple[Event, ...] = msgspec.field(name="traceEvents")


def read(path: Path) -> tuple[Event, ...]:
    """The events of a file; raises InvalidArgument if it holds no trace."""
    if os.stat(path).st_size > LARGEST_BYTES:
        raise InvalidArgument(f"{path} is larger than {LARGEST_BYTES >> 20} MiB")
    try:
        return msgspec.json.decode(path.read_bytes(), type=TraceFile).events
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidArgument(f"{path} is no trace: {error}") from error


def spans_of(events: Iterable[Event]) -> Iterator[tuple[str, str, float]]:
    """Name, layer and phase, and nanoseconds of each span."""
    begun: dict[tuple[str, int | str], Event] = {}
    for event in events:
        if event.ph == "X":
            yield event.name, event.cat, event.dur * 1000
        elif event.ph == "b":
            begun[event.cat, event.id] = event
        elif event.ph == "e":
            start = begun.pop((event.cat, event.id), None)
            if start is not None:
                yield start.name, start.cat, (event.ts - start.ts) * 1000
