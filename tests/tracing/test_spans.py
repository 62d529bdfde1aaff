"""Spans that engines mark: who hears of them, in this process and from another."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import nnasync as nn
from nnasync._core.drivers import built_in, is_installed
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.service import isolate
from nnasync.engine import BoundCall, Given, Layer, Phase, Plan, span
from nnasync.engine import StopFlag as Stop
from nnasync.hal import Array, ExecutionPreference, Model
from nnasync.tracing import SWITCH, Span, Timeline, Tracer, spans
from tests import rigs
from tests.service.rig import served

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests left behind does not listen."""
    monkeypatch.setattr(spans, "_listeners", spans._Listeners())
    monkeypatch.setattr(SWITCH, "on", False)
    monkeypatch.setattr(spans._here, "tracers", ())


class Marking(ReferenceEngine):
    """The reference under another name, which marks what it does where."""

    name = "marking"

    def compile(self, model: Model, preference: ExecutionPreference) -> Any:
        with span(Phase.INITIALIZATION, "mine: compile"):
            return _Plan(super().compile(model, preference))

    def serialize(self, plan: Any) -> Any:
        return super().serialize(plan.inner)


class _Plan(Plan):
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Any]) -> Any:
        with span(Phase.PREPARATION, "mine: bind"):
            return _Call(self.inner.bind(inputs, outputs))

    def trim(self) -> None:
        self.inner.trim()


class _Call(BoundCall):
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def run(self, stop: Stop, given: Given = None) -> bool:
        with span(Phase.COMPUTATION, "mine: run", Layer.CPU):
            return bool(self.inner.run(stop))

    def rewind(self) -> None:
        self.inner.rewind()


def is_on() -> bool:
    return SWITCH.on


def mine(timeline: Timeline) -> list[tuple[str, Layer, Phase]]:
    return [
        (each.name, each.layer, each.phase)
        for each in timeline.spans
        if each.name.startswith("mine: ")
    ]


RUN = ("mine: run", Layer.CPU, Phase.COMPUTATION)
BIND = ("mine: bind", Layer.DRIVER, Phase.PREPARATION)
COMPILE = ("mine: compile", Layer.DRIVER, Phase.INITIALIZATION)


@pytest.mark.parametrize("options", [rigs.POOL, rigs.INLINE], ids=["worker", "inline"])
async def test_an_engine_marks_what_it_does(options: nn.Options) -> None:
    timeline = Timeline()
    async with nn.open_runtime(
        devices=[Marking()], options=options, instruments=[timeline]
    ) as runtime:
        net = await runtime.compile(rigs.doubler())
        await net(rigs.ROW)
        told = mine(timeline)
        assert told.count(COMPILE) == 1
        assert {RUN, BIND, COMPILE} == set(told)
        runtime.tracer.remove(timeline)
        assert not is_on()
        await net(rigs.ROW)
        assert mine(timeline) == told


async def test_each_runtime_hears_of_its_own_engines() -> None:
    one, other = Timeline(), Timeline()
    async with nn.open_runtime(devices=[Marking()], options=rigs.POOL, instruments=[one]) as first:
        net = await first.compile(rigs.doubler())
        await net(rigs.ROW)
        async with nn.open_runtime(
            devices=[Marking()], options=rigs.POOL, instruments=[other]
        ) as second:
            another = await second.compile(rigs.doubler())
            heard = len(mine(one))
            other.clear()
            await another(rigs.ROW)
            assert RUN in mine(other)
            assert len(mine(one)) == heard
    assert not is_on()


@pytest.mark.parametrize("name", ["nnasync-reference", "litert-cpu", "openvino-cpu"])
async def test_our_engines_mark_the_phases(name: str) -> None:
    if not is_installed(name):
        pytest.skip(f"{name} is not installed")
    timeline = Timeline()
    async with nn.open_runtime(
        devices=[built_in(name)], options=rigs.POOL, instruments=[timeline]
    ) as runtime:
        net = await runtime.compile(rigs.doubler())
        assert (await net(rigs.ROW)).tolist() == (2 * rigs.ROW).tolist()
    told = {each.phase for each in timeline.spans if each.layer in (Layer.CPU, Layer.DRIVER)}
    wanted = {Phase.COMPILATION, Phase.TRANSFORMATION, Phase.PREPARATION, Phase.COMPUTATION}
    if name != "openvino-cpu":  # It reads and writes where the arrays are.
        wanted |= {Phase.INPUTS_AND_OUTPUTS, Phase.RESULTS}
    assert wanted <= told


async def test_marks_cross_to_the_client_of_a_service() -> None:
    async with served(Marking(), trusts=True) as it:
        timeline = Timeline()
        it.device.observe(Tracer([timeline]))
        await it.device.get_status()
        async with nn.open_runtime(devices=[it.device], options=rigs.POOL) as runtime:
            net = await runtime.compile(rigs.doubler())
            await net(rigs.ROW)
            await rigs.until(lambda: RUN in mine(timeline))
    found = next(each for each in timeline.spans if each.name == "mine: run")
    assert isinstance(found, Span)
    assert found.pid


async def test_marks_come_from_a_process_of_its_own() -> None:
    timeline = Timeline()
    device = await isolate("nnasync-reference")
    try:
        device.observe(Tracer([timeline]))
        await device.get_status()
        prepared = await device.prepare_model(rigs.doubler())
        await prepared.close()
        await rigs.until(lambda: any(s.phase is Phase.TRANSFORMATION for s in timeline.spans))
    finally:
        await device.close()
    found = [each for each in timeline.spans if each.phase is Phase.TRANSFORMATION]
    assert {(each.layer, each.pid) for each in found} == {(Layer.CPU, found[0].pid)}


@contextlib.contextmanager
def traced() -> Iterator[tuple[Tracer, Timeline]]:
    timeline = Timeline()
    tracer = Tracer([timeline])
    try:
        yield tracer, timeline
    finally:
        tracer.remove(timeline)


def test_nothing_is_made_while_nobody_listens() -> None:
    assert not is_on()
    assert span(Phase.COMPUTATION, "mine: a") is span(Phase.RESULTS, "mine: b")
    with traced() as (_, timeline):
        assert is_on()
        with span(Phase.COMPUTATION, "mine: c"):
            pass
        assert mine(timeline) == [("mine: c", Layer.DRIVER, Phase.COMPUTATION)]
    assert not is_on()


def test_a_thread_of_an_engine_is_heard_where_one_runtime_alone_is_traced() -> None:
    def work() -> None:
        with span(Phase.COMPUTATION, "mine: elsewhere"):
            pass

    def elsewhere() -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    with traced() as (_, one):
        elsewhere()
        assert len(mine(one)) == 1
        with traced() as (_, other):
            elsewhere()
            assert (len(mine(one)), len(mine(other))) == (1, 0)


def test_a_tracer_that_is_gone_listens_no_more() -> None:
    tracer = Tracer([Timeline()])
    assert is_on()
    del tracer
    gc.collect()
    assert not is_on()


def test_a_failure_inside_is_told_and_raised() -> None:
    with traced() as (_, timeline):
        with pytest.raises(KeyError), span(Phase.RESULTS, "mine: broken"):
            raise KeyError
        assert [name for name, *_ in mine(timeline)] == ["mine: broken"]
