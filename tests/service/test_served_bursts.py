"""Bursts over queues in shared memory: order, slots that change, ends, a hostile client."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest

import nnasync as nn
from nnasync import errors
from nnasync._core.clock import Alarm
from nnasync._core.drivers.null import NullEngine
from nnasync._core.drivers.service import remote_bursts as senders
from nnasync._core.message_queue import QueueReader, QueueWriter
from nnasync._core.service import Limits, holdings, served_bursts
from nnasync._core.service.served_bursts import ServedBurst
from nnasync._core.wire.messages import OpenBurst, encode
from nnasync.burst import (
    BurstArguments,
    BurstController,
    BurstRequest,
    BurstResult,
    LocalChannel,
    Outcome,
)
from nnasync.device import PrepareModelConfig
from nnasync.machine.here import HERE
from tests import rigs
from tests.message_queue.waiting import read
from tests.rigs import ONES, ROW, attempt, count, counter
from tests.service.rig import Served, Slot, served

pytestmark = pytest.mark.anyio


class Client:
    """A burst and what it was answered."""

    def __init__(self) -> None:
        self.requests, self.results = LocalChannel(), LocalChannel()
        self.controller = BurstController(self.requests, self.results)
        self.outcomes: list[Outcome] = []

    async def open(self, prepared: Any) -> Client:
        self.controller.attach(
            await prepared.configure_execution_burst(self.controller, self.requests, self.results)
        )
        return self

    def send(self, slot: Slot) -> None:
        self.controller.send(self.controller.encode(slot.request), self.outcomes.append)

    async def answered(self, count: int) -> None:
        with anyio.fail_after(rigs.GUARD_S):
            while len(self.outcomes) < count:
                await anyio.lowlevel.checkpoint()

    def close(self) -> None:
        self.controller.close(errors.DeviceUnavailable("closed by the test"))


async def opened(served: Served) -> Client:
    return await Client().open(await served.device.prepare_model(rigs.doubler()))


async def test_several_requests_in_flight() -> None:
    async with served() as it:
        client, slots = await opened(it), [Slot(number * rigs.ONES) for number in range(8)]
        for count in range(1, 4):
            for slot in slots:
                slot.y[...] = 0
                client.send(slot)
            await client.answered(count * len(slots))
            assert [slot.y.tolist() for slot in slots] == [
                (2 * number * rigs.ONES).tolist() for number in range(8)
            ]
        assert not [each for each in client.outcomes if isinstance(each, Exception)]
        client.close()


async def test_a_slot_that_is_freed_and_used_again_is_other_memory() -> None:
    async with served() as it:
        client = await opened(it)
        for number in range(1, 40):
            slot = Slot(number * rigs.ONES)
            client.send(slot)
            await client.answered(number)
            assert slot.y.tolist() == (2 * number * rigs.ONES).tolist()
            client.controller.free(slot.pool)
        client.close()


async def test_a_cancelled_request_is_answered() -> None:
    engine = rigs.gated(steps=2)
    async with served(engine) as it:
        client, slot = await opened(it), Slot()
        serial = client.controller.send(
            client.controller.encode(slot.request), client.outcomes.append
        )
        client.controller.cancel(serial)
        await client.answered(1)
        assert isinstance(client.outcomes[0], errors.NNError)
        client.close()


async def test_a_request_that_is_too_long_is_refused() -> None:
    async with served() as it:
        client, slot = await opened(it), Slot()
        many = (slot.request.inputs[0],) * 100_000
        request = type(slot.request)(many, slot.request.outputs, slot.request.pools)
        client.controller.send(client.controller.encode(request), client.outcomes.append)
        await client.answered(1)
        assert isinstance(client.outcomes[0], errors.InvalidArgument)
        client.send(slot)
        await client.answered(2)
        assert not isinstance(client.outcomes[1], errors.NNError)
        client.close()


async def test_queues_that_are_none() -> None:
    async with served() as it:
        prepared = await it.device.prepare_model(rigs.doubler())
        link, (read, write) = it.device.link, os.pipe()
        for count in (0, 1, 5, 6, 7):
            with pytest.raises(errors.InvalidArgument):
                await link.call(lambda n: OpenBurst(n, 900, prepared.number), [read] * count)
        os.close(read)
        os.close(write)


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"?",
        b"\xff" * 90,
        encode(BurstRequest(1, encode(BurstArguments((), (), (-1,))))),
        encode(BurstRequest(1, b"\x93\x90\x90\x91\xcf" + b"\xff" * 8)),
        b"\x92\xcf" + b"\xff" * 8 + b"\x01",
    ],
)
async def test_packets_that_make_no_sense(packet: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_bursts, "_PATIENCE_S", 0.0)  # No memory is on its way.
    async with served() as it:
        prepared = await it.device.prepare_model(rigs.doubler())
        writer, requests = QueueWriter.create(4096)
        reader, results = QueueReader.create(4096)
        with writer, reader:
            with requests, results:
                fds = [*requests.descriptors, *results.descriptors]
                await it.device.link.call(lambda n: OpenBurst(n, 900, prepared.number), fds)
            assert writer.try_write(packet)
            assert writer.try_write(b"\xff")
            with anyio.fail_after(rigs.GUARD_S):
                assert await read(reader)


async def test_a_client_that_breaks_its_queue_loses_its_burst() -> None:
    async with served() as it:
        prepared, slot = await it.device.prepare_model(rigs.doubler()), Slot()
        writer, requests = QueueWriter.create(4096)
        reader, results = QueueReader.create(4096)
        with writer, reader:
            with requests, results:
                fds = [*requests.descriptors, *results.descriptors]
                await it.device.link.call(lambda n: OpenBurst(n, 900, prepared.number), fds)
                memory = os.dup(requests.descriptors[0])
            os.pwrite(memory, b"\xff" * 1024, 0)
            os.close(memory)
            writer.close()
            with pytest.raises(errors.NNError), anyio.fail_after(rigs.GUARD_S):
                await read(reader)
        await prepared.execute(slot.request)
        assert slot.y.tolist() == (2 * rigs.ROW).tolist()


# -- the burst of a network, which looks for its answers


@asynccontextmanager
async def stream(
    engine: Any, options: nn.Options = rigs.POOL
) -> AsyncIterator[tuple[Served, nn.Burst]]:
    """A burst on `counter`; after the first call its total is ROW."""
    async with served(engine, options=options) as it, rigs.runtime(it.device) as rt:
        net = await rt.compile(counter())
        async with net.burst(depth=4) as burst:
            assert (await burst(ROW)).tolist() == ROW.tolist()
            yield it, burst


async def warmed(it: Served, burst: nn.Burst) -> int:
    """Call until the thread of the burst runs the model itself; how often it was called."""
    for number in range(1, 1000):
        before = it.runtime.statistics().workers.inline_runs
        await burst(ROW)
        if it.runtime.statistics().workers.inline_runs > before:
            return number
    raise AssertionError("the thread of the burst never ran the model")


@pytest.mark.parametrize("options", [rigs.POOL, rigs.INLINE], ids=["worker", "inline"])
async def test_a_burst_call_is_answered_at_its_deadline_although_the_device_hangs(
    options: nn.Options, deadlines: rigs.Deadlines
) -> None:
    engine = NullEngine(compute=count)
    async with stream(engine, options) as (it, burst), anyio.create_task_group() as group:
        calls = 1 + (await warmed(it, burst) if options is rigs.INLINE else 0)
        engine.hang(at=engine.counters.run)
        error = await deadlines.missed(
            lambda deadline: burst(ONES, deadline=deadline),
            lambda: engine.when(lambda c: c.hanging == 1),
        )
        assert isinstance(error, errors.MissedDeadlineTransient)
        assert engine.counters.hanging == 1
        behind = await attempt(group, lambda: burst(ROW))
        queued = await attempt(group, lambda: burst(ROW))
        assert not behind.done.is_set()
        engine.release()
        assert await behind.failure() is None
        assert await queued.failure() is None
        assert behind.result.tolist() == ((calls + 1) * ROW).tolist()
        assert queued.result.tolist() == ((calls + 2) * ROW).tolist()
        assert (await burst(ROW)).tolist() == ((calls + 3) * ROW).tolist()
        assert burst.statistics().failed == 1


async def test_an_answer_that_meets_the_deadline_is_not_seen_and_leaves_the_state() -> None:
    engine = NullEngine(compute=count)
    async with stream(engine) as (_, burst), anyio.create_task_group() as group:
        engine.hang(at=1)
        late = await attempt(group, lambda: burst(ONES, deadline=nn.Deadline(2**60)))
        await engine.when(lambda c: c.hanging == 1)
        call: Any = burst._running
        line: Any = burst._line
        (serial,) = line._controller._waiting

        def succeed() -> None:
            line._controller._receive(encode(BurstResult(serial)))

        call.cancels = [succeed]
        burst._expire(call)
        assert isinstance(await late.failure(), errors.MissedDeadlineTransient)
        engine.release()
        assert (await burst(ROW)).tolist() == (2 * ROW).tolist()


async def test_a_call_that_is_sent_while_it_is_queued_keeps_the_alarm_of_one_sent() -> None:
    engine = NullEngine(compute=count)
    async with stream(engine) as (_, burst), anyio.create_task_group() as group:
        engine.hang()
        first = await attempt(group, lambda: burst(ROW))
        await engine.when(lambda c: c.hanging == 1)
        deadline = nn.Deadline(2**60)
        watchdog = Hasty(lambda: burst._ended(running, errors.GeneralFailure("by the test")))
        running: Any = burst._running
        burst._workers.watchdog = watchdog
        second = await attempt(group, lambda: burst(ROW, deadline=deadline))
        call: Any = burst._running
        assert call is not running
        queued, sent = watchdog.alarms
        assert (queued.at_ns, queued._callback) == (deadline.at_ns, None)
        assert sent.at_ns > deadline.at_ns
        assert call.alarm is sent
        assert sent._callback is not None
        rigs.set_free(engine)
        assert isinstance(await first.failure(), errors.GeneralFailure)
        assert await second.failure() is None
        assert second.result.tolist() == (2 * ROW).tolist()


class Hasty(rigs.ManualWatchdog):
    """A watchdog during whose first `arm` something happens."""

    def __init__(self, happens: Callable[[], object]) -> None:
        super().__init__()
        self._happens: Callable[[], object] | None = happens

    def arm(self, at_ns: int, callback: Callable[[], object]) -> Alarm:
        alarm = super().arm(at_ns, callback)
        happens, self._happens = self._happens, None
        if happens is not None:
            happens()
        return alarm


async def test_a_burst_call_after_the_end_of_the_service_says_that_it_died() -> None:
    async with stream(NullEngine(compute=count)) as (it, burst):
        it.disconnect()
        await it.device.link.ended
        for _ in range(3):
            with pytest.raises(errors.DeviceDied):
                await burst(ROW)


class Counting(threading.Event):
    """An event that counts who waits for it."""

    waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        return super().wait(timeout)


async def test_the_thread_does_not_wait_for_an_answer_that_another_has_taken() -> None:
    async with served() as it:
        client, slot = await opened(it), Slot()
        context: Any = client.controller._context
        wanted = Counting()
        context._ends.wanted, first = wanted, context._ends.wanted
        first.set()
        await rigs.until(lambda: wanted.waits == 1)
        heartbeat: Any = it.device.link.heartbeat
        near, expect = threading.Event(), heartbeat.expect

        def come_near() -> None:
            near.set()
            expect()

        heartbeat.expect = come_near
        # The thread comes to the lock, and what it is to read is taken by who has that.
        with context._reading:
            client.send(slot)
            await rigs.until(near.is_set)
            while (packet := context._reader.try_read()) is None:
                await anyio.lowlevel.checkpoint()
            context._taken(packet)
        await rigs.until(lambda: wanted.waits > 1)
        assert not context._reading.locked()
        client.send(slot)
        await client.answered(2)
        client.close()


@pytest.mark.parametrize(
    ("preference", "polls"),
    [
        (nn.Preference.LOW_POWER, False),
        (nn.Preference.FAST_SINGLE_ANSWER, True),
        (nn.Preference.SUSTAINED_SPEED, True),
    ],
)
async def test_nobody_polls_at_low_power(
    preference: nn.Preference, polls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ServedBurst] = []

    class Seen(ServedBurst):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(holdings, "ServedBurst", Seen)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    async with served() as it:
        prepared = await it.device.prepare_model(
            rigs.doubler(), PrepareModelConfig(preference=preference)
        )
        client, slot = Client(), Slot()
        await client.open(prepared)
        context: Any = client.controller._context
        assert context._looks == polls
        assert (made[0]._reader.polling_ns > 0) == polls
        client.send(slot)
        await client.answered(1)
        assert slot.y.tolist() == (2 * ROW).tolist()
        client.close()
        await prepared.close()


class DyingReader:
    """The reader of a burst whose service dies as soon as an answer was read."""

    def __init__(self, burst: Any) -> None:
        self._burst = burst
        self._reader = burst._reader

    def try_read(self) -> bytes | None:
        packet: bytes | None = self._reader.try_read()
        if packet is not None:
            self._burst.ear.died(errors.DeviceDied("it died"))
        return packet

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


async def test_what_the_end_has_answered_is_not_answered_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Memory cannot come while the loop of both halves looks for an answer, and any answer will do.
    monkeypatch.setattr(served_bursts, "_PATIENCE_S", 0.0)
    async with served() as it:
        prepared = await it.device.prepare_model(rigs.doubler())
        answers: list[bytes] = []
        requests, results = LocalChannel(), LocalChannel()
        results.listen(answers.append)
        controller = BurstController(requests, LocalChannel())
        burst = await prepared.configure_execution_burst(controller, requests, results)
        burst._reader = DyingReader(burst)
        burst._window_ns = int(rigs.GUARD_S * 1e9)
        arguments = controller.encode(Slot().request)
        requests.send(msgspec.msgpack.encode(BurstRequest(7, arguments)))
        with anyio.fail_after(rigs.GUARD_S):
            while not answers:
                await anyio.lowlevel.checkpoint()
        serials = [msgspec.msgpack.decode(answer, type=BurstResult).serial for answer in answers]
        assert serials == [7]
        await prepared.close()


async def test_who_has_rested_is_looked_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer after a while takes longest, and later ones do not last as long for it."""
    async with served() as it:
        prepared = await it.device.prepare_model(rigs.doubler())
        controller = BurstController(LocalChannel(), LocalChannel())
        burst = await prepared.configure_execution_burst(controller, LocalChannel(), LocalChannel())
        now, windows = 10**15, list[int]()
        monkeypatch.setattr(senders, "now_ns", lambda: now)

        def answer(until_ns: int) -> bytes:
            nonlocal now
            windows.append(until_ns - now)
            now += 50_000
            return msgspec.msgpack.encode(BurstResult(1))

        monkeypatch.setattr(burst, "_comes_by", answer)
        for pause_ns in (0, 0, senders.RESTED_NS + 1, 0, 0):
            now += pause_ns
            burst._sent.add(1)
            assert burst._look(1) is not None
        usual = [windows[at] for at in (1, 3, 4)]
        assert windows[0] == windows[2] == HERE.decisions.longest_window_ns
        assert max(usual) < 2 * HERE.decisions.window_ns
        burst.close()
        await prepared.close()


