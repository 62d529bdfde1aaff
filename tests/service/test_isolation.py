"""Devices in processes of their own, which die, and what is left of them."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync import errors
from nnasync._core.drivers.service import child, isolate
from nnasync._core.wire.messages import GetStatus
from nnasync.conformance import CaseOutcome
from nnasync.conformance import Path as Way
from nnasync.conformance.case_lines import read_lines
from nnasync.conformance.cases import case_files, parse_case
from nnasync.conformance.hal_suite import SuitePlan
from nnasync.conformance.hal_suite.check import CheckVerdict
from nnasync.conformance.hal_suite.subjects import endless_loop
from nnasync.conformance.hal_suite.suite import run_suite
from nnasync.conformance.paths import CaseBuffers
from nnasync.conformance.runner import Runner
from nnasync.hal import ExecutionConfig
from tests import rigs
from tests.service import counted_driver
from tests.service.rig import Slot

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop("The loop matters to the halves, which have tests of their own."),
]

REFERENCE = rigs.REFERENCE
OPTIONS = nn.Options(cores=2, competition_budget_ms=0)


def kill(device: Any, how: signal.Signals = signal.SIGKILL) -> int:
    pid: int = device.pid
    os.kill(pid, how)
    return pid


async def test_an_isolated_driver_is_made_in_its_process_only() -> None:
    target = "tests.service.counted_driver:make"
    async with nn.open_runtime(devices=[target], isolate=[target], options=OPTIONS) as runtime:
        assert [device.name for device in runtime.devices] == ["counted"]
        net = await runtime.compile(rigs.doubler())
        await net(rigs.ROW)
        assert counted_driver.MADE == []
        await net.aclose()


async def test_a_runtime_with_an_isolated_device() -> None:
    async with nn.open_runtime(
        devices=[REFERENCE], isolate=[REFERENCE], options=OPTIONS
    ) as runtime:
        net = await runtime.compile(rigs.doubler())
        assert (await net(rigs.ROW)).tolist() == (2 * rigs.ROW).tolist()
        pid = kill(runtime.device(REFERENCE))
        with pytest.raises(errors.DeviceDied, match=REFERENCE):
            while True:
                await net(rigs.ROW)
        again = await runtime.compile(rigs.doubler())
        assert (await again(rigs.ROW)).tolist() == (2 * rigs.ROW).tolist()
        with pytest.raises(errors.DeviceDied):
            await net(rigs.ROW)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_what_is_pending_ends_with_the_service() -> None:
    device = await isolate(REFERENCE)
    case = endless_loop()
    prepared = await device.prepare_model(case.model)
    buffers = [CaseBuffers(case) for _ in range(3)]
    ends: list[type[BaseException]] = []

    async def run(each: CaseBuffers) -> None:
        try:
            await prepared.execute(each.request(), ExecutionConfig(loop_timeout_ns=15_000_000_000))
        except errors.NNError as error:
            ends.append(type(error))

    async with anyio.create_task_group() as tasks:
        for each in buffers:
            tasks.start_soon(run, each)
        launched = await prepared.execute_fenced(buffers[0].request())
        kill(device)
    assert ends == [errors.DeviceDied] * 3
    with pytest.raises(errors.DeviceDied):
        await launched.fence
    with pytest.raises(errors.DeviceDied):
        await device.get_supported_operations(case.model) and await prepared.execute(
            buffers[0].request()
        )
    for each in buffers:
        each.close()
    await device.close()


@pytest.mark.parametrize("round", range(4))
async def test_every_call_under_load_is_answered_once(round: int) -> None:
    device = await isolate(REFERENCE)
    prepared = await device.prepare_model(rigs.doubler())
    answers = {"done": 0, "died": 0}
    slots = [Slot() for _ in range(6)]

    async def run(slot: Slot) -> None:
        while True:
            try:
                await prepared.execute(slot.request)
            except errors.DeviceDied:
                answers["died"] += 1
                return
            answers["done"] += 1

    async with anyio.create_task_group() as tasks:
        for slot in slots:
            tasks.start_soon(run, slot)
        while answers["done"] < 20 * round:
            await anyio.lowlevel.checkpoint()
        kill(device)
    assert answers["died"] == len(slots)
    prepared = await device.prepare_model(rigs.doubler())
    await prepared.execute(slots[0].request)
    await device.close()


async def test_after_a_message_that_could_not_be_sent_the_next_service_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that dies closes its sockets a moment before the system says that it has ended."""
    device = await isolate(REFERENCE)
    session = await device._supervisor.connected()
    peer = session.link.peer
    monkeypatch.setattr(type(peer), "has_ended", property(lambda self: False))
    kill(device)
    with pytest.raises(errors.DeviceDied):
        while True:
            session.link.begin(GetStatus)
    prepared = await device.prepare_model(rigs.doubler())
    await prepared.execute(Slot().request)
    await device.close()


