"""The timeline, and the trace that is made of it."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from nnasync import errors
from nnasync.fences import Fence
from nnasync.hal import Priority
from nnasync.tracing import (
    Flow,
    Layer,
    Phase,
    Span,
    Timeline,
    Tracer,
    chrome_trace,
    timeline,
    write_trace,
)
from nnasync.tracing.records import TrackPlace
from tests.tracing.events import Task, answer, faults, ran, start


def on_thread(name: str, work: object) -> None:
    thread = threading.Thread(target=work, name=name)  # type: ignore[arg-type]
    thread.start()
    thread.join()


def here() -> str:
    return threading.current_thread().name


def test_runs_are_on_the_thread_that_ran_them_in_the_process_of_their_device() -> None:
    kept = Timeline()
    tracer = Tracer([kept])
    task = Task("net on cpu", launched_ns=1_000, ready_ns=2_000)
    ran(tracer, task, 3_000, 4_000, finished=False)
    on_thread("worker 1", lambda: ran(tracer, task, 9_000, 10_000))
    first, second = kept.spans
    assert (first.track, first.start_ns, first.end_ns) == (here(), 3_000, 4_000)
    assert (first.process, first.layer, first.phase) == ("cpu", Layer.DRIVER, Phase.EXECUTION)
    assert not first.args["finished"]
    assert (second.track, second.start_ns, second.end_ns) == ("worker 1", 9_000, 10_000)
    assert second.args["finished"]
    assert second.args["us_since_ready"] == 7.0
    assert second.args["us_since_launched"] == 8.0
    assert first.args["task"] == second.args["task"]


def test_time_in_the_queue_is_recorded_and_again_after_a_preemption() -> None:
    kept = Timeline()
    tracer = Tracer([kept])
    task = Task("net on cpu", launched_ns=1_000, ready_ns=2_000, priority=Priority.LOW)
    start(tracer, task, 3_000)
    ran(tracer, task, 3_000, 4_000, finished=False)
    start(tracer, task, 9_000)
    ran(tracer, task, 9_000, 10_000)
    answer(tracer, task)
    queued = [span for span in kept.spans if span.concurrent]
    assert [(span.track, span.start_ns, span.end_ns) for span in queued] == [
        ("queue LOW", 2_000, 3_000),
        ("queue LOW", 4_000, 9_000),
    ]
    assert [span.args["resumed"] for span in queued] == [False, True]
    assert kept._waiting == {}


def test_a_fence_is_a_flow_from_its_signal_to_the_start_it_released() -> None:
    kept = Timeline()
    tracer = Tracer([kept])
    fence, failed = Fence(), Fence()
    waiting, doomed = Task("second on cpu"), Task("third on cpu")
    for task, waits_for in ((waiting, fence), (doomed, failed)):
        for hook in tracer.task_waits:
            hook(task, waits_for)

    def producer() -> None:
        first = Task("first on gpu")
        start(tracer, first, 10)
        ran(tracer, first, 10, 20)
        fence.signal()
        failed.fail(errors.GeneralFailure("no"))

    on_thread("worker 1", producer)
    answer(tracer, doomed, errors.GeneralFailure("no"))
    now = fence.signaled_at_ns + 1_000_000
    start(tracer, waiting, now)
    ran(tracer, waiting, now, now + 1_000)
    (flow,) = kept.flows
    assert flow.source == TrackPlace("worker 1", "gpu")
    assert flow.target == TrackPlace(here(), "cpu")
    assert fence.signaled_at_ns <= flow.start_ns < flow.end_ns
    assert flow.target_ns == now
    assert kept._waiting == {}
    assert [span.args["error"] for span in kept.spans if "error" in span.args] == ["no"]
    assert faults(chrome_trace(kept.records)) == []


def test_what_never_starts_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "_UNFINISHED", 3)
    kept = Timeline()
    tracer = Tracer([kept])
    tasks = [Task(launched_ns=number) for number in range(10)]
    for task in tasks:
        ran(tracer, task, 5, 6, finished=False)
    assert len(kept._waiting) == 3
    assert timeline._key(tasks[-1]) in kept._waiting


def test_inline_runs_and_wake_ups_are_recorded() -> None:
    kept = Timeline()
    tracer = Tracer([kept])
    for hook in tracer.inline_run:
        hook("net", 10, 20)
    for hook in tracer.loop_woken:
        hook(40, 2)
    inline, woken = kept.spans
    assert (inline.name, inline.start_ns, inline.end_ns) == ("net", 10, 20)
    assert (woken.start_ns, woken.end_ns, woken.args) == (40, 40, {"callbacks": 2})


def test_a_timeline_keeps_the_latest() -> None:
    kept = Timeline(limit=3)
    for i in range(5):
        kept.record(str(i), "mine", i, i + 1, number=i)
    assert [span.name for span in kept.spans] == ["2", "3", "4"]
    kept.clear()
    assert kept.spans == ()
    with pytest.raises(errors.InvalidArgument):
        Timeline(limit=0)


def test_a_trace_names_its_tracks_and_counts_microseconds() -> None:
    events = chrome_trace(
        [
            Span("a", "camera", 1_500, 4_000, {"frame": 1}),
            Span("b", "microphone", 2_000, 2_000),
            Span("c", "camera", 5_000, 6_000),
            Span("d", "worker", 5_000, 6_000, process="gpu"),
        ]
    )
    named = [event for event in events if event["ph"] == "M"]
    threads = {e["tid"]: e["args"]["name"] for e in named if e["name"] == "thread_name"}
    processes = {e["pid"]: e["args"]["name"] for e in named if e["name"] == "process_name"}
    assert sorted(threads.values()) == ["camera", "microphone", "worker"]
    a, b, c, d = (event for event in events if event["ph"] != "M")
    assert (a["ph"], a["ts"], a["dur"], a["args"]) == ("X", 1.5, 2.5, {"frame": 1})
    assert (b["ph"], b["ts"]) == ("i", 2.0)
    assert threads[a["tid"]] == threads[c["tid"]] == "camera"
    assert [processes[each["pid"]] for each in (a, d)] == ["nnasync", "device gpu"]
    assert faults(events) == []


def test_marks_and_queues_may_overlap() -> None:
    kept = Timeline()
    tracer = Tracer([kept])
    with (
        tracer.mark(Layer.APPLICATION, Phase.EXECUTION, "outer"),
        tracer.mark(Layer.APPLICATION, Phase.EXECUTION, "inner"),
    ):
        pass
    events = chrome_trace(kept.records)
    assert faults(events) == []
    begun = [event for event in events if event["ph"] == "b"]
    assert [event["args"]["mark"] for event in begun] == ["[NN_LA_PE]outer", "[NN_LA_PE]inner"]
    assert {event["cat"] for event in begun} == {"application,execution"}


@pytest.mark.parametrize(
    "records",
    [
        [Span("a", "t", 0, 10), Span("b", "t", 5, 15)],
        [Flow(TrackPlace("t"), 0, 1, TrackPlace("u"), 5)],
    ],
    ids=["crossing", "arrow to nowhere"],
)
def test_a_trace_that_is_not_well_formed_is_noticed(records: list[Span | Flow]) -> None:
    assert len(faults(chrome_trace(records))) == 1


def test_a_trace_file_is_json(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    spans = [Span("café", "camera", 0, 10, {"ok": True})]
    write_trace(path, spans)
    trace = json.loads(path.read_text(encoding="utf-8"))
    assert trace["traceEvents"] == chrome_trace(spans)