def burst_threads() -> list[str]:
    """The threads that wait for answers of bursts, on both sides."""
    return [each.name for each in threading.enumerate() if each.name.startswith("nnasync-burst")]


async def test_a_burst_that_is_dropped_is_given_back() -> None:
    async with served(limits=Limits(bursts=1, prepared=1)) as it:
        for _ in range(3):
            prepared, slot = await it.device.prepare_model(rigs.doubler()), Slot()
            client = await Client().open(prepared)
            client.send(slot)
            await client.answered(1)
            assert slot.y.tolist() == (2 * ROW).tolist()
            assert burst_threads()
            del prepared, client
            gc.collect()
            # The next round has room for a prepared model and a burst, the only ones.
            await rigs.until(lambda: not burst_threads())


async def test_a_dropped_burst_lets_what_is_in_flight_end() -> None:
    engine = rigs.gated()
    async with served(engine) as it:
        prepared, slot = await it.device.prepare_model(rigs.doubler()), Slot()
        client, outcomes = await Client().open(prepared), list[Outcome]()
        client.outcomes = outcomes
        client.send(slot)
        await engine.when(lambda counters: counters.waiting == 1)
        del client
        gc.collect()
        engine.gate.open_wide()
        await rigs.until(lambda: len(outcomes) == 1)
        assert slot.y.tolist() == (2 * ROW).tolist()
        await rigs.until(lambda: gc.collect() >= 0 and not burst_threads())
        await prepared.close()


