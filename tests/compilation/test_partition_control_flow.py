"""Devices that share what is inside an IF or a WHILE."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync import hal
from nnasync._core.compilation.choice import Choice, Part, parse_pin, pin_of
from nnasync._core.compilation.partitioning import INTERPRETER_NAME
from nnasync.errors import GeneralFailure, InvalidArgument, MissedDeadlineTransient
from nnasync.hal import OperationType
from tests.compilation.rig import REFERENCE, FakeEngine, ManualClock, competing, way
from tests.compilation.rig import clock as clock
from tests.partition.control_flow_models import branching, counting
from tests.partition.models import row
from tests.validation.models import looping

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("no_leaks"),
    pytest.mark.filterwarnings("ignore:network .* was dropped:ResourceWarning"),
    pytest.mark.one_loop,
]

ADD, MUL, LESS = OperationType.ADD, OperationType.MUL, OperationType.LESS


def device(name: str, clock: ManualClock, *types: OperationType, **options: Any) -> FakeEngine:
    """It takes these operations; none of these knows IF or WHILE."""
    return FakeEngine(name, clock, way(us=1, **options), takes=lambda type: type in types)


def told(partitions: Iterable[nn._core.compilation.Partition]) -> list[Any]:
    """Device and operations of each step, with those of bodies."""
    return [
        (each.device, each.operations, *map(told, each.bodies))
        if each.bodies
        else (each.device, each.operations)
        for each in partitions
    ]


async def check(net: nn.Net) -> None:
    x = row()
    for which in (True, False):
        start = x + np.float32(0.5)
        expected = (start + start) * start + x if which else start * 3 * start + x
        assert (await net(np.array([which]), x)).tobytes() == expected.tobytes()


async def test_devices_share_a_branch(clock: ManualClock) -> None:
    async with competing(device("adder", clock, ADD), device("multiplier", clock, MUL)) as rt:
        net = await rt.compile(branching())
        assert told(net.report().partitions) == [
            ("adder", (0,)),
            (
                INTERPRETER_NAME,
                (1,),
                [("adder", (0,)), ("multiplier", (1,))],
                [("multiplier", (0, 1))],
            ),
            ("adder", (2,)),
        ]
        (line,) = [each for each in net.report().candidates if each.verdict == "chosen"]
        assert line.device == "adder+multiplier"
        assert line.lowering == "f32, 1 thread + f32, 1 thread; 6 steps"
        await check(net)


async def test_one_device_and_the_interpreter(clock: ManualClock) -> None:
    """Without the reference, so without any fallback."""
    async with competing(device("both", clock, ADD, MUL)) as rt:
        net = await rt.compile(branching())
        assert [each.device for each in net.report().partitions] == [
            "both",
            INTERPRETER_NAME,
            "both",
        ]
        await check(net)


async def test_the_reference_takes_the_rest_inside_too(clock: ManualClock) -> None:
    async with competing(device("multiplier", clock, MUL), REFERENCE) as rt:
        net = await rt.compile(branching())
        candidates = {each.device: each for each in net.report().candidates}
        shared = candidates[f"{REFERENCE}+multiplier"]
        assert shared.agreement.startswith("max 0")
        await check(net)


async def test_nobody_takes_an_operation_of_a_body(clock: ManualClock) -> None:
    async with competing(device("adder", clock, ADD), REFERENCE) as rt:
        with pytest.raises(GeneralFailure, match="IF is not supported"):
            await rt.compile(branching(), devices=["adder"])
        net = await rt.compile(branching(), devices=[REFERENCE])
        assert told(net.report().partitions) == [(REFERENCE, (0, 1, 2))]


async def test_sizes_that_are_not_known_stay_whole(clock: ManualClock) -> None:
    every = device("every", clock, ADD, LESS)
    async with competing(every, REFERENCE) as rt:
        with pytest.raises(GeneralFailure, match="WHILE is not supported"):
            await rt.compile(looping((0,)), devices=["every"])
        net = await rt.compile(looping((0,)))
        assert told(net.report().partitions) == [(REFERENCE, (0,))]


async def test_a_pin_and_a_verdict_reproduce_what_is_inside(clock: ManualClock) -> None:
    async with competing(
        device("adder", clock, ADD), device("multiplier", clock, MUL), REFERENCE
    ) as rt:
        wanted = ["adder", "multiplier"]
        first = await rt.compile(branching(), devices=wanted)
        partitions, pin = first.report().partitions, first.report().pin
        assert ":0x1,2x1,0x1;0=0x1,1x1;1=1x2:" in pin
        again = await rt.compile(branching(), options=nn.CompileOptions(pin=pin))
        assert told(again.report().partitions) == told(partitions)
        assert again.report().pin == pin
        await check(again)
        measured = clock.now_ns
        remembered = await rt.compile(branching(), devices=wanted)
        assert clock.now_ns == measured
        assert remembered.report().pin == pin
        for old, new in (
            (";1=1x2", ""),
            (";1=1x2", ";1=0x1,1x1"),
            (";1=1x2", ";1=1x3"),
            (";1=1x2", ";7=1x2"),
            ("0x1,2x1,0x1;", "2x1,0x2;"),
        ):
            assert old in pin
            with pytest.raises(InvalidArgument, match="pin"):
                await rt.compile(branching(), options=nn.CompileOptions(pin=pin.replace(old, new)))


async def test_a_loop_runs_in_steps_on_every_path(clock: ManualClock) -> None:
    async with competing(device("steps", clock, ADD, MUL, LESS), budget_ms=0) as rt:
        net = await rt.compile(counting(5))
        assert net.report().partitions[0].device == INTERPRETER_NAME
        wanted = await net(row())
        assert wanted[0].tolist() == [5]
        async with net.burst() as burst:
            for _ in range(3):
                assert [each.tobytes() for each in await burst(row())] == [
                    each.tobytes() for each in wanted
                ]
        with await net.launch(row()) as execution:
            assert [each.tobytes() for each in await execution.result()] == [
                each.tobytes() for each in wanted
            ]


async def test_an_endless_loop_times_out(clock: ManualClock) -> None:
    async with competing(device("steps", clock, ADD, MUL, LESS), budget_ms=0) as rt:
        net = await rt.compile(counting(float("inf")))
        late = pytest.raises(MissedDeadlineTransient, match=r"WHILE.*the loop took more")
        with await net.launch(row(), loop_timeout_s=1e-3) as execution, late:
            await execution.result()


async def test_a_loop_that_samples_never_end_is_compiled_all_the_same(clock: ManualClock) -> None:
    async with competing(device("steps", clock, ADD, MUL, LESS), REFERENCE) as rt:
        net = await rt.compile(counting(float("inf")))
        verdicts = [each.verdict for each in net.report().candidates]
        assert any("the loop took more than 0.5 s" in each for each in verdicts)
        assert told(net.report().partitions) == [(REFERENCE, (0,))]


async def test_a_step_inside_a_loop_that_fails_runs_on_the_reference(clock: ManualClock) -> None:
    engine = device("steps", clock, ADD, MUL, LESS)
    async with competing(engine, REFERENCE) as rt:
        healthy = await rt.compile(counting(5), devices=["steps"])
        wanted, pin = await healthy(row()), healthy.report().pin
        net = await rt.compile(counting(5), options=nn.CompileOptions(pin=pin))
        assert told(net.report().partitions) == told(healthy.report().partitions)

        def fail(stop: object) -> None:
            raise RuntimeError("loose contact")

        engine.before_run = fail
        assert [each.tobytes() for each in await net(row())] == [each.tobytes() for each in wanted]
        found = net.report().fallbacks
        assert {(each.device, each.operations, each.kind) for each in found} == {
            ("steps", (0,), "partial")
        }


# -- pins


async def test_pins_of_bodies_make_sense_or_are_refused() -> None:
    digest = "0123456789abcdef"
    one = (Part("a", "1"),)
    choice = Choice(one, ((1, 1),), ((0, ((0, 2), (1, 1))), (3, ((0, 1),))))
    pin = pin_of(choice, digest)
    assert pin == f"a:1:whole model:1:1x1;0=0x2,1x1;3=0x1:{digest}"
    assert parse_pin(pin, digest) == choice
    for layout in (
        "0x1;0=0x1",
        "2x1;0=0x1",
        "1x1",
        "1x1;0=",
        "1x1;0",
        "1x1;0=0x1;0=0x1",
        "1x1;x=0x1",
    ):
        with pytest.raises(InvalidArgument, match="pin"):
            parse_pin(f"a:1:f32:1:{layout}:{digest}", digest)


async def test_an_engine_that_fails_on_bodies_takes_none(clock: ManualClock) -> None:
    class Odd(FakeEngine):
        def supported_operations(self, model: hal.Model) -> list[bool]:
            if "subgraph" in model.name:
                raise RuntimeError("what is that")
            return super().supported_operations(model)

    odd = Odd("odd", clock, way(us=1), takes=lambda type: type == ADD)
    async with competing(odd, device("both", clock, ADD, MUL)) as rt:
        net = await rt.compile(branching())
        (inner,) = [each for each in net.report().partitions if each.bodies]
        assert {each.device for body in inner.bodies for each in body} == {"both"}
        await check(net)
