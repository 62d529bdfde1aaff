"""Spans of OpenTelemetry: whose they are, what they say, and who their parents are."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import anyio
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import nnasync as nn
from nnasync.tracing.otel import SpanInstrument
from tests.rigs import GUARD_S, POOL, ROW, attempt, doubler, gated, runtime, set_free, until

pytestmark = pytest.mark.anyio


class Telescope:
    """An SDK that keeps what is exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("application")
        self.instrument = SpanInstrument(self.provider)

    @property
    def spans(self) -> dict[str, Any]:
        """The latest span of each name."""
        return {span.name: span for span in self._exporter.get_finished_spans()}


def is_below(child: ReadableSpan, parent: ReadableSpan) -> bool:
    assert child.context is not None
    assert parent.context is not None
    assert child.context.trace_id == parent.context.trace_id
    return child.parent is not None and child.parent.span_id == parent.context.span_id


async def test_an_execution_on_a_worker_is_below_who_called_it() -> None:
    seen = Telescope()
    async with runtime("nnasync-reference", options=POOL) as rt:
        rt.tracer.add(seen.instrument)
        net = await rt.compile(doubler())
        with seen.tracer.start_as_current_span("request"):
            await net(ROW, priority=nn.Priority.HIGH)
        await until(lambda: "execute doubler" in seen.spans)
    execution, request = seen.spans["execute doubler"], seen.spans["request"]
    assert is_below(execution, request)
    assert request.start_time <= execution.start_time <= execution.end_time <= request.end_time
    assert execution.attributes["nnasync.device"] == "nnasync-reference"
    assert execution.attributes["nnasync.priority"] == "HIGH"
    assert [event.name for event in execution.events] == ["started"]
    assert execution.status.status_code is StatusCode.UNSET
    assert seen.spans["compile doubler"].attributes["nnasync.network"] == "doubler"


async def test_calls_side_by_side_have_parents_of_their_own() -> None:
    seen = Telescope()
    async with runtime("nnasync-reference", options=POOL) as rt:
        rt.tracer.add(seen.instrument)
        nets = {name: await rt.compile(doubler(name)) for name in ("a", "b", "c")}

        async def request(name: str) -> None:
            with seen.tracer.start_as_current_span(f"request {name}"):
                await nets[name](ROW)

        async with anyio.create_task_group() as tasks:
            for name in nets:
                tasks.start_soon(request, name)
    for name in ("a", "b", "c"):
        assert is_below(seen.spans[f"execute {name}"], seen.spans[f"request {name}"])


async def test_an_execution_on_the_loop_is_below_who_called_it() -> None:
    seen = Telescope()
    options = nn.Options(cores=2, inline_budget_us=1e6, competition_budget_ms=0)
    async with runtime("nnasync-reference", options=options) as rt:
        net = await rt.compile(doubler())
        before = rt.statistics().workers.inline_runs
        while rt.statistics().workers.inline_runs < before + 3:
            await net(ROW)
        rt.tracer.add(seen.instrument)
        with seen.tracer.start_as_current_span("request"):
            await net(ROW)
    execution = seen.spans["execute doubler"]
    assert is_below(execution, seen.spans["request"])
    assert execution.attributes["nnasync.lane"] == "inline"


async def test_a_launch_behind_a_fence_is_below_who_launched_it() -> None:
    seen, fence = Telescope(), nn.Fence()
    async with runtime("nnasync-reference", options=POOL) as rt:
        rt.tracer.add(seen.instrument)
        net = await rt.compile(doubler())
        with seen.tracer.start_as_current_span("request"):
            execution = await net.launch(ROW, wait_for=[fence])
        with seen.tracer.start_as_current_span("another"):
            fence.signal()
        await execution.fence
        await until(lambda: "execute doubler" in seen.spans)
    assert is_below(seen.spans["execute doubler"], seen.spans["request"])


async def test_preemption_and_errors_are_told() -> None:
    seen, engine = Telescope(), gated(steps=2)
    options = nn.Options(cores=1, inline_budget_us=0, competition_budget_ms=0)
    async with runtime(engine, options=options) as rt:
        rt.tracer.add(seen.instrument)
        net = await rt.compile(doubler())
        slow = await rt.compile(doubler("slow"), priority=nn.Priority.LOW)
        async with anyio.create_task_group() as group:
            low = await attempt(group, lambda: slow(ROW))
            await engine.when(lambda counters: counters.waiting == 1)
            high = await attempt(group, lambda: net(ROW, priority=nn.Priority.HIGH))
            engine.gate.open_wide()
            await low.done.wait()
            await high.done.wait()
            await until(lambda: {"execute slow", "execute doubler"} <= set(seen.spans))
            events = [event.name for event in seen.spans["execute slow"].events]
            assert events == ["started", "preempted", "resumed"]
            engine.fail("run", nn.GeneralFailure("broken"))
            with pytest.raises(nn.GeneralFailure):
                await net(ROW)
        set_free(engine)
    failed = seen.spans["execute doubler"]
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.attributes["error.type"] == "GeneralFailure"


class Task:
    """What a hook reads of a task."""

    name, priority = "net on device", nn.Priority.LOW
    ready_ns = launched_ns = 5
    active_ns = 0


@pytest.mark.one_loop("hooks are plain functions")
async def test_a_worker_may_be_quicker_than_who_submits() -> None:
    seen, task = Telescope(), Task()
    seen.instrument.task_started(task, 6)
    seen.instrument.task_ran(task, 6, 7, True)
    seen.instrument.task_answered(task, None)
    assert seen.spans == {}
    with seen.tracer.start_as_current_span("request") as request:
        seen.instrument.task_submitted(task)
    span = seen.spans["execute net"]
    assert span.parent.span_id == request.get_span_context().span_id
    assert span.end_time - span.start_time < 10**6
    refused = Task()
    seen.instrument.task_answered(refused, nn.ResourceExhaustedTransient("full"))
    assert seen.spans["execute net"].attributes["error.type"] == "ResourceExhaustedTransient"


@pytest.mark.one_loop("what is matched does not depend on the loop")
async def test_runs_in_the_process_of_a_device_are_below_their_calls() -> None:
    seen = Telescope()
    options = nn.Options(competition_budget_ms=0, inline_budget_us=0)
    with anyio.fail_after(3 * GUARD_S):
        async with nn.open_runtime(
            devices=["nnasync-reference"],
            isolate=["nnasync-reference"],
            options=options,
            instruments=[seen.instrument],
        ) as rt:
            net = await rt.compile(doubler())
            pid = rt.device("nnasync-reference").pid  # type: ignore[attr-defined]
            with seen.tracer.start_as_current_span("request"):
                await net(ROW, deadline=nn.within(s=GUARD_S))
    spans = seen.spans
    call, run = spans["execute on nnasync-reference"], spans["run doubler"]
    assert is_below(call, spans["request"])
    assert is_below(run, call)
    assert is_below(spans["queue doubler"], call)
    assert run.attributes["process.pid"] == pid


def test_nothing_is_imported_without_being_asked_for() -> None:
    code = "import sys, nnasync.tracing, nnasync.asgi; print('opentelemetry' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"
