"""A timeline of a runtime: chains, queues and bursts make a well-formed trace."""

from __future__ import annotations

import anyio
import pytest

import nnasync as nn
from nnasync._core.drivers.null import NullEngine
from nnasync.tracing import Timeline, chrome_trace
from tests.rigs import GUARD_S, POOL, ROW, double, doubler, free, gated, set_free
from tests.tracing.events import faults

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


async def test_a_chain_of_launches_is_tied_together_by_flows() -> None:
    engine = gated()
    timeline = Timeline()
    with anyio.fail_after(GUARD_S):
        async with nn.open_runtime(
            devices=[engine], options=POOL, instruments=[timeline]
        ) as runtime:
            net = await runtime.compile(doubler())
            last = await net.launch(ROW)
            for _ in range(3):
                last = await net.launch(last.outputs[0], wait_for=[last.fence])
            set_free(engine)
            result = await last.result()
            await free(runtime)
    assert result.tolist() == (ROW * 16).tolist()
    events = chrome_trace(timeline.records)
    assert faults(events) == []
    assert len(timeline.flows) == 3
    runs = sorted(span.start_ns for span in timeline.spans if "finished" in span.args)
    assert sorted(flow.target_ns for flow in timeline.flows) == runs[1:]
    assert {flow.target.process for flow in timeline.flows} == {"null"}


async def test_calls_and_a_burst_side_by_side() -> None:
    timeline = Timeline()
    with anyio.fail_after(GUARD_S):
        async with nn.open_runtime(
            devices=[NullEngine("null", compute=double)], options=POOL, instruments=[timeline]
        ) as runtime:
            low = await runtime.compile(doubler("low"), priority=nn.Priority.LOW)
            high = await runtime.compile(doubler("high"), priority=nn.Priority.HIGH)

            async def call(net: nn.Net) -> None:
                for _ in range(10):
                    await net(ROW)

            async def stream() -> None:
                async with high.burst() as burst, anyio.create_task_group() as calls:
                    for _ in range(8):
                        calls.start_soon(burst, ROW)

            async with anyio.create_task_group() as group:
                group.start_soon(call, low)
                group.start_soon(call, high)
                group.start_soon(stream)
            await free(runtime)
    events = chrome_trace(timeline.records)
    assert faults(events) == []
    runs = [span.name for span in timeline.spans if span.args.get("finished")]
    assert (runs.count("low on null"), runs.count("high on null")) == (10, 18)
    queued = [span for span in timeline.spans if span.track.startswith("queue ")]
    assert {span.track for span in queued} == {"queue LOW", "queue HIGH"}
