"""Devices that take a part of a model each, and models in segments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.workers import StopFlag
from nnasync.errors import GeneralFailure, InvalidArgument
from tests.compilation.rig import (
    REFERENCE,
    FakeEngine,
    ManualClock,
    chain,
    competing,
    way,
)
from tests.compilation.rig import clock as clock
from tests.rigs import ROW, calculator

pytestmark = [
    pytest.mark.one_loop("Partitions are the same on every loop."),
    pytest.mark.anyio,
    pytest.mark.usefixtures("no_leaks"),
]

ADD, MUL = nn.OperationType.ADD, nn.OperationType.MUL


def adder(clock: ManualClock, **options: Any) -> FakeEngine:
    return FakeEngine("adder", clock, way(us=1, **options), takes=lambda type: type == ADD)


def multiplier(clock: ManualClock) -> FakeEngine:
    return FakeEngine("multiplier", clock, way(us=1), takes=lambda type: type == MUL)


def where(net: nn.Net) -> dict[int, str]:
    """The device of each operation."""
    return {
        index: partition.device
        for partition in net.report().partitions
        for index in partition.operations
    }


async def check(net: nn.Net) -> None:
    total, product = await net(ROW, ROW)
    assert total.tolist() == [[2, 4, 6, 8]]
    assert product.tolist() == [[1, 4, 9, 16]]


async def test_two_devices_that_each_take_a_part_share_a_model(clock: ManualClock) -> None:
    async with competing(adder(clock), multiplier(clock)) as rt:
        net = await rt.compile(calculator())
        assert where(net) == {0: "adder", 1: "multiplier"}
        assert {each.device for each in net.report().rejections} == {"adder", "multiplier"}
        await check(net)


async def test_they_share_it_without_any_measuring_too(clock: ManualClock) -> None:
    async with competing(adder(clock), multiplier(clock), budget_ms=0) as rt:
        net = await rt.compile(calculator())
        assert where(net) == {0: "adder", 1: "multiplier"}
        await check(net)


async def test_a_device_that_takes_all_needs_no_help(clock: ManualClock) -> None:
    async with competing(adder(clock), FakeEngine("slow", clock, way(us=100))) as rt:
        net = await rt.compile(calculator())
        assert set(where(net).values()) == {"slow"}


async def test_the_reference_takes_the_rest(clock: ManualClock) -> None:
    async with competing(adder(clock), REFERENCE) as rt:
        net = await rt.compile(calculator())
        lines = {each.device: each for each in net.report().candidates}
        shared = lines["adder+nnasync-reference"]
        assert shared.lowering == "f32, 1 thread + whole model; 2 steps"
        assert shared.agreement.startswith("max 0")
        # On this clock the reference takes no time at all.
        assert set(where(net).values()) == {REFERENCE}
        await check(net)


async def test_a_part_that_disagrees_is_not_taken(clock: ManualClock) -> None:
    async with competing(adder(clock, error=0.5), REFERENCE) as rt:
        net = await rt.compile(calculator())
        assert set(where(net).values()) == {REFERENCE}
        await check(net)


async def test_nobody_takes_all_of_it(clock: ManualClock) -> None:
    async with competing(adder(clock), REFERENCE) as rt:
        with pytest.raises(GeneralFailure, match="MUL is not supported"):
            await rt.compile(calculator(), devices=["adder"])


async def test_a_pin_reproduces_a_partition(clock: ManualClock) -> None:
    async with competing(adder(clock), multiplier(clock), REFERENCE) as rt:
        devices = ["adder", "multiplier"]
        first = await rt.compile(calculator(), devices=devices)
        pin = first.report().pin
        again = await rt.compile(calculator(), options=nn.CompileOptions(pin=pin))
        assert where(again) == where(first)
        assert again.report().pin == pin
        await check(again)
        with pytest.raises(InvalidArgument, match="multiplier"):
            await rt.compile(
                calculator(), options=nn.CompileOptions(pin=pin), devices=["adder", REFERENCE]
            )
        wrong = pin.replace("0x1,1x1", "1x1,0x1")
        assert wrong != pin
        with pytest.raises(InvalidArgument, match="not offered"):
            await rt.compile(calculator(), options=nn.CompileOptions(pin=wrong))


async def test_a_partition_is_remembered(clock: ManualClock) -> None:
    async with competing(adder(clock), multiplier(clock), REFERENCE) as rt:
        first = await rt.compile(calculator())
        measured = clock.now_ns
        again = await rt.compile(calculator())
        assert clock.now_ns == measured
        assert where(again) == where(first)
        await check(again)


# -- segments


def monolithic(clock: ManualClock, **options: Any) -> FakeEngine:
    """1 ms an operation."""
    return FakeEngine("engine", clock, way(us=1000, per_operation=True, **options))


def sizes(net: nn.Net) -> list[int]:
    return [len(partition.operations) for partition in net.report().partitions]


async def test_a_long_model_is_cut_into_segments(clock: ManualClock) -> None:
    async with competing(monolithic(clock)) as rt:
        net = await rt.compile(chain(12), options=nn.CompileOptions(preemption_quantum_ms=3))
        assert sum(sizes(net)) == 12
        assert max(sizes(net)) <= 3
        assert {each.device for each in net.report().partitions} == {"engine"}
        assert net.report().partitions[0].reason.startswith("segment of at most 3 ms")
        x = np.ones((1, 64), np.float32)
        assert (await net(x) == 13).all()


async def test_a_segment_that_is_too_long_is_cut_again(clock: ManualClock) -> None:
    class Uneven(FakeEngine):
        """The second half of the chain takes ten times as long."""

        def compile(self, model: Any, preference: Any, lowering: Any = None) -> Any:
            plan = super().compile(model, preference, lowering)
            late = sum(name.name == "late" for name in model.main.operands)
            plan.count = plan.count + 9 * late
            return plan

    builder = nn.ModelBuilder("uneven")
    x = value = builder.input("x", (1, 64))
    for index in range(12):
        value = builder.add(value, x, name="late" if index >= 6 else "early")
    builder.output("late", value)
    engine = Uneven("engine", clock, way(us=100, per_operation=True))
    async with competing(engine) as rt:
        net = await rt.compile(
            builder.build(), options=nn.CompileOptions(preemption_quantum_ms=2.2)
        )
        found = sizes(net)
        assert found[0] > found[-1]
        assert found[-1] <= 2


async def test_a_short_model_stays_whole(clock: ManualClock) -> None:
    async with competing(monolithic(clock)) as rt:
        net = await rt.compile(chain(12), options=nn.CompileOptions(preemption_quantum_ms=13))
        assert sizes(net) == [12]


async def test_who_can_stop_inside_a_run_needs_no_segments() -> None:
    async with competing(REFERENCE) as rt:
        net = await rt.compile(chain(12), options=nn.CompileOptions(preemption_quantum_ms=1e-6))
        assert sizes(net) == [12]


async def test_a_run_stops_between_segments(clock: ManualClock) -> None:
    engine = monolithic(clock)
    async with competing(engine) as rt:
        net = await rt.compile(
            chain(4), options=nn.CompileOptions(preemption_quantum_ms=1), priority=nn.Priority.LOW
        )
        assert sizes(net) == [1, 1, 1, 1]
        runs: list[int] = []

        def count(stop: StopFlag) -> None:
            runs.append(stop.raised)
            if len(runs) == 2:
                stop.abort()

        engine.before_run = count
        execution = await net.launch(np.ones((1, 64), np.float32))
        with pytest.raises(nn.NNError):
            await execution.fence
        assert len(runs) == 2


async def test_segments_that_are_refused_leave_the_model_whole(clock: ManualClock) -> None:
    engine = monolithic(clock)

    def refuse(lowering: object) -> None:
        if len(engine.compiled) > 1:
            raise RuntimeError("too small")

    engine.before_compile = refuse
    async with competing(engine) as rt:
        net = await rt.compile(chain(12), options=nn.CompileOptions(preemption_quantum_ms=3))
        assert sizes(net) == [12]
        assert "too small" in net.report().rejections[0].reason
        assert (await net(np.ones((1, 64), np.float32)) == 13).all()
