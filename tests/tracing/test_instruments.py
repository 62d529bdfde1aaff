"""Instruments: only overridden hooks are called, and one that raises is removed."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

import pytest

from nnasync import errors
from nnasync.tracing import Instrument, Layer, Mark, Phase, Traced, Tracer, instruments
from tests.tracing.events import Task


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
    installed = {name: len(getattr(tracer, name)) for name in instruments._HOOKS}
    return {name: count for name, count in installed.items() if count}


def start(tracer: Tracer, begun_ns: int) -> None:
    for hook in tracer.task_started:
        hook(Task(), begun_ns)


def test_a_tracer_has_every_hook_and_installs_none() -> None:
    tracer = Tracer([Instrument()])
    assert set(instruments._HOOKS) == {
        name for name in Tracer.__slots__ if not name.startswith("_") and name != "instruments"
    }
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


def test_a_mark_is_reported_with_its_time_whatever_happens_inside() -> None:
    class Marks(Instrument):
        def __init__(self) -> None:
            self.seen: list[tuple[str, bool]] = []

        def marked(self, mark: Mark, begun_ns: int, ended_ns: int) -> None:
            self.seen.append((str(mark), 0 < begun_ns <= ended_ns))

    marks = Marks()
    tracer = Tracer()
    with tracer.mark(Layer.RUNTIME, Phase.COMPILATION, "unseen"):
        tracer.add(marks)
    with tracer.mark(Layer.RUNTIME, Phase.COMPILATION, "compile net"):
        pass
    with pytest.raises(ValueError, match="broken"), tracer.mark(Layer.CPU, Phase.RESULTS, ""):
        raise ValueError("broken")
    assert marks.seen == [("[NN_LR_PC]compile net", True), ("[NN_LC_PR]", True)]


def test_what_few_need_is_loaded_when_it_is_used() -> None:
    code = (
        "import sys, nnasync._core.workers; from nnasync import tracing\n"
        "late = {f'nnasync.tracing.{n}' for n in ('chrome', 'metrics', 'narrator', 'timeline')}\n"
        "print(sorted(late & set(sys.modules)))\n"
        "print([n for n in tracing.__all__ if not hasattr(tracing, n)], hasattr(tracing, 'nil'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[] False\n"
