"""Life and death of a driver process: restarts, hangs, last words, revived networks."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

import nnasync as nn
from nnasync import errors, hal
from nnasync._core.drivers.service import ServiceDevice, isolate
from nnasync._core.drivers.service import child as process
from nnasync._core.drivers.service.heartbeat import HANG_AFTER_S
from nnasync._core.drivers.service.link import Link
from nnasync._core.wire.messages import GetStatus
from nnasync.burst import BurstController, LocalChannel, Outcome
from nnasync.conformance.hal_suite.subjects import endless_loop
from nnasync.conformance.paths import CaseBuffers
from nnasync.hal import DeviceStatus, ExecutionConfig
from nnasync.memory import Pool
from tests import rigs
from tests.service.rig import Slot, served
from tests.service.siege import Belongings, besiege

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop("The loop matters to the halves, which have tests of their own."),
]

REFERENCE = rigs.REFERENCE
OPTIONS = nn.Options(cores=2, competition_budget_ms=0)
REVIVING = nn.Options(cores=2, competition_budget_ms=0, revive=True)
HANG_S = 1.0
"""Short, and long enough for a process that is starved by others to be heard all the same."""


async def killed(device: Any, how: signal.Signals = signal.SIGKILL) -> int:
    """Kill the process of a device and wait for the next one."""
    pid: int = device.pid
    os.kill(pid, how)
    await rigs.until(lambda: device.pid not in (0, pid))
    return pid


def is_gone(pid: int) -> bool:
    """Whether a child is neither there nor a zombie."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


async def test_a_process_is_started_again_before_anybody_asks() -> None:
    device, slot = await isolate(REFERENCE), Slot()
    for _ in range(2):
        before = await killed(device)
        await rigs.until(lambda pid=before: is_gone(pid))  # type: ignore[misc]  # As it infers none.
        await device.connected()
        assert await device.get_status() is DeviceStatus.AVAILABLE
        prepared = await device.prepare_model(rigs.doubler())
        await prepared.execute(slot.request)
        assert slot.y.tolist() == (2 * rigs.ROW).tolist()
    after = device.pid
    await device.close()
    assert device.pid == 0
    assert is_gone(after)


async def test_a_process_shares_the_session_but_not_the_signals_of_the_terminal() -> None:
    """A session has a share of the cores of its own on Linux, idle threads in it included."""
    async with nn.open_runtime(devices=[REFERENCE], isolate=[REFERENCE]) as rt:
        device: Any = rt.device(REFERENCE)
        pid = device.pid
        assert os.getsid(pid) == os.getsid(0)
        assert os.getpgid(pid) == pid


async def test_a_process_that_is_killed_while_it_starts_is_followed_by_another() -> None:
    device = await isolate(REFERENCE)
    await killed(device)
    await killed(device)
    await device.prepare_model(rigs.doubler())
    await device.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_what_is_dead_says_of_what_it_died(how: signal.Signals) -> None:
    device, slot = await isolate(REFERENCE), Slot()
    prepared = await device.prepare_model(rigs.doubler())
    link = device.link
    await killed(device, how)
    await link.ended
    text = rf"{REFERENCE} was killed by signal {int(how)} \({how.name}\).*prepare it again"
    with pytest.raises(errors.DeviceDied, match=text):
        await prepared.execute(slot.request)
    with pytest.raises(errors.DeviceDied, match=text):
        await prepared.execute_fenced(slot.request)
    with pytest.raises(errors.DeviceDied, match=text):
        role = hal.BufferRole(0, 0, 1.0)
        await device.allocate(hal.BufferDesc(rigs.SHAPE), [prepared], [role], [])
    await prepared.close()
    await device.close()


async def test_one_that_dies_again_and_again_is_left_alone(monkeypatch: Any) -> None:
    monkeypatch.setattr(process, "_MOST_STARTS", 2)
    monkeypatch.setattr(process, "_PERIOD_S", 1e9)
    device = await isolate(REFERENCE)
    await killed(device)
    await device.connected()
    os.kill(device.pid, signal.SIGKILL)
    await device.lost
    with pytest.raises(errors.DeviceUnavailable, match="ended 2 times"):
        await device.prepare_model(rigs.doubler())
    assert device.pid == 0
    assert await device.get_status() is DeviceStatus.OFFLINE
    monkeypatch.setattr(process, "_PERIOD_S", 0)
    await device.prepare_model(rigs.doubler())
    await device.close()


