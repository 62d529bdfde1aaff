"""Requests are validated and bound once, and let go with the request."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import anyio
import numpy as np
import pytest

from nnasync import hal
from nnasync._core.engine_device.binding import Binding, array_of
from nnasync._core.validation import validate_request
from nnasync._core.workers import StopFlag
from nnasync.engine import BoundCall, Given
from nnasync.errors import GeneralFailure, InvalidArgument, OutputInsufficientSize
from nnasync.hal import (
    DEFAULT_CONFIG,
    DataLocation,
    ExecutionConfig,
    OutputShape,
    Request,
    RequestArgument,
)
from nnasync.memory import Pool
from nnasync.scheduler import NEVER_NS
from tests.engine_device.rig import (
    Rig,
    Row,
    collected,
    finished,
    null,
    reached,
    released,
    until_inline,
)

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("Bindings know no loop.")]

Rigs = Callable[..., Rig]
PATHS = ["execute", "execute_synchronously", "execute_fenced"]


async def execute(prepared: Any, path: str, request: Request) -> None:
    result = await getattr(prepared, path)(request)
    if path == "execute_fenced":
        assert await finished(result.fence) is None


@pytest.fixture
def validations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Identities of the requests that were validated."""
    seen: list[int] = []

    def validate(model: hal.Model, request: Request, **options: Any) -> None:
        seen.append(id(request))
        validate_request(model, request, **options)

    monkeypatch.setattr("nnasync._core.engine_device.bindings.validate_request", validate)
    return seen


@pytest.mark.parametrize("path", PATHS)
async def test_request_is_validated_once(rigs: Rigs, validations: list[int], path: str) -> None:
    rig = rigs(null())
    prepared, rows = await rig.prepare(), [Row(), Row()]
    for _ in range(5):
        for row in rows:
            await execute(prepared, path, row.request)
    assert validations == [id(row.request) for row in rows]


async def test_request_is_bound_once_and_reads_what_its_memory_holds(rigs: Rigs) -> None:
    engine = null()
    rig = rigs(engine)
    prepared, row = await rig.prepare(), Row()
    await until_inline(rig, prepared, row.request)
    before = engine.counters.bind
    for number in range(20):
        row.x[...] = number
        await prepared.execute_synchronously(row.request)
        assert row.is_right
    assert engine.counters.bind == before <= 2


async def test_each_execution_at_once_has_a_call_of_its_own(rigs: Rigs) -> None:
    engine = null(gated=True)
    rig = rigs(engine, cores=3)
    prepared, row = await rig.prepare(), Row()
    for _ in range(2):
        launched = [await prepared.execute_fenced(row.request) for _ in range(3)]
        await reached(engine, lambda now: now.waiting == 3)
        assert engine.gate is not None
        engine.gate.open(3)
        for each in launched:
            assert await finished(each.fence) is None
            await released(each)
    assert engine.counters.bind == 3


async def test_equal_requests_are_different_requests(rigs: Rigs) -> None:
    engine = null()
    rig = rigs(engine)
    prepared, row, other = await rig.prepare(), Row(), Row(5)
    twin = Request(row.request.inputs, row.request.outputs, (other.pool,))
    await prepared.execute(row.request)
    await prepared.execute(twin)
    assert row.is_right
    assert other.is_right
    assert engine.counters.bind == 2


async def test_dropping_the_request_drops_the_binding(rigs: Rigs) -> None:
    rig = rigs(null())
    prepared, row = await rig.prepare(), Row()
    await released(await prepared.execute_fenced(row.request))
    pool = weakref.ref(row.pool)
    request = weakref.ref(row.request)
    assert len(prepared._bindings) == 1
    del row
    collected()
    assert request() is None
    assert pool() is None
    assert prepared._bindings == {}


async def test_running_execution_keeps_its_memory(rigs: Rigs) -> None:
    engine = null(gated=True)
    rig = rigs(engine)
    prepared, row = await rig.prepare(), Row()
    launched = await prepared.execute_fenced(row.request)
    await reached(engine, lambda now: now.waiting == 1)
    y = row.y
    del row
    collected()
    assert prepared._bindings == {}
    assert engine.gate is not None
    engine.gate.open()
    assert await finished(launched.fence) is None
    assert y.tolist() == [[2, 4, 6, 8]]


@pytest.mark.parametrize("path", PATHS)
async def test_small_output_buffer(rigs: Rigs, path: str) -> None:
    engine = null()
    prepared, row = await rigs(engine).prepare(), Row(length=12)
    for _ in range(2):
        with pytest.raises(OutputInsufficientSize, match="output 0") as caught:
            await execute(prepared, path, row.request)
        assert caught.value.output_shapes == (OutputShape((1, 4), False),)
    assert row.is_untouched
    assert engine.counters.run == 0


