"""Hostile clients of a service in this process: what they send, and what they watch out for.

A run of it is a row of lives. Each is a connection that greets, mostly says some things that make
sense, and then sends messages that are right, mutated or random, in any order, with descriptors
that belong there or do not; or it opens a burst and does the same with its queues, and writes into
their memory. A well-behaved client calls in between, and must get right answers.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import socket
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import anyio
import anyio.lowlevel
import msgspec

import nnasync as nn
from nnasync._core.drivers.service import ServiceDevice, connect
from nnasync._core.engine_device.caching import library_version
from nnasync._core.message_queue import QueueReader, QueueWriter
from nnasync._core.service import Limits, listening, serve, served_bursts
from nnasync._core.service.client_account import ClientAccount
from nnasync._core.wire import messages
from nnasync._core.wire.connection import Connection, close_all
from nnasync._core.wire.messages import MAGIC, PROTOCOL, Hello, PoolForm, encode
from nnasync._core.wire.model_transfer import Offer
from nnasync.burst import BurstArguments, BurstCancel, BurstRequest
from nnasync.errors import DeviceUnavailable, NNError
from nnasync.hal import BufferDesc, BufferRole, ExecutionConfig, ExecutionPreference, Priority
from nnasync.memory import Pool
from tests import rigs
from tests.message_queue.waiting import read, write
from tests.service.rig import Slot, request_on

__all__ = ["Finding", "Fuzz", "fuzz", "mutated", "samples", "tampered_queue"]

PATIENCE_S = 60.0
LIMITS = Limits(models=8, prepared=8, memories=16, bytes=1 << 28, calls=32, bursts=4, launches=16)
_LIFE = 400
_LONGER = 10
_LAST = 424_242
_WISHES = (ExecutionPreference.FAST_SINGLE_ANSWER, Priority.MEDIUM)
_NUMBERS = [0, 1, 2, 3, 4, 5, 9, -1, -7, 2**31, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)]
_VALUES: list[Any] = [b"", b"\xff" * 9, "x", "ashmem", None, [], [[]], 1.5, True, {}, "\ud7ff" * 99]


class Finding(Exception):
    """Something that must not happen."""


def samples(pool: Pool) -> list[Any]:
    """Messages that are right, with small numbers so that they meet one another."""
    m = messages
    request = request_on(pool)
    form = encode(BurstArguments(request.inputs, request.outputs, (3,)))
    memory = PoolForm("ashmem", 64, 0, True)
    return [
        Offer(rigs.doubler()).message(1, 1),
        m.GetStatus(1),
        m.Ping(11),
        m.Supports(2, 1),
        m.GetReasons(18, 1),
        m.Prepare(3, 1, 2, *_WISHES, 2**62, 0, 0, b""),
        m.PrepareFromCache(4, 3, 2**62, 1, 0, b"x" * 32),
        m.OfferMemory(3, memory),
        m.ForgetMemory(3),
        m.Launch(5, 9, 2, form, ExecutionConfig(True, 0, 10**6), 0),
        m.Launch(7, 4, 2, form, ExecutionConfig(True, 2**62, 10**6), 0),
        m.Launch(12, 6, 2, form, ExecutionConfig(True, 2**62, 10**6, 10**6), 1),
        m.LaunchInfo(8, 4),
        m.CancelLaunch(4),
        m.ForgetLaunch(4),
        m.OpenBurst(9, 5, 2),
        m.OpenBurst(6, 8, 2, False, False),
        m.CloseBurst(5),
        m.Cancel(5),
        m.Allocate(13, 7, BufferDesc((1, 4)), (2,), (BufferRole(0, 0),), ()),
        m.CopyBuffer(14, 7, 3, (1, 4), False),
        m.CloseBuffer(15, 7),
        m.Trace(16, True),
        m.ClosePrepared(10, 2),
        m.ForgetModel(1),
    ]


def sense(pool: Pool) -> list[tuple[Any, bool]]:
    """What a life says first so that the rest has a meaning; with a descriptor, or without."""
    m = messages
    memory = PoolForm("ashmem", 64, 0, True)
    return [
        (Offer(rigs.doubler()).message(101, 1), False),
        (m.Prepare(102, 1, 2, *_WISHES, 2**62, 0, 0, b""), False),
        (m.OfferMemory(3, memory), True),
    ]


def packets(pool: Pool) -> list[Any]:
    """Packets of a burst that are right, or name memory that is not there."""
    request = request_on(pool)
    arguments = encode(BurstArguments(request.inputs, request.outputs, (3,)))
    stale = encode(BurstArguments(request.inputs, request.outputs, (4,)))
    return [
        BurstRequest(1, arguments),
        BurstRequest(2, arguments, True, 2**62),
        BurstRequest(3, arguments, False, 0, 10**6),
        BurstRequest(4, stale),
        BurstCancel(2),
    ]


def mutated(message: Any, random_: random.Random) -> bytes:
    """A message as it is, with a part of it replaced, or with bytes changed."""
    data = encode(message)
    choice = random_.random()
    if choice < 0.4:
        return data
    if choice < 0.85:
        parts = msgspec.msgpack.decode(data)
        _replace(parts, random_)
        return encode(parts)
    changed = bytearray(data)
    for _ in range(random_.randint(1, 4)):
        changed[random_.randrange(len(changed))] = random_.randrange(256)
    return bytes(changed[: random_.randint(1, len(changed))])


def _replace(parts: list[Any], random_: random.Random) -> None:
    """Another value somewhere in nested lists, an element more, or one less."""
    at = random_.randrange(len(parts))
    inner = parts[at]
    if isinstance(inner, list) and inner and random_.random() < 0.7:
        _replace(inner, random_)
    elif isinstance(inner, bytes) and len(inner) > 2 and random_.random() < 0.7:
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            decoded = msgspec.msgpack.decode(inner)
            if isinstance(decoded, list) and decoded:
                _replace(decoded, random_)
                parts[at] = encode(decoded)
    elif random_.random() < 0.1:
        parts.insert(at, random_.choice(_NUMBERS))
    elif random_.random() < 0.05:
        del parts[at]
    elif random_.random() < 0.05:
        parts[at] = [None] * random_.choice([1, 100, 10_000])
    else:
        parts[at] = random_.choice(_NUMBERS if random_.random() < 0.7 else _VALUES)


def tampered_queue(random_: random.Random) -> int:
    """Read a queue whose writer changes anything in its memory; how many packets came.

    Only typed errors may come of it, and the number of packets is bounded by what was written.
    """
    writer, handover = QueueWriter.create(random_.choice([64, 256, 4096]))
    writes = random_.randrange(1, 40)
    with writer, QueueReader.attach(handover) as reader:
        ring: Any = writer._ring
        for _ in range(writes):
            with suppress(NNError):
                writer.try_write(random_.randbytes(random_.randrange(0, writer.capacity)))
            if random_.random() < 0.5:
                words = ring._words if random_.random() < 0.5 else ring._lengths
                if not words:
                    break  # The writer itself found it broken.
                words[random_.randrange(len(words))] = random_.choice(
                    [random_.getrandbits(64), random_.randrange(0, 9000, 8), 0, 2**64 - 1]
                )
        came = 0
        with suppress(NNError):
            while reader.try_read() is not None:
                came += 1
                if came > reader.capacity // 8 + 64:
                    raise Finding(f"{came} packets came of {writes}")
    return writes


class Fuzz:
    """The lives of hostile clients, one after the other."""

    def __init__(self, path: Path, random_: random.Random) -> None:
        self._path = path
        self._random = random_
        self._pool = Pool.allocate(64)
        self._loose = tempfile.TemporaryFile()  # noqa: SIM115 -- closed by close
        self._loose.truncate(64)
        self._samples = samples(self._pool)
        self._packets = packets(self._pool)
        self._wildness = 0.0
        self.counts: Counter[str] = Counter()

    def close(self) -> None:
        self._loose.close()
        self._pool.close()

    @property
    def sent(self) -> int:
        """Messages and packets so far."""
        return self.counts["messages"] + self.counts["packets"]

    async def life(self, most: int) -> None:
        """One connection, until it has said enough or is not listened to any more."""
        self.counts["lives"] += 1
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(os.fspath(self._path))
        connection = Connection(sock, "the service")
        random_ = self._random
        self._wildness = random_.choice([0.0, 0.03, 0.3])
        try:
            if random_.random() < 0.97:
                self._say(connection, Hello(MAGIC, PROTOCOL, library_version(), 99))
                await anyio.wait_readable(sock)
            if random_.random() < 0.8:
                for message, has_memory in sense(self._pool):
                    self._say(connection, message, [self._pool.fd] if has_memory else [])
                    if not has_memory:
                        await self._answered(connection, message.call)
                if random_.random() < 0.5:
                    await self._burst(connection, most // 2)
            for _ in range(min(most, random_.randrange(1, _LIFE))):
                self._say_something(connection)
                if random_.random() < 0.2:
                    self._listen(connection)
                    await anyio.lowlevel.checkpoint()
            self._listen(connection)
        except (NNError, OSError):
            self.counts["cut off"] += 1
        finally:
            connection.close()

    def _say(self, connection: Connection, message: Any, fds: list[int] | None = None) -> None:
        self.counts["messages"] += 1
        connection.send(message if isinstance(message, bytes) else encode(message), fds or [])

    def _say_something(self, connection: Connection) -> None:
        random_ = self._random
        wild = self._wildness
        count = random_.choice([1, 1, 1, 2, 6]) if random_.random() < wild else 0
        fds = [self._descriptor() for _ in range(count)]
        try:
            data = encode(random_.choice(self._samples))
            if random_.random() < 0.05 * wild:
                data = random_.randbytes(random_.randrange(60))
            elif random_.random() < 0.02 + wild:
                data = mutated(random_.choice(self._samples), random_)
            self._say(connection, data, fds)
            if random_.random() < 0.01 * wild:
                connection.socket.send(random_.randbytes(random_.randrange(1, 40)))
        finally:
            close_all(fds)

    def _descriptor(self) -> int:
        """Something open: of the right kind, or of another."""
        match self._random.randrange(7):
            case 0 | 1 | 2:
                return os.dup(self._pool.fd)
            case 3:
                return os.dup(self._loose.fileno())
            case 4:
                return os.open("/dev/null", os.O_RDWR)
            case 5:
                return os.open("/", os.O_RDONLY)
            case _:
                ends = os.pipe()
                at = self._random.randrange(2)
                os.close(ends[1 - at])
                return ends[at]

    def _listen(self, connection: Connection) -> set[int]:
        """Take what came; which calls were answered."""
        frames = connection.receive()
        if frames is None:
            raise DeviceUnavailable("the service hung up")
        answered = set()
        for frame in frames:
            self.counts["answers"] += 1
            message = messages.decode(frame.message, messages.FromService)
            if isinstance(message, messages.Answer):
                answered.add(message.call)
            frame.close()
        return answered

    async def _answered(self, connection: Connection, call: int) -> None:
        with anyio.fail_after(PATIENCE_S):
            while call not in self._listen(connection):
                await anyio.wait_readable(connection.socket)

    async def _burst(self, connection: Connection, most: int) -> None:
        """Open a burst, and treat its queues badly."""
        self.counts["bursts"] += 1
        writer, requests = QueueWriter.create(1 << 14)
        reader, results = QueueReader.create(1 << 14)
        with writer, reader, requests, results:
            message = messages.OpenBurst(104, 5, 2, True, self._random.random() < 0.5)
            self._say(connection, message, [*requests.descriptors, *results.descriptors])
            await self._answered(connection, 104)
            for each in (requests, results):
                each.close()
            with suppress(NNError):
                for _ in range(min(most, self._random.randrange(1, _LIFE))):
                    self._write_something(writer)
                    if self._random.random() < 0.1:
                        await anyio.lowlevel.checkpoint()
                        self._read_results(reader)
                    if self._random.random() < 0.003:
                        self._scribble(self._random.choice([writer, reader]))
                        break
                else:
                    await self._last_result(writer, reader)
        if self._random.random() < 0.5:
            self._say(connection, messages.CloseBurst(5))

    def _write_something(self, writer: QueueWriter) -> None:
        self.counts["packets"] += 1
        message = self._random.choice(self._packets)
        choice = self._random.random()
        if choice < 0.95:
            data = mutated(message, self._random)
        else:
            data = self._random.randbytes(self._random.randrange(0, 60))
        writer.try_write(data)

    async def _last_result(self, writer: QueueWriter, reader: QueueReader) -> None:
        """Wait until the burst has gone through all of it, or has ended."""
        self.counts["packets"] += 1
        write(writer, encode(BurstRequest(_LAST, b"")))
        serial = 0
        while serial != _LAST:
            serial = msgspec.msgpack.decode(await read(reader))[0]
            self.counts["results"] += 1

    def _read_results(self, reader: QueueReader) -> None:
        while reader.try_read() is not None:
            self.counts["results"] += 1

    def _scribble(self, end: Any) -> None:
        words = end._ring._words
        words[self._random.randrange(len(words))] = self._random.choice(
            [self._random.getrandbits(64), self._random.randrange(0, 1 << 15, 8)]
        )


class _Listener(logging.Handler):
    """Errors that were logged: nothing that a client sends may cause one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(logging.Formatter().format(record))


