"""Metrics: text that Prometheus reads, of statistics and of durations."""

from __future__ import annotations

import math
import re
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync import errors
from nnasync.hal import Priority
from nnasync.scheduler import Scheduler, SchedulerStatistics
from nnasync.tracing import Count, Tracer, labeled
from nnasync.tracing.families import Family, Sample
from nnasync.tracing.histogram import BOUNDS_S
from nnasync.tracing.metrics import Clients, Durations, Processes, render
from tests.tracing.events import Task, answer, ran, start

SAMPLE = re.compile(
    r'[a-zA-Z_:][a-zA-Z0-9_:]*(\{([a-z]+="(?:[^"\\\n]|\\\\|\\"|\\n)*",?)+\})? (\S+)'
)


class Inner(msgspec.Struct, frozen=True):
    queued: Annotated[tuple[int, int], labeled("priority", "low", "high")]
    spent_ns: Count


class Outer(msgspec.Struct, frozen=True):
    threads: int
    submitted: Count
    inner: Inner


def values(text: str) -> dict[str, float]:
    """Samples by name and labels; every line is checked."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            assert SAMPLE.fullmatch(line), line
            name, _, value = line.rpartition(" ")
            assert name not in found
            found[name] = float(value)
    return found


def test_statistics_become_gauges_and_counters() -> None:
    text = render(Outer(3, 7, Inner((4, 5), 1_500_000_000)))
    assert values(text) == {
        "nnasync_threads": 3,
        "nnasync_submitted_total": 7,
        'nnasync_inner_queued{priority="low"}': 4,
        'nnasync_inner_queued{priority="high"}': 5,
        "nnasync_inner_spent_seconds_total": 1.5,
    }
    assert "# TYPE nnasync_threads gauge" in text
    assert "# TYPE nnasync_inner_spent_seconds_total counter" in text
    assert text.endswith("\n")


def test_durations_are_counted_by_network_device_and_lane() -> None:
    durations = Durations()
    tracer = Tracer([durations])
    task = Task("net on cpu", ready_ns=1_000, priority=Priority.LOW)
    start(tracer, task, 31_000)
    ran(tracer, task, 31_000, 3_031_000, finished=False)
    start(tracer, task, 900_000_000)
    ran(tracer, task, 900_000_000, 904_000_000)
    answer(tracer, task)
    answer(tracer, Task("net on cpu"), errors.MissedDeadlineTransient("late"))
    answer(tracer, Task("net on cpu"), errors.Cancelled("not wanted any more"))
    for hook in tracer.inline_run:
        hook("net on cpu", 0, 20_000)
    found = values(render(None, durations))
    labels = 'network="net",device="cpu"'
    worker = f'{{{labels},lane="worker"}}'
    assert found[f"nnasync_execution_seconds_sum{worker}"] == pytest.approx(0.007)
    assert found[f"nnasync_execution_seconds_count{worker}"] == 1
    assert found[f'nnasync_execution_seconds_count{{{labels},lane="inline"}}'] == 1
    assert found[f'nnasync_queue_seconds_count{{{labels},priority="low"}}'] == 1
    assert found[f'nnasync_queue_seconds_sum{{{labels},priority="low"}}'] == pytest.approx(3e-5)
    low = f'nnasync_answers_total{{{labels},priority="low",status='
    assert found[f'{low}"NONE"}}'] == 1
    missed = f'nnasync_answers_total{{{labels},priority="medium",status='
    assert found[f'{missed}"MISSED_DEADLINE_TRANSIENT"}}'] == 1
    assert found[f'{missed}"CANCELLED"}}'] == 1
    assert not any("GENERAL_FAILURE" in name for name in found)


@given(st.lists(st.floats(0, 100), max_size=30))
def test_buckets_count_what_is_at_most_their_bound(seconds: list[float]) -> None:
    durations = Durations()
    for each in seconds:
        durations.inline_run("net", 0, round(each * 1e9))
    found = values(render(None, durations))
    for bound in (*BOUNDS_S, math.inf) if seconds else ():
        label = "+Inf" if bound == math.inf else _text(bound)
        name = (
            'nnasync_execution_seconds_bucket{network="net",device="",lane="inline",'
            f'le="{label}"}}'
        )
        assert found[name] == sum(round(each * 1e9) * 1e-9 <= bound for each in seconds)


def _text(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else repr(bound)


def test_networks_without_end_do_not_fill_the_memory() -> None:
    durations = Durations(networks=2)
    for number in range(50):
        durations.inline_run(f"net {number} on cpu", 0, 10)
    counts = {
        name: value
        for name, value in values(render(None, durations)).items()
        if name.startswith("nnasync_execution_seconds_count")
    }
    assert sorted(counts.values()) == [1, 1, 48]
    assert len(durations._names) == 2
    with pytest.raises(errors.InvalidArgument):
        Durations(-1)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_any_name_is_a_label(name: str) -> None:
    class Names:
        def collect(self) -> list[Family]:
            return [Family("a", "gauge", "b", (Sample("", (("c", name),), 1.5),))]

    line = render(None, Names()).split("\n", 2)[2].removesuffix("\n")
    quoted = re.fullmatch(r'a\{c="((?:[^"\\\n]|\\\\|\\"|\\n)*)"\} 1\.5', line)
    assert quoted is not None
    plain = re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], quoted[1])
    assert plain == name


def test_processes_of_devices() -> None:
    class Device:
        def __init__(self, name: str, **pid: int) -> None:
            self.name = name
            vars(self).update(pid)

    class Runtime:
        devices = (Device("here"), Device("there", pid=77), Device("dead", pid=0))

    samples = [line for line in render(None, Processes(Runtime())).splitlines() if line[0] != "#"]
    assert samples == [
        'nnasync_device_up{device="there"} 1',
        'nnasync_device_up{device="dead"} 0',
        'nnasync_device_pid{device="there"} 77',
        'nnasync_device_pid{device="dead"} 0',
    ]
    Runtime.devices = (Device("here"), Device("too"), Device("three"))
    assert render(None, Processes(Runtime()), Processes(None)) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN"), (3, "3"), (0.5, "0.5")],
)
def test_numbers(value: float, text: str) -> None:
    class One:
        def collect(self) -> list[Family]:
            return [Family("a", "gauge", "b", (Sample("", (), value),))]

    assert render(None, One()).splitlines()[-1] == f"a {text}"


def test_clients_are_told_apart_by_their_connections() -> None:
    class Runtime:
        queue = Scheduler(servers=1, queue_limit=9)

        @property
        def workers(self) -> Runtime:
            return self

        def statistics(self) -> Runtime:
            return self

        @property
        def scheduler(self) -> SchedulerStatistics:
            return self.queue.statistics()

    runtime = Runtime()
    assert render(None, Clients(runtime), Clients(None)) == ""
    for _ in range(2):
        client = runtime.queue.open_client(queue_limit=9, name='process "5"')
        runtime.queue.spent(client, 2 * 10**9, runs=3)
    found = values(render(None, Clients(runtime)))
    labels = r'{client="process \"5\"",connection="2"}'
    assert found[f"nnasync_client_used_seconds_total{labels}"] == 2
    assert found[f"nnasync_client_runs_total{labels}"] == 3
    assert len(found) == 10
    for each in (1, 2):
        runtime.queue.close_client(each)
    assert render(None, Clients(runtime)) == ""
