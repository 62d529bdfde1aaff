"""Several clients of one service: each gets its turn, and has limits of its own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync import errors
from nnasync._core.drivers.null import NullEngine
from nnasync._core.drivers.service import ServiceDevice, connect, isolate
from nnasync._core.engine_device import EngineDevice
from nnasync._core.engine_device.caching import library_version
from nnasync._core.message_queue import QueueReader, QueueWriter
from nnasync._core.service import Limits, for_service, listening, serve, served_bursts
from nnasync._core.service.client_account import FINE_NS, ClientAccount
from nnasync._core.service.rate_limit import ClientBuckets
from nnasync._core.service.served_memories import Memories
from nnasync._core.wire import connection as connection_module
from nnasync._core.wire import messages
from nnasync._core.wire.connection import Connection
from nnasync._core.wire.messages import MAGIC, PROTOCOL, Hello, PoolForm, encode
from nnasync._core.wire.model_transfer import Offer
from nnasync.burst import BurstArguments, BurstRequest
from nnasync.device import PrepareModelConfig
from nnasync.hal import (
    DataLocation,
    ExecutionConfig,
    ExecutionPreference,
    Priority,
    Request,
    RequestArgument,
)
from nnasync.memory import Pool
from tests import rigs
from tests.message_queue.waiting import read
from tests.service.rig import Slot

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("What is tested does not know the loop.")]

ONE = nn.Options(cores=1, inline_budget_us=0, competition_budget_ms=0)
LIKE_THE_LOOP = msgspec.structs.replace(ONE, worker_niceness=0)
ROOT = Path(__file__).resolve().parent.parent.parent
WISH = ExecutionPreference.FAST_SINGLE_ANSWER


class House:
    """A service, its socket and its clients."""

    def __init__(self, runtime: nn.Runtime, path: Path, clients: list[ServiceDevice]) -> None:
        self.runtime = runtime
        self.path = path
        self.clients = clients

    @property
    def queued(self) -> int:
        return sum(self.runtime.statistics().workers.scheduler.queued)

    async def stranger(self) -> Connection:
        """A connection of a client that has greeted, and obeys nothing."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(str(self.path))
        connection = Connection(sock, "the service")
        connection.send(encode(Hello(MAGIC, PROTOCOL, library_version(), 9999)))
        await answers(connection, 1)
        return connection


async def answers(connection: Connection, count: int) -> list[Any]:
    """So many messages of the service."""
    found: list[Any] = []
    while len(found) < count:
        await anyio.wait_readable(connection.socket)
        frames = connection.receive()
        assert frames is not None, "the service hung up"
        for frame in frames:
            found.append(messages.decode(frame.message, messages.FromService))
            frame.close()
    return found


@asynccontextmanager
async def house(
    engine: Any,
    folder: Path,
    clients: int = 2,
    *,
    limits: Limits = Limits(),  # noqa: B008 -- it is frozen
    options: nn.Options = ONE,
) -> AsyncIterator[House]:
    """A service in this loop, with so many clients."""
    path = folder / "s" / "it"
    async with rigs.runtime(engine, options=options) as runtime, anyio.create_task_group() as tasks:
        with listening(path) as listener:
            tasks.start_soon(serve, runtime.devices[0], listener, limits)
            async with AsyncExitStack() as stack:
                devices = []
                for _ in range(clients):
                    devices.append(await connect(path))
                    stack.push_async_callback(devices[-1].close)
                yield House(runtime, path, devices)
                rigs.set_free(engine)
            tasks.cancel_scope.cancel()


async def test_low_of_one_client_has_its_turn_beside_a_flood_of_high(tmp_path: Path) -> None:
    engine = rigs.gated()
    async with house(engine, tmp_path) as it:
        busy, patient = it.clients
        high = await busy.prepare_model(rigs.doubler(), PrepareModelConfig(priority=Priority.HIGH))
        low = await patient.prepare_model(rigs.doubler(), PrepareModelConfig(priority=Priority.LOW))
        slots = [Slot() for _ in range(9)]
        flood = [await high.execute_fenced(slot.request) for slot in slots[:8]]
        last = await low.execute_fenced(slots[8].request)
        await rigs.until(lambda: it.queued == 8)
        assert engine.gate is not None
        engine.gate.open(2)
        await last.fence
        assert sum(each.fence.done for each in flood) <= 1
        engine.gate.open_wide()
        for each in flood:
            await each.fence


