"""What must not be: other versions, silence, no descriptors, no memory, times beyond all limits."""

from __future__ import annotations

import contextlib
import errno
import functools
import mmap
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync import errors
from nnasync._core.clock import Deadline
from nnasync._core.drivers.service import ServiceDevice, connect, supervisor
from nnasync._core.drivers.service.child import Peer
from nnasync._core.engine_device.caching import library_version
from nnasync._core.service import client_session
from nnasync._core.service.holdings import Holdings
from nnasync._core.wire.connection import Connection
from nnasync._core.wire.messages import (
    MAGIC,
    PROTOCOL,
    Answer,
    GetStatus,
    Hello,
    Launch,
    OfferMemory,
    PoolForm,
    decode,
    encode,
)
from nnasync.burst import BurstArguments, BurstController, BurstResult, LocalChannel
from nnasync.device import PreparedModel
from nnasync.hal import DeviceStatus, ErrorStatus, ExecutionConfig
from nnasync.memory import Pool
from tests import rigs
from tests.service.rig import Served, Slot, request_on, served

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("What is wrong is so on any loop.")]


def framed(message: Any, *, fds: int = 0) -> bytes:
    data = encode(message)
    return struct.pack("<IHH", len(data), fds, 0) + data


async def answer_of(connection: Connection) -> Any:
    """The next message on a connection; None at its end."""
    while True:
        await anyio.wait_readable(connection.socket)
        frames = connection.receive()
        if frames is None:
            return None
        for frame in frames:
            frame.close()
            return decode(frame.message, list[Any])


async def greeted(it: Served) -> Connection:
    """A second client, which says what the test wants."""
    connection = Connection(it.source.pairs[1][0], "the service")
    connection.send(encode(Hello(MAGIC, PROTOCOL, library_version(), 1)))
    await answer_of(connection)
    return connection


# -- versions


class Scripted:
    """A service that says these bytes after the greeting, and nothing more."""

    restarts = False

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self.theirs: socket.socket

    def open(self) -> Peer:
        ours, self.theirs = socket.socketpair()
        threading.Thread(target=self._reply).start()
        return Peer(ours)

    def close(self) -> None:
        self.theirs.close()

    def _reply(self) -> None:
        self.theirs.recv(1000)
        self.theirs.sendall(self._answer)


WELCOME = ("gpu", "1", 0, 4, None, (), (0, 0))


@pytest.mark.parametrize(
    ("welcome", "match"),
    [
        (("9.9.9", *WELCOME), "service is nnasync 9.9.9, the client {ours}; both must be"),
        (("9.9.9", {"name": "gpu"}), "service is nnasync 9.9.9, the client {ours}; both must be"),
        (("9" * 5000,), "service is nnasync 9{{40}}, the client {ours}"),
        ((library_version(), "gpu"), "cannot be decoded"),
        ((5,), "cannot be decoded"),
        ((), "cannot be decoded"),
        ("gpu", "cannot be decoded"),
    ],
)
async def test_a_service_of_another_version(welcome: Any, match: str) -> None:
    source = Scripted(framed(Answer(1, encode(welcome))))
    with pytest.raises(errors.DeviceUnavailable, match=match.format(ours=library_version())):
        await ServiceDevice.open(source, "gpu")
    source.close()


async def test_a_client_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = library_version()
    async with served(connections=2) as it:
        monkeypatch.setattr(client_session, "library_version", lambda: "9.9.9")
        match = rf"nnasync 9\.9\.9 .*the client {ours} .*both must be the same"
        with pytest.raises(errors.DeviceUnavailable, match=match):
            await ServiceDevice.open(it.source, "gpu")


# -- silence, and what is no message


async def test_a_client_that_never_greets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_session, "_HELLO_WITHIN_S", 0.05)
    hello = framed(Hello(MAGIC, PROTOCOL, library_version(), 1))
    async with served(connections=4) as it:
        for said, (bad, _) in zip((b"", hello[:4], hello[:-1]), it.source.pairs[1:], strict=True):
            with contextlib.suppress(BrokenPipeError):  # It may have hung up already.
                bad.sendall(said)
            await anyio.wait_readable(bad)
            assert bad.recv(100) == b""
        assert await it.device.get_status() is DeviceStatus.AVAILABLE