class Pending:
    """Calls of every kind on a service that does not answer."""

    def __init__(self, device: ServiceDevice, prepared: Any, buffer: Any, burst: Any) -> None:
        self.ends: list[tuple[str, BaseException | None]] = []
        slot, model = Slot(), rigs.calculator()
        role = hal.BufferRole(0, 0, 1.0)
        self.slot = slot
        self.burst_outcomes: list[Outcome] = []
        self.calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "status": device.get_status,
            "supports": lambda: device.get_supported_operations(model),
            "prepare": lambda: device.prepare_model(model),
            "execute": lambda: prepared.execute(slot.request),
            "synchronously": lambda: prepared.execute_synchronously(slot.request),
            "fenced": lambda: prepared.execute_fenced(slot.request),
            "open burst": lambda: Burst().open(prepared),
            "allocate": lambda: device.allocate(hal.BufferDesc(rigs.SHAPE), [prepared], [role], []),
            "copy": lambda: buffer.copy_from(Pool.allocate(16)),
            "close": lambda: burst.owner.close(),
        }

    async def run(self, name: str) -> None:
        try:
            await self.calls[name]()
            self.ends.append((name, None))
        except nn.NNError as error:
            self.ends.append((name, error))


class Burst:
    """A burst, and all that it was answered."""

    def __init__(self) -> None:
        self.requests, self.results = LocalChannel(), LocalChannel()
        self.controller = BurstController(self.requests, self.results)
        self.outcomes: list[Outcome] = []
        self.owner: Any = None

    async def open(self, prepared: Any) -> Burst:
        self.owner = prepared
        self.controller.attach(
            await prepared.configure_execution_burst(self.controller, self.requests, self.results)
        )
        return self

    def send(self, slot: Slot) -> None:
        self.controller.send(self.controller.encode(slot.request), self.outcomes.append)

    def close(self) -> None:
        self.controller.close(errors.DeviceUnavailable("closed by the test"))


async def test_every_kind_of_call_ends_once() -> None:
    device = await isolate(REFERENCE)
    prepared = await device.prepare_model(rigs.doubler())
    other = await device.prepare_model(rigs.doubler())
    role = hal.BufferRole(0, 0, 1.0)
    buffer = await device.allocate(hal.BufferDesc(rigs.SHAPE), [prepared], [role], [])
    burst, begin = await Burst().open(other), nn.Fence()
    launched = await prepared.execute_fenced(Slot().request, [begin])
    pending = Pending(device, prepared, buffer, burst)
    os.kill(device.pid, signal.SIGSTOP)
    async with anyio.create_task_group() as tasks:
        for name in pending.calls:
            tasks.start_soon(pending.run, name)
        await anyio.wait_all_tasks_blocked()
        for _ in range(3):
            burst.send(pending.slot)
        assert pending.ends == []
        os.kill(device.pid, signal.SIGKILL)
    ends = dict(pending.ends)
    assert len(pending.ends) == len(ends) == len(pending.calls)
    assert (ends.pop("status"), ends.pop("close")) == (None, None)
    assert {name: type(error) for name, error in ends.items()} == dict.fromkeys(
        ends, errors.DeviceDied
    )
    with pytest.raises(errors.DeviceDied, match=REFERENCE):
        await launched.fence
    await rigs.until(lambda: len(burst.outcomes) >= 3)
    assert [type(each) for each in burst.outcomes] == [errors.DeviceDied] * 3
    await device.connected()
    assert len(burst.outcomes) == 3
    burst.close()
    await device.close()


async def test_closing_what_has_just_died_is_no_error(monkeypatch: Any) -> None:
    """The socket is broken already, and its thread has not noticed."""
    device = await isolate(REFERENCE)
    prepared: Any = await device.prepare_model(rigs.doubler())
    role = hal.BufferRole(0, 0, 1.0)
    buffer = await device.allocate(hal.BufferDesc(rigs.SHAPE), [prepared], [role], [])

    def send(*_: object) -> None:
        raise errors.DeviceDied("it is gone")

    with monkeypatch.context() as patched:
        patched.setattr(device.link.connection, "send", send)
        await buffer.close()
        await prepared.close()
    await device.close()