async def test_the_priority_of_a_call_counts_within_its_client_only(tmp_path: Path) -> None:
    engine = rigs.gated()
    async with house(engine, tmp_path) as it:
        busy, patient = [await each.prepare_model(rigs.doubler()) for each in it.clients]
        slots = [Slot() for _ in range(10)]
        high, low = (ExecutionConfig(priority=each) for each in (Priority.HIGH, Priority.LOW))
        running = await busy.execute_fenced(slots[0].request, config=high)
        await engine.when(lambda c: c.waiting == 1)
        last = await busy.execute_fenced(slots[1].request)
        flood = [await busy.execute_fenced(slot.request, config=high) for slot in slots[2:9]]
        other = await patient.execute_fenced(slots[9].request, config=low)
        await rigs.until(lambda: it.queued == 9)
        assert engine.gate is not None
        engine.gate.open(3)
        await other.fence
        await running.fence
        assert not last.fence.done
        engine.gate.open_wide()
        for each in (*flood, last):
            await each.fence


@pytest.mark.parametrize("priority", [3, -1, "HIGH", 1.5])
async def test_what_is_no_priority_is_answered(tmp_path: Path, priority: Any) -> None:
    async with house(rigs.REFERENCE, tmp_path, 0) as it:
        connection = await it.stranger()
        config = [False, 0, 0, None, priority]
        connection.send(encode(["launch", 2, 5, 77, b"", config, 0]))
        (answer,) = await answers(connection, 1)
        assert "cannot be decoded" in answer.value.text
        connection.close()


async def test_executions_that_pass_the_queue_count_as_well(tmp_path: Path) -> None:
    options = nn.Options(cores=1, inline_budget_us=1e6, competition_budget_ms=0)
    async with house(rigs.REFERENCE, tmp_path, options=options) as it:
        inner: Any = it.runtime.devices[0]
        assert isinstance(inner, EngineDevice)
        nets = [await device.prepare_model(rigs.doubler()) for device in it.clients]
        for net in nets:
            await net.execute(Slot().request)
        spent: dict[int, int] = {}
        charge = inner.workers._scheduler.spent

        def counted(client: int, duration_ns: int, *, runs: int = 0) -> None:
            spent[client] = spent.get(client, 0) + 1
            charge(client, duration_ns, runs=runs)

        inner.workers._scheduler.spent = counted  # type: ignore[method-assign]  # to look on
        for net in nets:
            await net.execute_synchronously(Slot().request)
        assert sorted(spent) == [1, 2]


async def test_what_messages_took_counts_to_the_share_of_executions() -> None:
    engine = rigs.gated()
    async with rigs.runtime(engine, options=ONE) as rt:
        device = rt.devices[0]
        buckets = ClientBuckets()
        accounts = [ClientAccount(device, Limits(), buckets) for _ in range(3)]
        talkative = accounts[1]
        nets = []
        for account in accounts:
            nets.append(await device.prepare_model(rigs.doubler()))
            account.own(nets[-1])
        assert engine.gate is not None
        running = await nets[0].execute_fenced(Slot().request)
        await rigs.until(lambda: rt.statistics().workers.running == 1)
        for _ in range(100):
            talkative.paid(1e6)
        slots = [Slot(), Slot()]
        first = await nets[1].execute_fenced(slots[0].request)
        second = await nets[2].execute_fenced(slots[1].request)
        engine.gate.open(2)
        await second.fence
        assert not first.fence.done
        engine.gate.open_wide()
        await first.fence
        await running.fence
        for account in accounts:
            account.close()


async def test_what_makes_no_sense_is_fined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs: list[float] = []
    paid = ClientAccount.paid

    def recorded(account: ClientAccount, cost_ns: float) -> float:
        costs.append(cost_ns)
        return paid(account, cost_ns)

    monkeypatch.setattr(ClientAccount, "paid", recorded)
    async with house(rigs.REFERENCE, tmp_path, 0) as it:
        connection = await it.stranger()
        right = encode(messages.GetStatus(1))
        no_model = encode(messages.Launch(2, 5, 77, b"\x93\x90\x90\x90", ExecutionConfig(), 0))
        no_call = encode(["GetStatus", 3, "more than it has"])
        for message, fines in ((right, 0), (no_model, 1), (no_call, 2), (right, 2)):
            connection.send(message)
            await answers(connection, 1)
            assert costs.count(FINE_NS) == fines
        connection.close()


