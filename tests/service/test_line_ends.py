"""What a line makes of answers that are errors, and of bursts that end under it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from nnasync import errors
from nnasync.burst import BurstController
from nnasync.drivers.null import NullEngine
from nnasync.drivers.service.bursts import RemoteBurst
from nnasync.drivers.service.messages import CloseBurst
from nnasync.hal import DataLocation, Request, RequestArgument
from nnasync.memory import Pool
from tests import rigs
from tests.rigs import attempt, until
from tests.service.line_rig import (
    burst_threads,
    check,
    check_it_comes_back,
    check_over_the_line,
    controller_of,
    counted,
    is_taken,
    opened,
    prepared_by,
)
from tests.service.rig import Served, Slot, request_on, served

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("kind", [errors.InvalidArgument, errors.DeviceUnavailable])
async def test_what_a_device_answers_is_not_executed_again(kind: type[errors.NNError]) -> None:
    engine = NullEngine(compute=rigs.double)
    async with served(engine) as it:
        slot = Slot()
        prepared = await opened(it, slot)
        over_the_socket = counted(prepared)
        engine.fail("run", kind("not like that"))
        before = engine.counters.run
        with pytest.raises(kind, match="not like that"):
            await prepared.execute_synchronously(slot.request)
        assert engine.counters.run == before + 1
        assert over_the_socket == []
        engine.heal()
        await check_it_comes_back(it, prepared, slot)


def wrong_requests() -> list[Request]:
    pool = Pool.allocate(64)
    good = request_on(pool)
    (output,) = good.outputs
    return [
        Request((), good.outputs, (pool,)),
        Request((RequestArgument(location=DataLocation(0, 60, 16)),), good.outputs, (pool,)),
        Request((RequestArgument(location=DataLocation(7, 0, 16)),), good.outputs, (pool,)),
        Request((RequestArgument(location=DataLocation(0, 2**70, 16)),), (output,), (pool,)),
        Request(good.inputs, good.outputs, (pool, 0)),
        Request(good.inputs, good.outputs, (pool, -3)),
        Request(good.inputs, good.outputs, (12345, pool)),
        Request(good.inputs * 20_000, good.outputs, (pool,)),
    ]


@pytest.mark.parametrize("number", range(len(wrong_requests())))
async def test_a_wrong_request_is_refused_as_by_the_socket_and_once(number: int) -> None:
    async with served() as it:
        slot, wrong = Slot(), wrong_requests()[number]
        fresh = await prepared_by(it)
        with pytest.raises(errors.InvalidArgument) as expected:
            await fresh.execute_synchronously(wrong)
        prepared = await opened(it, slot)
        over_the_socket = counted(prepared)
        for _ in range(3):
            with pytest.raises(errors.InvalidArgument) as caught:
                await prepared.execute_synchronously(wrong)
            assert str(caught.value) == str(expected.value)
        is_too_large = len(wrong.inputs) > 1000
        assert over_the_socket == ([wrong] * 3 if is_too_large else [])
        controller = controller_of(prepared)
        assert controller is not None
        assert list(controller._memories.values()) == [slot.pool]
        await check_over_the_line(it, prepared, slot)


async def test_where_only_the_burst_ends_executions_go_on_and_open_another() -> None:
    async with served() as it:
        slot = Slot()
        prepared = await opened(it, slot)
        for _ in range(2):
            controller: Any = controller_of(prepared)
            it.device.link.send(CloseBurst(controller._context.number))
            await it.device.get_status()
            await check_it_comes_back(it, prepared, slot)
            assert controller_of(prepared) not in (None, controller)
        await until(lambda: len(burst_threads()) == 2)


def end_burst(it: Served, prepared: Any) -> BurstController:
    """Have the service end the burst of a line, and nothing else."""
    controller: Any = controller_of(prepared)
    it.device.link.send(CloseBurst(controller._context.number))
    assert isinstance(controller, BurstController)
    return controller


async def test_the_first_execution_after_the_end_of_a_burst_opens_another() -> None:
    async with served() as it:
        slot = Slot()
        prepared = await opened(it, slot)
        over_the_socket = counted(prepared)
        for _ in range(3):
            before = end_burst(it, prepared)
            await it.device.get_status()
            await check(prepared, slot)
            assert controller_of(prepared) not in (None, before)
            await check_over_the_line(it, prepared, slot)
        assert over_the_socket == []
        await until(lambda: len(burst_threads()) == 2)


async def test_what_was_under_way_when_a_burst_ended_goes_over_the_next_one() -> None:
    engine = rigs.gated()
    engine.gate.open(2)
    async with served(engine) as it, anyio.create_task_group() as group:
        slot = Slot()
        prepared = await opened(it, slot)
        over_the_socket = counted(prepared)
        call = await attempt(group, lambda: check(prepared, slot))
        await engine.when(lambda c: c.waiting == 1)
        before = end_burst(it, prepared)
        await until(lambda: controller_of(prepared) not in (None, before))
        engine.gate.open_wide()
        assert await call.failure() is None
        assert over_the_socket == []
        assert not is_taken(prepared)
        await check_over_the_line(it, prepared, slot)


async def test_what_loses_a_second_burst_fails() -> None:
    engine = rigs.gated()
    engine.gate.open(2)
    async with served(engine) as it, anyio.create_task_group() as group:
        slot = Slot()
        prepared = await opened(it, slot)
        over_the_socket = counted(prepared)
        call = await attempt(group, lambda: check(prepared, slot))
        await engine.when(lambda c: c.waiting == 1)
        before = end_burst(it, prepared)
        await until(lambda: controller_of(prepared) not in (None, before))
        again: Any = controller_of(prepared)
        await until(lambda: again._context.is_awaited)
        end_burst(it, prepared)
        error = await call.failure()
        assert isinstance(error, errors.DeviceUnavailable)
        assert "two bursts of served ended" in str(error)
        assert over_the_socket == []
        engine.gate.open_wide()
        await check_it_comes_back(it, prepared, slot)


async def test_what_may_have_overwritten_its_inputs_is_not_repeated() -> None:
    engine = rigs.gated()
    engine.gate.open(2)
    async with served(engine) as it, anyio.create_task_group() as group:
        slot = Slot()
        prepared = await opened(it, slot)
        (argument,) = slot.request.inputs
        in_place = Request((argument,), (argument,), (slot.pool,))
        call = await attempt(group, lambda: prepared.execute_synchronously(in_place))
        await engine.when(lambda c: c.waiting == 1)
        begun = engine.counters.run
        end_burst(it, prepared)
        error = await call.failure()
        assert isinstance(error, errors.DeviceUnavailable)
        assert "it is not repeated" in str(error)
        engine.gate.open_wide()
        await check_it_comes_back(it, prepared, Slot())
        assert engine.counters.run > begun


async def test_where_bursts_end_before_anything_is_sent_the_socket_serves(monkeypatch: Any) -> None:
    tried: list[int] = []

    def ended(burst: Any, serial: int, *_: Any) -> None:
        tried.append(serial)
        raise errors.DeviceDied("the queue is closed")

    async with served() as it:
        slot = Slot()
        prepared = await opened(it, slot)
        over_the_socket = counted(prepared)
        with monkeypatch.context() as patched:
            patched.setattr(RemoteBurst, "exchange", ended)
            for _ in range(5):
                await check(prepared, slot)
        assert len(tried) == 2
        assert len(over_the_socket) == 5
        await check_it_comes_back(it, prepared, slot)


async def test_a_late_answer_frees_no_line_that_another_has() -> None:
    async with served() as it:
        prepared = await opened(it, Slot())
        line: Any = prepared._line
        first = line._holder = object()
        second = line._holder = object()
        line._let_go(first)
        assert is_taken(prepared)
        line._let_go(second)
        assert not is_taken(prepared)
