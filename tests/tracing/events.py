"""Tasks and fences as instruments see them, and what makes a trace well-formed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from nnasync.hal import Priority
from nnasync.tracing import Tracer


class Task:
    """What hooks know of a task."""

    def __init__(
        self,
        name: str = "net",
        launched_ns: int = 0,
        ready_ns: int = 0,
        priority: Priority = Priority.MEDIUM,
    ) -> None:
        self.name = name
        self.priority = priority
        self.launched_ns = launched_ns
        self.ready_ns = ready_ns
        self.active_ns = 0


def start(tracer: Tracer, task: Task, begun_ns: int) -> None:
    """Report that the current thread takes a task up."""
    for hook in tracer.task_started:
        hook(task, begun_ns)


def ran(tracer: Tracer, task: Task, begun_ns: int, ended_ns: int, *, finished: bool = True) -> None:
    """Report that the current thread ran a task."""
    task.active_ns += ended_ns - begun_ns
    for hook in tracer.task_ran:
        hook(task, begun_ns, ended_ns, finished)


def answer(tracer: Tracer, task: Task, error: Exception | None = None) -> None:
    """Report a task's answer."""
    for hook in tracer.task_answered:
        hook(task, error)


def faults(events: Sequence[dict[str, Any]]) -> list[str]:
    """What is wrong with trace events: unnamed tracks, lost ends, crossing or negative spans."""
    found = []
    names = [(e["name"], e["pid"], e["tid"]) for e in events if e["ph"] == "M"]
    threads = {name[1:] for name in names if name[0] == "thread_name"}
    processes = {name[1] for name in names if name[0] == "process_name"}
    for event in events:
        if event["ph"] == "M":
            continue
        if (event["pid"], event["tid"]) not in threads or event["pid"] not in processes:
            found.append(f"no name for the track of {event}")
        if event.get("dur", 1) <= 0:
            found.append(f"no duration: {event}")
    return [*found, *_unpaired(events, "s", "f"), *_unpaired(events, "b", "e"), *_crossing(events)]


def _unpaired(events: Sequence[dict[str, Any]], first: str, last: str) -> list[str]:
    begun = {e["id"]: e for e in events if e["ph"] == first}
    ended = {e["id"]: e for e in events if e["ph"] == last}
    counts = Counter(e["id"] for e in events if e["ph"] in (first, last))
    found = [f"{first} {number} has no {last}, or two" for number, n in counts.items() if n != 2]
    late = (number for number in begun.keys() & ended.keys())
    return found + [
        f"{first} {number} is after its end"
        for number in late
        if begun[number]["ts"] > ended[number]["ts"]
    ]


def _crossing(events: Sequence[dict[str, Any]]) -> list[str]:
    """Spans that overlap without being one inside the other, and arrows that touch no span."""
    found = []
    for track in {(e["pid"], e["tid"]) for e in events}:
        mine = [e for e in events if (e["pid"], e["tid"]) == track]
        spans = sorted((e["ts"], -e["dur"]) for e in mine if e["ph"] == "X")
        open_until: list[float] = []
        for start_us, minus_us in spans:
            while open_until and open_until[-1] <= start_us:
                open_until.pop()
            end_us = start_us - minus_us
            if open_until and end_us > open_until[-1] + 1e-6:
                found.append(f"spans cross at {start_us} on {track}")
            open_until.append(end_us)
        arrows = [e["ts"] for e in mine if e["ph"] in "sf"]
        touched = [any(ts <= at <= ts - dur for ts, dur in spans) for at in arrows]
        found += [
            f"an arrow at {at} touches no span"
            for at, yes in zip(arrows, touched, strict=True)
            if not yes
        ]
    return found
