"""What ran where, from the runtime's hooks and from what a driver's process tells."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from nnasync.cli.live.activity import Activity, Run
from nnasync.hal import Priority
from nnasync.tracing import Layer, Span


def task(name: str) -> Any:
    return SimpleNamespace(name=name, priority=Priority.LOW, ready_ns=0, launched_ns=0, active_ns=0)


def test_runs_are_told_once_with_their_lane_and_network() -> None:
    activity = Activity()
    activity.inline_run("words on openvino-cpu", 1, 2)
    activity.task_ran(task("load on cpu"), 3, 4, True)
    spans = [
        Span("detector on litert-cpu", "worker", 5, 6, layer=Layer.DRIVER),
        Span("copy inputs", "worker", 5, 6, layer=Layer.DRIVER),
        Span("detector on litert-cpu", "queue", 4, 5, layer=Layer.RUNTIME),
    ]
    activity.service_told([*spans, object()])
    first, second, third = activity.take()
    assert first == Run("event loop", "words", 1, 2)
    assert (second.network, second.start_ns, second.end_ns) == ("load", 3, 4)
    assert third == Run("driver process", "detector", 5, 6)
    assert activity.take() == []


def test_what_nobody_takes_is_bounded_and_counted() -> None:
    activity = Activity()
    for number in range(3000):
        activity.inline_run("words", number, number + 1)
    assert len(activity.take()) + activity.dropped == 3000
    assert activity.dropped > 0
