"""Whatever a client sends after its greeting, others are served, and nothing is left behind."""

from __future__ import annotations

import os
import random
import socket
import struct
from typing import Any

import anyio
import msgspec
import pytest

from nnasync.drivers.service import messages
from nnasync.drivers.service.connection import Connection
from nnasync.drivers.service.messages import MAGIC, PROTOCOL, Hello, PoolForm, encode
from nnasync.drivers.service.models import Offer
from nnasync.engine.caching import library_version
from nnasync.errors import NNError
from nnasync.hal import DeviceStatus, ExecutionPreference, Priority
from nnasync.memory import Pool
from tests import rigs
from tests.service.rig import request_on, served

pytestmark = pytest.mark.anyio

ROUNDS = 400
_WISHES = (ExecutionPreference.FAST_SINGLE_ANSWER, Priority.MEDIUM)


@pytest.fixture
def anyio_backend() -> str:
    """What is fuzzed does not know the loop."""
    return "asyncio"


def samples() -> list[Any]:
    """Messages that are right, with small numbers so that they meet one another."""
    m = messages
    request = request_on(Pool.allocate(64))
    form = encode(m.Form(request.inputs, request.outputs, (3,)))
    pool = PoolForm("ashmem", 64, 0, True)
    return [
        Offer(rigs.doubler()).message(1, 1),
        m.GetStatus(1),
        m.Supports(2, 1),
        m.Prepare(3, 1, 2, *_WISHES, 2**62, 0, 0, b""),
        m.PrepareFromCache(4, 3, 2**62, 1, 0, b"x" * 32),
        m.OfferMemory(3, pool),
        m.ForgetMemory(3),
        m.Execute(5, 2, form, True, 2**62, 10**6, True),
        m.Execute(6, 2, form, True, 0, 10**6, False),
        m.Launch(7, 4, 2, form, True, 2**62, 10**6, None, 0),
        m.LaunchInfo(8, 4),
        m.CancelLaunch(4),
        m.ForgetLaunch(4),
        m.OpenBurst(9, 5, 2),
        m.CloseBurst(5),
        m.Cancel(5),
        m.ClosePrepared(10, 2),
        m.ForgetModel(1),
    ]


def mutated(message: Any, random_: random.Random) -> bytes:
    """A message as it is, with a part of it replaced, or with bytes changed."""
    data = encode(message)
    choice = random_.random()
    if choice < 0.4:
        return data
    if choice < 0.8:
        parts = msgspec.msgpack.decode(data)
        values = [0, 1, 2, 3, -1, 2**63, 2**40, b"", b"\xff" * 9, "x", None, [], [[]], 1.5, True]
        parts[random_.randrange(len(parts))] = random_.choice(values)
        return encode(parts)
    changed = bytearray(data)
    for _ in range(random_.randint(1, 4)):
        changed[random_.randrange(len(changed))] = random_.randrange(256)
    return bytes(changed[: random_.randint(1, len(changed))])


@pytest.mark.parametrize("seed", range(6))
async def test_messages_of_all_kinds(seed: int) -> None:
    random_, kinds = random.Random(seed), samples()
    async with served(connections=30) as it:
        for _, pair in enumerate(it.source.pairs[1:]):
            await harass(pair[0], random_, kinds)
            assert await it.device.get_status() is DeviceStatus.AVAILABLE
        prepared = await it.device.prepare_model(rigs.doubler())
        await prepared.close()


async def harass(sock: socket.socket, random_: random.Random, kinds: list[Any]) -> None:
    """Greet, and send mutated messages until the service has enough of it."""
    connection = Connection(sock, "the service")
    with Pool.allocate(64) as pool:
        try:
            connection.send(encode(Hello(MAGIC, PROTOCOL, library_version(), 99)))
            await anyio.wait_readable(sock)
            for _ in range(ROUNDS // 30 + 1):
                fds = [pool.fd] * random_.choice([0, 0, 0, 1, 2])
                connection.send(mutated(random_.choice(kinds), random_), fds)
                if random_.random() < 0.1:
                    sock.send(os.urandom(0) + struct.pack("<IHH", random_.randrange(90), 0, 0))
                frames = connection.receive()
                if frames is None:
                    break
                for frame in frames:
                    frame.close()
                await anyio.lowlevel.checkpoint()
        except (NNError, OSError):
            pass
    connection.close()
