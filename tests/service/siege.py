"""A siege: a service that is killed at random moments under load, and an account of every call.

Several networks are called, launched in chains behind fences and streamed through bursts while
another one is compiled and buffers are allocated and copied; then the process of the device gets
SIGKILL. Every call that was pending must be answered, once: by a result that was on its way, or by
DeviceDied. At the end descriptors and mappings of shared memory are counted, against those before
the runtime was opened. A test makes a short one; `benchmarks/kills.py` measures long ones.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
import numpy as np

import nnasync as nn
from nnasync import hal
from nnasync._core.wakeup import Wakeup
from nnasync.burst import BurstArguments, BurstRequest, BurstResult, LocalChannel
from nnasync.memory import Pool

__all__ = ["Belongings", "Outcome", "besiege"]

NETS = 3
BURSTS = 2
LAUNCHERS = 2
SHAPE = (8, 256)
WIDTH = 256
DEPTH = 3
PAUSE_S = 0.002
_GO_ON = ("compile", "prepare")
ANSWER_WITHIN_S = 20
"""A call that has no answer by then never gets one."""
BACK_WITHIN_S = 60
PACE_S = 1.5
"""A process is not started again more than eight times in ten seconds."""


class Ledger:
    """Which calls are pending, and how often each was answered."""

    def __init__(self) -> None:
        self.pending: dict[int, str] = {}
        self.kinds: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.went_on = 0
        self._number = 0
        self._waited: set[int] = set()
        self._all_there = anyio.Event()
        self.last_ns = 0

    def begin(self, kind: str) -> int:
        """A call begins; its number."""
        self._number += 1
        self.pending[self._number] = kind
        return self._number

    def answer(self, number: int, error: BaseException | None = None) -> None:
        """It is answered."""
        kind = self.pending.pop(number, None)
        if kind is None:
            self.wrong.append(f"call {number} was answered again")
            return
        self.kinds[kind] += 1
        if error is not None:
            self.failed[kind] += 1
            if not isinstance(error, nn.DeviceDied | nn.DeviceUnavailable):
                self.wrong.append(f"{kind}: {type(error).__name__}: {error}")
        if number in self._waited:
            self._waited.discard(number)
            if kind in _GO_ON and error is None:
                self.went_on += 1
            else:
                self.last_ns = time.monotonic_ns()
            if not self._waited:
                self._all_there.set()

    def watch(self) -> Counter[str]:
        """Wait from now on for what is pending; how much that is, by kind."""
        self._waited = set(self.pending)
        self._all_there = anyio.Event()
        self.last_ns = time.monotonic_ns()
        if not self._waited:
            self._all_there.set()
        return Counter(self.pending.values())

    async def answered(self) -> int:
        """How many of those have no answer when all should have."""
        with anyio.move_on_after(ANSWER_WITHIN_S):
            await self._all_there.wait()
        return len(self._waited)


class Belongings(msgspec.Struct, frozen=True):
    """What this process has open, mapped and started."""

    descriptors: int
    shared: int
    children: int

    @classmethod
    def now(cls) -> Belongings:
        """Counted from /proc."""
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        children = [
            each.read_text(encoding="utf-8").split()
            for each in Path("/proc/self/task").glob("*/children")
        ]
        return cls(
            len(os.listdir("/proc/self/fd")),
            sum("/memfd:" in line or "/dev/shm" in line for line in maps),
            sum(map(len, children)),
        )

    def beyond(self, before: Belongings) -> Belongings:
        """What is more now."""
        return Belongings(
            self.descriptors - before.descriptors,
            self.shared - before.shared,
            self.children - before.children,
        )


class Outcome(msgspec.Struct):
    """What the kills did; times in milliseconds."""

    kills: int = 0
    pending: Counter[str] = msgspec.field(default_factory=Counter)
    went_on: int = 0
    unanswered: int = 0
    answered_ms: list[float] = msgspec.field(default_factory=list)
    back_ms: list[float] = msgspec.field(default_factory=list)
    wrong: list[str] = msgspec.field(default_factory=list)
    left: Belongings = msgspec.field(default_factory=lambda: Belongings(0, 0, 0))


def network(seed: int) -> nn.Model:
    """Two layers that run for some 0.1 ms."""
    rng = np.random.default_rng(seed)
    builder = nn.ModelBuilder(f"net {seed}")
    x = builder.input("x", SHAPE)
    for _ in range(2):
        weights = rng.standard_normal((WIDTH, WIDTH), np.float32)
        x = builder.fully_connected(x, weights, np.zeros(WIDTH, np.float32))
    builder.output("y", x)
    return builder.build()


class Tally:
    """A bare burst: what is answered is counted as it comes, packet by packet."""

    def __init__(self, ledger: Ledger, pool: Pool) -> None:
        self._ledger = ledger
        self._pool = pool
        self._wakeup = Wakeup.current()
        self._serials = itertools.count()
        self._numbers: dict[int, int] = {}
        self._requests = LocalChannel()
        self._context: Any = None
        half = self._pool.size // 2
        self._arguments = msgspec.msgpack.encode(
            BurstArguments(
                (hal.RequestArgument(location=hal.DataLocation(0, 0, half)),),
                (hal.RequestArgument(location=hal.DataLocation(0, half, half)),),
                (0,),
            )
        )

    async def open(self, prepared: Any) -> None:
        self._context = await prepared.configure_execution_burst(self, self._requests, self)

    def get_memories(self, slots: Sequence[int]) -> tuple[Pool, ...]:
        return (self._pool,) * len(slots)

    def ask(self) -> bool:
        """Send a request; whether that was taken."""
        serial = next(self._serials)
        self._numbers[serial] = number = self._ledger.begin("bare burst")
        try:
            self._requests.send(msgspec.msgpack.encode(BurstRequest(serial, self._arguments)))
        except nn.NNError as error:
            del self._numbers[serial]
            self._ledger.answer(number, error)
            return False
        return True

    def send(self, message: bytes) -> None:
        """Take an answer, on any thread."""
        result = msgspec.msgpack.decode(message, type=BurstResult)
        error = None
        if result.status:
            error = (
                nn.DeviceDied("")
                if result.kind == "DeviceDied"
                else nn.GeneralFailure(result.message)
            )
        # Who answers twice finds no number any more, and -1 is never pending.
        number = self._numbers.pop(result.serial, -1)
        self._wakeup.post(lambda: self._ledger.answer(number, error))

    def listen(self, receive: object) -> None:
        raise nn.BadState("the answers of this burst are counted, and nothing else")

    def close(self) -> None:
        if self._context is not None:
            self._context.close()


class Siege:
    """A runtime with one isolated device, and all that is asked of it."""

    def __init__(self, runtime: nn.Runtime, device: Any, ledger: Ledger) -> None:
        self._runtime = runtime
        self._device = device
        self._ledger = ledger
        self._x = np.ones(SHAPE, np.float32)
        self.kills = 0
        self.is_back = anyio.Event()

    async def begin(self, tasks: Any) -> None:
        """Compile the networks, and start to use them."""
        # LOW work has threads in the service that die last.
        priorities = [nn.Priority.LOW, *[nn.Priority.MEDIUM] * (NETS - 1)]
        nets = [
            await self._runtime.compile(network(seed), priority=priority)
            for seed, priority in enumerate(priorities)
        ]
        for net in nets:
            tasks.start_soon(self.call_on, net)
        for number in range(LAUNCHERS):
            tasks.start_soon(self.launch_on, nets[number % NETS])
        for number in range(BURSTS):
            tasks.start_soon(self.stream_on, nets[number % NETS])
        tasks.start_soon(self.compile_on)
        tasks.start_soon(self.allocate_on)

    def kill(self) -> None:
        """Kill the process, if it is there; all that is pending now is watched."""
        self.kills += 1
        self.is_back = anyio.Event()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._device.pid or os.getpid() + (1 << 22), signal.SIGKILL)

    async def call_on(self, net: nn.Net) -> None:
        """One call after the other."""
        while True:
            kills = self.kills
            if await self._ask("execute", lambda: net(self._x)) and kills == self.kills:
                self.is_back.set()

    async def launch_on(self, net: nn.Net) -> None:
        """Chains of two launches; the answer of a launch, and that of its fence, are two."""
        wakeup, ledger = Wakeup.current(), self._ledger

        async def chain() -> None:
            first = await net.launch(self._x)
            second = await net.launch(self._x, wait_for=[first.fence])
            number = ledger.begin("fence")
            second.fence.add_callback(
                lambda fence: wakeup.post(lambda: ledger.answer(number, fence.error))
            )
            await second.fence

        while True:
            await self._ask("launch", chain)

    async def stream_on(self, net: nn.Net) -> None:
        """A burst with several requests in flight, opened again when it has died."""
        while True:
            try:
                async with net.burst() as burst, anyio.create_task_group() as tasks:
                    for _ in range(DEPTH):
                        tasks.start_soon(self._stream, burst, tasks.cancel_scope)
            except nn.NNError:
                await anyio.sleep(PAUSE_S)

    async def _stream(self, burst: nn.Burst, scope: anyio.CancelScope) -> None:
        while await self._ask("burst", lambda: burst(self._x)):
            pass
        scope.cancel()

    async def compile_on(self) -> None:
        """One compilation after the other."""
        for seed in itertools.count(1000):
            nets: list[nn.Net] = []

            async def compile_one(seed: int = seed, nets: list[nn.Net] = nets) -> None:
                nets.append(await self._runtime.compile(network(seed)))

            await self._ask("compile", compile_one)
            for net in nets:
                await net.close()
            await anyio.sleep(PAUSE_S)

    async def allocate_on(self) -> None:
        """Buffers that are allocated and filled, and a bare burst, on one prepared model."""
        model = network(999)
        row = 4 * SHAPE[0] * SHAPE[1]
        pool, source = Pool.allocate(2 * row), Pool.allocate(row)
        while True:
            found: list[Any] = []

            async def prepare(found: list[Any] = found) -> None:
                found.append(await self._device.prepare_model(model))

            if not await self._ask("prepare", prepare):
                continue
            tally = Tally(self._ledger, pool)
            if await self._ask("open burst", functools.partial(tally.open, found[0])):
                while await self._exchange(found[0], source, tally):
                    pass
            tally.close()

    async def _exchange(self, prepared: Any, source: Pool, tally: Tally) -> bool:
        """One round of everything; whether the service is still there."""
        found: list[Any] = []
        role = hal.BufferRole(0, 0, 1.0)

        async def allocate() -> None:
            desc = hal.BufferDesc(SHAPE)
            found.append(await self._device.allocate(desc, [prepared], [role], []))

        return (
            tally.ask()
            and await self._ask("allocate", allocate)
            and await self._ask("copy", lambda: found[0].copy_from(source))
            and await self._ask("close", lambda: found[0].close())
        )

    async def _ask(self, kind: str, call: Callable[[], Awaitable[Any]]) -> bool:
        """Whether a call succeeds."""
        number = self._ledger.begin(kind)
        try:
            await call()
        except nn.NNError as error:
            self._ledger.answer(number, error)
            await anyio.sleep(PAUSE_S)
            return False
        except BaseException:
            self._ledger.pending.pop(number, None)
            raise
        self._ledger.answer(number)
        return True


async def besiege(
    device: str,
    kills: int,
    *,
    seed: int = 0,
    pace_s: float = PACE_S,
    said: Callable[[str], object] = lambda _: None,
) -> Outcome:
    """Kill the service of an isolated device so many times; what that did."""
    outcome, chance = Outcome(), random.Random(seed)
    before = Belongings.now()
    options = nn.Options(competition_budget_ms=0, revive=True)
    async with nn.open_runtime(devices=[device], isolate=[device], options=options) as runtime:
        ledger = Ledger()
        async with anyio.create_task_group() as tasks:
            siege = Siege(runtime, runtime.device(device), ledger)
            await siege.begin(tasks)
            for _ in range(kills):
                await anyio.sleep(chance.uniform(0, PACE_S / 10))
                pause = time.monotonic() + pace_s
                await _kill(siege, ledger, outcome)
                said(f"{outcome.kills} of {kills}")
                await anyio.sleep(max(0, pause - time.monotonic()))
            tasks.cancel_scope.cancel()
        outcome.wrong, outcome.went_on = list(ledger.wrong), ledger.went_on
    gc.collect()
    outcome.left = Belongings.now().beyond(before)
    return outcome


async def _kill(siege: Siege, ledger: Ledger, outcome: Outcome) -> None:
    """One kill; until all that was pending is answered, and a network answers again."""
    outcome.pending += ledger.watch()
    began_ns = time.monotonic_ns()
    siege.kill()
    outcome.unanswered += await ledger.answered()
    outcome.answered_ms.append((ledger.last_ns - began_ns) / 1e6)
    with anyio.move_on_after(BACK_WITHIN_S):
        await siege.is_back.wait()
        outcome.back_ms.append((time.monotonic_ns() - began_ns) / 1e6)
    outcome.kills += 1
