"""Competition: the fastest device whose results agree with the reference gets the model."""

from __future__ import annotations

import functools
import itertools
import threading
from collections import Counter
from typing import Any

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.compilation import CompileSpec, compile_model, contest
from nnasync._core.compilation.samples import neighbors, samples_of
from nnasync.engine import StopFlag
from nnasync.errors import GeneralFailure
from tests.compilation.rig import (
    REFERENCE,
    FakeEngine,
    ManualClock,
    chain,
    competing,
    verdict_of,
    way,
)
from tests.compilation.rig import clock as clock
from tests.rigs import ROW, by_a_near_deadline, calculator, counter, doubler, until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.usefixtures("no_leaks"),
    pytest.mark.filterwarnings("ignore:network .* was dropped:ResourceWarning"),
]

PLENTY_MS = 60_000
"""A budget, of real time, with which the numbers of turns end contests."""


def won(net: nn.Net) -> tuple[str, str]:
    """Device and lowering of the winner, by the report."""
    (line,) = [each for each in net.report().candidates if each.verdict.startswith("chosen")]
    assert {partition.device for partition in net.report().partitions} <= set(
        line.device.split("+")
    )
    return line.device, line.lowering


@pytest.mark.parametrize("order", [("quick", "slow"), ("slow", "quick")])
async def test_the_fastest_wins_whatever_the_order(
    clock: ManualClock, order: tuple[str, ...]
) -> None:
    engines = {
        "quick": FakeEngine("quick", clock, way(us=100)),
        "slow": FakeEngine("slow", clock, way(us=150)),
    }
    async with competing(*(engines[name] for name in order)) as rt:
        net = await rt.compile(doubler())
        assert won(net) == ("quick", "f32, 1 thread")
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
        lines = {each.device: each for each in net.report().candidates}
        assert lines["quick"].median_us == 100
        assert lines["slow"].median_us == 150
        assert "1.50" in lines["slow"].verdict
        assert lines["slow"].agreement.startswith("max 0")
        assert net.report().partitions[0].reason == "fastest whose results agree"


async def test_who_disagrees_with_the_reference_does_not_win(clock: ManualClock) -> None:
    wrong = FakeEngine("wrong", clock, way(us=1, error=0.5))
    right = FakeEngine("right", clock, way(us=100))
    async with competing(wrong, right) as rt:
        net = await rt.compile(doubler())
        assert won(net)[0] == "right"
        assert verdict_of(net.report(), "wrong") == "disagrees with the reference"
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]


def ill_conditioned() -> nn.Model:
    """A network that makes a five-hundredth of the last bit of its inputs: large numbers cancel."""
    builder = nn.ModelBuilder("ill-conditioned")
    x = builder.input("x", (1, 64))
    large, larger = (builder.mul(x, np.full(1, each, np.float32)) for each in (30000, 30001))
    value = builder.sub(larger, large)
    for _ in range(30):
        value = builder.mul(value, np.ones(1, np.float32))
    builder.output("y", value)
    return builder.build()


@pytest.mark.parametrize(
    ("model", "error", "agrees"),
    [
        pytest.param(ill_conditioned(), 0.002, True, id="a rounding of that network"),
        pytest.param(ill_conditioned(), 0.03, False, id="three percent"),
        pytest.param(chain(33), 33 * 0.005, False, id="no rounding of another network"),
    ],
)
async def test_floats_may_be_as_far_as_the_last_bit_of_inputs_takes_them(
    clock: ManualClock, model: nn.Model, error: float, agrees: bool
) -> None:
    other = FakeEngine("other", clock, way(us=1, error=error))
    async with competing(other, FakeEngine("right", clock, way(us=100))) as rt:
        net = await rt.compile(model)
        assert (won(net)[0] == "other") is agrees
        assert (verdict_of(net.report(), "other") == "disagrees with the reference") is not agrees