@pytest.mark.parametrize("path", PATHS)
async def test_illegal_requests(rigs: Rigs, path: str) -> None:
    engine = null()
    rig = rigs(engine)
    prepared, row = await rig.prepare(), Row()
    good = row.request
    beyond = (RequestArgument(location=DataLocation(0, 120, 16)),)
    for bad in (
        Request((), good.outputs, good.pools),
        Request(good.inputs, good.outputs * 2, good.pools),
        Request(beyond, good.outputs, good.pools),
        Request(good.inputs, good.outputs, ()),
        Request(good.inputs, good.outputs, (1,)),
        Request((RequestArgument(has_no_value=True),), (), good.pools),
    ):
        with pytest.raises(InvalidArgument):
            await execute(prepared, path, bad)
    assert engine.counters.bind == 0
    await execute(prepared, path, good)
    assert row.is_right


@pytest.mark.parametrize("path", PATHS)
async def test_engine_that_cannot_bind(rigs: Rigs, path: str) -> None:
    engine = null()
    engine.fail("bind", KeyError("arena"), at=0)
    engine.fail("bind", InvalidArgument("input 0 is misaligned"), at=1)
    prepared, row = await rigs(engine).prepare(), Row()
    with pytest.raises(GeneralFailure, match="arena"):
        await execute(prepared, path, row.request)
    with pytest.raises(InvalidArgument, match="misaligned"):
        await execute(prepared, path, row.request)
    await execute(prepared, path, row.request)
    assert row.is_right


async def test_idle_calls_are_used_again() -> None:
    await anyio.lowlevel.checkpoint()
    engine = null()
    plan = engine.compile(hal.Model(hal.Subgraph((), (), (), ())), hal.ExecutionPreference(1))
    binding = Binding(plan, [], [])
    first, second = binding.take(), binding.take()
    assert first is not second
    assert engine.counters.bind == 2
    binding.give_back(first)
    assert binding.take() is first


async def test_arrays_are_views_of_the_pool() -> None:
    await anyio.lowlevel.checkpoint()
    with Pool.allocate(64) as pool:
        request = Request((), (), (pool,))
        operand = hal.Operand(hal.OperandType.TENSOR_INT32, (2, 3))
        array = array_of(request, RequestArgument(location=DataLocation(0, 8, 24)), operand)
        assert (array.shape, array.dtype) == ((2, 3), np.dtype(np.int32))
        array[1, 2] = 7
        assert pool.array(np.dtype(np.int32), (8,), 0).tolist() == [0] * 7 + [7]
        given = RequestArgument(location=DataLocation(0, 0, 16), dimensions=(4, 1))
        assert array_of(request, given, hal.Operand(operand.type, (0, 1))).shape == (4, 1)
        with pytest.raises(InvalidArgument, match="tokens"):
            array_of(Request((), (), (3,)), RequestArgument(), operand)
        del array


@pytest.mark.parametrize("path", PATHS)
async def test_an_input_of_length_0_takes_the_rest_of_its_pool(rigs: Rigs, path: str) -> None:
    prepared, row = await rigs(null()).prepare(), Row()
    whole = RequestArgument(location=DataLocation(0, 0, 0))
    request = Request((whole,), row.request.outputs, row.request.pools)
    await execute(prepared, path, request)
    assert row.is_right


async def test_a_call_that_reads_its_own_arrays_only_gets_copies_of_others(rigs: Rigs) -> None:
    rig = rigs(null())
    prepared, row = await rig.prepare(), Row()
    await until_inline(rig, prepared, row.request)
    mine = np.full(row.x.shape, 7, row.x.dtype)
    assert prepared.run_now(
        row.request, ExecutionConfig(measure=False, deadline_ns=NEVER_NS), given=[mine]
    )
    assert row.x.tolist() == mine.tolist()
    assert row.is_right


async def test_a_call_that_can_reads_other_arrays_in_place(rigs: Rigs) -> None:
    rig = rigs(null())
    prepared, row = await rig.prepare(), Row()
    await until_inline(rig, prepared, row.request)
    read: list[Any] = []

    class Reader(BoundCall):
        """Notes what it reads."""

        reads_given = True

        def run(self, stop: StopFlag, given: Given = None) -> bool:
            assert given is not None
            read.extend(given)
            return True

        def rewind(self) -> None:
            read.clear()

    prepared._bindings.of(row.request).idle[:] = [Reader()]
    mine, own = np.full(row.x.shape, 7, row.x.dtype), row.x.tolist()
    assert prepared.run_now(row.request, DEFAULT_CONFIG, [mine])
    assert read[0] is mine
    assert row.x.tolist() == own