async def test_what_dies_while_it_is_launched_with_a_deadline_says_so() -> None:
    async with served() as it:
        prepared: Any = await it.device.prepare_model(rigs.doubler())
        begin = prepared._begin_launch

        def begun(*args: Any, **options: Any) -> Any:
            call = begin(*args, **options)
            it.disconnect()
            it.device.link.ended.wait_blocking()
            return call

        prepared._begin_launch = begun
        with pytest.raises(errors.DeviceDied):
            await prepared.execute_fenced(
                Slot().request, config=ExecutionConfig(deadline_ns=nn.within(s=3600).at_ns)
            )


async def test_a_compilation_under_way_ends_with_the_service() -> None:
    async with (
        nn.open_runtime(devices=[REFERENCE], isolate=[REFERENCE], options=OPTIONS) as runtime,
        anyio.create_task_group() as tasks,
    ):
        device: Any = runtime.device(REFERENCE)
        os.kill(device.pid, signal.SIGSTOP)
        compilation = await rigs.attempt(tasks, lambda: runtime.compile(rigs.doubler()))
        await rigs.until(device.inner.link.is_awaited)
        os.kill(device.pid, signal.SIGKILL)
        assert isinstance(await compilation.failure(), errors.DeviceDied)
        net = await runtime.compile(rigs.doubler())
        assert (await net(rigs.ROW)).tolist() == (2 * rigs.ROW).tolist()


async def test_a_service_that_hangs_is_killed(deadlines: rigs.Deadlines) -> None:
    device, slot = await isolate(REFERENCE, hang_after_s=HANG_S), Slot()
    prepared = await device.prepare_model(rigs.doubler())
    pid = device.pid
    os.kill(pid, signal.SIGSTOP)
    async with anyio.create_task_group() as tasks:
        hanging = await rigs.attempt(tasks, lambda: prepared.execute(slot.request))
        missed = await deadlines.missed(
            lambda deadline: prepared.execute(
                slot.request, ExecutionConfig(deadline_ns=deadline.at_ns)
            )
        )
        assert isinstance(missed, errors.MissedDeadlineTransient)
        assert "did not answer" in str(missed)
        error = await hanging.failure()
    assert isinstance(error, errors.DeviceDied)
    assert f"no sign of life for {HANG_S:g} s and was killed" in str(error)
    with pytest.raises(errors.DeviceDied, match="no sign of life"):
        await prepared.execute(slot.request)
    await rigs.until(lambda: is_gone(pid))
    await (await device.prepare_model(rigs.doubler())).execute(slot.request)
    await device.close()


@pytest.mark.slow
async def test_a_long_execution_is_no_hang() -> None:
    device = await isolate(REFERENCE, hang_after_s=2 * HANG_S)
    case = endless_loop()
    prepared, buffers, pid = await device.prepare_model(case.model), CaseBuffers(case), device.pid
    with pytest.raises(errors.MissedDeadlineTransient, match="WHILE"):
        await prepared.execute(
            buffers.request(), ExecutionConfig(loop_timeout_ns=int(4 * HANG_S * 1e9))
        )
    assert device.pid == pid
    buffers.close()
    await device.close()


async def test_a_burst_to_a_service_that_hangs_ends() -> None:
    device, slot = await isolate(REFERENCE, hang_after_s=HANG_S), Slot()
    burst = await Burst().open(await device.prepare_model(rigs.doubler()))
    os.kill(device.pid, signal.SIGSTOP)
    burst.send(slot)
    await rigs.until(lambda: bool(burst.outcomes))
    assert [type(each) for each in burst.outcomes] == [errors.DeviceDied]
    burst.close()
    await device.close()


async def test_a_service_of_somebody_else_is_given_up_and_not_killed() -> None:
    silent, theirs = socket.socketpair()

    class Silent:
        restarts = False

        def open(self) -> process.Peer:
            return process.Peer(silent)

    link = Link(Silent(), "the silent one")
    link.heartbeat.begin(HANG_S / 4)
    with pytest.raises(errors.DeviceDied, match=r"the silent one gave no sign of life for 0.25 s$"):
        await link.call(GetStatus)
    await link.ended
    assert not link.is_dead
    theirs.close()