async def test_each_client_has_a_queue_of_its_own_length(tmp_path: Path) -> None:
    engine = rigs.gated()
    async with house(engine, tmp_path, limits=Limits(queued=2)) as it:
        greedy, modest = [await each.prepare_model(rigs.doubler()) for each in it.clients]
        slots = [Slot() for _ in range(5)]
        launched = [await greedy.execute_fenced(slots[0].request)]
        await rigs.until(lambda: it.queued == 0)
        launched += [await greedy.execute_fenced(slot.request) for slot in slots[1:3]]
        with pytest.raises(errors.ResourceExhaustedTransient, match="2 executions are queued"):
            await greedy.execute(slots[3].request)
        launched.append(await modest.execute_fenced(slots[4].request))
        rigs.set_free(engine)
        for each in launched:
            await each.fence


async def test_descriptors_are_counted(tmp_path: Path) -> None:
    async with house(rigs.REFERENCE, tmp_path, limits=Limits(descriptors=12)) as it:
        greedy, modest = it.clients
        nets = [await each.prepare_model(rigs.doubler()) for each in (greedy, modest)]
        slots = [Slot() for _ in range(13)]
        with pytest.raises(errors.ResourceExhaustedTransient, match="12 descriptors"):
            for slot in slots:
                await nets[0].execute(slot.request)
        await nets[1].execute(slots[-1].request)


async def test_what_ended_is_not_counted_any_more(tmp_path: Path) -> None:
    """Many more bursts, launches and memories than descriptors allow at a time."""
    async with house(rigs.REFERENCE, tmp_path, 1, limits=Limits(descriptors=20)) as it:
        net = await it.clients[0].prepare_model(rigs.doubler())
        for _ in range(25):
            slot, begin = Slot(), nn.Fence()
            launched = await net.execute_fenced(slot.request, [begin])
            begin.signal()
            await launched.fence
            assert slot.y.tolist() == (2 * rigs.ROW).tolist()
            del slot, launched, begin


async def test_who_takes_no_answers_is_not_listened_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not cut off either: it gets all of them when it wants them."""
    monkeypatch.setattr(connection_module, "_MOST_WAITING_BYTES", 4096)
    async with house(rigs.REFERENCE, tmp_path, 0) as it:
        connection = await it.stranger()
        sent = 0
        with pytest.raises(errors.ResourceExhaustedTransient, match="does not read"):
            while True:
                connection.send(encode(messages.GetStatus(sent + 1)))
                sent += 1
                await anyio.lowlevel.checkpoint()
        found = 0
        while found < sent:
            connection.flush()
            found += len(await answers(connection, 1))
        assert found == sent
        connection.close()


async def test_a_description_counts_for_what_it_is_when_it_is_read(tmp_path: Path) -> None:
    async with house(rigs.REFERENCE, tmp_path, 1, limits=Limits(bytes=1 << 20)) as it:
        connection = await it.stranger()
        form = b"\x91" * 100_000
        connection.send(encode(messages.Launch(1, 5, 1, form, ExecutionConfig(), 0)))
        (answer,) = await answers(connection, 1)
        assert answer.value.kind == "ResourceExhaustedPersistent"
        connection.close()


async def test_of_compilations_a_few_run_at_a_time(tmp_path: Path) -> None:
    engine = rigs.gated()
    inside: list[int] = []
    async with house(engine, tmp_path, limits=Limits(preparing=1)) as it:
        device: Any = it.runtime.devices[0]
        compile_, running = device.engine.compile, [0]

        def counted(*args: Any) -> Any:
            running[0] += 1
            inside.append(running[0])
            try:
                return compile_(*args)
            finally:
                running[0] -= 1

        device.engine.compile = counted
        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(it.clients[0].prepare_model, rigs.doubler())
    assert inside == [1] * 6


async def test_memory_that_never_comes_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not at all by who is not there any more."""
    async with stranger_with_a_burst(tmp_path, monkeypatch) as (connection, writer, reader, waited):
        for memory in range(1000, 1100):
            writer.try_write(naming(memory))
        for memory in range(1000, 1100):
            result = msgspec.msgpack.decode(await read(reader))
            assert result[0] == memory
            assert f"memory {memory} is not known" in result[2]
        assert waited == [0.5] + [0.0] * 99
        # Once what it names is there, it is believed again.
        with Pool.allocate(64) as pool:
            form = PoolForm("ashmem", 64, 0, True)
            connection.send(encode(messages.OfferMemory(1200, form)), [pool.fd])
            connection.send(encode(messages.Ping(7)))
            await answers(connection, 1)
        for memory in (1200, 1201):
            writer.try_write(naming(memory))
            await read(reader)
        assert waited[100:] == [0.0, 0.5]


