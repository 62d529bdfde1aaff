"""Traces in Chrome's JSON format, which Perfetto and chrome://tracing show."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from nnasync.tracing.marks import Layer, Mark
from nnasync.tracing.records import Flow, Span, TrackPlace

Event = dict[str, Any]


def chrome_trace(records: Iterable[Span | Flow]) -> list[Event]:
    """The records of a timeline as trace events: names of processes and threads, then by time.

    Devices become processes and tracks threads, numbered in order of appearance; the process of a
    device that is one has its own number. Times are microseconds. A flow is an arrow from a span of
    its own, "signal", to the start it released.
    """
    records = tuple(records)
    tracks = _Tracks({place.pid for record in records for place in _places(record)})
    events: list[Event] = []
    for number, record in enumerate(records, 1):
        if isinstance(record, Flow):
            events += _flow(record, number, tracks)
        else:
            events += _span(record, number, tracks)
    # What begins at once belongs inside what lasts longer, and an arrow after both.
    events.sort(key=lambda event: (event["ts"], -event.get("dur", 0.0), event["ph"] in "sf"))
    return [*tracks.names(), *events]


def write_trace(path: str | Path, records: Iterable[Span | Flow]) -> None:
    """Write the records to a JSON file that Perfetto opens; raises OSError as files do."""
    trace = {"traceEvents": chrome_trace(records), "displayTimeUnit": "ms"}
    Path(path).write_bytes(msgspec.json.encode(trace))


class _Tracks:
    """Numbers of processes and of threads."""

    def __init__(self, real: set[int]) -> None:
        """`real` are numbers of processes that are some; ours are others."""
        self._free = (number for number in itertools.count(1) if number not in real)
        self._processes: dict[tuple[str, int], int] = {("", 0): next(self._free)}
        self._threads: dict[TrackPlace, int] = {}

    def place(self, place: TrackPlace) -> Event:
        process = place.process, place.pid
        if process not in self._processes:
            self._processes[process] = place.pid or next(self._free)
        tid = self._threads.setdefault(place, len(self._threads) + 1)
        return {"pid": self._processes[process], "tid": tid}

    def names(self) -> list[Event]:
        used = {(place.process, place.pid) for place in self._threads}
        found = [
            _meta("process_name", number, 0, _process_name(*process))
            for process, number in self._processes.items()
            if process in used
        ]
        for place, tid in self._threads.items():
            number = self._processes[place.process, place.pid]
            found.append(_meta("thread_name", number, tid, place.track))
        return found


def _process_name(process: str, pid: int) -> str:
    if pid:
        return f"service of {process}"
    return f"device {process}" if process else "nnasync"


def _places(record: Span | Flow) -> tuple[TrackPlace, ...]:
    if isinstance(record, Flow):
        return record.source, record.target
    return (TrackPlace(record.track, record.process, record.pid),)


def _meta(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _span(span: Span, number: int, tracks: _Tracks) -> list[Event]:
    layer, phase = span.layer.name.lower(), span.phase.name.lower()
    event = tracks.place(*_places(span)) | {
        "name": span.name,
        "cat": f"{layer},{phase}",
        "ts": span.start_ns / 1000,
        "args": span.args,
    }
    if span.layer is not Layer.OTHER:
        mark = Mark(span.layer, span.phase, span.name)
        event["args"] = span.args | {"mark": str(mark)}
    if span.end_ns <= span.start_ns:
        return [event | {"ph": "i", "s": "t"}]
    if not span.concurrent:
        return [event | {"ph": "X", "dur": (span.end_ns - span.start_ns) / 1000}]
    event |= {"name": f"{span.track}: {span.name}", "id": number}
    return [event | {"ph": "b"}, event | {"ph": "e", "ts": span.end_ns / 1000, "args": {}}]


def _flow(flow: Flow, number: int, tracks: _Tracks) -> list[Event]:
    source, target = tracks.place(flow.source), tracks.place(flow.target)
    arrow = {"name": "fence", "cat": "fence", "id": number}
    start = {"ts": flow.start_ns / 1000}
    duration = (flow.end_ns - flow.start_ns) / 1000
    signal = {"name": "signal", "cat": "fence", "ph": "X", "dur": duration, "args": {}}
    return [
        source | start | signal,
        source | start | arrow | {"ph": "s"},
        target | arrow | {"ph": "f", "bp": "e", "ts": flow.target_ns / 1000},
    ]
