"""First answers: who gives them, what follows, and what becomes of it when something goes wrong."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.compilation import bring_in, compiling, contest, ranking
from nnasync._core.compilation.ranking import Standing
from nnasync._core.compilation.report import Fate
from nnasync._core.compilation.samples import samples_of
from nnasync._core.compilation.trials import EngineTrial
from nnasync._core.drivers import DRIVERS, built_in, is_installed
from nnasync._core.engine_device.bindings import Bindings
from nnasync._core.plans.staged import StagedCall
from nnasync._core.state_files import state_folder
from nnasync.errors import BadState, GeneralFailure, MissedDeadline, MissedDeadlineTransient
from nnasync.hal import ExecutionPreference, Request
from nnasync.machine import Margins
from nnasync.machine.loading import learn_loading_ms
from tests.compilation.rig import REFERENCE, FakeEngine, ManualClock, chain, competing, way
from tests.compilation.rig import clock as clock
from tests.importers.onnx import files
from tests.importers.tflite import judge, window_cases
from tests.importers.tflite_files import Op, floats, tflite_file
from tests.rigs import GUARD_S, until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]

FIRST = nn.CompileOptions(wait="first")
BEST = nn.CompileOptions(wait="best")
X = np.ones((1, 64), np.float32)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing follows before the network is used."""
    monkeypatch.setattr(compiling, "PATIENCE_S", 3600)


def quick(clock: ManualClock, *ways: Any, loads_in_ms: float = 10, name: str = "quick") -> Any:
    engine: Any = FakeEngine(name, clock, *(ways or (way(us=30),)))
    engine.loads_in_ms = loads_in_ms
    return engine


def slow(clock: ManualClock, *ways: Any) -> Any:
    return quick(clock, *(ways or (way(us=10),)), loads_in_ms=400, name="slow")


class HeldCompilation:
    """Has an engine's compilations begin, and wait for the gate."""

    def __init__(self, engine: Any) -> None:
        self.begun, self.gate = threading.Event(), threading.Event()
        engine.before_compile = self

    def __call__(self, _lowering: object) -> None:
        self.begun.set()
        self.gate.wait(GUARD_S)


def runs_on(net: nn.Net) -> list[str]:
    return [part.device for part in net.report().partitions]


@pytest.mark.usefixtures("patient")
async def test_who_is_ready_soonest_answers_and_no_other_is_asked(clock: ManualClock) -> None:
    soon, late = quick(clock), slow(clock)
    late.before_compile = lambda lowering: pytest.fail("it was prepared")
    late.supported_operations = lambda model: pytest.fail("it was asked")
    async with competing(late, soon) as rt:
        net = await rt.compile(chain(4), options=FIRST)
        assert runs_on(net) == ["quick"]
        assert "ready soonest" in str(net.report())
        assert (await net(X)).shape == (1, 64)
        await net.aclose()


@pytest.mark.usefixtures("patient")
async def test_those_that_are_asked_for_at_once_wait_for_one_first_plan(clock: ManualClock) -> None:
    engine, late = quick(clock), slow(clock)
    held = HeldCompilation(engine)
    nets: list[nn.Net] = []

    async def compiled(rt: nn.Runtime) -> None:
        nets.append(await rt.compile(chain(4), options=FIRST))

    async with competing(late, engine) as rt:
        async with anyio.create_task_group() as group:
            group.start_soon(compiled, rt)
            await until(held.begun.is_set)
            for _ in range(2):
                group.start_soon(compiled, rt)
            await until(lambda: [each.users for each in rt._plans._terms.values()] == [3])
            held.gate.set()
        assert len(engine.compiled) == 1
        assert len(nets) == 3
        for net in nets:
            assert (await net(X)).shape == (1, 64)
            await net.aclose()


@pytest.mark.usefixtures("patient")
async def test_one_that_is_cancelled_while_its_first_plan_is_made_leaves_the_turn(
    clock: ManualClock,
) -> None:
    engine, late = quick(clock), slow(clock)
    held = HeldCompilation(engine)
    async with competing(late, engine) as rt:
        async with anyio.create_task_group() as group:

            async def abandoned() -> None:
                await rt.compile(chain(4), options=FIRST)

            group.start_soon(abandoned)
            await until(held.begun.is_set)
            group.cancel_scope.cancel()
        assert not rt._plans._terms
        engine.before_compile = lambda _: None
        net = await rt.compile(chain(4), options=FIRST)
        assert runs_on(net) == ["quick"]
        held.gate.set()
        await net.aclose()


