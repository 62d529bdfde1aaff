"""Calls ahead of the first: on which threads, how often, and what comes of those that go wrong."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest

import nnasync as nn
from nnasync._core.clock import Deadline
from nnasync._core.compilation import compiling
from nnasync._core.drivers.null import Gate, NullEngine
from nnasync._core.engine_device import warmup
from nnasync.tracing import Instrument
from tests.rigs import POOL, ROW, attempt, double, doubler, runtime

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]
ONE_WORKER = nn.Options(cores=1, inline_budget_us=0, competition_budget_ms=0)
HERE = nn.Options(cores=2, inline_budget_us=1e6, stall_budget_us=1e6, competition_budget_ms=0)
TRIALS = 2


class Eager(NullEngine):
    """Says that it may be tried, and notes the thread of each run."""

    tries_ahead = True

    def __init__(self, gate: Gate | None = None) -> None:
        self.threads: list[threading.Thread] = []
        super().__init__(compute=self._computed, gate=gate)

    def _computed(self, inputs: Any) -> Any:
        self.threads.append(threading.current_thread())
        return double(inputs)


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, nothing takes too long."""
    for name in ("WARMUP_NS", "LONGEST_NS", "PATIENCE_NS"):
        monkeypatch.setattr(warmup, name, 10**12)


@pytest.mark.usefixtures("endless")
async def test_long_calls_are_rehearsed_on_the_worker_that_runs_the_first() -> None:
    engine = Eager()
    async with runtime(engine, options=POOL) as rt:
        net = await rt.compile(doubler())
        assert engine.counters.run == TRIALS + warmup.WARMUP_CALLS
        assert rt.statistics().workers.worker_runs == rt.statistics().workers.worker_ns == 0
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]
        assert rt.statistics().workers.worker_runs == 1
        assert len(set(engine.threads[TRIALS:])) == 1
        assert engine.threads[-1] is not threading.current_thread()
        assert engine.counters.bind == 1


@pytest.mark.usefixtures("endless")
async def test_short_calls_are_rehearsed_on_the_loop() -> None:
    engine = Eager()
    async with runtime(engine, options=HERE) as rt:
        net = await rt.compile(doubler())
        assert set(engine.threads[TRIALS:]) == {threading.current_thread()}
        assert len(engine.threads) == TRIALS + warmup.WARMUP_CALLS
        assert rt.statistics().workers.inline_runs == rt.statistics().workers.threads == 0
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize(
    ("device", "package"),
    [
        ("litert-cpu", "ai_edge_litert"),
        ("openvino-cpu", "openvino"),
        ("onnxruntime-cpu", "onnxruntime"),
    ],
)
async def test_an_engine_that_had_no_rival_is_measured_and_rehearsed_too(
    device: str, package: str
) -> None:
    pytest.importorskip(package)
    async with runtime(device, options=ONE_WORKER) as rt:
        net = await rt.compile(doubler())
        prepared: Any = net._prepared
        assert prepared.estimate.samples == 1 + warmup.WARMUP_CALLS
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]


@pytest.mark.usefixtures("endless")
async def test_what_is_to_answer_at_once_is_not_run_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The devices are compared when it has answered."""
    engine = Eager()
    monkeypatch.setattr(compiling, "PATIENCE_S", 3600)
    async with runtime(engine, "nnasync-reference", options=nn.Options(cores=1)) as rt:
        net = await rt.compile(doubler(), options=nn.CompileOptions(wait="first"))
        assert engine.counters.run == 0
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]


@pytest.mark.usefixtures("endless")
async def test_who_observes_a_runtime_sees_no_rehearsals() -> None:
    engine = Eager()
    async with runtime(engine) as rt:
        rt.tracer.add(Instrument())
        net = await rt.compile(doubler())
        assert engine.counters.run == TRIALS
        net.close()


@pytest.mark.parametrize(
    ("best_ns", "times"),
    [
        (warmup.LONGEST_NS + 1, 0),
        (warmup.LONGEST_NS, 1),
        (warmup.WARMUP_NS / 3, 3),
        (1, warmup.WARMUP_CALLS),
    ],
)
async def test_how_often(best_ns: float, times: int) -> None:
    engine = Eager()
    async with runtime(engine) as rt:
        net = await rt.compile(doubler())
        before = engine.counters.run
        estimate: Any = net._prepared
        estimate.estimate.best_ns = best_ns
        await net._warm_up()
        assert before <= engine.counters.run <= before + times
        assert (engine.counters.run > before) is (times > 0)
        before = engine.counters.run
        await net._warm_up(Deadline(0))
        assert engine.counters.run == before


async def test_without_a_free_worker_it_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "LONGEST_NS", 10**12)
    monkeypatch.setattr(warmup, "PATIENCE_NS", 0)
    engine = Eager()
    async with runtime(engine) as rt:
        net = await rt.compile(doubler())
        assert engine.counters.run == TRIALS
        assert (await net(ROW)).tolist() == [[2, 4, 6, 8]]


@pytest.mark.usefixtures("endless")
async def test_a_compilation_that_is_cancelled_amidst_a_rehearsal() -> None:
    gate = Gate()
    engine = Eager(gate)
    gate.open(TRIALS)
    async with runtime(engine) as rt, anyio.create_task_group() as group:
        reached = engine.when(lambda counters: counters.run > TRIALS and counters.waiting > 0)
        call = await attempt(group, lambda: rt.compile(doubler()))
        await reached
        call.scope.cancel()
        await call.done.wait()
        assert call.result is None
        assert rt.statistics().nets == 0
