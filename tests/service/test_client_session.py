"""Every call through a service, and what a client may not do."""

from __future__ import annotations

import os
import socket
import struct
from functools import partial
from typing import Any

import anyio
import numpy as np
import pytest

import nnasync as nn
from nnasync import errors
from nnasync._core.drivers.null import NullEngine
from nnasync._core.drivers.service.child import Peer
from nnasync._core.drivers.service.link import Link
from nnasync._core.drivers.service.remote_launches import RemoteExecution
from nnasync._core.engine_device.caching import library_version
from nnasync._core.service import Limits
from nnasync._core.wire.messages import (
    MAGIC,
    PROTOCOL,
    Cancel,
    ClosePrepared,
    ForgetMemory,
    GetStatus,
    Hello,
    Launch,
    LaunchInfo,
    OfferMemory,
    OfferModel,
    PoolForm,
    Supports,
    encode,
    error_of,
    failed,
)
from nnasync._core.workers import ABORT
from nnasync.burst import BurstArguments, BurstController, LocalChannel, Outcome
from nnasync.fences import Fence, FenceStatus
from nnasync.hal import BufferDesc, BufferRole, DeviceStatus, ErrorStatus, ExecutionConfig
from nnasync.memory import Pool
from tests import rigs
from tests.service.rig import Served, Slot, request_on, served

pytestmark = pytest.mark.anyio


async def prepared_by(served: Served, model: nn.Model | None = None) -> Any:
    return await served.device.prepare_model(model or rigs.doubler())


async def until(test: Any) -> None:
    """Wait for what another task brings about."""
    with anyio.fail_after(rigs.GUARD_S):
        while not test():
            await anyio.lowlevel.checkpoint()


async def test_a_device_says_what_the_served_one_says() -> None:
    async with served() as it:
        inner = it.runtime.devices[0]
        assert (it.device.name, it.device.version) == (inner.name, inner.version)
        assert it.device.type == inner.type
        assert await it.device.get_capabilities() == await inner.get_capabilities()
        extensions = await inner.get_supported_extensions()
        assert await it.device.get_supported_extensions() == extensions
        files = await inner.get_number_of_cache_files_needed()
        assert await it.device.get_number_of_cache_files_needed() == files
        assert await it.device.get_status() is DeviceStatus.AVAILABLE
        assert await it.device.get_supported_operations(rigs.doubler()) == (True,)
    assert await it.device.get_status() is DeviceStatus.OFFLINE


async def test_executions_on_every_path() -> None:
    async with served() as it:
        prepared, slot = await prepared_by(it), Slot()
        for run in (prepared.execute, prepared.execute_synchronously):
            slot.y[...] = 0
            result = await run(slot.request, ExecutionConfig(measure=True))
            assert slot.y.tolist() == (2 * rigs.ROW).tolist()
            assert result.output_shapes[0].dimensions == rigs.SHAPE
            assert result.timing.time_on_device_ns <= result.timing.time_in_driver_ns
        slot.y[...] = 0
        launched = await prepared.execute_fenced(slot.request, config=ExecutionConfig(measure=True))
        await launched.fence
        assert slot.y.tolist() == (2 * rigs.ROW).tolist()
        info = await launched.get_execution_info()
        assert info.status is ErrorStatus.NONE
        assert info.timing_fenced.time_on_device_ns > 0
        await prepared.close()
        await prepared.close()
        with pytest.raises(errors.DeviceUnavailable, match="closed"):
            await prepared.execute(slot.request)


async def test_memory_and_models_are_sent_once() -> None:
    async with served() as it:
        model = rigs.doubler()
        prepared, slot = await prepared_by(it, model), Slot()
        await prepared.execute(slot.request)
        connection = it.device.link.connection
        before = connection.sent_bytes
        await prepared.execute(slot.request)
        first = connection.sent_bytes - before
        before = connection.sent_bytes
        assert await it.device.get_supported_operations(model) == (True,)
        assert max(first, connection.sent_bytes - before) < 200


async def test_large_constants_do_not_travel_on_the_socket() -> None:
    async with served() as it:
        builder = nn.ModelBuilder("large")
        x = builder.input("x", rigs.SHAPE)
        weights = np.ones((1 << 20, 4), np.float32)
        builder.output("y", builder.fully_connected(x, weights, np.zeros(1 << 20, np.float32)))
        prepared = await prepared_by(it, builder.build())
        assert it.device.link.connection.sent_bytes < 4096
        await prepared.close()


