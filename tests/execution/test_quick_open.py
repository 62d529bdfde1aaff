"""Plain calls with open shapes, of shapes that came before: short, and the same as any other."""

from __future__ import annotations

from typing import Any

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.drivers.null import NullEngine
from nnasync._core.engine_device.quick_run import QuickRun
from nnasync._core.workers import inline
from nnasync.errors import BadState, GeneralFailure, InvalidArgument, MissedDeadline
from nnasync.hal import OperandType, OperationType
from nnasync.kernels import Tensor
from tests.rigs import HOUR, runtime, until_inline

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]

PLAIN = nn.Options(cores=1, inline_budget_us=1e6, stall_budget_us=1e6, competition_budget_ms=0)
"""On a busy machine, too, no run takes so long that other cores are thought of."""


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def adder() -> nn.Model:
    """Sum and difference of two inputs, of any number of rows."""
    m = nn.ModelBuilder("adder")
    x, y = m.input("x", (0, 3)), m.input("y", (0, 3))
    m.output("sum", m.operation(OperationType.ADD, x, y, 0, output=x))
    m.output("difference", m.operation(OperationType.SUB, x, y, 0, output=x))
    return m.build()


def repeated() -> nn.Model:
    """A row as often as an input says: only a run tells the shape."""
    m = nn.ModelBuilder("repeated")
    x, times = m.input("x", (3,)), m.input("times", (1,), type=OperandType.TENSOR_INT32)
    like = Tensor(type=OperandType.TENSOR_FLOAT32, shape=(0,))
    m.output("y", m.operation(OperationType.TILE, x, times, output=like))
    return m.build()


def total() -> nn.Model:
    """The sum of any number of rows, which is a single row: its shape is known before the run."""
    m = nn.ModelBuilder("total")
    x, rows = m.input("x", (0, 3)), m.constant(np.array([0], np.int32))
    like = Tensor(type=OperandType.TENSOR_FLOAT32, shape=(1, 3))
    m.output("y", m.operation(OperationType.REDUCE_SUM, x, rows, True, output=like))
    return m.build()


async def quickly(net: nn.Net[Any], monkeypatch: pytest.MonkeyPatch, *arrays: Any) -> Any:
    """The outputs of a call that must go the short way."""
    with monkeypatch.context() as patch:
        patch.setattr(net, "_call_in_full", lambda *_: pytest.fail("it went the longer way"))
        return await net(*arrays)


@pytest.mark.one_loop("There is no short way on trio.")
async def test_shapes_that_came_before_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async with runtime(options=PLAIN) as rt, rt.compile(adder()) as net:
        for _ in range(3):
            for rows in (2, 5):
                await until_inline(rt, net, ones(rows, 3), ones(rows, 3))
        kept = []
        for turn in range(3):
            for rows in (2, 5, 5, 2):
                x = np.full((3, rows), turn, np.float32).T
                found = await quickly(net, monkeypatch, x, ones(rows, 3))
                assert [each.tolist() for each in found] == [
                    (x + 1).tolist(),
                    (x - 1).tolist(),
                ]
                kept.append((turn, found))
        # What was given is the caller's own.
        assert all((found[0] == turn + 1).all() for turn, found in kept)


async def test_what_is_any_different_goes_the_longer_way() -> None:
    async with runtime(options=PLAIN) as rt, rt.compile(adder()) as net:
        x = ones(2, 3)
        for _ in range(3):
            await until_inline(rt, net, x, x)
        out = np.zeros((2, 3), np.float32), None
        found = await net(x, x, out=out)
        assert found[0] is out[0]
        assert (found[0] == 2).all()
        assert ((await net({"y": x, "x": x}))[0] == 2).all()
        assert ((await net(x.tolist(), x))[0] == 2).all()
        assert ((await net(x.astype(np.dtype("f4", copy=True)), x))[0] == 2).all()
        assert ((await net(x, x, priority=nn.Priority.HIGH))[0] == 2).all()
        with pytest.raises(InvalidArgument, match="1 inputs given"):
            await net(x)
        with pytest.raises(InvalidArgument, match="shape"):
            await net(x, ones(2, 4))
        with pytest.raises(InvalidArgument, match="deadline must be"):
            await net(x, x, deadline=5)  # type: ignore[arg-type]  # wrong on purpose
        with pytest.raises(MissedDeadline):
            await net(x, x, deadline=nn.within(ms=-1))
        assert ((await net(x, x, deadline=nn.within(**HOUR)))[0] == 2).all()