@pytest.mark.usefixtures("patient")
async def test_who_waits_for_the_first_plan_misses_its_deadline(clock: ManualClock) -> None:
    engine, late = quick(clock), slow(clock)
    held = HeldCompilation(engine)
    async with competing(late, engine) as rt:
        # On a busy machine the first deadlines may pass before the engine is asked.
        for patience_ms in (20, 100, 500, 2500):
            with pytest.raises(MissedDeadline) as missed:
                await rt.compile(chain(4), options=FIRST, deadline=nn.within(ms=patience_ms))
            if held.begun.is_set():
                break
        held.gate.set()
        assert isinstance(missed.value, MissedDeadlineTransient)


async def test_the_best_follows_and_is_told(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nnasync._core.compilation")
    with anyio.fail_after(GUARD_S):
        async with competing(slow(clock), quick(clock)) as rt:
            net = await rt.compile(chain(4), options=FIRST)
            before = await net(X)
            report = await net.optimized()
            assert [part.device for part in report.partitions] == ["slow"]
            assert report == net.report()
            assert [line.median_us for line in report.candidates[:2]] == [10, 30]
            assert np.array_equal(await net(X), before)
            await net.aclose()
    told = "\n".join(caplog.messages)
    assert "quick answers first" in told
    assert "runs on slow from now on: fastest whose results agree" in told


async def test_nothing_of_the_first_plan_is_left_in_the_way_of_a_call(clock: ManualClock) -> None:
    with anyio.fail_after(GUARD_S):
        async with competing(slow(clock), quick(clock)) as rt:
            net = await rt.compile(chain(4), options=FIRST)
            await net(X)
            prepared: Any = net._prepared
            await until(lambda: bool(idle_calls(prepared)))
            await net.optimized()
            prepared.trim()
            assert (await net(X)).shape == (1, 64)
            await until(lambda: bool(idle_calls(prepared)))
            assert not [call for call in idle_calls(prepared) if isinstance(call, StagedCall)]
            await net.aclose()


def idle_calls(prepared: Any) -> list[Any]:
    """The calls that are bound and not in use."""
    return [call for binding in prepared._bindings.values() for call in binding.idle]


async def test_no_thread_of_a_compilation_is_started_by_the_loop(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To start one takes until it had its first turn, for which the loop would stand still."""
    start, started = threading.Thread.start, dict[str, int]()

    def noting(thread: threading.Thread) -> None:
        started[thread.name] = threading.get_ident()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noting)
    with anyio.fail_after(GUARD_S):
        async with competing(slow(clock), quick(clock)) as rt:
            net = await rt.compile(chain(4), options=FIRST)
            await net.optimized()
            await net.aclose()
    assert started["nnasync-taking-over"] != threading.get_ident()


async def test_the_memory_of_the_first_call_is_bound_where_its_plan_is_made(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, patient: None
) -> None:
    bound: list[threading.Thread] = []
    bind = Bindings.bind

    def noted(bindings: Bindings, request: Request) -> Any:
        bound.append(threading.current_thread())
        return bind(bindings, request)

    monkeypatch.setattr(Bindings, "bind", noted)
    devices = quick(clock), slow(clock), REFERENCE
    async with competing(*devices) as rt, rt.compile(chain(2), options=FIRST) as net:
        (thread,) = bound
        assert thread is not threading.current_thread()
        np.testing.assert_array_equal(await net(X), X * 3)
        assert len(bound) == 1, "the first call uses that memory"


async def test_it_follows_without_being_used(clock: ManualClock) -> None:
    with anyio.fail_after(GUARD_S):
        async with competing(slow(clock), quick(clock)) as rt:
            net = await rt.compile(chain(4), options=FIRST)
            await net.optimized()
            assert runs_on(net) == ["slow"]
            await net.aclose()


async def test_who_does_not_take_the_model_does_not_answer_first(clock: ManualClock) -> None:
    refusing, failing = quick(clock), quick(clock, name="failing", loads_in_ms=20)
    refusing.takes = lambda type: False
    failing.ways = [way(compile_fault=GeneralFailure("broken"))]
    async with competing(refusing, failing, slow(clock)) as rt:
        net = await rt.compile(chain(4), options=FIRST)
        assert runs_on(net) == ["slow"]
        await net.aclose()


async def test_a_winner_that_is_known_and_ready_soon_runs_at_once(clock: ManualClock) -> None:
    other = quick(clock, name="other", loads_in_ms=5)
    best = quick(clock, way(us=10), loads_in_ms=50, name="best")
    async with competing(other, best) as rt:
        net = await rt.compile(chain(4), options=BEST)
        assert runs_on(net) == ["best"]
        await net.aclose()
    best.compiled.clear()
    other.compiled.clear()
    async with competing(other, best) as rt:
        net = await rt.compile(chain(4), options=FIRST)
        assert "as measured before" in net.report().partitions[0].reason
        await net.optimized()
        assert runs_on(net) == ["best"]
        assert other.compiled == []
        await net.aclose()


async def test_what_engines_took_on_this_machine_counts_more_than_what_they_state(
    clock: ManualClock,
) -> None:
    states_little, states_much = quick(clock, loads_in_ms=10), slow(clock)
    took_ms = {
        f"{engine.name} {engine.version}": ms
        for engine, ms in ((states_little, 90.0), (states_much, 5.0))
    }
    learn_loading_ms(state_folder(), took_ms)
    async with (
        competing(states_little, states_much) as rt,
        rt.compile(chain(4), options=FIRST) as net,
    ):
        assert runs_on(net) == ["slow"]


async def test_a_winner_that_is_known_and_slow_to_load_follows_without_a_contest(
    clock: ManualClock,
) -> None:
    with anyio.fail_after(GUARD_S):
        async with competing(quick(clock), slow(clock)) as rt:
            await (await rt.compile(chain(4), options=BEST)).aclose()
        soon, late = quick(clock), slow(clock)
        async with competing(soon, late) as rt:
            net = await rt.compile(chain(4), options=FIRST)
            assert runs_on(net) == ["quick"]
            await net.optimized()
            assert runs_on(net) == ["slow"]
            assert "as measured before" in net.report().partitions[0].reason
            assert (soon.compiled, late.compiled) == (["f32*1"], ["f32*1"])
            await net.aclose()


async def test_exact_is_exact_from_the_first_answer_on(clock: ManualClock) -> None:
    soon = quick(clock, way("fast", us=1), way("exact", us=50, is_exact=True))
    async with competing(soon, slow(clock)) as rt:
        net = await rt.compile(chain(4), precision="exact", options=FIRST)
        assert soon.compiled == ["exact*1"]
        await net.aclose()


@pytest.mark.parametrize(
    "options",
    [nn.CompileOptions(wait="first", preemption_quantum_ms=1), BEST],
    ids=["segments", "best"],
)
async def test_what_is_promised_is_waited_for(
    options: nn.CompileOptions, clock: ManualClock
) -> None:
    async with competing(quick(clock), slow(clock)) as rt:
        net = await rt.compile(chain(4), options=options)
        assert runs_on(net) == ["slow"]
        pin = net.report().pin
        await net.aclose()
        again = await rt.compile(chain(4), options=nn.CompileOptions(wait="first", pin=pin))
        assert runs_on(again) == ["slow"]
        await again.aclose()


async def test_without_a_contest_the_order_of_devices_counts(clock: ManualClock) -> None:
    async with competing(slow(clock), quick(clock), budget_ms=0) as rt:
        net = await rt.compile(chain(4), options=FIRST)
        assert runs_on(net) == ["slow"]
        await net.aclose()


async def test_one_device_that_knows_one_way_is_compiled_once() -> None:
    async with nn.open_runtime(devices=[REFERENCE]) as rt:
        net = await rt.compile(chain(4), options=FIRST)
        report = net.report()
        await net(X)
        assert await net.optimized() is report
        await net.aclose()


async def test_a_network_that_is_closed_meanwhile_is_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A runtime may close before the task that makes the better plan has begun."""
    async with nn.open_runtime(devices=[REFERENCE]) as rt:
        net = await rt.compile(chain(4))

    async def later() -> Any:
        raise BadState("the watchdog is closed and takes no alarms")

    assert await bring_in(lambda: net, later) is None
    assert not caplog.records
    assert not net.report().rejections


async def test_a_contest_that_fails_leaves_the_first_plan(
    clock: ManualClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*arguments: object) -> None:
        raise ValueError("cannot be")

    monkeypatch.setattr("nnasync._core.compilation.compiling.compiler.choose", broken)
    with anyio.fail_after(GUARD_S):
        async with competing(quick(clock), slow(clock)) as rt:
            net = await rt.compile(chain(4), options=FIRST)
            report = await net.optimized()
            assert runs_on(net) == ["quick"]
            assert "stays with the first plan: ValueError: cannot be" in str(report)
            assert (await net(X)).shape == (1, 64)
            await net.aclose()
    assert "stays with its first plan: ValueError: cannot be" in caplog.text


async def test_who_closes_the_runtime_at_once_reads_of_no_failure(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with competing(quick(clock), slow(clock)) as rt:
        net = await rt.compile(chain(4), options=FIRST)
    assert not net.report().rejections
    assert "stays with" not in caplog.text


async def test_who_closes_early_waits_for_nothing(clock: ManualClock) -> None:
    soon, late = quick(clock), slow(clock)
    over = anyio.Event()
    with anyio.fail_after(GUARD_S):
        async with competing(soon, late) as rt, anyio.create_task_group() as group:
            net = await rt.compile(chain(4), options=FIRST)

            async def wait() -> None:
                await net.optimized()
                over.set()

            group.start_soon(wait)
            await anyio.lowlevel.checkpoint()
            await net.aclose()
            await over.wait()
        async with competing(soon, late) as rt:
            net = await rt.compile(chain(4), options=FIRST)
            await net(X)


async def test_processor_time_that_is_used_up_ends_a_contest_which_goes_on_next_time(
    clock: ManualClock,
) -> None:
    ways = (way("a", us=10), way("b", us=9), way("c", us=8))
    chosen: list[str] = []
    with anyio.fail_after(GUARD_S):
        for _ in range(3):
            engine = quick(clock, *ways)
            async with competing(engine, background_ms=1e-6) as rt:
                net = await rt.compile(chain(4), options=FIRST)
                report = await net.optimized()
                line = next(line for line in report.candidates if line.fate is Fate.CHOSEN)
                chosen.append(line.lowering)
                await net.aclose()
    assert chosen == [f"{name}, 1 thread" for name in "bcc"]


async def test_processor_time_that_is_short_is_not_for_the_answers_of_the_reference(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[str] = Counter()
    answer = EngineTrial.answer

    async def counted(trial: EngineTrial, inputs: Any) -> Any:
        asked[trial._name] += 1
        return await answer(trial, inputs)

    monkeypatch.setattr(EngineTrial, "answer", counted)
    every = len(samples_of(chain(4)).inputs)
    for model, background_ms, count in ((chain(4), 1e-6, 3), (chain(5), 60_000, every)):
        asked.clear()
        async with competing(quick(clock), slow(clock), background_ms=background_ms) as rt:
            net = await rt.compile(model, options=FIRST)
            await net.optimized()
            await net.aclose()
        assert asked["slow"] == count


@pytest.mark.parametrize("name", [name for name in DRIVERS if is_installed(name)])
def test_what_is_told_of_a_driver_is_what_its_engine_says(name: str) -> None:
    assert built_in(name).loads_in_ms == DRIVERS[name].loads_in_ms


def a_tflite_file(folder: Path) -> Path:
    path = folder / "net.tflite"
    tensors = [floats(1, 8), floats(1, 8), floats(1, 8)]
    operators = [Op("TANH", (0,), (1,)), Op("LOGISTIC", (1,), (2,))]
    path.write_bytes(tflite_file(tensors, operators, [0], [2]))
    return path


def an_onnx_file(folder: Path) -> Path:
    nodes = [files.node("Tanh", ["x"], ["t"]), files.node("Sigmoid", ["t"], ["y"])]
    ends = ("x", files.FLOAT, (1, 8)), ("y", files.FLOAT, (1, 8))
    return files.written(folder, files.message(nodes, ends[:1], ends[1:]))


@pytest.fixture(params=["the file", "the translated model"])
def fastest(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which form wins each contest, held here; both must have been measured, and agree."""
    form: str = request.param

    def winner(
        standings: Sequence[Standing], preference: ExecutionPreference, margins: Margins
    ) -> Standing:
        found = ranking.winner(list(standings), preference, margins)
        [file] = [each for each in standings if each.contender.lowering.startswith("file")]
        others = [each for each in standings if each.contender.name == file.contender.name]
        assert all(each.agrees and each.turns_ns for each in others)
        if form == "the translated model":
            file = next(each for each in others if each is not file)
        found.settle(Fate.EQUAL, "equal")
        file.settle(Fate.CHOSEN, "chosen")
        return file

    monkeypatch.setattr(contest, "winner", winner)
    return form


def in_full(folder: Path) -> nn.Options:
    """Contests in this process that come to their end."""
    return nn.Options(
        cores=1,
        competition_budget_ms=20,
        background_contest_ms=60_000,
        contest_process=False,
        state_dir=str(folder / "state"),
    )


@pytest.mark.parametrize(
    ("file", "device"), [(a_tflite_file, "litert-cpu"), (an_onnx_file, "onnxruntime-cpu")]
)
async def test_a_file_answers_first_as_it_is_and_competes(
    file: Callable[[Path], Path], device: str, tmp_path: Path, fastest: str
) -> None:
    operations = 1 if fastest == "the file" else 2
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8)
    with anyio.fail_after(GUARD_S):
        async with nn.open_runtime(devices=[device, REFERENCE], options=in_full(tmp_path)) as rt:
            path = file(tmp_path)
            async with rt.compile(path, options=FIRST) as net:
                assert runs_on(net) == [device]
                assert size(net) == 1
                before, ends = await net(x), (net.inputs, net.outputs)
                report = await net.optimized()
                assert "stays" not in str(report)
                assert size(net) == len(report.partitions[0].operations) == operations
                assert (net.inputs, net.outputs) == ends
                assert np.allclose(await net(x), before, atol=1e-6)
            async with rt.compile(path, options=FIRST) as net:
                is_known = "as measured before" in str(net.report())
                assert is_known == (fastest == "the file")
                assert np.allclose(await net(x), before, atol=1e-6)
                await net.optimized()
                assert size(net) == operations
            pinned = nn.CompileOptions(pin=report.pin)
            async with rt.compile(path, options=pinned) as net:
                assert size(net) == operations
            (tmp_path / "cache").mkdir(mode=0o700)
            for is_hit in (False, device == "litert-cpu"):
                cached = rt.compile(path, options=BEST, cache_dir=tmp_path / "cache")
                async with cached as net:
                    assert net.report().cache_hit == is_hit
                    assert np.allclose(await net(x), before, atol=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        "RNN FLOAT32",
        "UNIDIRECTIONAL_SEQUENCE_RNN FLOAT32",
        "LSTM FLOAT32",
        "UNIDIRECTIONAL_SEQUENCE_LSTM FLOAT32",
        "BIDIRECTIONAL_SEQUENCE_RNN FLOAT32",
    ],
)
async def test_the_state_of_a_burst_outlives_the_file(
    name: str, tmp_path: Path, fastest: str
) -> None:
    path = judge.written(tmp_path, window_cases.CASES[name](np.random.default_rng(3)))
    with anyio.fail_after(GUARD_S):
        async with nn.open_runtime(
            devices=["litert-cpu", REFERENCE], options=in_full(tmp_path)
        ) as rt:
            async with rt.compile(nn.load(path), devices=[REFERENCE]) as net, net.burst() as burst:
                [port] = net.inputs
                x = np.ones(port.shape, np.float32)
                wanted = [await burst(x) for _ in range(4)]
            assert not np.allclose(wanted[2], wanted[0])
            async with rt.compile(path, options=FIRST) as net, net.burst() as burst:
                assert net.model.extension_name_to_prefix
                got = [await burst(x) for _ in range(2)]
                report = await net.optimized()
                assert "stays" not in str(report)
                [line] = [each for each in report.candidates if each.fate is Fate.CHOSEN]
                assert line.lowering.startswith("file") == (fastest == "the file")
                got += [await burst(x) for _ in range(2)]
            np.testing.assert_allclose(got, wanted, rtol=1e-5)


async def test_what_has_to_be_exact_is_translated_first(tmp_path: Path) -> None:
    async with nn.open_runtime(devices=["litert-cpu", REFERENCE]) as rt:
        net = await rt.compile(a_tflite_file(tmp_path), options=FIRST, precision="exact")
        assert size(net) == 2
        await net.aclose()


def size(net: nn.Net) -> int:
    """How many operations the model has."""
    return len(net.model.main.operations)
