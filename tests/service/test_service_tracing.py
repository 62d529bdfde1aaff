"""One trace over client and service: nobody is told who does not ask, and nothing is believed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import nnasync as nn
from nnasync._core.clock import now_ns
from nnasync._core.drivers.null import NullEngine
from nnasync._core.drivers.service import ServiceDevice, isolate
from nnasync._core.service.service_tracing import Recorder, Tracing
from nnasync._core.wire.messages import Trace, decode, encode
from nnasync._core.wire.span_forms import (
    MOST_RECORDS,
    LaunchForm,
    SpanForm,
    Spans,
    form_of,
    records_of,
)
from nnasync.burst import BurstController, LocalChannel, Outcome
from nnasync.cli import main
from nnasync.errors import DeviceDied, GeneralFailure, InvalidArgument
from nnasync.fences import Fence
from nnasync.tracing import Layer, Phase, Span, Timeline, Tracer, chrome_trace
from nnasync.tracing.metrics import Processes, render
from tests import rigs
from tests.service.rig import Served, Slot, served
from tests.tracing.events import faults

pytestmark = pytest.mark.anyio

starts_processes = pytest.mark.one_loop("The loop matters to both halves, which others have here.")

REFERENCE = rigs.REFERENCE
NOW_NS = 5_000_000_000


def recording(it: Served) -> bool:
    """Whether the service records."""
    return any(isinstance(each, Recorder) for each in it.runtime.tracer.instruments)


def observed(it: Served) -> tuple[Tracer, Timeline]:
    """A client that wants to know."""
    timeline = Timeline()
    tracer = Tracer([timeline])
    it.device.observe(tracer)
    return tracer, timeline


def runs(timeline: Timeline) -> list[Span]:
    """What ran in the service."""
    spans = [span for span in timeline.spans if span.pid and span.layer is Layer.DRIVER]
    return [span for span in spans if span.phase is Phase.EXECUTION]


# -- in one process


async def test_a_service_tells_while_somebody_looks() -> None:
    async with served(trusts=True) as it:
        prepared, slot = await it.device.prepare_model(rigs.doubler()), Slot()
        await prepared.execute(slot.request)
        assert not recording(it)
        tracer, timeline = observed(it)
        await it.device.get_status()
        assert recording(it)
        begun_ns = now_ns()
        await prepared.execute(slot.request)
        await rigs.until(lambda: runs(timeline) != [])
        (run,) = runs(timeline)
        assert (run.process, run.pid) == (it.device.name, os.getpid())
        assert run.name == f"doubler on {it.device.name}"
        assert begun_ns <= run.start_ns <= run.end_ns <= now_ns()
        tracer.remove(timeline)
        await rigs.until(lambda: not recording(it))
        await prepared.execute(slot.request)
        tracer.add(timeline)
        await rigs.until(lambda: recording(it))
        assert len(runs(timeline)) == 1


async def test_what_is_left_comes_before_the_end() -> None:
    async with served(trusts=True) as it:
        _, timeline = observed(it)
        prepared, slot = await it.device.prepare_model(rigs.doubler()), Slot()
        for _ in range(MOST_RECORDS):
            await prepared.execute(slot.request)
        await it.device.close()
        assert len(runs(timeline)) == MOST_RECORDS
        assert [s for s in timeline.spans if "dropped" in s.name] == []
        await rigs.until(lambda: not recording(it))


async def test_more_is_left_than_one_answer_takes() -> None:
    """All of it comes, answer by answer, also when recording is over."""
    async with rigs.runtime() as runtime:
        tracing = Tracing(runtime.devices[0], trusts=True)
        await tracing.asked(Trace(1, is_on=False))()
        on = tracing.asked(Trace(2, is_on=True))
        (recorder,) = [each for each in runtime.tracer.instruments if isinstance(each, Recorder)]
        for number in range(2 * MOST_RECORDS + 1):
            recorder.record("frame", "camera", number, number + 1)
        assert len((await on()).spans) == MOST_RECORDS
        first = await tracing.asked(Trace(3, is_on=False))()
        second = await tracing.asked(Trace(4, is_on=False))()
        assert (len(first.spans), first.has_more) == (MOST_RECORDS, True)
        assert (len(second.spans), second.has_more) == (1, False)
        assert runtime.tracer.instruments == ()


async def test_calls_are_seen_from_both_sides() -> None:
    async with served(trusts=True) as it:
        _, timeline = observed(it)
        prepared, slot = await it.device.prepare_model(rigs.doubler()), Slot()
        await prepared.execute(slot.request)
        await it.device.close()
    (ours,) = [span for span in timeline.spans if span.name == f"execute on {it.device.name}"]
    assert (ours.layer, ours.phase, ours.pid) == (Layer.IPC, Phase.EXECUTION, 0)
    (run,) = runs(timeline)
    assert ours.start_ns <= run.start_ns <= run.end_ns <= ours.end_ns
    (queued,) = [span for span in timeline.spans if span.track == "queue MEDIUM"]
    assert queued.pid == os.getpid()
    assert queued.end_ns <= run.start_ns


async def test_bursts_are_seen_from_both_sides() -> None:
    async with served(trusts=True) as it:
        _, timeline = observed(it)
        prepared, slot = await it.device.prepare_model(rigs.doubler()), Slot()
        requests, results = LocalChannel(), LocalChannel()
        controller = BurstController(requests, results)
        context = await prepared.configure_execution_burst(controller, requests, results)
        controller.attach(context)
        outcomes: list[Outcome] = []
        for number in range(1, 4):
            controller.send(controller.encode(slot.request), outcomes.append)
            await rigs.until(lambda number=number: len(outcomes) == number)  # type: ignore[misc]  # bound
        context.close()
        await it.device.close()
    calls = [span for span in timeline.spans if span.name == f"burst on {it.device.name}"]
    assert (len(calls), len(runs(timeline))) == (3, 3)


async def test_a_service_that_others_share_tells_nothing() -> None:
    async with served(trusts=False) as it:
        _, timeline = observed(it)
        prepared, slot = await it.device.prepare_model(rigs.doubler()), Slot()
        await prepared.execute(slot.request)
        assert not recording(it)
        with pytest.raises(InvalidArgument, match="share"):
            await it.device.link.call(lambda n: Trace(n, True))
        await it.device.close()
    assert [span for span in timeline.spans if span.pid] == []


async def test_an_instrument_that_does_not_care_changes_nothing() -> None:
    class Other(nn.tracing.Instrument):
        def task_ran(self, *_: Any) -> None:
            """Overridden: but of this process alone."""

    async with served(trusts=True) as it:
        it.device.observe(Tracer([Other()]))
        await it.device.get_status()
        assert not recording(it)


# -- fences


async def test_arrows_between_fences_of_two_processes() -> None:
    async with served(trusts=True) as it:
        _, timeline = observed(it)
        prepared, slots = await it.device.prepare_model(rigs.doubler()), [Slot() for _ in range(3)]
        begin = Fence()
        first = await prepared.execute_fenced(slots[0].request, [begin])
        second = await prepared.execute_fenced(slots[1].request, [first.fence])
        third = await prepared.execute_fenced(slots[2].request, [first.fence, second.fence])
        begin.signal()
        await third.fence
        await it.device.close()
    flows = sorted(timeline.flows, key=lambda flow: (flow.start_ns, flow.target_ns))
    assert [(flow.source.pid > 0, flow.target.pid > 0) for flow in flows] == [
        (False, True),
        (True, True),
        (True, True),
        (True, True),
    ]
    starts = sorted(span.start_ns for span in runs(timeline))
    assert [flow.target_ns for flow in flows] == [starts[0], starts[1], starts[2], starts[2]]
    assert all(flow.start_ns <= flow.target_ns for flow in flows)


class Early(Fence):
    """Signaled on its way out: whoever gets it need not wait."""

    def export_fd(self) -> int:
        fd = super().export_fd()
        self.signal()
        return fd


@rigs.both
async def test_an_arrow_from_a_fence_that_was_early(options: nn.Options) -> None:
    async with served(trusts=True, options=options) as it:
        prepared, slot = await it.device.prepare_model(rigs.doubler()), Slot()
        for _ in range(5):  # Its duration is known then, and it may run inline.
            await prepared.execute_synchronously(slot.request)

        async def launched() -> None:
            execution = await prepared.execute_fenced(slot.request, [Early()])
            await execution.fence

        if options is rigs.INLINE:
            await rigs.ran_inline(it.runtime, launched)
        _, timeline = observed(it)
        await launched()
        await it.device.close()
    (flow,) = timeline.flows
    (run,) = runs(timeline)
    assert (flow.source.pid, flow.target.pid) == (0, os.getpid())
    assert flow.start_ns <= flow.target_ns == run.start_ns
    assert ("inline" in run.args) == (options is rigs.INLINE)


@starts_processes
async def test_a_fence_of_a_service_releases_work_of_the_client() -> None:
    timeline = Timeline()
    async with nn.open_runtime(
        devices=[REFERENCE, NullEngine("gpu", compute=rigs.double)],
        isolate=[REFERENCE],
        instruments=[timeline],
        options=rigs.POOL,
    ) as runtime:
        one = await runtime.compile(rigs.doubler(), devices=[REFERENCE])
        two = await runtime.compile(rigs.doubler(), devices=["gpu"])
        begin = Fence()
        first = await one.launch(rigs.ROW, wait_for=[begin])
        second = await two.launch(first.outputs, wait_for=[first])
        begin.signal()
        assert (await second.result()).tolist() == (4 * rigs.ROW).tolist()
        device: Any = runtime.device(REFERENCE)
        pid = device.pid
        metrics = render(runtime.statistics(), Processes(runtime)).splitlines()
        assert f'nnasync_device_up{{device="{REFERENCE}"}} 1' in metrics
        assert f'nnasync_device_pid{{device="{REFERENCE}"}} {pid}' in metrics
    flows = sorted(timeline.flows, key=lambda flow: flow.start_ns)
    assert [(flow.source.pid, flow.target.pid) for flow in flows] == [(0, pid), (pid, 0)]
    events = chrome_trace(timeline.records)
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert faults(events) == []
    assert pid in names
    arrows = [(event["ph"], event["pid"] == pid) for event in events if event["ph"] in "sf"]
    assert sorted(arrows) == [("f", False), ("f", True), ("s", False), ("s", True)]
    (process,) = [
        event for event in events if event["name"] == "process_name" and event["pid"] == pid
    ]
    assert process["args"]["name"] == f"service of {REFERENCE}"


# -- processes


@starts_processes
async def test_tracing_goes_on_with_the_next_process() -> None:
    device, timeline = await isolate(REFERENCE), Timeline()
    device.observe(Tracer([timeline]))
    slot, pids = Slot(), []
    for _ in range(2):
        prepared = await prepared_again(device)
        await prepared.execute(slot.request)
        pids.append(device.pid)
        count = len(pids)
        await rigs.until(lambda count=count: len(runs(timeline)) == count)  # type: ignore[misc]  # bound
        if count == 1:
            os.kill(device.pid, signal.SIGKILL)
            await rigs.until(lambda: device.link.error is not None or device.pid != pids[0])
    await device.close()
    assert [span.pid for span in runs(timeline)] == pids
    assert pids[0] != pids[1]


@starts_processes
async def test_arrows_between_two_services() -> None:
    timeline, devices = Timeline(), [await isolate(REFERENCE) for _ in range(2)]
    tracer, slots, begin = Tracer([timeline]), [Slot(), Slot()], Fence()
    for device in devices:
        device.observe(tracer)
    one, two = [await device.prepare_model(rigs.doubler()) for device in devices]
    first = await one.execute_fenced(slots[0].request, [begin])
    second = await two.execute_fenced(slots[1].request, [first.fence])
    begin.signal()
    await second.fence
    pids = [device.pid for device in devices]
    for device in devices:
        await device.close()
    flows = sorted(timeline.flows, key=lambda flow: flow.start_ns)
    assert [(flow.source.pid, flow.target.pid) for flow in flows] == [(0, pids[0]), tuple(pids)]
    assert all(flow.start_ns <= flow.target_ns for flow in flows)
    assert faults(chrome_trace(timeline.records)) == []


async def prepared_again(device: ServiceDevice) -> Any:
    while True:
        try:
            return await device.prepare_model(rigs.doubler())
        except DeviceDied:
            continue


def test_a_trace_of_both_processes_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, trace = tmp_path / "doubler.nnm", tmp_path / "trace.json"
    nn.save(rigs.doubler(), model)
    assert main(["run", str(model), "--isolate", REFERENCE, "--trace", str(trace)]) == 0
    assert REFERENCE in capsys.readouterr().out
    events = json.loads(trace.read_text())["traceEvents"]
    assert faults(events) == []
    processes = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    pid = processes[f"service of {REFERENCE}"]
    assert pid != processes["nnasync"]
    ran = [e for e in events if e["pid"] == pid and e["cat" if "cat" in e else "ph"] != "M"]
    assert len([e for e in ran if e["ph"] == "X" and e.get("cat") == "driver,execution"]) == 11
    assert main(["trace", str(trace)]) == 0


# -- what a service says is checked


def spans(**changes: Any) -> Spans:
    form = SpanForm("run", "worker", 1, NOW_NS, {}, Layer.DRIVER, Phase.EXECUTION, False)
    told = Spans(77, (form,), (LaunchForm(3, "w", 5),), (LaunchForm(3, "w", 6),), 0, False)
    return msgspec.structs.replace(told, **changes)


def span(**changes: Any) -> dict[str, Any]:
    return {"spans": (msgspec.structs.replace(spans().spans[0], **changes),)}


LATER_NS = NOW_NS + 10**10


@pytest.mark.parametrize(
    "changes",
    [
        {"pid": 0},
        {"pid": -5},
        {"pid": 2**40},
        {"dropped": -1},
        span(start_ns=-1),
        span(end_ns=0),
        span(end_ns=LATER_NS),
        {"begun": (LaunchForm(0, "w", 1),)},
        {"begun": (LaunchForm(1, "w", -1),)},
        {"signaled": (LaunchForm(1, "w", LATER_NS),)},
    ],
)
def test_what_no_service_can_have_seen(changes: dict[str, Any]) -> None:
    assert len(list(records_of(spans(), "gpu", 0, NOW_NS))) == 1
    with pytest.raises(GeneralFailure, match="service"):
        records_of(spans(**changes), "gpu", 0, NOW_NS)


@pytest.mark.parametrize(
    "changes",
    [
        {"spans": spans().spans * (MOST_RECORDS + 1)},
        {"begun": spans().begun * (MOST_RECORDS + 1)},
        span(name="x" * 201),
        span(track="x" * 201),
        span(args={str(number): 1 for number in range(17)}),
        span(args={"x" * 201: 1}),
        span(args={"x": "y" * 201}),
        span(args={"x": [1]}),
        span(args={"x": {"y": 1}}),
        span(start_ns="soon"),
        span(layer="XX"),
    ],
)
def test_what_is_no_answer(changes: dict[str, Any]) -> None:
    assert decode(encode(spans()), Spans) == spans()
    with pytest.raises(GeneralFailure, match="decoded"):
        decode(encode(spans(**changes)), Spans)


def test_a_span_begins_when_tracing_did_at_the_earliest() -> None:
    told = spans(dropped=7)
    run, dropped = list(records_of(told, "gpu", 100, NOW_NS))
    assert isinstance(run, Span)
    assert (run.start_ns, run.end_ns) == (100, NOW_NS)
    assert isinstance(dropped, Span)
    assert dropped.name == "7 records were dropped"


def test_long_texts_are_cut_on_the_way() -> None:
    args = {"e" * 300: "x" * 300, **{str(number): number for number in range(30)}}
    form = form_of(Span("n" * 300, "t" * 300, 0, 1, args))
    assert decode(encode(spans(spans=(form,))), Spans).spans == (form,)
    assert len(form.args) == 16


def test_a_recorder_is_bounded_and_counts() -> None:
    recorder = Recorder(limit=300)
    for number in range(500):
        recorder.record("frame", "camera", number, number + 1)
    first, second = recorder.take(), recorder.take()
    assert (len(first.spans), first.dropped, first.has_more) == (MOST_RECORDS, 200, True)
    assert (len(second.spans), second.dropped, second.has_more) == (300 - MOST_RECORDS, 0, False)
    assert first.spans[0].start_ns == 200


def _garbage(message: Spans) -> Spans:
    return msgspec.structs.replace(message, pid=-1)


def _endless(message: Spans) -> Spans:
    form = SpanForm("x", "y", 2**62, 2**63, {}, Layer.DRIVER, Phase.EXECUTION, False)
    return msgspec.structs.replace(message, spans=(form,))


@pytest.mark.parametrize("spoil", [_garbage, _endless])
async def test_a_service_that_lies_is_not_listened_to(
    spoil: Callable[[Spans], Spans], monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Recorder.take
    monkeypatch.setattr(Recorder, "take", lambda self: spoil(take(self)))
    async with served(trusts=True) as it:
        _, timeline = observed(it)
        prepared, slot = await it.device.prepare_model(rigs.doubler()), Slot()
        await prepared.execute(slot.request)
        await rigs.until(lambda: not it.device.link.traces.is_on)
        await prepared.execute(slot.request)
        assert slot.y.tolist() == (2 * rigs.ROW).tolist()
    assert [span for span in timeline.spans if span.pid] == []


async def test_the_end_of_a_link_keeps_no_frames_alive() -> None:
    async with served(trusts=True) as it:
        observed(it)
        await it.device.get_status()
        link = it.device.link
        it.disconnect()
        await link.ended
        assert link.error is not None
        assert link.error.__traceback__ is None


async def test_a_device_without_workers_has_nothing_to_tell() -> None:
    tracing = Tracing(object(), trusts=True)  # type: ignore[arg-type]  # no device of ours
    told = await tracing.asked(Trace(1, False))()
    assert (told.spans, told.dropped, told.has_more) == ((), 0, False)