@pytest.mark.parametrize("said", [b"", b"\x05\0\0\0", struct.pack("<IHH", 9, 0, 0) + b"half"])
async def test_a_service_that_never_greets(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "PATIENCE_S", 0.05)
    source = Scripted(said)
    with pytest.raises(errors.DeviceUnavailable, match=r"gpu: no answer within 0\.05 s"):
        await ServiceDevice.open(source, "gpu")
    source.close()


@pytest.mark.parametrize("cut", [1, 7, 8, 12])
async def test_half_a_frame_and_then_silence(cut: int) -> None:
    async with served(connections=2) as it:
        bad = await greeted(it)
        bad.socket.sendall(framed(GetStatus(7))[:cut])
        for _ in range(3):
            assert await it.device.get_status() is DeviceStatus.AVAILABLE
        bad.socket.sendall(framed(GetStatus(7))[cut:])
        assert (await answer_of(bad))[:2] == ["answer", 7]
        bad.socket.sendall(framed(GetStatus(8))[:cut])
        bad.close()


async def test_half_a_frame_with_descriptors(no_leaks: None) -> None:
    async with served(connections=2) as it:
        bad, read_write = await greeted(it), os.pipe()
        data = framed(OfferMemory(5, PoolForm("ashmem", 64, 0, True)), fds=2)
        socket.send_fds(bad.socket, [data[:9]], list(read_write))
        for fd in read_write:
            os.close(fd)
        assert await it.device.get_status() is DeviceStatus.AVAILABLE
        bad.close()
        assert await it.device.get_status() is DeviceStatus.AVAILABLE


@pytest.mark.parametrize("kind", ["telepathy", "", "Hello", 5, None])
async def test_calls_of_an_unknown_kind_are_answered(kind: Any) -> None:
    async with served(connections=2) as it:
        bad = await greeted(it)
        bad.send(encode([kind, 5, "x"]))
        answer = await answer_of(bad)
        assert answer[:2] == ["answer", 5]
        assert answer[2][0] == "InvalidArgument"
        bad.send(encode(GetStatus(6)))
        assert (await answer_of(bad))[1] == 6
        bad.close()


async def test_words_of_a_service_of_an_unknown_kind_end_it() -> None:
    async with served(connections=2) as it:
        prepared, slot = await it.device.prepare_model(rigs.doubler()), Slot()
        it.source.pairs[0][1].sendall(framed(["telepathy", 5]))
        with pytest.raises(errors.NNError, match="cannot be decoded"):
            while True:
                await prepared.execute(slot.request)
        again = await it.device.prepare_model(rigs.doubler())
        await again.execute(slot.request)


# -- times and sizes at their limits


LIMITS = [0, 1, -1, 2**31, 2**63 - 2, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1]


async def outcome(call: Any) -> str:
    """The name of what an execution, or a launch and its fence, raises; empty for none."""
    try:
        result = await call
        if hasattr(result, "fence"):
            await result.fence
    except errors.NNError as error:
        return type(error).__name__
    return ""


async def prepared_by(device: nn.device.Device) -> PreparedModel:
    return await device.prepare_model(rigs.doubler())


def calls(prepared: PreparedModel, slot: Slot, value: int) -> list[Any]:
    timed = []
    if -(2**63) <= value < 2**63:  # There are no other deadlines.
        at = Deadline(value)
        timed = [
            prepared.execute(slot.request, ExecutionConfig(deadline_ns=at.at_ns)),
            prepared.execute_synchronously(slot.request, ExecutionConfig(deadline_ns=at.at_ns)),
            prepared.execute_fenced(slot.request, config=ExecutionConfig(deadline_ns=at.at_ns)),
        ]
    return [
        *timed,
        prepared.execute(slot.request, ExecutionConfig(loop_timeout_ns=value)),
        prepared.execute_fenced(slot.request, config=ExecutionConfig(loop_timeout_ns=value)),
        prepared.execute_fenced(slot.request, config=ExecutionConfig(duration_ns=value)),
    ]


