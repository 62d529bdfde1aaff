"""Small models, runtimes and deadlines that a test steers, shared by tests of executions."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import msgspec
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.clock import Alarm, Deadline, Watchdog
from nnasync._core.drivers.null import Gate, NullEngine
from nnasync._core.workers import StopFlag, inline
from nnasync.errors import BadState
from nnasync.fences import Fence
from nnasync.hal import Array

T = TypeVar("T")

SHAPE = (1, 4)
POOL = nn.Options(cores=2, inline_budget_us=0, competition_budget_ms=0, worker_niceness=0)
"""Every execution runs on a worker: what a gate holds up must not be the loop.

Devices do not compete: the first one gets the model. Threads do not change with what other programs
do.
"""
INLINE = msgspec.structs.replace(POOL, inline_budget_us=1e6, stall_budget_us=1000)
both = pytest.mark.parametrize("options", [POOL, INLINE], ids=["worker", "inline"])
"""Run a test of executions on a worker, and on the thread of the loop."""
HOUR = {"s": 3600}
"""A deadline that passes only if a test rings for it."""
_FURTHER = 1, 5, 25, 125
"""What is too near for a busy machine is tried again that many times as far away."""
GUARD_S = 20
"""A broken promise shall be a failure, not a test that never ends."""


def floats(*values: float) -> Array:
    """One row of float32."""
    return np.array([values], np.float32)


ONES = floats(1, 1, 1, 1)
ROW = floats(1, 2, 3, 4)


def doubler(name: str = "doubler") -> nn.Model:
    """Output y = 2 x; one operation."""
    builder = nn.ModelBuilder(name)
    x = builder.input("x", SHAPE)
    builder.output("y", builder.add(x, x))
    return builder.build()


def calculator() -> nn.Model:
    """Inputs a and b, outputs a + b and a * b."""
    builder = nn.ModelBuilder("calculator")
    a, b = builder.input("a", SHAPE), builder.input("b", SHAPE)
    builder.output("sum", builder.add(a, b))
    builder.output("product", builder.mul(a, b))
    return builder.build()


def counter() -> nn.Model:
    """Adds its input to a state "total" and gives the new total out."""
    builder = nn.ModelBuilder("counter")
    x = builder.input("x", SHAPE)
    total = builder.state("total", SHAPE)
    new = builder.add(total, x)
    builder.output("y", builder.mul(new, 1.0))
    builder.update(total, new)
    return builder.build()


def quantized(type: nn.OperandType = nn.OperandType.TENSOR_QUANT8_ASYMM) -> nn.Model:
    """Output y = max(x, 0), 8-bit, scale 0.5, zero point 3."""
    builder = nn.ModelBuilder("quantized")
    x = builder.input("x", SHAPE, type=type, scale=0.5, zero_point=3)
    builder.output("y", builder.relu(x))
    return builder.build()


def double(inputs: Any) -> list[Any]:
    """What a null engine computes for `doubler`."""
    return [inputs[0] * 2]


def late(deadline: Deadline, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[Any]]:
    """The same, and when it ends, the clock of inline runs shows that the deadline has passed."""

    def compute(inputs: Any) -> list[Any]:
        monkeypatch.setattr(inline, "now_ns", lambda: deadline.at_ns + 1)
        return double(inputs)

    return compute


def count(inputs: Any) -> list[Any]:
    """What a null engine computes for `counter`."""
    return [inputs[0] + inputs[1]] * 2


def gated(compute: Callable[[Any], Any] = double, *, name: str = "null", steps: int = 1) -> Any:
    """A null engine each step of which waits for its gate."""
    return NullEngine(name, compute=compute, gate=Gate(), steps=steps)


class SpitefulEngine(NullEngine):
    """Its plans raise when they are to give back; they are in `trimmed`, as often as they were."""

    def __init__(self) -> None:
        super().__init__(compute=double)
        self.trimmed: list[object] = []

    def compile(self, model: nn.Model, preference: nn.Preference) -> Any:
        plan, trimmed = super().compile(model, preference), self.trimmed

        class Spiteful:
            bind = plan.bind
            kept_in = plan.kept_in
            reads_in_place = plan.reads_in_place

            def trim(self) -> None:
                trimmed.append(self)
                raise RuntimeError("spite")

        return Spiteful()


def set_free(engine: Any) -> None:
    """Let a null engine run to the end, whatever a test told it."""
    if isinstance(engine, NullEngine):
        engine.heal()
        engine.release()
        if engine.gate is not None:
            engine.gate.open_wide()


REFERENCE = "nnasync-reference"


@asynccontextmanager
async def runtime(*devices: Any, options: nn.Options = POOL) -> AsyncIterator[nn.Runtime]:
    """An open runtime; null engines are set free at its end, however the test ends."""
    with anyio.fail_after(GUARD_S):
        async with nn.open_runtime(devices=devices or [REFERENCE], options=options) as opened:
            try:
                yield opened
            finally:
                for device in devices:
                    set_free(device)


def begun_in_a_thread(work: Callable[[], object], _: str) -> Fence:
    """Another thread, which has done its work before anybody else goes on."""
    fence = Fence()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    fence.signal()
    return fence


async def until_inline(runtime: nn.Runtime, net: nn.Net, *arrays: Any) -> None:
    """Call a network until its duration is known and it runs on the thread of the loop."""
    await ran_inline(runtime, lambda: net(*arrays))


async def launched_inline(runtime: nn.Runtime, net: nn.Net, *arrays: Any) -> nn.Execution:
    """Launch a network until it runs before `launch` returns, which is worth less than a call."""

    async def launched() -> nn.Execution:
        execution = await net.launch(*arrays)
        await execution.fence
        return execution

    return await ran_inline(runtime, launched)


async def ran_inline(runtime: nn.Runtime, call: Callable[[], Awaitable[T]]) -> T:
    """Call until it is known to be short, however slow the machine was at first."""
    for _ in range(1000):
        before = runtime.statistics().workers.inline_runs
        result = await call()
        if runtime.statistics().workers.inline_runs > before:
            return result
    raise AssertionError("it never ran inline")


async def compiled(runtime: nn.Runtime, model: nn.Model, options: nn.Options) -> nn.Net:
    """A network; with options INLINE one that runs on the thread of the loop."""
    net = await runtime.compile(model)
    if options is INLINE:
        await until_inline(runtime, net, ROW)
    return net


async def until(condition: Callable[[], bool]) -> None:
    """Turn the loop until something that threads bring about is so."""
    with anyio.fail_after(GUARD_S):
        while not condition():
            await anyio.lowlevel.checkpoint()


async def free(runtime: nn.Runtime) -> None:
    """Wait until the workers have let go of everything."""
    workers = runtime._workers
    await until(lambda: workers.is_at_rest and not workers.statistics().running)


async def total(burst: nn.Burst) -> list[float]:
    """The state of a burst on `counter`."""
    state = await burst.state()
    assert list(state) == ["total"]
    return list(state["total"][0])


async def failure(fence: Fence) -> Exception:
    """The error that awaiting a fence raises."""
    with pytest.raises(nn.NNError) as caught:
        await fence
    return caught.value


class Attempt:
    """A call in a task of its own: its result or its error, once `done` is set."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.scope = anyio.CancelScope()
        self.result: Any = None
        self.error: BaseException | None = None

    async def run(self, call: Callable[[], Any]) -> None:
        """Run the call to its end."""
        with self.scope:
            try:
                self.result = await call()
            except nn.NNError as error:
                self.error = error
        self.done.set()

    async def failure(self) -> BaseException | None:
        """The error of the call, when it has ended."""
        await self.done.wait()
        return self.error


