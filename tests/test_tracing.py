"""Instruments, and the timeline that becomes a trace file."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import pytest

from nnasync import errors, tracing
from nnasync.tracing import Instrument, Span, Timeline, Traced, Tracer, chrome_trace, write_trace


class Task:
    """What hooks know of a task."""

    def __init__(self, name: str = "net", launched_ns: int = 0, ready_ns: int = 0) -> None:
        self.name = name
        self.launched_ns = launched_ns
        self.ready_ns = ready_ns


class Starts(Instrument):
    """Overrides one hook."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def task_started(self, task: Traced, begun_ns: int) -> None:
        self.seen.append((task.name, begun_ns))


class Broken(Instrument):
    """Fails at its first event."""

    def loop_woken(self, at_ns: int, callbacks: int) -> None:
        raise ValueError("broken instrument")

    def task_started(self, task: Traced, begun_ns: int) -> None:
        raise ValueError("broken instrument")


def hooks_of(tracer: Tracer) -> dict[str, int]:
    installed = {name: len(getattr(tracer, name)) for name in tracing._HOOKS}
    return {name: count for name, count in installed.items() if count}


def start(tracer: Tracer, begun_ns: int) -> None:
    for hook in tracer.task_started:
        hook(Task(), begun_ns)


def test_a_tracer_has_every_hook_and_installs_none() -> None:
    tracer = Tracer([Instrument()])
    assert set(tracing._HOOKS) == {name for name in Tracer.__slots__ if not name.startswith("_")}
    assert hooks_of(tracer) == {}


def test_only_overridden_hooks_are_installed() -> None:
    first, second = Starts(), Starts()
    tracer = Tracer()
    tracer.add(first)
    tracer.add(Instrument())
    tracer.add(second)
    assert hooks_of(tracer) == {"task_started": 2}
    start(tracer, 5)
    assert first.seen == second.seen == [("net", 5)]
    assert tracer.remove(first)
    assert not tracer.remove(first)
    start(tracer, 6)
    assert len(first.seen) == 1
    assert len(second.seen) == 2


def test_an_instrument_is_installed_once() -> None:
    starts = Starts()
    tracer = Tracer([starts])
    with pytest.raises(errors.BadState):
        tracer.add(starts)
    assert tracer.instruments == (starts,)


def test_a_raising_instrument_is_removed_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    starts = Starts()
    tracer = Tracer([Broken(), starts])
    taken_before = tracer.task_started
    with caplog.at_level(logging.ERROR, logger="nnasync.tracing"):
        for _ in range(3):
            start(tracer, 5)
        for hook in taken_before:
            hook(Task(), 5)
    assert tracer.instruments == (starts,)
    assert hooks_of(tracer) == {"task_started": 1}
    assert len(starts.seen) == 4
    assert caplog.text.count("ValueError: broken instrument") == 1


def test_instruments_come_and_go_while_events_are_reported() -> None:
    tracer = Tracer()
    always = Starts()
    tracer.add(always)
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            passing = Starts()
            tracer.add(passing)
            tracer.remove(passing)

    thread = threading.Thread(target=change)
    thread.start()
    for i in range(2000):
        start(tracer, i)
    stop.set()
    thread.join()
    assert [seen[1] for seen in always.seen] == list(range(2000))
    assert tracer.instruments == (always,)


def test_a_timeline_records_runs_on_the_thread_that_ran_them() -> None:
    timeline = Timeline()
    tracer = Tracer([timeline])
    assert hooks_of(tracer) == {"task_ran": 1, "inline_run": 1, "loop_woken": 1}
    task = Task("net", launched_ns=1_000, ready_ns=2_000)

    def run(begun_ns: int, ended_ns: int, *, finished: bool) -> None:
        for hook in tracer.task_ran:
            hook(task, begun_ns, ended_ns, finished)

    run(3_000, 4_000, finished=False)
    thread = threading.Thread(target=lambda: run(9_000, 10_000, finished=True), name="worker 1")
    thread.start()
    thread.join()
    first, second = timeline.spans
    assert (first.track, first.start_ns, first.end_ns) == (
        threading.current_thread().name,
        3_000,
        4_000,
    )
    assert not first.args["finished"]
    assert (second.track, second.start_ns, second.end_ns) == ("worker 1", 9_000, 10_000)
    assert second.args["finished"]
    assert second.args["us_since_ready"] == 7.0
    assert second.args["us_since_launched"] == 8.0
    assert first.args["task"] == second.args["task"]


def test_a_timeline_records_inline_runs_and_wake_ups() -> None:
    timeline = Timeline()
    tracer = Tracer([timeline])
    for hook in tracer.inline_run:
        hook("net", 10, 20)
    for hook in tracer.loop_woken:
        hook(40, 2)
    inline, woken = timeline.spans
    assert (inline.name, inline.start_ns, inline.end_ns) == ("net", 10, 20)
    assert (woken.start_ns, woken.end_ns, woken.args) == (40, 40, {"callbacks": 2})


def test_a_timeline_keeps_the_latest() -> None:
    timeline = Timeline(limit=3)
    for i in range(5):
        timeline.record(str(i), "mine", i, i + 1, number=i)
    assert [span.name for span in timeline.spans] == ["2", "3", "4"]
    timeline.clear()
    assert timeline.spans == ()
    with pytest.raises(errors.InvalidArgument):
        Timeline(limit=0)


def test_a_trace_names_its_tracks_and_counts_microseconds() -> None:
    events = chrome_trace(
        [
            Span("a", "camera", 1_500, 4_000, {"frame": 1}),
            Span("b", "microphone", 2_000, 2_000),
            Span("c", "camera", 5_000, 6_000),
        ]
    )
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert sorted(names.values()) == ["camera", "microphone"]
    a, b, c = (event for event in events if event["ph"] != "M")
    assert (a["ph"], a["ts"], a["dur"], a["args"]) == ("X", 1.5, 2.5, {"frame": 1})
    assert (b["ph"], b["ts"]) == ("i", 2.0)
    assert names[a["tid"]] == names[c["tid"]] == "camera"
    assert names[b["tid"]] == "microphone"


def test_a_trace_file_is_json(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    spans = [Span("café", "camera", 0, 10, {"ok": True})]
    write_trace(path, spans)
    trace = json.loads(path.read_text(encoding="utf-8"))
    assert trace["traceEvents"] == chrome_trace(spans)