@pytest.mark.parametrize("value", LIMITS)
async def test_times_mean_the_same_through_a_service(value: int) -> None:
    async with served() as it:
        slot = Slot()
        here = await prepared_by(it.runtime.devices[0])
        there = await prepared_by(it.device)
        wanted = [await outcome(call) for call in calls(here, slot, value)]
        found = [await outcome(call) for call in calls(there, slot, value)]
        assert found == wanted
        assert await it.device.get_status() is DeviceStatus.AVAILABLE


def numbered(launch: Launch, call: int) -> Launch:
    return msgspec.structs.replace(launch, call=call)


@pytest.mark.parametrize("value", [v for v in LIMITS if -(2**63) <= v < 2**64])
async def test_whatever_times_a_message_bears_it_is_answered(value: int) -> None:
    async with served(connections=2) as it:
        bad, slot = await greeted(it), Slot()
        prepared: Any = await prepared_by(it.device)
        await prepared.execute(slot.request)
        form = encode(BurstArguments(slot.request.inputs, slot.request.outputs, (1,)))
        messages = [
            Launch(2, 7, 9, form, ExecutionConfig(True, value, value), 0),
            Launch(3, 8, value, form, ExecutionConfig(True, value, 0), 0),
            Launch(4, value, 9, form, ExecutionConfig(True, value, value, value), 0),
            Launch(5, 6, 9, form, ExecutionConfig(True, value, value, value), value),
        ]
        for number, message in enumerate(messages, 2):
            bad.send(encode(message))
            answer = await answer_of(bad)
            assert answer[1] == number
            assert answer[2][0] in ("InvalidArgument", "ResourceExhaustedTransient")
        link = it.device.link
        for number in (1000, 1001):
            launch = Launch(
                0, number, prepared.number, form, ExecutionConfig(True, value, value, value), 0
            )
            call = link.begin(functools.partial(numbered, launch))
            try:
                await link.wait(call)
            except errors.NNError:
                pass
            call.drop()
        assert await it.device.get_status() is DeviceStatus.AVAILABLE
        bad.close()


