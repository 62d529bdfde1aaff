"""What a timeline is made of: spans, and flows between them."""

from __future__ import annotations

from typing import Any

import msgspec

from nnasync import hal
from nnasync.tracing.marks import Layer, Phase


class TrackPlace(hal.Struct, frozen=True):
    """A track and the process it is of: a device's name, or empty for everything else.

    `pid` is that of a process of its own, 0 for what happens in this one.
    """

    track: str
    process: str = ""
    pid: int = 0


class Span(hal.Struct, frozen=True):
    """Something that took time on a track; one without duration is an event.

    On one track, spans are inside one another or apart, unless they are `concurrent`.
    """

    name: str
    track: str
    start_ns: int
    end_ns: int
    args: dict[str, Any] = msgspec.field(default_factory=dict)
    process: str = ""
    layer: Layer = Layer.OTHER
    phase: Phase = Phase.UNSPECIFIED
    concurrent: bool = False
    pid: int = 0


class Flow(hal.Struct, frozen=True):
    """A fence: where and when it was signaled, and the start that it released."""

    source: TrackPlace
    start_ns: int
    end_ns: int
    target: TrackPlace
    target_ns: int


class Departure(hal.Struct, frozen=True):
    """Where and when a fence that went to another process, or came from one, was signaled."""

    fence: str
    source: TrackPlace
    start_ns: int
    end_ns: int


class Arrival(hal.Struct, frozen=True):
    """A start that waited for such a fence."""

    fence: str
    target: TrackPlace
    target_ns: int


Record = Span | Flow | Departure | Arrival