async def test_a_stopped_service_is_ended_with_its_device(
    monkeypatch: pytest.MonkeyPatch, deadlines: rigs.Deadlines
) -> None:
    monkeypatch.setattr(child, "_GRACE_S", 0.1)  # Grace is lost on what is stopped.
    device = await isolate(REFERENCE)
    prepared, slot = await device.prepare_model(rigs.doubler()), Slot()
    pid = kill(device, signal.SIGSTOP)
    error = await deadlines.missed(
        lambda deadline: prepared.execute(slot.request, ExecutionConfig(deadline_ns=deadline.at_ns))
    )
    assert isinstance(error, errors.MissedDeadlineTransient)
    assert "did not answer" in str(error)
    await device.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_service_that_does_not_start() -> None:
    with pytest.raises(errors.DeviceUnavailable, match="gpu"):
        await isolate("gpu")
    for devices, wanted in [([REFERENCE], ["null"]), ([REFERENCE], REFERENCE)]:
        with pytest.raises(errors.InvalidArgument, match="isolate"):
            async with nn.open_runtime(devices=devices, isolate=wanted):
                pass


async def test_a_chain_over_two_services() -> None:
    first, second = await isolate(REFERENCE), await isolate(REFERENCE)
    async with nn.open_runtime(devices=[first], options=OPTIONS) as runtime:
        one = await runtime.compile(rigs.doubler())
        prepared = await second.prepare_model(rigs.doubler())
        launched = await one.launch(rigs.ROW)
        region = launched.outputs[0]
        result = Slot()
        request = nn.hal.Request(
            (_at(0, region.offset),), (_at(1, 32),), (region.pool, result.pool)
        )
        chained = await prepared.execute_fenced(request, [launched.fence])
        await chained.fence
        assert result.y.tolist() == (4 * rigs.ROW).tolist()
    await second.close()


async def test_an_application_goes_on_where_the_reference_stands_by() -> None:
    if importlib.util.find_spec("ai_edge_litert") is None:
        pytest.skip("needs LiteRT")
    async with nn.open_runtime(
        devices=["litert-cpu", REFERENCE], isolate=["litert-cpu"], options=OPTIONS
    ) as runtime:
        net = await runtime.compile(rigs.doubler())
        assert net.report().partitions[0].device == "litert-cpu"
        await net(rigs.ROW)
        kill(runtime.device("litert-cpu"))
        for _ in range(5):
            assert (await net(rigs.ROW)).tolist() == (2 * rigs.ROW).tolist()


async def test_a_large_model_stays_off_the_socket() -> None:
    device = await isolate(REFERENCE)
    builder = nn.ModelBuilder("large")
    x = builder.input("x", (1, 64))
    weights = np.zeros((1 << 16, 64), np.float32)
    builder.output("y", builder.fully_connected(x, weights, np.zeros(1 << 16, np.float32)))
    prepared = await device.prepare_model(builder.build())
    assert device.link.connection.sent_bytes < 4096
    await prepared.close()
    await device.close()


async def test_conformance_cases(shared: Path) -> None:
    """One of every 400 cases over every path."""
    async with nn.open_runtime(
        devices=[REFERENCE], isolate=[REFERENCE], options=OPTIONS
    ) as runtime:
        runner = Runner(runtime, runtime.device(REFERENCE), paths=tuple(Way))
        results = [
            await runner.run(parse_case(line, path.name))
            for path in case_files(shared / "cts")
            for number, (_, line) in enumerate(read_lines(path))
            if number % 400 == 0
        ]
    assert len(results) > 10
    assert [each.name for each in results if each.outcome is not CaseOutcome.PASSED] == []


@pytest.mark.parametrize(
    "group",
    [
        "basics",
        "bursts",
        pytest.param("requests", marks=pytest.mark.slow),
        pytest.param("quality of service", marks=pytest.mark.slow),
        pytest.param("memory domains", marks=pytest.mark.slow),
    ],
)
async def test_the_hal_suite(group: str) -> None:
    results: list[Any] = []
    plan = SuitePlan(REFERENCE, only=group, every=100, rounds=1, isolate=True)
    await run_suite(plan, results.append)
    assert results
    assert [each for each in results if each.verdict is CheckVerdict.FAILED] == []


def _at(pool: int, offset: int) -> nn.hal.RequestArgument:
    return nn.hal.RequestArgument(location=nn.hal.DataLocation(pool, offset, 16))