async def attempt(group: Any, call: Callable[[], Any]) -> Attempt:
    """Start a call in a task and wait until it suspends, or is over."""
    attempt = Attempt()
    group.start_soon(attempt.run, call)
    await anyio.wait_all_tasks_blocked()
    return attempt


class ManualWatchdog(Watchdog):
    """A watchdog whose alarms go off when a test says so; a runtime under test gets it.

    Deadlines far away can so "pass" at a chosen moment, without a clock.
    """

    def __init__(self) -> None:
        super().__init__()
        self.alarms: list[Alarm] = []

    def arm(self, at_ns: int, callback: Callable[[], object]) -> Alarm:
        """Keep an alarm."""
        if self._closed:
            raise BadState("the watchdog is closed")
        alarm = Alarm(at_ns, callback, self)
        self.alarms.append(alarm)
        return alarm

    def ring(self, deadline: Deadline) -> None:
        """Let the alarms that are armed for this deadline go off."""
        for alarm in list(self.alarms):
            callback = alarm._callback
            if alarm.at_ns == deadline.at_ns and callback is not None:
                self._kill(alarm)
                callback()


async def by_a_near_deadline(call: Callable[[Deadline], Awaitable[T]], *, ms: float) -> T:
    """What a call answers by a near deadline; where a busy machine misses that, by a later one."""
    for factor in _FURTHER:
        with contextlib.suppress(nn.MissedDeadline):
            return await call(nn.within(ms=factor * ms))
    raise AssertionError("no deadline was met")