async def test_hanging_is_an_option() -> None:
    assert nn.Options().hang_after_s == HANG_AFTER_S
    options = nn.Options(cores=1, competition_budget_ms=0, hang_after_s=HANG_S)
    async with nn.open_runtime(
        devices=[REFERENCE], isolate=[REFERENCE], options=options
    ) as runtime:
        device: Any = runtime.device(REFERENCE)
        net = await runtime.compile(rigs.doubler())
        os.kill(device.pid, signal.SIGSTOP)
        with pytest.raises(errors.DeviceDied, match="no sign of life"):
            await net(rigs.ROW)


async def test_a_network_is_revived(tmp_path: Path) -> None:
    async with nn.open_runtime(
        devices=[REFERENCE], isolate=[REFERENCE], options=REVIVING
    ) as runtime:
        device: Any = runtime.device(REFERENCE)
        net = await runtime.compile(rigs.counter(), cache_dir=tmp_path / "cache")
        async with net.burst() as burst:
            assert (await burst(rigs.ROW)).tolist() == rigs.ROW.tolist()
            for _ in range(2):
                before = net._prepared
                os.kill(device.pid, signal.SIGKILL)
                with pytest.raises(errors.DeviceDied):
                    while True:
                        await net(rigs.ROW)
                await rigs.until(lambda old=before: net._prepared is not old)  # type: ignore[misc]
                assert (await net(rigs.ROW)).tolist() == rigs.ROW.tolist()
                assert net.report().cache_hit
            with pytest.raises(errors.DeviceDied):
                await burst(rigs.ROW)
        async with net.burst() as again:
            assert (await again(rigs.ROW)).tolist() == rigs.ROW.tolist()
        await net.close()
        os.kill(device.pid, signal.SIGKILL)


async def test_a_network_whose_device_dies_while_it_is_compiled_is_revived() -> None:
    """The next process is there before the network is: nobody sees any more that one has died."""
    async with nn.open_runtime(
        devices=[REFERENCE], isolate=[REFERENCE], options=REVIVING
    ) as runtime:
        devices: Any = runtime._devices
        (device,), sized = devices.services, devices.sized

        async def after_a_death(model: hal.Model) -> hal.Model:
            devices.sized = sized
            os.kill(device.pid, signal.SIGKILL)
            await device.lost
            await device.connected()
            found: hal.Model = await sized(model)
            return found

        devices.sized = after_a_death
        net = await runtime.compile(rigs.doubler())
        before = net._prepared
        await rigs.until(lambda: net._prepared is not before)
        assert (await net(rigs.ROW)).tolist() == (2 * rigs.ROW).tolist()


async def test_a_network_with_a_stand_in_goes_on_and_comes_back() -> None:
    if importlib.util.find_spec("ai_edge_litert") is None:
        pytest.skip("needs LiteRT")
    devices, isolated = ["litert-cpu", REFERENCE], ["litert-cpu"]
    async with (
        nn.open_runtime(devices=devices, isolate=isolated, options=REVIVING) as runtime,
        anyio.create_task_group() as tasks,
    ):
        net = await runtime.compile(rigs.doubler())
        answers = 0

        async def call() -> None:
            nonlocal answers
            while True:
                assert (await net(rigs.ROW)).tolist() == (2 * rigs.ROW).tolist()
                launched = await net.launch(rigs.ROW)
                await launched.fence
                answers += 1

        for _ in range(3):
            tasks.start_soon(call)
        async with net.burst() as burst:
            await burst(rigs.ROW)
            before = net._prepared
            os.kill(runtime.device("litert-cpu").pid, signal.SIGKILL)  # type: ignore[attr-defined]
            await rigs.until(lambda: net._prepared is not before)
            assert (await burst(rigs.ROW)).tolist() == (2 * rigs.ROW).tolist()
        done = answers
        await rigs.until(lambda: answers > done + 10)
        report = net.report()
        assert report.partitions[0].device == "litert-cpu"
        assert [each.device for each in report.fallbacks] == ["litert-cpu"]
        tasks.cancel_scope.cancel()


