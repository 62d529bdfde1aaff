"""Device-managed buffers in executions: on every path, in every order, and when things fail."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from nnasync._core.clock import Deadline, now_ns, within
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.engine_device import EnginePreparedModel
from nnasync._core.engine_device.engine_buffer import INLINE_COPY_BYTES
from nnasync._core.engine_device.tokens import SteadyCall
from nnasync._core.model import ModelBuilder
from nnasync._core.workers import ABORT, YIELD, StopFlag
from nnasync.errors import (
    BadState,
    Cancelled,
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
    MissedDeadline,
    MissedDeadlineTransient,
    NNError,
    ResourceExhaustedPersistent,
    ResourceExhaustedTransient,
)
from nnasync.fences import Fence
from nnasync.hal import (
    BufferDesc,
    BufferRole,
    ExecutionConfig,
    Request,
)
from nnasync.memory import Pool
from tests.engine_device.domains import (
    PATHS,
    ROW,
    WHOLE,
    allocated,
    execute,
    filled,
    held,
    reading,
    reading_of,
    writing,
)
from tests.engine_device.rig import (
    BYTES,
    Rig,
    Row,
    busy_until,
    collected,
    doubled,
    finished,
    free,
    look_cheap,
    null,
    reached,
    released,
    until_inline,
)
from tests.rigs import SHAPE, ManualWatchdog
from tests.workers.steering import until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop("One loop: what a buffer does depends on none."),
]

Rigs = Callable[..., Rig]


async def ready(rigs: Rigs, path: str = "execute") -> tuple[Rig, EnginePreparedModel, Row]:
    """A doubler, whose duration is known where it is to run inline."""
    rig, row = rigs(null()), Row()
    prepared = await rig.prepare()
    if path in ("inline", "burst"):
        await until_inline(rig, prepared, row.request)
    return rig, prepared, row


# -- paths


@pytest.mark.parametrize("path", PATHS)
async def test_written_and_read(rigs: Rigs, path: str) -> None:
    rig, prepared, row = await ready(rigs, path)
    buffer = await allocated(rig, prepared)
    reads, writes = reading(buffer, row), writing(buffer, row)
    with pytest.raises(GeneralFailure, match="not initialized"):
        await execute(rig, prepared, path, reads)
    for number in (1, 5):
        row.x[...] = number
        await execute(rig, prepared, path, writes)
        assert buffer.is_initialized
        await execute(rig, prepared, path, reads)
        assert (row.y == 4 * number).all()
        assert (await held(buffer) == 2 * number).all()
    assert rig.workers.statistics().live == 0


@pytest.mark.parametrize("path", PATHS)
async def test_what_fails_leaves_nothing(rigs: Rigs, path: str) -> None:
    rig, prepared, row = await ready(rigs, path)
    buffer = await allocated(rig, prepared)
    await filled(buffer)
    engine: Any = rig.engine
    engine.fail("run", ValueError("broken"))
    with pytest.raises(GeneralFailure, match="broken"):
        await execute(rig, prepared, path, writing(buffer, row))
    with pytest.raises(GeneralFailure, match="nothing was written"):
        await held(buffer)
    engine.heal()
    await execute(rig, prepared, path, writing(buffer, row))
    assert buffer.is_initialized
    engine.fail("run", ValueError("broken"))
    with pytest.raises(GeneralFailure, match="broken"):
        await execute(rig, prepared, path, reading(buffer, row))
    assert buffer.is_initialized


async def test_a_chain_of_launches_through_a_buffer(rigs: Rigs) -> None:
    engine = null(gated=True)
    rig, row, out = rigs(engine), Row(), Row()
    prepared = await rig.prepare()
    buffer = await allocated(rig, prepared)
    first = await prepared.execute_fenced(writing(buffer, row))
    second = await prepared.execute_fenced(reading(buffer, out), [first.fence])
    assert not buffer.is_initialized
    assert engine.gate is not None
    engine.gate.open_wide()
    assert await finished(second.fence) is None
    assert (out.y == 4 * row.x).all()


async def test_trying_a_plan_changes_nothing(rigs: Rigs) -> None:
    rig, prepared, row = await ready(rigs, "inline")
    buffer = await allocated(rig, prepared)
    prepared.bind(writing(buffer, row))
    assert not buffer.is_initialized
    await filled(buffer)
    prepared.bind(writing(buffer, row))
    assert (await held(buffer) == ROW).all()


def given_back(binding: Any) -> None:
    """Wait for the call of an execution: its fence is signaled before it is given back."""
    until(lambda: bool(binding._steady))


async def test_bound_once(rigs: Rigs) -> None:
    rig, prepared, row = await ready(rigs)
    buffer = await allocated(rig, prepared)
    engine: Any = rig.engine
    requests = [writing(buffer, row), reading(buffer, row)]
    for _ in range(5):
        for request in requests:
            await prepared.execute(request)
            given_back(prepared._bindings.of(request))
    assert engine.counters.bind == 2
    del request, requests
    collected()
    assert prepared._bindings == {}


async def test_what_a_run_says_is_the_same_each_time(rigs: Rigs) -> None:
    """So who sends it on need not look into it."""
    rig, prepared, row = await ready(rigs)
    buffer = await allocated(rig, prepared)
    binding = prepared._bindings.of(writing(buffer, row))
    first, second = binding.take(), binding.take()
    assert first is not second
    for call in (first, second):
        assert prepared._result_of(call, None) is prepared._result
        binding.give_back(call)
    assert binding.take() is second


async def test_a_failed_call_runs_again(rigs: Rigs) -> None:
    rig, prepared, row = await ready(rigs)
    buffer = await allocated(rig, prepared)
    engine: Any = rig.engine
    request = writing(buffer, row)
    for number in range(3):
        engine.fail("run", ValueError("broken"))
        with pytest.raises(GeneralFailure, match="broken"):
            await prepared.execute(request)
        assert not buffer.is_initialized
        assert not buffer.managed.claims.are_on(buffer.managed)
        engine.heal()
        row.x[...] = number
        await prepared.execute(request)
        assert (await held(buffer) == 2 * number).all()


async def test_refused_before_it_ran_though_it_ran_before(rigs: Rigs) -> None:
    """What a call knows of changes ends where it was taken, not where it ran last."""
    rig, prepared, row = await ready(rigs)
    buffer = await allocated(rig, prepared)
    request = writing(buffer, row)
    await prepared.execute(request)
    await filled(buffer)
    never = Fence()
    launched = await prepared.execute_fenced(request, [never])
    launched.cancel()
    await released(launched)
    assert not buffer.is_initialized
    never.signal()
    await free(rig)


async def test_binding_that_fails_keeps_no_claim(rigs: Rigs) -> None:
    rig, prepared, row = await ready(rigs)
    buffer = await allocated(rig, prepared)
    await filled(buffer)
    engine: Any = rig.engine
    engine.fail("bind", ValueError("broken"))
    request = writing(buffer, row)
    with pytest.raises(GeneralFailure, match="broken"):
        await prepared.execute(request)
    assert not buffer.is_initialized
    assert not buffer.managed.claims.are_on(buffer.managed)
    engine.heal()
    await prepared.execute(request)
    assert buffer.is_initialized


# -- order


async def test_writers_at_once_are_refused_readers_are_not(rigs: Rigs) -> None:
    engine = null(gated=True)
    rig, rows = rigs(engine, cores=4), [Row(number) for number in range(1, 5)]
    prepared = await rig.prepare()
    buffer = await allocated(rig, prepared)
    first = await prepared.execute_fenced(writing(buffer, rows[0]))
    await reached(engine, lambda now: now.waiting == 1)
    for request in (writing(buffer, rows[1]), reading(buffer, rows[1])):
        refused = await prepared.execute_fenced(request)
        assert isinstance(await finished(refused.fence), ResourceExhaustedTransient)
    with pytest.raises(ResourceExhaustedTransient):
        await filled(buffer)
    assert engine.gate is not None
    engine.gate.open()
    assert await finished(first.fence) is None
    assert (await held(buffer) == 2 * rows[0].x).all()
    await released(first)
    readers = [await prepared.execute_fenced(reading(buffer, row)) for row in rows[1:]]
    await reached(engine, lambda now: now.waiting == 3)
    assert (await held(buffer) == 2 * rows[0].x).all()
    with pytest.raises(ResourceExhaustedTransient):
        await filled(buffer)
    engine.gate.open(3)
    for reader in readers:
        assert await finished(reader.fence) is None
        await released(reader)
    assert all((row.y == 4 * rows[0].x).all() for row in rows[1:])
    await filled(buffer)


async def test_races_on_all_workers(rigs: Rigs) -> None:
    """Whoever is refused is refused at once, whoever reads sees one whole value."""
    rig = rigs(null(), cores=4, inline_budget_ns=0)
    prepared = await rig.prepare()
    buffer = await allocated(rig, prepared)
    await filled(buffer, np.full(SHAPE, 2, np.float32))
    rows = [Row(*[number] * 4) for number in range(8)]
    requests = [
        (reading if number % 2 else writing)(buffer, row) for number, row in enumerate(rows)
    ]
    seen: set[str] = set()
    for _ in range(50):
        launched = [await prepared.execute_fenced(request) for request in requests]
        for number, each in enumerate(launched):
            error = await finished(each.fence)
            await released(each)
            seen.add(type(error).__name__)
            if number % 2 and error is None:
                assert len(set(rows[number].y.ravel())) == 1
        if buffer.is_initialized:
            assert len(set((await held(buffer)).ravel())) == 1
    assert seen <= {"NoneType", "ResourceExhaustedTransient"}
    assert not buffer.managed.claims.are_on(buffer.managed)
    await filled(buffer)


async def test_a_late_run_cannot_write_into_what_came_later(rigs: Rigs) -> None:
    engine, watchdog = null(gated=True), ManualWatchdog()
    rig, row = rigs(engine, watchdog=watchdog), Row()
    prepared = await rig.prepare()
    buffer = await allocated(rig, prepared)
    await filled(buffer)
    deadline = within(s=3600)
    late = await prepared.execute_fenced(
        writing(buffer, row), config=ExecutionConfig(deadline_ns=deadline.at_ns)
    )
    await reached(engine, lambda now: now.waiting == 1)
    watchdog.ring(deadline)
    assert isinstance(await finished(late.fence), MissedDeadline)
    with pytest.raises(ResourceExhaustedTransient):
        await filled(buffer)
    assert engine.gate is not None
    engine.gate.open()
    await released(late)
    assert not buffer.is_initialized
    await filled(buffer)
    assert (await held(buffer) == ROW).all()


async def test_an_inline_run_that_ends_too_late(rigs: Rigs) -> None:
    rig, prepared, row = await ready(rigs, "inline")
    buffer = await allocated(rig, prepared)
    engine: Any = rig.engine
    deadline = now_ns() + 20_000_000

    def compute(inputs: Any) -> list[Any]:
        busy_until(deadline + 1)
        return doubled(inputs)

    engine.compute = compute
    look_cheap(prepared)
    with pytest.raises(MissedDeadlineTransient):
        prepared.run_now(writing(buffer, row), ExecutionConfig(measure=False, deadline_ns=deadline))
    assert not buffer.is_initialized


async def test_cancelled_before_it_ran(rigs: Rigs) -> None:
    rig, prepared, row = await ready(rigs)
    buffer, never = await allocated(rig, prepared), Fence()
    await filled(buffer)
    launched = await prepared.execute_fenced(writing(buffer, row), [never])
    launched.cancel()
    assert isinstance(await finished(launched.fence), Cancelled)
    await released(launched)
    assert not buffer.is_initialized
    never.signal()
    await free(rig)


async def test_cancelled_after_others_wrote(rigs: Rigs) -> None:
    rig, prepared, row = await ready(rigs)
    buffer, never = await allocated(rig, prepared), Fence()
    launched = await prepared.execute_fenced(writing(buffer, row), [never])
    await filled(buffer)
    launched.cancel()
    await released(launched)
    assert (await held(buffer) == ROW).all()
    never.signal()
    await free(rig)


async def test_a_stopped_run_keeps_its_claim(rigs: Rigs) -> None:
    rig, row = rigs(null(steps=2)), Row()
    prepared = await rig.prepare()
    buffer = await allocated(rig, prepared)
    await filled(buffer)
    request = writing(buffer, row)
    for raised, ends in ((YIELD, "run"), (ABORT, "rewind")):
        call: Any = prepared._bindings.of(request).take()
        assert isinstance(call, SteadyCall)
        stop = StopFlag()
        stop.raised = raised
        assert call.run(stop) is False
        with pytest.raises(ResourceExhaustedTransient):
            await filled(buffer)
        if ends == "run":
            assert call.run(StopFlag())
        else:
            call.rewind()
            call.rewind()
        assert buffer.is_initialized == (ends == "run")
        await filled(buffer)


# -- roles and tokens


async def test_tokens_of_nobody(rigs: Rigs) -> None:
    rig, prepared, row = await ready(rigs)
    request = reading_of(7, row)
    with pytest.raises(InvalidArgument, match="stands for no buffer"):
        await prepared.execute(request)
    buffer = await allocated(rig, prepared)
    other_rig, other, _ = await ready(rigs)
    await allocated(other_rig, other)
    for stranger, token in ((prepared, 7), (other, buffer.token)):
        with pytest.raises(InvalidArgument, match="stands for no buffer"):
            await stranger.execute(reading_of(token, row))


@pytest.mark.parametrize("path", PATHS)
async def test_only_in_its_roles(rigs: Rigs, path: str) -> None:
    rig, prepared, row = await ready(rigs, path)
    buffer = await allocated(rig, prepared, outputs=[])
    await filled(buffer)
    with pytest.raises(InvalidArgument, match="output 0 of this prepared model is no role"):
        await execute(rig, prepared, path, writing(buffer, row))
    other = await rig.prepare()
    with pytest.raises(InvalidArgument, match="no role"):
        await other.execute(reading(buffer, row))
    both = await allocated(rig, prepared)
    await filled(both)
    with pytest.raises(InvalidArgument, match="is an input of the same request"):
        await prepared.execute(Request((WHOLE,), (WHOLE,), (both.token,)))
    assert both.is_initialized


async def test_closed_and_dropped(rigs: Rigs) -> None:
    rig, prepared, row = await ready(rigs)
    buffer = await allocated(rig, prepared)
    await filled(buffer)
    request = reading(buffer, row)
    await prepared.execute(request)
    memory = weakref.ref(buffer.managed.memory)
    await buffer.close()
    await buffer.close()
    collected()
    assert memory() is None
    with pytest.raises(InvalidArgument, match="any more"):
        await prepared.execute(request)
    with pytest.raises(BadState):
        await filled(buffer)
    dropped = await allocated(rig, prepared)
    assert rig.device._buffers is not None
    assert rig.device._buffers.statistics().buffers == 1
    request = reading(dropped, row)
    del dropped
    collected()
    assert rig.device._buffers.statistics().buffers == 0
    with pytest.raises(InvalidArgument):
        await prepared.execute(request)


async def test_collected_in_the_middle_of_a_claim(rigs: Rigs) -> None:
    """Garbage may be collected on the thread that holds a lock."""
    rig, prepared, _ = await ready(rigs)
    kept, dropped = await allocated(rig, prepared), await allocated(rig, prepared)
    buffers = rig.device._buffers
    assert buffers is not None
    managed = dropped.managed
    with buffers._lock, kept.managed.claims.lock:
        del dropped
        collected()
        assert managed.is_closed
    assert buffers.statistics().buffers == 1
    await filled(kept)


async def test_closed_while_it_runs(rigs: Rigs) -> None:
    engine = null(gated=True)
    rig, row = rigs(engine), Row()
    prepared = await rig.prepare()
    buffer = await allocated(rig, prepared)
    launched = await prepared.execute_fenced(writing(buffer, row))
    waiting = await prepared.execute_fenced(reading(buffer, row), [launched.fence])
    await reached(engine, lambda now: now.waiting == 1)
    await buffer.close()
    assert engine.gate is not None
    engine.gate.open_wide()
    assert await finished(launched.fence) is None
    assert isinstance(await finished(waiting.fence), NNError)


async def test_the_device_closes(rigs: Rigs) -> None:
    rig, prepared, _ = await ready(rigs)
    buffer = await allocated(rig, prepared)
    await rig.device.close()
    with pytest.raises(BadState):
        await filled(buffer)
    with pytest.raises(DeviceUnavailable):
        await allocated(rig, prepared)


async def test_a_role_twice_by_a_model_twice(rigs: Rigs) -> None:
    rig, prepared, _ = await ready(rigs)
    roles = [BufferRole(0, 0), BufferRole(1, 0)]
    with pytest.raises(InvalidArgument, match="given twice"):
        await rig.device.allocate(BufferDesc(), [prepared, prepared], roles, [])


async def test_too_large(rigs: Rigs) -> None:
    rig, prepared, _ = await ready(rigs)
    rig.device._buffer_limit_bytes = BYTES - 1
    with pytest.raises(ResourceExhaustedPersistent):
        await allocated(rig, prepared)


# -- copies


async def test_large_copies_are_made_on_another_thread(rigs: Rigs) -> None:
    m = ModelBuilder("large")
    shape = (1, INLINE_COPY_BYTES)
    m.output("y", m.relu(m.input("x", shape)))
    rig = rigs(ReferenceEngine())
    prepared = await rig.prepare(m.build())
    buffer = await allocated(rig, prepared)
    value = np.arange(shape[1], dtype=np.float32).reshape(shape)
    await filled(buffer, value)
    assert (await held(buffer) == value).all()
    with anyio.CancelScope() as scope, Pool.allocate(value.nbytes) as pool:
        scope.cancel()
        await buffer.copy_from(pool)
    assert scope.cancelled_caught
    with anyio.fail_after(60):
        while not buffer.is_initialized:
            await anyio.lowlevel.checkpoint()


async def test_a_deadline_that_has_passed(rigs: Rigs) -> None:
    rig, prepared, row = await ready(rigs)
    buffer = await allocated(rig, prepared)
    await filled(buffer)
    with pytest.raises(MissedDeadline):
        await prepared.execute(
            writing(buffer, row), ExecutionConfig(deadline_ns=Deadline(now_ns()).at_ns)
        )
    assert not buffer.is_initialized