def _has_begun(error: nn.MissedDeadline) -> bool:
    return isinstance(error, nn.MissedDeadlineTransient)


async def missed_under_way(
    call: Callable[[Deadline], Awaitable[object]],
    *,
    ms: float,
    is_under_way: Callable[[nn.MissedDeadline], bool] = _has_begun,
) -> nn.MissedDeadline:
    """The error of a call whose deadline, which is near, passes when the call is under way.

    On a busy machine it may pass before that; then a later one is tried.
    """
    for factor in _FURTHER:
        deadline = nn.within(ms=factor * ms)
        with pytest.raises(nn.MissedDeadline) as caught:
            await call(deadline)
        assert deadline.passed
        if is_under_way(caught.value):
            return caught.value
    raise AssertionError("no call was under way by its deadline")


class Deadlines:
    """The alarms of all watchdogs of this process, to have a deadline that is far away pass.

    A near one may pass on a busy machine before the call is where a test wants to have it late.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._armed: list[Alarm] = []
        arm = Watchdog.arm

        def noted(watchdog: Watchdog, at_ns: int, callback: Callable[[], object]) -> Alarm:
            alarm = arm(watchdog, at_ns, callback)
            self._armed.append(alarm)
            return alarm

        monkeypatch.setattr(Watchdog, "arm", noted)

    async def missed(
        self, call: Callable[[Deadline], Any], begun: Callable[[], Awaitable[object]] | None = None
    ) -> BaseException | None:
        """The error of a call whose deadline passes when it waits, and `begun` has come back."""
        deadline = nn.within(**HOUR)
        async with anyio.create_task_group() as group:
            late = await attempt(group, lambda: call(deadline))
            if begun is not None:
                await begun()
            self.let_pass(deadline)
        return late.error

    def the_far_one(self) -> Deadline:
        """The only deadline that is watched and far away."""
        far_ns = nn.within(s=1800).at_ns
        (at_ns,) = {each.at_ns for each in self._armed if each._callback and each.at_ns > far_ns}
        return Deadline(at_ns)

    def let_pass(self, deadline: Deadline) -> None:
        """Let the alarms go off that are armed for it, or for the moment after it."""
        soon_ns = deadline.at_ns + 1_000_000
        due = [each for each in self._armed if deadline.at_ns <= each.at_ns <= soon_ns]
        assert due, "nobody watches this deadline"
        for alarm in sorted(due, key=lambda each: each.at_ns):
            callback = alarm._callback
            if alarm.disarm() and callback is not None:
                callback()


class LateStop(StopFlag):
    """A flag that goes up after so many looks, and stays up."""

    def __init__(self, looks: int) -> None:
        self.left = looks
        super().__init__()

    @property
    def raised(self) -> int:
        self.left -= 1
        return int(self.left < 0)

    @raised.setter
    def raised(self, value: int) -> None:
        pass
