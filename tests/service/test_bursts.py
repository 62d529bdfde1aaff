"""Bursts over queues in shared memory: order, slots that change, ends, a hostile client."""

from __future__ import annotations

import os
from typing import Any

import anyio
import pytest

from nnasync import errors
from nnasync.burst import BurstController, LocalChannel, Outcome
from nnasync.drivers.service.bursts import FREE, PUT, REQUEST
from nnasync.drivers.service.messages import BurstMemory, OpenBurst, encode
from nnasync.message_queue import QueueReader, QueueWriter
from tests import rigs
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
        REQUEST,
        REQUEST + b"\xff" * 90,
        PUT,
        PUT + encode(BurstMemory(-1, 1)),
        FREE + b"\xc1",
        PUT + b"\x92\xcf" + b"\xff" * 8 + b"\x01",
    ],
)
async def test_packets_that_make_no_sense(packet: bytes) -> None:
    async with served() as it:
        prepared = await it.device.prepare_model(rigs.doubler())
        writer, requests = QueueWriter.create(4096)
        reader, results = QueueReader.create(4096)
        with writer, reader:
            with requests, results:
                fds = [*requests.descriptors, *results.descriptors]
                await it.device.link.call(lambda n: OpenBurst(n, 900, prepared.number), fds)
            assert writer.try_write(packet)
            assert writer.try_write(REQUEST + b"\xff")
            with anyio.fail_after(rigs.GUARD_S):
                assert await reader.read()


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
                await reader.read()
        await prepared.execute(slot.request)
        assert slot.y.tolist() == (2 * rigs.ROW).tolist()