async def test_a_burst_that_is_dropped_as_the_link_ends_leaves_no_thread() -> None:
    async with served() as it:
        client = await opened(it)
        link = it.device.link
        link.close()
        del client
        gc.collect()
        await link.ended
        await rigs.until(lambda: not burst_threads())


async def test_a_client_that_raises_at_an_answer_ends_its_burst(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setattr(senders.logger, "exception", lambda text, *_: told.append(text))
    engine = rigs.gated()
    async with served(engine) as it:
        client, slots = await opened(it), [Slot(), Slot()]

        def broken(outcome: Outcome) -> None:
            raise SystemExit("of the client")

        encode_of = client.controller.encode
        client.controller.send(encode_of(slots[0].request), broken)
        await engine.when(lambda counters: counters.waiting == 1)
        client.send(slots[1])
        engine.gate.open_wide()
        await client.answered(1)
        await rigs.until(lambda: not burst_threads())
    assert told == ["the client of a burst of %s failed"]


class Ending:
    """Traces whose first question is asked while another thread closes the burst."""

    def __init__(self, burst: Any) -> None:
        self._burst = burst

    @property
    def is_on(self) -> bool:
        self._burst.close()
        return False


@pytest.mark.parametrize(
    "packet", [b"garbage", encode(BurstRequest(7, b"garbage"))], ids=["garbage", "request"]
)
async def test_what_is_sent_while_the_burst_closes_is_answered_once(
    packet: bytes,
) -> None:
    async with served() as it:
        client = await opened(it)
        answers: list[bytes] = []
        client.results.listen(answers.append)
        context: Any = client.controller._context
        it.device.link.traces = Ending(context)
        client.requests.send(packet)
        # The thread that waits for answers may be the one that says so.
        await rigs.until(lambda: bool(answers))
        (answer,) = [msgspec.msgpack.decode(each, type=BurstResult) for each in answers]
        assert answer.status == errors.DeviceUnavailable.status


class Dying:
    """Traces whose first question is asked while the service dies."""

    def __init__(self, link: Any, disconnect: Callable[[], object]) -> None:
        self._link = link
        self._disconnect = disconnect

    @property
    def is_on(self) -> bool:
        self._disconnect()
        self._link.over.wait_blocking(rigs.GUARD_S)
        return False


async def test_who_asks_while_the_service_dies_hears_that_it_died() -> None:
    async with served() as it:
        client, slot = await opened(it), Slot()
        link: Any = it.device.link
        arguments = client.controller.encode(slot.request)
        link.traces = Dying(link, it.disconnect)
        with pytest.raises(errors.DeviceDied):
            client.controller.ask(arguments)
        client.close()