@contextmanager
def watching() -> Iterator[list[str]]:
    """Whatever goes wrong beside the calls of a client: logged errors, threads that ended."""
    listener, logger, hook = _Listener(), logging.getLogger("nnasync"), threading.excepthook
    level, propagates = logger.level, logger.propagate
    logger.addHandler(listener)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    threading.excepthook = lambda told: listener.found.append(repr(told.exc_value))
    # Most memory that is named here never comes.
    patience_s, served_bursts._PATIENCE_S = served_bursts._PATIENCE_S, 0.001
    try:
        yield listener.found
    finally:
        threading.excepthook = hook
        served_bursts._PATIENCE_S = patience_s
        logger.removeHandler(listener)
        logger.setLevel(level)
        logger.propagate = propagates


@asynccontextmanager
async def witnessed(folder: Path, limits: Limits) -> AsyncIterator[tuple[Path, ServiceDevice]]:
    """A service, and a client that behaves."""
    path = folder / "s" / "it"
    options = nn.Options(cores=2, competition_budget_ms=0, inline_budget_us=200)
    async with (
        nn.open_runtime(devices=[rigs.REFERENCE], options=options) as runtime,
        anyio.create_task_group() as tasks,
    ):
        with listening(path) as listener:
            tasks.start_soon(serve, runtime.devices[0], listener, limits)
            device = await connect(path)
            async with AsyncExitStack() as stack:
                stack.push_async_callback(device.close)
                yield path, device
            tasks.cancel_scope.cancel()