async def test_a_launch_that_nobody_answers_ends_by_its_fence(
    deadlines: rigs.Deadlines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is refused is told by the launch; what comes too late is not refused."""

    def asked(self: Holdings, message: Any, frame: Any) -> Any:
        return anyio.sleep_forever if isinstance(message, Launch) else usual(self, message, frame)

    usual = Holdings.asked
    async with served() as it:
        prepared, slot = await prepared_by(it.device), Slot()
        await prepared.execute(slot.request)
        with monkeypatch.context() as patch:
            patch.setattr(Holdings, "asked", asked)
            for limit in (
                ExecutionConfig(duration_ns=3600 * 10**9),
                ExecutionConfig(deadline_ns=nn.within(**rigs.HOUR).at_ns),
            ):
                async with anyio.create_task_group() as group:
                    launch = functools.partial(prepared.execute_fenced, slot.request, config=limit)
                    silent = await rigs.attempt(group, launch)
                    deadlines.let_pass(deadlines.the_far_one())
                launched = silent.result
                with pytest.raises(errors.MissedDeadlineTransient):
                    await launched.fence
                info = await launched.get_execution_info()
                assert info.status is nn.hal.ErrorStatus.MISSED_DEADLINE_TRANSIENT
        await (await prepared.execute_fenced(slot.request)).fence


@pytest.mark.parametrize(
    ("size", "offset"),
    [
        (0, 0),
        (-1, 0),
        (64, -1),
        (2**62, 0),
        (2**63, 0),
        (64, 2**62),
        (2**64 - 1, 2**64 - 1),
        (2**20, 0),
    ],
)
async def test_sizes_of_memory_that_cannot_be(size: int, offset: int) -> None:
    async with served() as it:
        prepared: Any = await prepared_by(it.device)
        pool = Pool.allocate(64)
        request = request_on(pool)
        form = encode(BurstArguments(request.inputs, request.outputs, (999,)))
        it.device.link.notify(OfferMemory(999, PoolForm("ashmem", size, offset, True)), [pool.fd])
        with pytest.raises(
            (errors.GeneralFailure, errors.InvalidArgument, errors.ResourceExhausted)
        ):
            await it.device.link.call(
                lambda n: Launch(n, 1000, prepared.number, form, ExecutionConfig(), 0)
            )
        assert await it.device.get_status() is DeviceStatus.AVAILABLE


# -- no memory


def failing(code: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


FULL = [
    (os, "memfd_create", errno.EMFILE),
    (os, "memfd_create", errno.ENFILE),
    (os, "memfd_create", errno.ENOMEM),
    (os, "ftruncate", errno.ENOSPC),
    (mmap, "mmap", errno.ENOMEM),
]


@pytest.mark.parametrize(("module", "name", "code"), FULL)
async def test_no_memory_to_share(
    module: Any, name: str, code: int, no_leaks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served() as it:
        prepared, slot = await prepared_by(it.device), Slot()
        await prepared.execute(slot.request)
        buffers = [nn.hal.BufferRole(0, 0, 1.0)]
        requests, results = LocalChannel(), LocalChannel()
        controller = BurstController(requests, results)
        with monkeypatch.context() as patch:
            patch.setattr(module, name, failing(code))
            with pytest.raises(errors.ResourceExhausted):
                Pool.allocate(1 << 20)
            with pytest.raises(errors.ResourceExhausted):
                await prepared.configure_execution_burst(controller, requests, results)
            with pytest.raises(errors.ResourceExhausted):
                await it.device.prepare_model(large_model())
            desc = nn.hal.BufferDesc(dimensions=())
            with contextlib.suppress(errors.NNError):
                # Allocated in the service: by memory that it need not share, or typed.
                await (await it.device.allocate(desc, [prepared], buffers, [])).close()
            await prepared.execute(slot.request)
        context = await prepared.configure_execution_burst(controller, requests, results)
        context.close()
        await (await it.device.prepare_model(large_model())).close()


@pytest.mark.parametrize(
    ("size", "status"), [(1, ErrorStatus.GENERAL_FAILURE), (1 << 21, ErrorStatus.INVALID_ARGUMENT)]
)
async def test_what_is_no_request_of_a_burst_is_answered(size: int, status: ErrorStatus) -> None:
    """Also where it is longer than the message queue can carry."""
    async with served() as it:
        prepared, slot = await prepared_by(it.device), Slot()
        requests, results = LocalChannel(), LocalChannel()
        answers: list[bytes] = []
        results.listen(answers.append)
        context = await prepared.configure_execution_burst(
            BurstController(LocalChannel(), LocalChannel()), requests, results
        )
        requests.send(bytes(size))
        await rigs.until(lambda: len(answers) > 0)
        answer = msgspec.msgpack.decode(answers[0], type=BurstResult)
        assert answer.status == status
        await prepared.execute(slot.request)
        context.close()


def large_model() -> nn.Model:
    """With constants that are too long for a message."""
    builder = nn.ModelBuilder("large")
    x = builder.input("x", (1, 64))
    weights = np.zeros((1 << 12, 64), np.float32)
    builder.output("y", builder.fully_connected(x, weights, np.zeros(1 << 12, np.float32)))
    return builder.build()


async def test_a_service_that_cannot_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so to who needs the memory, and serves what it has."""
    async with served() as it:
        prepared, slot, other, third = await prepared_by(it.device), Slot(), Slot(), Slot()
        await prepared.execute(slot.request)
        with monkeypatch.context() as patch:
            patch.setattr(mmap, "mmap", failing(errno.ENOMEM))
            with pytest.raises(errors.ResourceExhaustedTransient, match="map"):
                await prepared.execute(other.request)
            with pytest.raises(errors.ResourceExhaustedTransient, match="map"):
                await prepared.execute_fenced(third.request)
            await prepared.execute(slot.request)
        await prepared.execute(other.request)
        launched = await prepared.execute_fenced(third.request)
        await launched.fence
        assert other.y.tolist() == third.y.tolist() == (2 * rigs.ROW).tolist()


# -- no descriptors


CLIENT = """
import os, resource, sys
import anyio
from nnasync import errors
from nnasync.burst import BurstController, LocalChannel
from nnasync._core.drivers.service import connect, isolate
from tests import rigs
from tests.service.rig import Slot

async def told(call):
    try:
        result = await call
        if hasattr(result, "fence"):
            await result.fence
    except errors.NNError as error:
        return type(error).__name__
    return "done"

async def burst(prepared):
    channels = LocalChannel(), LocalChannel()
    (await prepared.configure_execution_burst(BurstController(*channels), *channels)).close()

async def main():
    device = await connect(sys.argv[1])
    prepared, slot, unknown = await device.prepare_model(rigs.doubler()), Slot(), Slot()
    await prepared.execute(slot.request)
    before = len(os.listdir("/proc/self/fd"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    held = []
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        pass
    print(await told(connect(sys.argv[1])))
    print(await told(isolate(rigs.REFERENCE)))
    print(await told(burst(prepared)))
    print(await told(prepared.execute(slot.request)))
    print(await told(prepared.execute(unknown.request)))
    print(await told(prepared.execute_fenced(slot.request)))
    for fd in held:
        os.close(fd)
    again = await device.prepare_model(rigs.doubler())
    print(await told(again.execute(slot.request)), await told(burst(again)))
    print(await told(again.execute_fenced(slot.request)))
    await again.close()
    while len(os.listdir("/proc/self/fd")) > before:  # Threads of bursts close theirs at their end.
        await device.get_status()
    await device.close()
    print("nothing left")

anyio.run(main)
"""


@contextlib.contextmanager
def serving(path: Path, *, descriptors: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """`nnasync device-service` in a process, which may have only so many descriptors."""
    command = [sys.executable, "-m", "nnasync", "device-service", "--device", rigs.REFERENCE]
    limit = "" if descriptors is None else f"ulimit -n {descriptors}; "
    line = [*command, "--cores", "1", "--socket", str(path)]
    with subprocess.Popen(
        ["/bin/sh", "-c", limit + 'exec "$0" "$@"', *line], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"{rigs.REFERENCE} listens at {path}\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a socket, in a folder for it."""
    folder = tmp_path / "s"
    folder.mkdir(mode=0o700)
    return folder / "x"


def test_a_client_without_descriptors(path: Path) -> None:
    with serving(path):
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            timeout=60,
        )
    told = done.stdout.splitlines()
    assert told[:3] == ["ResourceExhaustedTransient"] * 3
    assert told[3:5] == ["done", "done"]  # These take none.
    assert told[5] == "ResourceExhaustedTransient"
    assert told[6:] == ["done done", "done", "nothing left"]


async def test_a_service_without_descriptors(path: Path) -> None:
    """Who came first is served; others are, when there are some again."""
    with serving(path, descriptors=32) as process:
        first = await connect(path)
        prepared, slot = await prepared_by(first), Slot()
        await prepared.execute(slot.request)
        before = len(os.listdir(f"/proc/{process.pid}/fd"))
        others = [socket.socket(socket.AF_UNIX) for _ in range(32)]
        for each in others:
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError):  # No place in the row for so many.
                each.connect(str(path))
        while len(os.listdir(f"/proc/{process.pid}/fd")) < 32:
            await prepared.execute(slot.request)
        new = Slot()
        with pytest.raises(errors.NNError) as caught:
            await prepared.execute(new.request)
        assert not isinstance(caught.value, errors.CallerError)
        for each in others:
            each.close()
        while len(os.listdir(f"/proc/{process.pid}/fd")) > before:
            await first.get_status()
        prepared = await prepared_by(first)
        await prepared.execute(new.request)
        assert new.y.tolist() == (2 * rigs.ROW).tolist()
        await first.close()
        assert process.poll() is None
