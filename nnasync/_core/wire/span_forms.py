"""Trace records that a service sends to its client, and their checks.

A service may say anything: an answer is taken whole or not at all, has a bounded number of records
of bounded size, and tells of nothing that lies in the future. Times are nanoseconds of
CLOCK_MONOTONIC, which both processes share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

from msgspec import Meta

from nnasync._core.wire.messages import Message
from nnasync.errors import GeneralFailure
from nnasync.tracing import Layer, Phase
from nnasync.tracing.records import Arrival, Departure, Record, Span, TrackPlace

MOST_RECORDS = 256
"""Of one answer."""
_LONGEST = 200
_MOST_ARGUMENTS = 16
_LARGEST_PID = 1 << 22
_TOLERANCE_NS = 1_000_000_000
"""Of times that are a bit ahead of those here."""

_Text = Annotated[str, Meta(max_length=_LONGEST)]
_Records = Meta(max_length=MOST_RECORDS)


class SpanForm(Message):
    """A `tracing.Span` of the service."""

    name: _Text
    track: _Text
    start_ns: int
    end_ns: int
    args: Annotated[dict[_Text, bool | int | float | _Text], Meta(max_length=_MOST_ARGUMENTS)]
    layer: Layer
    phase: Phase
    is_concurrent: bool


class LaunchForm(Message):
    """Where and when a launched execution began, or signaled its fence."""

    launch: int
    track: _Text
    at_ns: int


class Spans(Message):
    """The answer to `Trace`: what was recorded since the last one.

    `dropped` records are missing because there were too many; `has_more` says that the next answer
    need not be waited for.
    """

    pid: int
    spans: Annotated[tuple[SpanForm, ...], _Records]
    begun: Annotated[tuple[LaunchForm, ...], _Records]
    signaled: Annotated[tuple[LaunchForm, ...], _Records]
    dropped: int
    has_more: bool


def form_of(span: Span) -> SpanForm:
    """Returns a span as it travels; texts that are too long are cut."""
    args = {
        name[:_LONGEST]: value if isinstance(value, int | float) else str(value)[:_LONGEST]
        for name, value in list(span.args.items())[:_MOST_ARGUMENTS]
    }
    return SpanForm(
        span.name[:_LONGEST],
        span.track[:_LONGEST],
        span.start_ns,
        span.end_ns,
        args,
        span.layer,
        span.phase,
        span.concurrent,
    )


def check(received: Spans, now_ns: int) -> None:
    """Raises GeneralFailure for spans that no service can have recorded."""
    if not 0 < received.pid <= _LARGEST_PID:
        raise GeneralFailure(f"a service says that it is process {received.pid}")
    if received.dropped < 0:
        raise GeneralFailure(f"a service says that it dropped {received.dropped} records")
    latest_ns = now_ns + _TOLERANCE_NS
    for span in received.spans:
        if not 0 <= span.start_ns <= span.end_ns <= latest_ns:
            raise GeneralFailure(
                f"a service tells of a span from {span.start_ns} to {span.end_ns} ns; it is "
                f"{now_ns} ns now"
            )
    for launch in (*received.begun, *received.signaled):
        if launch.launch <= 0 or not 0 <= launch.at_ns <= latest_ns:
            raise GeneralFailure(
                f"a service tells of launch {launch.launch} at {launch.at_ns} ns; it is "
                f"{now_ns} ns now"
            )


def records_of(received: Spans, device: str, since_ns: int, now_ns: int) -> Iterator[Record]:
    """Yields the spans of an answer as records of a timeline, from the start of tracing on.

    Raises GeneralFailure, before the first one, for an answer that cannot be right.
    """
    check(received, now_ns)
    return _spans(received, device, since_ns)


def _spans(received: Spans, device: str, since_ns: int) -> Iterator[Record]:
    for form in received.spans:
        yield Span(
            form.name,
            form.track,
            min(max(form.start_ns, since_ns), form.end_ns),
            form.end_ns,
            form.args,
            process=device,
            layer=form.layer,
            phase=form.phase,
            concurrent=form.is_concurrent,
            pid=received.pid,
        )
    if received.dropped:
        at_ns = max((form.end_ns for form in received.spans), default=since_ns)
        text = f"{received.dropped} records were dropped"
        yield Span(text, "trace", at_ns, at_ns, process=device, pid=received.pid)


def departures(forms: Iterable[LaunchForm], origin: str, place: TrackPlace) -> Iterator[Departure]:
    """Yields the signaled fences of launches; their names begin with `origin`."""
    for form in forms:
        where = TrackPlace(form.track, place.process, place.pid)
        yield Departure(f"{origin}{form.launch}", where, form.at_ns, form.at_ns + 1)


def arrivals(form: LaunchForm, fences: Iterable[str], place: TrackPlace) -> Iterator[Arrival]:
    """Yields the start of a launch, for each fence that it waited for."""
    for fence in fences:
        yield Arrival(fence, TrackPlace(form.track, place.process, place.pid), form.at_ns)
