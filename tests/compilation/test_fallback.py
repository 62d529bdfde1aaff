"""Fallback: what the reference does for devices of a runtime that fail, and how it is told."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import nnasync as nn
from nnasync import errors, hal
from nnasync._core.compilation.choice import Choice, Part, pin_of
from nnasync._core.model import fingerprint
from nnasync.errors import DeviceDied, GeneralFailure
from nnasync.tracing.metrics import Durations, render
from tests.faulty import Faulty
from tests.rigs import (
    INLINE,
    POOL,
    REFERENCE,
    ROW,
    both,
    compiled,
    counter,
    doubler,
    runtime,
    total,
)

pytestmark = [
    pytest.mark.one_loop("What falls back is no matter of the loop: one will do."),
    pytest.mark.anyio,
    pytest.mark.usefixtures("no_leaks"),
]

ADD, MUL = nn.OperationType.ADD, nn.OperationType.MUL


def squared_double() -> nn.Model:
    """y = (2 x) squared: an ADD and a MUL."""
    builder = nn.ModelBuilder("squared")
    x = builder.input("x", (1, 4))
    double = builder.add(x, x)
    builder.output("y", builder.mul(double, double))
    return builder.build()


def broken() -> GeneralFailure:
    """A new error each time: one that is kept would keep what its traceback refers to."""
    return GeneralFailure("broken")


def adder() -> Faulty:
    return Faulty("adder", takes=lambda type: type == ADD)


def multiplier() -> Faulty:
    return Faulty("multiplier", takes=lambda type: type == MUL)


def told(net: nn.Net) -> list[tuple[str, tuple[int, ...], str, int]]:
    return [(f.device, f.operations, f.kind, f.count) for f in net.report().fallbacks]


# -- prepare


@pytest.mark.parametrize("budget_ms", [0, 20])
async def test_what_cannot_be_prepared_runs_on_the_reference(
    budget_ms: float, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Faulty()
    engine.compile_fault = lambda model: KeyError("no more")
    options = nn.Options(competition_budget_ms=budget_ms)
    async with runtime(engine, REFERENCE, options=options) as rt:
        net = await rt.compile(doubler())
        report = net.report()
        assert [(p.device, p.reason) for p in report.partitions] == [(REFERENCE, "fallback")]
        assert told(net) == [("faulty", (0,), "prepare", 1)]
        assert "no more" in report.fallbacks[0].reason
        assert "no more" in report.rejections[0].reason
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
    assert "prepare fallback" in caplog.text


async def test_an_error_stays_one_where_the_reference_is_not_among_the_devices() -> None:
    engine = Faulty()
    async with runtime(engine, REFERENCE) as rt:
        net = await rt.compile(doubler(), devices=["faulty"])
        engine.always(broken())
        with pytest.raises(GeneralFailure, match="broken"):
            await net(ROW)
        assert not net.report().fallbacks
        engine.compile_fault = lambda model: broken()
        with pytest.raises(GeneralFailure, match="broken"):
            await rt.compile(doubler("another"), devices=["faulty"])


# -- one device that has all of it


@both
async def test_a_failed_call_is_done_by_the_reference(options: nn.Options) -> None:
    engine = Faulty()
    async with runtime(engine, REFERENCE, options=options) as rt:
        net = await compiled(rt, doubler(), options)
        assert not net.report().fallbacks
        engine.always(broken())
        for _ in range(2):
            assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
        assert told(net) == [("faulty", (0,), "partial", 2)]
        assert net.report().fallbacks[0].reason == "broken"
        engine.heal()
        before = engine.runs
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
        assert engine.runs == before + 1


async def test_the_loop_does_not_run_the_reference_but_the_device_again_when_it_is_well() -> None:
    engine = Faulty()
    async with runtime(engine, REFERENCE, options=INLINE) as rt:
        net = await compiled(rt, doubler(), INLINE)
        engine.always(broken())
        before = rt.statistics().workers
        for _ in range(2):
            await net(ROW)
        during = rt.statistics().workers
        assert during.inline_runs == before.inline_runs
        assert during.worker_runs == before.worker_runs + 2
        engine.heal()
        await net(ROW)
        assert rt.statistics().workers.worker_runs == during.worker_runs + 1
        await net(ROW)
        assert rt.statistics().workers.inline_runs > during.inline_runs


@both
async def test_a_launch_and_its_chain_see_the_final_outcome_only(options: nn.Options) -> None:
    engine = Faulty()
    async with runtime(engine, REFERENCE, options=options) as rt:
        net = await compiled(rt, doubler(), options)
        engine.always(broken())
        first = await net.launch(ROW)
        second = await net.launch(first.outputs, wait_for=[first.fence], measure=True)
        assert (await second.result()).tolist() == [[4, 8, 12, 16]]
        assert first.fence.error is None
        assert (await second.info()).status == hal.ErrorStatus.NONE
        assert told(net) == [("faulty", (0,), "partial", 2)]


@both
async def test_the_state_of_a_burst_is_right_after_a_fallback(options: nn.Options) -> None:
    engine = Faulty()
    async with runtime(engine, REFERENCE, options=options) as rt:
        net = await compiled(rt, counter(), options)
        engine.runs = 0
        engine.fault = lambda number: broken() if number in (2, 3, 5) else None
        async with net.burst() as burst:
            for step in range(1, 7):
                assert (await burst(ROW)).tolist() == [[n * step for n in (1, 2, 3, 4)]]
                assert await total(burst) == [n * step for n in (1, 2, 3, 4)]
        assert told(net)[0][:3] == ("faulty", (0, 1), "partial")


async def test_open_shapes_fall_back_too() -> None:
    builder = nn.ModelBuilder("open")
    x = builder.input("x", (0, 1024))
    builder.output("y", builder.add(x, x))
    engine = Faulty()
    async with runtime(engine, REFERENCE) as rt:
        net = await rt.compile(builder.build())
        engine.always(broken())
        engine.bind_fault = broken()
        x_value = np.ones((3, 1024), np.float32)
        assert (await net(x_value) == 2).all()
        assert told(net)[0][2] == "partial"


@pytest.mark.parametrize(
    "kind",
    [
        errors.MissedDeadlineTransient,
        errors.ResourceExhaustedPersistent,
        errors.InvalidArgument,
        errors.OutputInsufficientSize,
    ],
)
async def test_other_errors_are_reported(kind: type[errors.NNError]) -> None:
    engine = Faulty()
    engine.fault = lambda number: kind("so it is")
    async with runtime(engine, REFERENCE) as rt:
        net = await rt.compile(doubler())
        with pytest.raises(kind, match="so it is"):
            await net(ROW)
        assert not net.report().fallbacks


async def test_what_closing_ends_does_not_fall_back(caplog: pytest.LogCaptureFixture) -> None:
    engine = Faulty()
    async with runtime(engine, REFERENCE) as rt:
        net = await rt.compile(doubler())
        engine.always(broken())
        await net.close()
        with pytest.raises(errors.BadState):
            await net(ROW)
    assert not caplog.records


# -- devices that share a model


async def test_a_failing_step_alone_is_done_by_the_reference() -> None:
    first, second = adder(), multiplier()
    async with runtime(first, second, REFERENCE, options=POOL) as rt:
        net = await shared(rt)
        second.always(broken())
        assert (await net(ROW)).tolist() == [[4, 16, 36, 64]]
        assert told(net) == [("multiplier", (1,), "partial", 1)]
        first.fault = lambda number: DeviceDied("gone")
        second.heal()
        before = second.runs
        assert (await net(ROW)).tolist() == [[4, 16, 36, 64]]
        assert told(net)[1:] == [("adder", (0,), "partial", 1)]
        assert second.runs == before + 1


async def test_where_the_step_fails_there_too_the_reference_runs_everything() -> None:
    first, second, reference = adder(), multiplier(), Faulty(REFERENCE)
    reference.compile_fault = lambda model: broken() if "step" in model.name else None
    async with runtime(first, second, reference, options=POOL) as rt:
        net = await shared(rt)
        second.always(DeviceDied("gone"))
        assert (await net(ROW)).tolist() == [[4, 16, 36, 64]]
        assert told(net) == [("adder+multiplier", (0, 1), "full", 1)]
        assert net.report().fallbacks[0].reason == "gone"


async def test_a_step_of_the_reference_that_fails_has_it_run_everything() -> None:
    first, reference = adder(), Faulty(REFERENCE)
    async with runtime(first, reference, options=POOL) as rt:
        net = await shared(rt, "adder", REFERENCE)
        reference.fault = lambda number: broken() if number == 1 else None
        assert (await net(ROW)).tolist() == [[4, 16, 36, 64]]
        assert [(kind, count) for _, _, kind, count in told(net)] == [("full", 1)]


async def test_nobody_is_left() -> None:
    first, second, reference = adder(), multiplier(), Faulty(REFERENCE)
    async with runtime(first, second, reference, options=POOL) as rt:
        net = await shared(rt)
        second.always(DeviceDied("gone"))
        reference.always(GeneralFailure("as well"))
        with pytest.raises(DeviceDied, match="gone"):
            await net(ROW)


async def shared(rt: nn.Runtime, *devices: str) -> nn.Net:
    """The model on two devices, an operation each."""
    model, names = squared_double(), devices or ("adder", "multiplier")
    choice = Choice(tuple(Part(name, "1") for name in names), ((0, 1), (1, 1)))
    net = await rt.compile(
        model, options=nn.CompileOptions(pin=pin_of(choice, fingerprint(model).hex()[:16]))
    )
    assert [p.device for p in net.report().partitions] == list(names)
    return net


# -- told


async def test_it_is_logged_counted_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    engine, durations = Faulty(), Durations()
    caplog.set_level(logging.DEBUG, "nnasync._core.compilation.fallback")
    async with nn.open_runtime(
        devices=[engine, REFERENCE], options=POOL, instruments=[durations]
    ) as rt:
        net = await rt.compile(doubler())
        engine.fault = lambda number: KeyError("a") if number < 3 else DeviceDied("b")
        for _ in range(4):
            await net(ROW)
        assert [(f.count, f.kind) for f in net.report().fallbacks] == [(2, "partial")] * 2
    levels = [record.levelno for record in caplog.records if "steps in for" in record.message]
    assert levels == [logging.WARNING, logging.DEBUG, logging.WARNING, logging.DEBUG]
    assert 'nnasync_fallbacks_total{device="faulty",kind="partial"} 4' in render(None, durations)


async def test_a_death_is_one_cause_however_it_was_noticed() -> None:
    """A message that could not be sent has an OSError behind it, an answer that fails has none."""

    def noticed(number: int) -> DeviceDied:
        error = DeviceDied("gone")
        error.__cause__ = [None, BrokenPipeError(32, "x"), ConnectionResetError(104, "y")][number]
        return error

    engine = Faulty()
    async with runtime(engine, REFERENCE) as rt:
        net = await rt.compile(doubler())
        engine.fault = lambda number: noticed(number % 3)
        for _ in range(3):
            await net(ROW)
        assert told(net) == [("faulty", (0,), "partial", 3)]