async def test_a_network_over_a_service() -> None:
    async with served() as it, rigs.runtime(it.device) as runtime:
        net = await runtime.compile(rigs.doubler())
        assert (await net(rigs.ROW)).tolist() == (2 * rigs.ROW).tolist()
        first = await net.launch(rigs.ROW)
        second = await net.launch(first.outputs, wait_for=[first])
        assert (await second.result()).tolist() == (4 * rigs.ROW).tolist()
        counting = await runtime.compile(rigs.counter())
        async with counting.burst() as burst:
            for number in range(1, 4):
                assert (await burst(rigs.ONES)).tolist() == (number * rigs.ONES).tolist()


# -- errors


@pytest.mark.parametrize(
    "kind",
    [
        errors.InvalidArgument,
        errors.ModelError,
        errors.BadState,
        errors.Cancelled,
        errors.DeviceUnavailable,
        errors.GeneralFailure,
        errors.DeviceDied,
        errors.MissedDeadlineTransient,
        errors.MissedDeadlinePersistent,
        errors.ResourceExhaustedTransient,
        errors.ResourceExhaustedPersistent,
    ],
)
async def test_an_error_comes_out_as_what_it_was(kind: type[errors.NNError]) -> None:
    engine = NullEngine(compute=rigs.double)
    async with served(engine) as it:
        engine.fail("run", kind("as told"))
        prepared, slot = await prepared_by(it), Slot()
        with pytest.raises(kind, match="as told") as caught:
            await prepared.execute(slot.request)
        assert type(caught.value) is kind


def test_errors_of_other_classes() -> None:
    class Own(errors.ModelError):
        pass

    assert failed(Own("x")).kind == "ModelError"
    assert failed(KeyError("x")).kind == "GeneralFailure"
    assert type(error_of(failed(errors.NNError("x")))) is errors.GeneralFailure
    unknown = error_of(type(failed(Own("x")))("SystemExit", "no"))
    assert type(unknown) is errors.GeneralFailure


async def test_a_small_output_tells_its_shape() -> None:
    async with served() as it:
        prepared = await prepared_by(it)
        pool = Pool.allocate(64)
        small = request_on(pool)
        output = nn.hal.RequestArgument(location=nn.hal.DataLocation(0, 32, 8))
        request = nn.hal.Request(small.inputs, (output,), (pool,))
        with pytest.raises(errors.OutputInsufficientSize) as caught:
            await prepared.execute(request)
        assert caught.value.output_shapes[0].dimensions == rigs.SHAPE
        assert not caught.value.output_shapes[0].is_sufficient


async def test_a_model_that_is_not_legal() -> None:
    async with served() as it:
        model = rigs.doubler()
        wrong = nn.hal.Operation(99999, (0,), (1,))
        main = nn.hal.Subgraph(model.main.operands, (wrong,), (0,), (1,))
        with pytest.raises(errors.InvalidArgument):
            await it.device.prepare_model(nn.hal.Model(main))
        main = nn.hal.Subgraph(model.main.operands, ("nothing",), (0,), (1,))  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidArgument, match="legal"):
            await it.device.get_supported_operations(nn.hal.Model(main))
        assert (await it.device.get_supported_operations(model)) == (True,)


async def test_memory_that_cannot_be_used_fails_the_execution() -> None:
    async with served() as it:
        prepared = await prepared_by(it)
        closed = Slot()
        closed.pool.close()
        with pytest.raises(errors.GeneralFailure, match="closed"):
            await prepared.execute(closed.request)
        read, write = os.pipe()
        os.close(write)
        it.device.link.notify(OfferMemory(999, PoolForm("ashmem", 64, 0, True)), [read])
        os.close(read)
        call = it.device.link.begin(
            lambda n: Launch(n, 1000, prepared.number, _form(999), ExecutionConfig(), 0)
        )
        with pytest.raises(errors.GeneralFailure, match="cannot be used"):
            await it.device.link.wait(call)