async def test_neighbors_of_the_inputs_are_made_apart_from_the_loop(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of large pictures take long."""
    threads = list[int]()

    def noted(inputs: Any, seed: int) -> Any:
        threads.append(threading.get_ident())
        return neighbors(inputs, seed)

    monkeypatch.setattr(contest, "neighbors", noted)
    other = FakeEngine("other", clock, way(us=1, error=0.002))
    async with competing(other, FakeEngine("right", clock, way(us=100))) as rt:
        await rt.compile(ill_conditioned())
    assert threads
    assert threading.get_ident() not in threads


async def test_where_only_who_disagrees_is_allowed_the_report_says_so(clock: ManualClock) -> None:
    wrong = FakeEngine("wrong", clock, way("a", error=0.5), way("b", error=0.5))
    async with competing(wrong, REFERENCE) as rt:
        net = await rt.compile(doubler(), devices=["wrong"])
        assert won(net) == ("wrong", "a, 1 thread")
        assert "disagrees" in verdict_of(net.report(), "wrong", "a")


async def test_within_a_few_percent_the_order_decides(clock: ManualClock) -> None:
    a, b = FakeEngine("a", clock, way(us=102)), FakeEngine("b", clock, way(us=100))
    async with competing(a, b, REFERENCE) as rt:
        assert won(await rt.compile(doubler(), devices=["a", "b"]))[0] == "a"
        assert won(await rt.compile(doubler(), devices=["b", "a"]))[0] == "b"


async def test_who_is_quick_now_and_then_only_does_not_win(clock: ManualClock) -> None:
    fitful, steady = FakeEngine("fitful", clock, way(us=60)), FakeEngine("steady", clock, way())
    runs = itertools.count()

    def delay(stop: StopFlag) -> None:
        if next(runs) % 5 > 1:
            clock.run(80_000, 0)

    fitful.before_run = delay
    async with competing(fitful, steady, budget_ms=PLENTY_MS) as rt:
        assert won(await rt.compile(doubler()))[0] == "steady"


async def test_load_that_comes_and_goes_does_not_decide(clock: ManualClock) -> None:
    slow, quick = FakeEngine("slow", clock, way(us=120)), FakeEngine("quick", clock, way(us=100))

    def load(stop: StopFlag) -> None:
        if clock.now_ns // 11_000_000 % 5 < 3:
            clock.run(250_000, 0)

    slow.before_run = quick.before_run = load
    async with competing(slow, quick, budget_ms=PLENTY_MS) as rt:
        net = await rt.compile(doubler())
        assert won(net)[0] == "quick"
        assert "1.20" in verdict_of(net.report(), "slow")


def _counted(runs: Counter[str], name: str, stop: StopFlag) -> None:
    runs[name] += 1


async def test_who_is_far_behind_leaves_the_time_to_others(clock: ManualClock) -> None:
    engines = [
        FakeEngine("a", clock, way(us=100)),
        FakeEngine("b", clock, way(us=110)),
        FakeEngine("slower", clock, way(us=130)),
        FakeEngine("far", clock, way(us=150)),
    ]
    runs: Counter[str] = Counter()
    for engine in engines:
        engine.before_run = functools.partial(_counted, runs, engine.name)
    async with competing(*engines, budget_ms=PLENTY_MS) as rt:
        net = await rt.compile(doubler())
        assert won(net)[0] == "a"
        assert "1.50" in verdict_of(net.report(), "far")
    assert 3 * runs["far"] < runs["slower"]
    assert runs["slower"] < runs["b"]


async def test_lowerings_of_one_device_compete(clock: ManualClock) -> None:
    engine = FakeEngine("engine", clock, way("f32", us=200), way("int8", us=120))
    async with competing(engine) as rt:
        net = await rt.compile(doubler())
        assert won(net) == ("engine", "int8, 1 thread")
        assert engine.compiled == ["f32*1", "int8*1"]


async def test_more_threads_are_tried_for_who_is_close_only(clock: ManualClock) -> None:
    near = FakeEngine("near", clock, way(threads=2, us=600), way(us=1000))
    far = FakeEngine("far", clock, way(threads=2, us=100), way(us=1600))
    async with competing(near, far) as rt:
        net = await rt.compile(doubler())
        assert won(net) == ("near", "f32, 2 threads")
        assert far.compiled == ["f32*1"]
        assert verdict_of(net.report(), "far", "f32, 2").startswith("not tried")


async def test_more_threads_are_not_woken_for_short_runs(clock: ManualClock) -> None:
    engine = FakeEngine("engine", clock, way(threads=2, us=30), way(us=90))
    async with competing(engine) as rt:
        net = await rt.compile(doubler())
        assert won(net) == ("engine", "f32, 1 thread")
        assert engine.compiled == ["f32*1"]


async def test_a_wide_winner_runs_narrow_beside_others(clock: ManualClock) -> None:
    engine = FakeEngine("engine", clock, way(threads=2, us=60_000), way(us=100_000))
    async with competing(engine) as rt:
        net = await rt.compile(doubler())
        assert won(net) == ("engine", "f32, 2 threads")
        running, let_go = threading.Semaphore(0), threading.Event()

        def hang(stop: StopFlag) -> None:
            running.release()
            let_go.wait()

        clock.now_ns = 0
        engine.before_run = hang
        first = await net.launch(ROW)
        await until(lambda: running.acquire(blocking=False))
        second = await net.launch(ROW)
        await until(lambda: running.acquire(blocking=False))
        let_go.set()
        await first.fence
        await second.fence
        assert clock.now_ns == 160_000_000
        again = await rt.compile(doubler(), options=nn.CompileOptions(pin=net.report().pin))
        assert (await again(ROW)).tolist() == [[2, 4, 6, 8]]


async def test_as_fast_with_one_thread_is_better_than_with_two(clock: ManualClock) -> None:
    engine = FakeEngine("engine", clock, way(threads=2, us=100), way(us=100))
    async with competing(engine) as rt:
        assert won(await rt.compile(doubler())) == ("engine", "f32, 1 thread")


@pytest.mark.parametrize("preference", [nn.Preference.SUSTAINED_SPEED, nn.Preference.LOW_POWER])
async def test_other_preferences_take_one_thread(
    clock: ManualClock, preference: nn.Preference
) -> None:
    engine = FakeEngine("engine", clock, way(threads=2, us=10), way(us=100), way("other", us=200))
    async with competing(engine) as rt:
        net = await rt.compile(doubler(), preference=preference)
        assert won(net) == ("engine", "f32, 1 thread")


async def test_low_power_counts_processor_time(clock: ManualClock) -> None:
    hungry = FakeEngine("hungry", clock, way(us=100, cpu_us=400))
    frugal = FakeEngine("frugal", clock, way(us=150, cpu_us=150))
    async with competing(hungry, frugal) as rt:
        fast = await rt.compile(doubler())
        saving = await rt.compile(doubler(), preference=nn.Preference.LOW_POWER)
        assert (won(fast)[0], won(saving)[0]) == ("hungry", "frugal")
        assert saving.report().candidates[0].cpu_us == 400


async def test_who_fails_in_a_trial_does_not_win(clock: ManualClock) -> None:
    broken = FakeEngine("broken", clock, way(us=1, fault=RuntimeError("overheated")))
    async with competing(broken, FakeEngine("whole", clock, way(us=50))) as rt:
        net = await rt.compile(doubler())
        assert won(net)[0] == "whole"
        assert "overheated" in verdict_of(net.report(), "broken")
        assert any("overheated" in each.reason for each in net.report().rejections)


async def test_who_refuses_the_model_does_not_compete(clock: ManualClock) -> None:
    picky = FakeEngine("picky", clock, way(us=1, compile_fault=GeneralFailure("no such thing")))
    others = [FakeEngine(name, clock, way(us=50)) for name in ("a", "b")]
    async with competing(picky, *others) as rt:
        net = await rt.compile(doubler())
        assert won(net)[0] == "a"
        assert "no such thing" in net.report().rejections[0].reason


async def test_a_single_contender_is_not_measured(clock: ManualClock) -> None:
    engine = FakeEngine("engine", clock, way(us=100))
    async with competing(engine, REFERENCE) as rt:
        net = await rt.compile(doubler(), devices=["engine"])
        assert clock.now_ns == 0
        assert net.report().candidates[0].agreement == "not measured"


async def test_a_budget_of_zero_takes_the_first(clock: ManualClock) -> None:
    a, b = FakeEngine("a", clock, way(us=100)), FakeEngine("b", clock, way(us=10))
    async with competing(a, b, budget_ms=0) as rt:
        assert won(await rt.compile(doubler()))[0] == "a"
        assert b.compiled == []


async def test_open_shapes_are_not_measured(clock: ManualClock) -> None:
    builder = nn.ModelBuilder("open")
    x = builder.input("x", (0, 4))
    builder.output("y", builder.add(x, x))
    async with competing(FakeEngine("a", clock, way(us=9)), FakeEngine("b", clock)) as rt:
        net = await rt.compile(builder.build())
        assert won(net)[0] == "a"
        assert clock.now_ns == 0
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]


async def test_losers_are_given_back(clock: ManualClock) -> None:
    winner = FakeEngine("winner", clock, way(us=10))
    loser = FakeEngine("loser", clock, way("a", us=20), way("b", us=30))
    async with competing(winner, loser) as rt:
        net = await rt.compile(doubler())
        assert (len(winner.plans), len(loser.plans)) == (1, 0)
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]


async def test_states_compete_from_zero(clock: ManualClock) -> None:
    engine = FakeEngine("engine", clock, way("a", us=20), way("b", us=10))
    async with competing(engine) as rt:
        net = await rt.compile(counter())
        assert won(net) == ("engine", "b, 1 thread")
        async with net.burst() as burst:
            assert (await burst(ROW)).tolist() == [[1, 2, 3, 4]]
            assert (await burst(ROW)).tolist() == [[2, 4, 6, 8]]


# -- what the application allows


async def test_reduced_precision_only_by_permission(clock: ManualClock) -> None:
    engine = FakeEngine(
        "engine", clock, way(us=100), way("bf16", us=10, error=1e-3, reduces_precision=True)
    )
    async with competing(engine, REFERENCE) as rt:
        strict = await rt.compile(doubler(), devices=["engine"])
        assert won(strict) == ("engine", "f32, 1 thread")
        assert "not allowed" in verdict_of(strict.report(), "engine", "bf16")
        allowed = await rt.compile(doubler(), devices=["engine"], precision="bf16")
        assert won(allowed) == ("engine", "bf16, 1 thread")


@pytest.mark.parametrize(("error", "winner"), [(1e-3, "bf16"), (1e-2, "f32")])
async def test_a_relaxed_model_allows_it_within_its_tolerance(
    clock: ManualClock, error: float, winner: str
) -> None:
    builder = nn.ModelBuilder("relaxed", relaxed=True)
    x = builder.input("x", (1, 4))
    builder.output("y", builder.add(x, x))
    engine = FakeEngine(
        "engine", clock, way(us=100), way("bf16", us=10, error=error, reduces_precision=True)
    )
    async with competing(engine, REFERENCE) as rt:
        net = await rt.compile(builder.build(), devices=["engine"])
        assert won(net) == ("engine", f"{winner}, 1 thread")


async def test_exact_allows_what_is_bit_stable(clock: ManualClock) -> None:
    engine = FakeEngine("engine", clock, way(us=10), way("exact", us=100, is_exact=True))
    async with competing(engine, FakeEngine("loose", clock, way(us=1))) as rt:
        net = await rt.compile(doubler(), precision="exact")
        assert won(net) == ("engine", "exact, 1 thread")
        with pytest.raises(GeneralFailure, match="exact"):
            await rt.compile(doubler(), precision="exact", devices=["loose"])


# -- deadlines and hangs


async def test_who_hangs_is_given_up(clock: ManualClock) -> None:
    let_go = threading.Event()
    hanging = FakeEngine("hanging", clock, way(us=1))
    hanging.before_run = lambda stop: let_go.wait()
    async with competing(hanging, FakeEngine("sound", clock), REFERENCE) as rt:
        try:
            compilation = await compile_model(
                CompileSpec(
                    source=doubler(),
                    fingerprint=bytes(32),
                    devices=rt.devices,
                    patience_s=0.05,
                )
            )
        finally:
            let_go.set()
        assert compilation.device.name in ("sound", REFERENCE)
        assert "gave no answer" in verdict_of(compilation.report, "hanging")


async def compiled_by_a_near_deadline(rt: nn.Runtime) -> nn.Net:
    return await by_a_near_deadline(
        lambda deadline: rt.compile(doubler(), deadline=deadline), ms=200
    )


async def test_near_the_deadline_the_first_that_is_ready_is_taken(clock: ManualClock) -> None:
    let_go = threading.Event()
    slow = FakeEngine("slow", clock, way(us=1))
    slow.before_compile = lambda lowering: let_go.wait()
    async with competing(FakeEngine("ready", clock), slow) as rt:
        try:
            net = await compiled_by_a_near_deadline(rt)
        finally:
            let_go.set()
        assert won(net)[0] == "ready"
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]


async def test_a_contest_ends_before_the_deadline(clock: ManualClock) -> None:
    let_go = threading.Event()
    hanging = FakeEngine("hanging", clock, way(us=1))
    hanging.before_run = lambda stop: let_go.wait()
    async with competing(FakeEngine("ready", clock), hanging) as rt:
        try:
            net = await compiled_by_a_near_deadline(rt)
        finally:
            let_go.set()
        assert won(net)[0] == "ready"


@pytest.mark.parametrize("when_cold", [False, True])
async def test_cancelling_tells_the_engine_to_stop(clock: ManualClock, when_cold: bool) -> None:
    begun, interrupted = threading.Event(), threading.Event()

    def hang(stop: StopFlag) -> None:
        if clock.is_cold == when_cold:
            stop.arm(interrupted.set)
            begun.set()
            interrupted.wait()

    a, b = FakeEngine("a", clock), FakeEngine("b", clock)
    a.before_run = hang
    async with competing(a, b) as rt:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: rt.compile(doubler()))
            await until(begun.is_set)
            group.cancel_scope.cancel()
        await until(interrupted.is_set)
        assert rt.statistics().nets == 0


# -- the reference


async def test_the_reference_judges_without_being_a_device(clock: ManualClock) -> None:
    wrong = FakeEngine("wrong", clock, way(us=1, error=0.5))
    async with competing(wrong, FakeEngine("right", clock)) as rt:
        assert [device.name for device in rt.devices] == ["wrong", "right"]
        net = await rt.compile(doubler())
        assert won(net)[0] == "right"
        assert REFERENCE not in {each.device for each in net.report().candidates}


async def test_the_reference_can_win(clock: ManualClock) -> None:
    async with competing(FakeEngine("slow", clock, way(us=1000)), REFERENCE) as rt:
        net = await rt.compile(doubler())
        assert won(net)[0] == REFERENCE
        lines = {each.device: each for each in net.report().candidates}
        assert lines[REFERENCE].agreement == "is the reference"


async def test_several_outputs_are_all_compared(clock: ManualClock) -> None:
    class Half(FakeEngine):
        """Wrong in its second output only."""

        def compile(self, *arguments: Any) -> Any:
            plan = super().compile(*arguments)
            bind = plan.bind

            def bound(inputs: Any, outputs: Any) -> Any:
                call = bind(inputs, outputs)
                call.outputs = outputs[1:]
                return call

            plan.bind = bound
            return plan

    async with competing(Half("half", clock, way(us=1, error=0.5)), FakeEngine("b", clock)) as rt:
        net = await rt.compile(calculator())
        assert won(net)[0] == "b"
        line = next(each for each in net.report().candidates if each.device == "half")
        assert line.agreement.startswith("output 1 disagrees")


class Late(FakeEngine):
    """Right, but for the run of a number, counted from 1, of each plan."""

    wrong_run = 0

    def compile(self, *arguments: Any) -> Any:
        plan, runs = super().compile(*arguments), itertools.count(1)
        bind = plan.bind

        def bound(inputs: Any, outputs: Any) -> Any:
            call = bind(inputs, outputs)
            inner = call.run

            def run(stop: StopFlag) -> bool:
                finished = bool(inner(stop))
                outputs[0][...] += next(runs) == self.wrong_run
                return finished

            call.run = run
            return call

        plan.bind = bound
        return plan


@pytest.mark.parametrize("us", [1, 60_000, 5_000_000])
async def test_all_samples_are_judged_however_slow_runs_are(clock: ManualClock, us: int) -> None:
    wrong, right = Late("wrong", clock, way(us=us)), FakeEngine("right", clock, way(us=2 * us))
    wrong.wrong_run = len(samples_of(doubler()).inputs)
    async with competing(wrong, right) as rt:
        net = await rt.compile(doubler())
        assert won(net)[0] == "right"
        assert verdict_of(net.report(), "wrong") == "disagrees with the reference"


async def test_who_was_not_judged_on_all_samples_does_not_agree(clock: ManualClock) -> None:
    async def judged_in_time(deadline: nn.Deadline) -> nn.Net:
        net = await hanging_at_the_last_sample(clock, deadline)
        if net.report().candidates[0].agreement.startswith("not judged"):
            raise nn.MissedDeadlineTransient("this machine is too busy for such a deadline")
        return net

    net = await by_a_near_deadline(judged_in_time, ms=1000)
    lines = {each.device: each for each in net.report().candidates}
    assert lines["judged"].agreement.startswith("max 0")
    assert lines["slow"].agreement.startswith("not judged")
    assert won(net)[0] == "judged"


async def hanging_at_the_last_sample(clock: ManualClock, deadline: nn.Deadline) -> nn.Net:
    let_go, runs = threading.Event(), itertools.count(1)
    slow = FakeEngine("slow", clock, way(us=1))

    def hang(stop: StopFlag) -> None:
        if next(runs) == len(samples_of(doubler()).inputs):
            let_go.wait()

    slow.before_run = hang
    async with competing(FakeEngine("judged", clock), slow) as rt:
        try:
            return await rt.compile(doubler(), deadline=deadline)
        finally:
            let_go.set()


async def test_long_models_compete_too(clock: ManualClock) -> None:
    engine = FakeEngine("engine", clock, way("a", us=90_000), way("b", us=70_000))
    async with competing(engine) as rt:
        assert won(await rt.compile(chain())) == ("engine", "b, 1 thread")
