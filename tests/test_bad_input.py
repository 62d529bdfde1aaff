"""Bad input gets the typed error that fits, and the runtime goes on serving the others.

Each test does something wrong beside a network that has to go on working. Shapes, types, regions
and options are tested one by one with the modules that check them.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.clock import now_ns
from nnasync._core.drivers.null import NullEngine
from nnasync.errors import (
    BadState,
    DeviceError,
    GeneralFailure,
    InvalidArgument,
    MissedDeadline,
    MissedDeadlinePersistent,
    ModelError,
)
from nnasync.fences import Fence
from tests.rigs import (
    HOUR,
    POOL,
    ROW,
    SHAPE,
    Deadlines,
    double,
    doubler,
    runtime,
    until,
    until_inline,
)

pytestmark = [
    pytest.mark.one_loop("What is wrong is so on any loop."),
    pytest.mark.anyio,
    pytest.mark.usefixtures("no_leaks"),
]

KIND = "{0.__class__.__name__}".format
PATHS = ["call", "launch", "burst"]


class Rig:
    """A network on a device that misbehaves, and one beside it that has to go on."""

    def __init__(self, rt: nn.Runtime, engine: NullEngine, net: nn.Net, beside: nn.Net) -> None:
        self.rt, self.engine, self.net, self.beside = rt, engine, net, beside

    async def use(self, path: str, *arrays: Any, **options: Any) -> Any:
        """Run the network once, in one of three ways."""
        if path == "call":
            return await self.net(*arrays, **options)
        if path == "launch":
            return await (await self.net.launch(*arrays, **options)).result()
        async with self.net.burst() as burst:
            return await burst(*arrays, **options)

    async def still_serves(self) -> None:
        """The network beside answers, in every way, and so does the one that was misused."""
        assert (await self.beside(ROW)).tolist() == [[2, 4, 6, 8]]
        assert (await (await self.beside.launch(ROW)).result()).tolist() == [[2, 4, 6, 8]]
        async with self.beside.burst() as burst:
            assert (await burst(ROW)).tolist() == [[2, 4, 6, 8]]


@asynccontextmanager
async def rigged(options: nn.Options = POOL) -> AsyncIterator[Rig]:
    engine = NullEngine(compute=double)
    async with runtime(engine, "nnasync-reference", options=options) as rt:
        net = await rt.compile(doubler(), devices=["null"])
        beside = await rt.compile(doubler(), devices=["nnasync-reference"])
        rig = Rig(rt, engine, net, beside)
        yield rig
        await rig.still_serves()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "arrays",
    [
        (),
        (ROW, ROW),
        (np.zeros((4, 1), np.float32),),
        (np.zeros(SHAPE, np.int8),),
        (np.zeros(SHAPE),),
        ("picture.png",),
        ({"picture": ROW},),
    ],
    ids=["none", "two", "shape", "int8", "float64", "text", "name"],
)
async def test_wrong_inputs(path: str, arrays: Any) -> None:
    async with rigged() as rig:
        with pytest.raises(InvalidArgument):
            await rig.use(path, *arrays)
        assert rig.engine.counters.run == 0
        assert (await rig.use(path, ROW)).tolist() == [[2, 4, 6, 8]]


@pytest.mark.parametrize("path", PATHS)
async def test_arrays_that_are_not_contiguous_are_fine(path: str) -> None:
    async with rigged() as rig:
        strided = np.repeat(ROW, 3, axis=1)[:, ::3]
        assert not strided.flags.c_contiguous
        assert (await rig.use(path, strided)).tolist() == [[2, 4, 6, 8]]


@pytest.mark.parametrize("numbers", [{"ms": math.nan}, {"s": math.inf}, {"us": -math.inf}])
async def test_deadlines_that_are_not_finite(numbers: Any) -> None:
    with pytest.raises(InvalidArgument):
        nn.within(**numbers)


@pytest.mark.parametrize("at_ns", [math.nan, math.inf, 1.5, "soon", None, 2**70, -(2**70), True])
async def test_deadlines_at_no_time(at_ns: Any) -> None:
    with pytest.raises(InvalidArgument):
        nn.Deadline(at_ns)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("deadline", [0.02, 20, math.nan, "20 ms", 1 << 62, object()], ids=KIND)
async def test_deadlines_that_are_none(path: str, deadline: Any) -> None:
    async with rigged() as rig:
        with pytest.raises(InvalidArgument, match=r"nn\.within"):
            await rig.use(path, ROW, deadline=deadline)
        assert rig.engine.counters.run == 0


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("options", [POOL, nn.Options()], ids=["worker", "inline"])
async def test_deadlines_in_the_past(path: str, options: nn.Options) -> None:
    async with rigged(options) as rig:
        if options is not POOL:
            await until_inline(rig.rt, rig.net, ROW)
        runs = rig.engine.counters.run
        for past in (nn.within(ms=-5), nn.Deadline(0), nn.Deadline(-(2**62))):
            with pytest.raises(MissedDeadlinePersistent):
                await rig.use(path, ROW, deadline=past)
        assert rig.engine.counters.run == runs
        late = nn.Deadline(2**62)
        assert (await rig.use(path, ROW, deadline=late)).tolist() == [[2, 4, 6, 8]]


async def test_a_model_that_is_cut_off(tmp_path: Path) -> None:
    whole = tmp_path / "whole.nnm"
    builder = nn.ModelBuilder("large")
    x = builder.input("x", (1, 64))
    builder.output("y", builder.fully_connected(x, np.ones((64, 64), np.float32)))
    nn.save(builder.build(), whole)
    data = whole.read_bytes()
    cut = tmp_path / "cut.nnm"
    lengths = {0, 1, 7, 8, 40, 63, 64, 65, len(data) // 2, len(data) - 64, len(data) - 1}
    async with rigged() as rig:
        for length in sorted(lengths):
            cut.write_bytes(data[:length])
            with pytest.raises(ModelError, match=r"cut\.nnm"):
                nn.load(cut)
        cut.write_bytes(data)
        net = await rig.rt.compile(nn.load(cut))
        assert (await net(np.ones((1, 64), np.float32))).size == 64


@pytest.mark.parametrize("name", ["model.tflite", "model.nnm", "model.onnx"])
async def test_a_file_that_is_no_model(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"this is no model at all" * 10)
    with pytest.raises(ModelError, match=name):
        nn.load(path)


async def test_a_file_of_no_known_kind(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="txt"):
        nn.load(tmp_path / "model.txt")
    with pytest.raises(OSError, match="missing"):
        nn.load(tmp_path / "missing.nnm")


@pytest.mark.parametrize("path", PATHS)
async def test_use_after_close(path: str) -> None:
    async with rigged() as rig:
        await rig.net.close()
        with pytest.raises(BadState, match="closed"):
            await rig.use(path, ROW)


async def test_a_burst_of_a_network_that_is_closed() -> None:
    async with rigged() as rig:
        async with rig.net.burst() as burst:
            await burst(ROW)
            await rig.net.close()
            with pytest.raises((BadState, DeviceError)):
                await burst(ROW)
        with pytest.raises(BadState):
            await burst(ROW)


async def test_a_fence_that_never_comes(deadlines: Deadlines) -> None:
    async with rigged() as rig:

        async def launched(deadline: nn.Deadline) -> None:
            await (await rig.net.launch(ROW, wait_for=[Fence()], deadline=deadline)).fence

        assert isinstance(await deadlines.missed(launched), MissedDeadlinePersistent)
        assert rig.engine.counters.run == 0


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("cores", [1, 2])
async def test_a_device_that_hangs(path: str, cores: int) -> None:
    """Also on as many threads as there are cores: the others get threads in their place."""
    async with rigged(nn.Options(cores=cores, inline_budget_us=0)) as rig:
        rig.engine.hang()
        for _ in range(cores + 1):
            deadline = nn.within(ms=40)
            with pytest.raises(MissedDeadline):
                await rig.use(path, ROW, deadline=deadline)
            assert now_ns() >= deadline.at_ns
        await rig.still_serves()
        assert rig.engine.counters.hanging >= 1


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("options", [POOL, nn.Options()], ids=["worker", "inline"])
@pytest.mark.parametrize(
    "kind", [RuntimeError, KeyError, MemoryError], ids=["RuntimeError", "KeyError", "MemoryError"]
)
async def test_a_device_that_raises(path: str, options: nn.Options, kind: type[Exception]) -> None:
    async with rigged(options) as rig:
        if options is not POOL:
            await until_inline(rig.rt, rig.net, ROW)
        rig.engine.fail("run", kind("boom"))
        for _ in range(3):
            with pytest.raises(GeneralFailure, match="boom") as caught:
                await rig.use(path, ROW)
            assert kind.__name__ in str(caught.value)
        rig.engine.heal()
        assert (await rig.use(path, ROW)).tolist() == [[2, 4, 6, 8]]


@pytest.mark.parametrize("path", PATHS)
async def test_a_device_whose_results_do_not_fit(path: str) -> None:
    async with rigged() as rig:
        for wrong in ([np.zeros(3)], [], [ROW, ROW], ["text"]):
            rig.engine.compute = lambda _, wrong=wrong: wrong
            with pytest.raises(GeneralFailure):
                await rig.use(path, ROW)
        rig.engine.compute = double
        assert (await rig.use(path, ROW)).tolist() == [[2, 4, 6, 8]]


async def test_many_callers_of_a_device_that_hangs_now_and_then(deadlines: Deadlines) -> None:
    async with rigged() as rig:
        rig.engine.hang(at=3)
        answers: list[bool] = []
        deadline = nn.within(**HOUR)

        async def call(number: int) -> None:
            row = np.full(SHAPE, number, np.float32)
            try:
                found = await rig.net(row, deadline=deadline)
            except MissedDeadline:
                answers.append(False)
            else:
                assert found.tolist() == [[2 * number] * 4]
                answers.append(True)

        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(call, number)
            await until(lambda: len(answers) == 7)
            deadlines.let_pass(deadline)
        assert sorted(answers) == [False, *[True] * 7]