@pytest.mark.parametrize("trusts", [False, True])
async def test_memory_that_its_owner_can_shrink(trusts: bool, tmp_path: Any) -> None:
    path = tmp_path / "memory"
    path.write_bytes(rigs.ROW.tobytes() + bytes(48))
    async with served(trusts=trusts) as it:
        prepared = await prepared_by(it)
        fd = os.open(path, os.O_RDWR)
        with Pool.from_fd(fd, 64) as pool:
            os.close(fd)
            if not trusts:
                with pytest.raises(errors.GeneralFailure, match="sealed"):
                    await prepared.execute(request_on(pool))
                return
            await prepared.execute(request_on(pool))
        assert path.read_bytes()[32:48] == (2 * rigs.ROW).tobytes()


# -- deadlines, cancelling, fences


async def test_a_deadline_is_met_by_the_service_or_by_the_client(
    deadlines: rigs.Deadlines,
) -> None:
    engine = rigs.gated()
    async with served(engine) as it:
        prepared, slot = await prepared_by(it), Slot()
        engine.gate.open(1)
        await prepared.execute(slot.request)
        with pytest.raises(errors.MissedDeadlinePersistent):
            await prepared.execute(
                slot.request, ExecutionConfig(deadline_ns=nn.within(ms=-1).at_ns)
            )

        async def executed(deadline: nn.Deadline) -> None:
            await prepared.execute(slot.request, ExecutionConfig(deadline_ns=deadline.at_ns))

        async def launched(deadline: nn.Deadline) -> None:
            config = ExecutionConfig(deadline_ns=deadline.at_ns)
            await (await prepared.execute_fenced(slot.request, config=config)).fence

        for runs, call in enumerate((executed, launched), engine.counters.run + 1):
            begun = partial(engine.when, lambda c, runs=runs: c.run == runs)
            error = await deadlines.missed(call, begun)
            assert isinstance(error, errors.MissedDeadlineTransient)


async def test_a_silent_service_is_given_up_at_the_deadline(deadlines: rigs.Deadlines) -> None:
    silent, theirs = socket.socketpair()

    class Silent:
        restarts = False

        def open(self) -> Peer:
            return Peer(silent)

    link = Link(Silent(), "the silent one")
    error = await deadlines.missed(
        lambda deadline: link.call(GetStatus, deadline_ns=deadline.at_ns)
    )
    assert isinstance(error, errors.MissedDeadlineTransient)
    assert "silent one" in str(error)
    link.close()
    await link.ended
    theirs.close()


async def test_a_cancelled_call_frees_the_device() -> None:
    engine = rigs.gated(steps=3)
    async with served(engine) as it:
        prepared, slot = await prepared_by(it), Slot()
        with anyio.move_on_after(None) as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(prepared.execute, slot.request)
                await until(lambda: engine.counters.waiting == 1)
                scope.cancel()
        running = it.runtime._workers._running
        await until(lambda: any(task.stop.raised == ABORT for task in running))
        engine.gate.open_wide()
        await until(lambda: engine.counters.rewind == 1)


async def test_fences_of_the_client_are_waited_for() -> None:
    async with served() as it:
        prepared, slot, second = await prepared_by(it), Slot(), Slot()
        begin = Fence()
        launched = await prepared.execute_fenced(slot.request, [begin])
        chained = await prepared.execute_fenced(second.request, [launched.fence])
        assert not launched.fence.done
        with pytest.raises(errors.BadState):
            await launched.get_execution_info()
        begin.signal()
        await chained.fence
        await launched.fence  # The client may hear of it after the other.
        assert launched.fence.status is FenceStatus.SIGNALED
        assert second.y.tolist() == (2 * rigs.ROW).tolist()


async def test_a_failed_fence_fails_what_waits_for_it() -> None:
    async with served() as it:
        prepared, slot = await prepared_by(it), Slot()
        begin = Fence()
        launched = await prepared.execute_fenced(slot.request, [begin])
        begin.fail(errors.ResourceExhaustedPersistent("the first"))
        with pytest.raises(errors.GeneralFailure) as caught:
            await launched.fence
        assert isinstance(caught.value.__cause__, errors.ResourceExhaustedPersistent)


async def test_a_fence_is_handed_on_without_the_client() -> None:
    engine = rigs.gated()
    async with served(engine) as it:
        prepared, slot = await prepared_by(it), Slot()
        launched = await prepared.execute_fenced(slot.request)
        abroad = Fence.import_fd(launched.fence.export_fd())
        del launched
        engine.gate.open_wide()
        await abroad