async def test_a_request_for_memory_that_was_given_back_is_no_offence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that gives up at its deadline frees what the request names, which may come later."""
    async with stranger_with_a_burst(tmp_path, monkeypatch) as (connection, writer, reader, waited):
        with Pool.allocate(64) as pool:
            form = PoolForm("ashmem", 64, 0, True)
            connection.send(encode(messages.OfferMemory(1000, form)), [pool.fd])
            connection.send(encode(messages.ForgetMemory(1000)))
            connection.send(encode(messages.Ping(7)))
            await answers(connection, 1)
        for memory, reason in ((1000, "was given back"), (1001, "is not known")):
            writer.try_write(naming(memory))
            result = msgspec.msgpack.decode(await read(reader))
            assert f"memory {memory} {reason}" in result[2]
        assert waited == [0.5, 0.5]


def naming(memory: int) -> bytes:
    """A request that names a memory; its number is the memory's."""
    return encode(BurstRequest(memory, encode(BurstArguments((), (), (memory,)))))


@asynccontextmanager
async def stranger_with_a_burst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Connection, QueueWriter, QueueReader, list[float]]]:
    """A client by hand, the queues of its burst, and with how much patience memory is awaited."""
    waited: list[float] = []
    awaited = Memories.awaited

    def seen(memories: Memories, number: int, patience_s: float) -> Any:
        waited.append(patience_s)
        return awaited(memories, number, patience_s)

    monkeypatch.setattr(Memories, "awaited", seen)
    monkeypatch.setattr(served_bursts, "_PATIENCE_S", 0.5)
    async with house(rigs.REFERENCE, tmp_path, 1) as it:
        connection = await it.stranger()
        model = Offer(rigs.doubler()).message(1, 1)
        prepare = messages.Prepare(2, 1, 1, WISH, Priority.MEDIUM, 2**62, 0, 0, b"")
        for message in (model, prepare):
            connection.send(encode(message))
            await answers(connection, 1)
        writer, requests = QueueWriter.create(1 << 14)
        reader, results = QueueReader.create(1 << 14)
        with writer, reader, requests, results:
            fds = [*requests.descriptors, *results.descriptors]
            connection.send(encode(messages.OpenBurst(3, 1, 1)), fds)
            await answers(connection, 1)
            requests.close()
            results.close()
            yield connection, writer, reader, waited
        connection.close()


async def test_low_work_of_a_service_has_the_lowest_os_priority() -> None:
    policies: dict[Priority, tuple[int, int]] = {}

    for priority in (Priority.LOW, Priority.MEDIUM):

        def compute(inputs: Any, priority: Priority = priority) -> Any:
            policies[priority] = (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))
            return rigs.double(inputs)

        engine = NullEngine(compute=compute)
        async with rigs.runtime(engine, options=for_service(LIKE_THE_LOOP)) as runtime:
            net = await runtime.compile(rigs.doubler(), priority=priority)
            await net(rigs.ROW)
    assert policies[Priority.LOW] == (os.SCHED_IDLE, 19)
    assert policies[Priority.MEDIUM] == (os.SCHED_OTHER, os.getpriority(os.PRIO_PROCESS, 0))


def idle_threads(pid: int) -> int:
    """How many threads of a process run only where nothing else wants the core."""
    found = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # It ended since it was listed.
            found += os.sched_getscheduler(int(thread.name)) == os.SCHED_IDLE
    return found


ROWS, WIDTH = 64, 1024


def long_model() -> nn.Model:
    """A product that takes some milliseconds: too long for a thread that hears of requests."""
    builder = nn.ModelBuilder("long")
    x = builder.input("x", (ROWS, WIDTH))
    weights = np.zeros((WIDTH, WIDTH), np.float32)
    builder.output("y", builder.fully_connected(x, weights, np.zeros(WIDTH, np.float32)))
    return builder.build()