@pytest.mark.one_loop("There is no short way on trio.")
async def test_results_that_grow_get_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    async with runtime(options=PLAIN) as rt, rt.compile(repeated()) as net:
        x = ones(3)
        for times in (2, 2, 2, 1, 5000, 2, 20000, 20000, 3):
            size = np.array([times], np.int32)
            await until_inline(rt, net, x, size)
            assert (await net(x, size)).shape == (3 * times,)
        found = await quickly(net, monkeypatch, 2 * x, np.array([4], np.int32))
        assert found.tolist() == [2] * 12


async def test_results_of_several_calls_grow_at_once() -> None:
    """Each finds its memory too small, though after the first it is known how much they need."""
    async with runtime() as rt, rt.compile(repeated()) as net:
        found = list[Any]()

        async def call(number: int) -> None:
            size = np.array([5000], np.int32)
            found.append((number, await net(number * ones(3), size)))

        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(call, number)
        assert sorted(number for number, _ in found) == [0, 1, 2, 3]
        assert all(each.tolist() == [number] * 15000 for number, each in found)


@pytest.mark.one_loop("There is no short way on trio.")
async def test_only_the_shapes_of_inputs_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    async with runtime(options=PLAIN) as rt, rt.compile(total()) as net:
        for rows in (2, 5, 2, 5, 2, 5):
            await until_inline(rt, net, ones(rows, 3))
        for rows in (2, 5):
            found = await quickly(net, monkeypatch, ones(rows, 3))
            assert found.tolist() == [[rows] * 3]


@pytest.mark.one_loop("There is no short way on trio.")
async def test_a_worker_gives_its_call_back_between_a_run_and_its_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does so after the answer, so that the next call may be under way by then."""
    async with runtime(options=PLAIN) as rt, rt.compile(adder()) as net:
        for _ in range(3):
            await until_inline(rt, net, ones(2, 3), ones(2, 3))
        run = QuickRun.run

        def ran(quick: QuickRun, given: Any, deadline_ns: int) -> bool:
            done = run(quick, given, deadline_ns)
            quick._binding.give_back(quick._binding._bound())
            return done

        monkeypatch.setattr(QuickRun, "run", ran)
        found = await quickly(net, monkeypatch, ones(2, 3), ones(2, 3))
        assert [each.tolist() for each in found] == [[[2] * 3] * 2, [[0] * 3] * 2]


@pytest.mark.one_loop("There is no short way on trio.")
@pytest.mark.parametrize("deadline_ns", [1, 10**15])
async def test_a_request_whose_call_was_late_is_used_again(
    monkeypatch: pytest.MonkeyPatch, deadline_ns: int
) -> None:
    """It was refused, or has ended after its deadline: nothing uses its memory any more."""
    async with runtime(options=PLAIN) as rt, rt.compile(adder()) as net:
        for _ in range(3):
            await until_inline(rt, net, ones(2, 3), ones(2, 3))
        ((_, filled),) = net._flexible._kept  # type: ignore[union-attr]  # Its shapes are open.
        with monkeypatch.context() as patch:
            times = iter([0, 2 * 10**15])
            patch.setattr(inline, "now_ns", lambda: next(times))
            with pytest.raises(MissedDeadline):
                await net(ones(2, 3), ones(2, 3), deadline=nn.Deadline(deadline_ns))
        ((_, still),) = net._flexible._kept  # type: ignore[union-attr]  # Its shapes are open.
        assert still is filled


async def test_a_request_whose_run_failed_is_not_used_again() -> None:
    fails = [False]

    def compute(inputs: Any) -> list[Any]:
        if fails[0]:
            raise GeneralFailure("no")
        return [inputs[0] + inputs[1], inputs[0] - inputs[1]]

    async with runtime(NullEngine(compute=compute), options=PLAIN) as rt:
        net = await rt.compile(adder())
        for _ in range(4):
            await until_inline(rt, net, ones(2, 3), ones(2, 3))
        fails[0] = True
        with pytest.raises(GeneralFailure):
            await net(ones(2, 3), ones(2, 3))
        fails[0] = False
        for _ in range(4):
            assert ((await net(ones(2, 3), ones(2, 3)))[0] == 2).all()
        net.close()
        with pytest.raises(BadState):
            await net(ones(2, 3), ones(2, 3))