async def test_a_launch_can_be_cancelled() -> None:
    engine = rigs.gated()
    async with served(engine) as it:
        prepared, slot = await prepared_by(it), Slot()
        launched = await prepared.execute_fenced(slot.request)
        launched.cancel()
        with pytest.raises(errors.Cancelled):
            await launched.fence
        assert (await launched.get_execution_info()).status is ErrorStatus.GENERAL_FAILURE


# -- ends


async def test_the_end_of_a_service_answers_everything_once() -> None:
    engine = rigs.gated()
    async with served(engine, connections=2) as it:
        prepared, slots = await prepared_by(it), [Slot() for _ in range(3)]
        launched = await prepared.execute_fenced(slots[0].request)
        requests, results = LocalChannel(), LocalChannel()
        controller = BurstController(requests, results)
        controller.attach(await prepared.configure_execution_burst(controller, requests, results))
        outcomes: list[Outcome] = []
        controller.send(controller.encode(slots[1].request), outcomes.append)
        ends: list[BaseException] = []

        async def run() -> None:
            try:
                await prepared.execute(slots[2].request)
            except errors.NNError as error:
                ends.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await until(lambda: engine.counters.waiting >= 1)
            it.disconnect()
        await until(lambda: len(outcomes) > 0)
        assert [type(each) for each in (*ends, *outcomes)] == [errors.DeviceDied] * 2
        with pytest.raises(errors.DeviceDied):
            await launched.fence
        with pytest.raises(errors.DeviceDied):
            await prepared.execute(slots[2].request)
        with pytest.raises(errors.DeviceDied):
            controller.send(controller.encode(slots[1].request), outcomes.append)
        assert await it.device.get_status() is DeviceStatus.OFFLINE
        rigs.set_free(engine)
        again = await prepared_by(it)
        await again.execute(slots[2].request)
        assert slots[2].y.tolist() == (2 * rigs.ROW).tolist()
        assert (len(ends), len(outcomes)) == (1, 1)
        await prepared.close()


async def test_all_of_a_client_goes_with_it() -> None:
    engine = rigs.gated(steps=2)
    async with served(engine) as it:
        prepared, slot = await prepared_by(it), Slot()
        await prepared.execute_fenced(slot.request)
        await until(lambda: engine.counters.waiting == 1)
        it.device.link.close()
        await it.device.link.ended
        await until(lambda: engine.counters.trim == 1)
        engine.gate.open_wide()
        await until(lambda: engine.counters.rewind == 1)


async def test_what_is_dropped_is_given_back() -> None:
    async with served(limits=Limits(prepared=1, memories=1, models=1)) as it:
        for _ in range(3):
            prepared, slot = await prepared_by(it), Slot()
            await prepared.execute(slot.request)
            del prepared, slot


# -- what a client may not do


async def test_a_client_has_only_so_much() -> None:
    limits = Limits(models=2, prepared=1, memories=1, bytes=1 << 20, bursts=0, launches=0)
    async with served(limits=limits) as it:
        model, other = rigs.doubler(), rigs.doubler()
        prepared, slot = await prepared_by(it, model), Slot()
        with pytest.raises(errors.ResourceExhaustedTransient, match="1 prepared"):
            await prepared_by(it, other)
        models = it.device._supervisor.session.models
        async with models.named(model), models.named(other):
            with pytest.raises(errors.ResourceExhaustedTransient, match="2 models"):
                await it.device.get_supported_operations(rigs.calculator())
        await prepared.execute(slot.request)
        with pytest.raises(errors.ResourceExhaustedTransient, match="memories"):
            await prepared.execute(Slot().request)
        with pytest.raises(errors.ResourceExhaustedTransient, match="launches"):
            await prepared.execute_fenced(slot.request)
        with pytest.raises(errors.ResourceExhaustedTransient, match="bursts"):
            await prepared.configure_execution_burst(
                BurstController(LocalChannel(), LocalChannel()), LocalChannel(), LocalChannel()
            )
        del slot
        huge = Pool.allocate(2 << 20)
        with pytest.raises(errors.ResourceExhaustedPersistent, match="bytes"):
            await prepared.execute(request_on(huge))