async def test_a_dropped_network_is_not_revived() -> None:
    async with nn.open_runtime(
        devices=[REFERENCE], isolate=[REFERENCE], options=REVIVING
    ) as runtime:
        net = await runtime.compile(rigs.doubler())
        with pytest.warns(ResourceWarning, match="dropped"):
            del net
        await killed(runtime.device(REFERENCE))
        assert runtime.statistics().nets == 0


async def use(device: Any) -> None:
    """A model, an execution of each kind, a burst; all of it is given back."""
    prepared, slot = await device.prepare_model(rigs.doubler()), Slot()
    burst = await Burst().open(prepared)
    burst.send(slot)
    await rigs.until(lambda: bool(burst.outcomes))
    await prepared.execute(slot.request)
    launched = await prepared.execute_fenced(slot.request)
    await launched.fence
    burst.close()
    await prepared.close()


async def test_nothing_grows_in_a_service_that_lives() -> None:
    device = await isolate(REFERENCE)
    folder = f"/proc/{device.pid}/fd"
    await use(device)
    gc.collect()  # Finalizers tell the service what it may forget.
    await device.get_status()
    before = len(os.listdir(folder))
    for _ in range(20):
        await use(device)
    gc.collect()
    await rigs.until(lambda: len(os.listdir(folder)) <= before)
    await device.close()


async def test_a_burst_that_meets_the_end_while_it_is_made_leaves_nothing(monkeypatch: Any) -> None:
    device = await isolate(REFERENCE)
    prepared: Any = await device.prepare_model(rigs.doubler())

    def listen(*_: object) -> None:
        raise errors.DeviceDied("it ended just now")

    monkeypatch.setattr(prepared.link, "listen", listen)
    with pytest.raises(errors.DeviceDied, match="just now"):
        await Burst().open(prepared)
    await device.close()


@pytest.mark.slow
async def test_a_short_siege() -> None:
    outcome = await besiege(REFERENCE, 3, pace_s=0)
    assert outcome.kills == len(outcome.back_ms) == 3
    assert outcome.pending.total() > 0
    assert (outcome.unanswered, outcome.wrong) == (0, [])
    assert outcome.left == Belongings(0, 0, 0)


def test_one_thread_alone_holds_the_lifeline() -> None:
    """It is no descriptor of the others, so that it ends with that thread, whichever dies last."""
    mine, theirs = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(theirs)], pass_fds=(theirs,), stdout=subprocess.PIPE
    )
    os.close(theirs)
    assert child.stdout is not None
    with child, open(mine, "rb", buffering=0) as lifeline:
        assert child.stdout.readline() == f"[False] [['{theirs}']]\n".encode()
        os.set_blocking(mine, False)
        assert lifeline.read(1) is None
        os.set_blocking(mine, True)
        child.kill()
        assert lifeline.read(1) == b""


_HOLD = """
import os, stat, sys, threading
from nnasync._core.service import lifeline

def is_pipe(fd):
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode)
    except OSError:
        return False

fd = int(sys.argv[1])
lifeline.hold(fd)
held = [os.listdir(f"/proc/self/task/{task}/fd") for task in os.listdir("/proc/self/task")]
print([is_pipe(fd)], [fds for fds in held if fds == [str(fd)]], flush=True)
threading.Event().wait()
"""


def test_threads_may_decode_their_first_messages_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", _DECODE], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"[8, 8, 8]\n"), done.stderr.decode()


_DECODE = """
import sys, threading
sys.setswitchinterval(1e-6)
import nnasync as nn
from nnasync.burst import BurstArguments
from nnasync._core.model.description import ModelDescription
from nnasync._core.wire.messages import FromService, decode, encode
from nnasync._core.wire.model_transfer import Offer
builder = nn.ModelBuilder("m")
x = builder.input("x", (1, 4))
builder.output("y", builder.add(x, x))
messages = [
    (Offer(builder.build()).message(1, 1).form, ModelDescription),
    (encode(BurstArguments((), (), ())), BurstArguments),
    (encode(["answer", 1, b""]), FromService),
]
start = threading.Barrier(24)
done = [0, 0, 0]
lock = threading.Lock()

def read(number):
    start.wait()
    decode(*messages[number])
    with lock:
        done[number] += 1

threads = [threading.Thread(target=read, args=(number % 3,)) for number in range(24)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(done)
"""