async def fuzz(
    count: int,
    seed: int,
    folder: Path,
    told: Callable[[int, Counter[str], int], object],
    *,
    results: int = 0,
) -> Counter[str]:
    """Send so many messages and packets; raises Finding, or whatever a hang raises.

    Goes on until that had so many `results`, which a busy machine makes fewer of, but not for ever.
    `told` is called now and then with what was sent, counts and the resident bytes.
    """
    random_ = random.Random(seed)
    with watching() as found, without_fines():
        async with witnessed(folder, LIMITS) as (path, device):
            lives = Fuzz(path, random_)
            prepared, slot = await device.prepare_model(rigs.doubler()), Slot()
            try:
                while lives.sent < count or (
                    lives.counts["results"] < results and lives.sent < _LONGER * count
                ):
                    with anyio.fail_after(PATIENCE_S):
                        await lives.life(max(count - lives.sent, _LIFE))
                        lives.counts["packets"] += tampered_queue(random_)
                        slot.y[...] = 0
                        await prepared.execute(slot.request)
                    if slot.y.tolist() != (2 * rigs.ROW).tolist():
                        raise Finding("the client that behaves got a wrong result")
                    if found:
                        raise Finding(f"seed {seed}, life {lives.counts['lives']}: {found[0]}")
                    told(lives.sent, lives.counts, resident_bytes())
            finally:
                lives.close()
    return lives.counts


@contextmanager
def without_fines() -> Iterator[None]:
    """Have the service read what makes no sense as fast as the rest: most of this is that."""
    with mock.patch.object(ClientAccount, "fine", _nothing):
        yield


def _nothing(_account: ClientAccount) -> None:
    """A mock would remember each call."""


def resident_bytes() -> int:
    """Memory of this process that is in use."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def settled_bytes() -> int:
    """The same when garbage is collected."""
    gc.collect()
    return resident_bytes()