async def test_numbers_that_mean_nothing() -> None:
    async with served() as it:
        link = it.device.link
        asked: list[Any] = [
            lambda n: Supports(n, 77),
            lambda n: Launch(n, 1000, 77, b"", ExecutionConfig(False, 0, 0), 0),
            lambda n: LaunchInfo(n, 77),
            lambda n: OfferModel(n, 0, b"", b"", ()),
            lambda n: OfferModel(n, 5, b"\xc1", b"", ()),
            lambda n: OfferModel(n, 5, b"", PoolForm("ashmem", 5, 0, False), ()),
        ]
        for make in asked:
            with pytest.raises(errors.InvalidArgument):
                await link.call(make)
        for message in (ForgetMemory(77), Cancel(77)):
            link.notify(message)
        await link.call(lambda n: ClosePrepared(n, 77))
        assert await it.device.get_status() is DeviceStatus.AVAILABLE


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 8,
        struct.pack("<IHH", 3, 0, 0) + b"abc",
        struct.pack("<IHH", 1, 0, 0) + b"\x90",
        struct.pack("<IHH", 40000, 0, 0) + b"\x91" * 40000,
    ],
)
async def test_garbage_ends_the_connection_of_who_sent_it(data: bytes) -> None:
    async with served(connections=2) as it:
        bad = it.source.pairs[1][0]
        bad.setblocking(False)
        bad.send(data)
        await anyio.wait_readable(bad)
        assert bad.recv(1000) == b""
        assert await it.device.get_status() is DeviceStatus.AVAILABLE


async def test_who_says_no_hello_is_not_heard() -> None:
    async with served(connections=2) as it:
        bad = it.source.pairs[1][0]
        bad.setblocking(False)
        message = encode(GetStatus(1))
        bad.send(struct.pack("<IHH", len(message), 0, 0) + message)
        await anyio.wait_readable(bad)
        assert bad.recv(1000) == b""


@pytest.mark.parametrize(
    ("magic", "protocol", "version"),
    [
        ("HTTP", PROTOCOL, library_version()),
        (MAGIC, 99, library_version()),
        (MAGIC, PROTOCOL, "0.0.0"),
    ],
)
async def test_other_versions_are_told_so(magic: str, protocol: int, version: str) -> None:
    async with served(connections=2) as it:
        bad = it.source.pairs[1][0]
        bad.setblocking(False)
        message = encode(Hello(magic, protocol, version, 1))
        bad.send(struct.pack("<IHH", len(message), 0, 0) + message)
        await anyio.wait_readable(bad)
        answer = bad.recv(1000)
        assert b"must be the same" in answer
        assert bad.recv(1000) == b""


def _form(memory: int) -> bytes:
    request = request_on(Slot().pool)
    return encode(BurstArguments(request.inputs, request.outputs, (memory,)))


async def test_each_who_waits_has_an_error_of_its_own_at_the_end() -> None:
    async with served() as it:
        link, dependency = it.device.link, Fence()
        dependency.fail(errors.GeneralFailure("the stage before"))
        behind = RemoteExecution(link, "behind", [dependency], None)
        alone = RemoteExecution(link, "alone", [], None)
        calls = [link.begin(GetStatus) for _ in range(2)]
        link.close()
        found = [each.fence.error for each in (behind, alone, *calls)]
        assert len(set(map(id, found))) == 4
        assert {type(each) for each in found} == {errors.DeviceUnavailable}
        assert [each.__cause__ for each in found if each] == [dependency.error, None, None, None]
        assert link.error is not None
        assert link.error.__cause__ is None


async def test_who_gives_up_allocating_a_buffer_leaves_none() -> None:
    async with served(limits=Limits(buffers=2)) as it:
        prepared, role = await prepared_by(it), [BufferRole(0, 0)]

        async def allocate() -> Any:
            return await it.device.allocate(BufferDesc(), [prepared], role, [])

        answered = []  # Sooner than it was given up: by a service that is quicker than this loop.

        async def allocate_for_nobody() -> None:
            answered.append(await allocate())

        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(allocate_for_nobody)
                while not (it.device.link.is_awaited() or answered):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            while answered:
                await answered.pop().close()
            buffer = await allocate()
            await buffer.close()