def long_request() -> Request:
    size = 4 * ROWS * WIDTH
    inputs = (RequestArgument(location=DataLocation(0, 0, size)),)
    outputs = (RequestArgument(location=DataLocation(0, size, size)),)
    return Request(inputs, outputs, (Pool.allocate(2 * size),))


async def executed_by_idle(device: Any, prepared: Any) -> bool:
    """Whether a thread of that kind is there when an execution has ended."""
    await prepared.execute(long_request())
    return idle_threads(device.pid) == 1


async def test_and_so_it_has_in_a_process_of_its_own() -> None:
    """As long as it is alone: a thread that gets no core may hold the interpreter lock."""
    device: Any = await isolate(rigs.REFERENCE)
    try:
        low = await device.prepare_model(long_model(), PrepareModelConfig(priority=Priority.LOW))
        await low.execute(long_request())
        assert idle_threads(device.pid) == 1
        medium = await device.prepare_model(
            long_model(), PrepareModelConfig(priority=Priority.MEDIUM)
        )
        await medium.execute(long_request())
        for work in (medium, low, medium):
            await work.execute(long_request())
        await rigs.until(lambda: idle_threads(device.pid) == 0)
        await medium.close()
        with anyio.fail_after(rigs.GUARD_S):
            while not await executed_by_idle(device, low):
                pass
    finally:
        await device.close()


async def test_low_work_under_way_makes_room_for_the_first_of_higher_priority() -> None:
    engine = rigs.gated(steps=2)
    ran: list[bool] = []

    def compute(inputs: Any) -> Any:
        ran.append(os.sched_getscheduler(0) == os.SCHED_IDLE)
        return rigs.double(inputs)

    engine.compute = compute
    async with rigs.runtime(engine, options=for_service(ONE)) as runtime:
        device = runtime.devices[0]
        low = await device.prepare_model(rigs.doubler(), PrepareModelConfig(priority=Priority.LOW))
        running = await low.execute_fenced(Slot().request)
        await rigs.until(lambda: runtime.statistics().workers.running == 1)
        assert engine.gate is not None
        medium = await device.prepare_model(
            rigs.doubler(), PrepareModelConfig(priority=Priority.MEDIUM)
        )
        engine.gate.open_wide()
        await running.fence
        await medium.close()
        assert runtime.statistics().workers.preemptions == 1
    assert ran == [False]


async def test_a_thread_that_low_work_started_has_the_usual_os_priority() -> None:
    """Threads inherit it of whoever starts them: here the thread whose end makes HIGH ready."""
    policies: list[tuple[int, int]] = []

    def compute(inputs: Any) -> Any:
        policies.append((os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)))
        return rigs.double(inputs)

    engine = NullEngine(compute=compute)
    options = msgspec.structs.replace(LIKE_THE_LOOP, low_os_priority=True)
    usual = (os.SCHED_OTHER, os.getpriority(os.PRIO_PROCESS, 0))
    async with rigs.runtime(engine, options=options) as runtime:
        device, slots = runtime.devices[0], (Slot(), Slot())
        low = await device.prepare_model(rigs.doubler(), PrepareModelConfig(priority=Priority.LOW))
        high = await device.prepare_model(
            rigs.doubler(), PrepareModelConfig(priority=Priority.HIGH)
        )
        first = await low.execute_fenced(slots[0].request)
        second = await high.execute_fenced(slots[1].request, [first.fence])
        await second.fence
    assert policies == [(os.SCHED_IDLE, 19), usual]


@pytest.mark.slow
def test_three_clients_of_which_one_is_hostile(tmp_path: Path) -> None:
    """What the benchmark counts in a second; how fast it all was is not looked at."""
    script, found = ROOT / "benchmarks" / "clients.py", tmp_path / "found.json"
    command = [sys.executable, str(script), "--clients", "3", "--rounds", "1", "--seconds", "1"]
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    subprocess.run(
        [*command, "--json", str(found)],
        env=environment,
        check=True,
        timeout=120,
        capture_output=True,
    )
    figures = json.loads(found.read_text(encoding="utf-8"))
    assert (figures["wrong"], figures["refused"]) == (0, 0)
    assert figures["runs"] > 0
    assert len(figures["one_hostile"]) == 2
    assert all(share > 0 for share in figures["one_hostile"])
    assert figures["hostile"]["sent"] > 10
    before, most = figures["memory_mib"][0]
    assert most < before + 256
