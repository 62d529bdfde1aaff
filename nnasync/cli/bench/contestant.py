"""A contestant: one model compiled for one choice of devices, and what its runs took."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping

import anyio

from nnasync import CompileOptions, Net, Runtime, now_ns
from nnasync.errors import NNError
from nnasync.hal import Array, ExecutionPreference, Model, Struct

Clock = Callable[[], int]


class Setting(Struct, frozen=True):
    """How a contestant is compiled.

    devices: names; None lets all devices of the runtime compete. precision: None, "exact", "bf16".
    pin: reproduces a choice, as `net.report().pin` tells it.
    """

    name: str
    devices: tuple[str, ...] | None = None
    preference: ExecutionPreference = ExecutionPreference.FAST_SINGLE_ANSWER
    precision: str | None = None
    pin: str | None = None


class Refusal(Struct, frozen=True):
    """A contestant that cannot take part, and why."""

    name: str
    reason: str


class Contestant:
    """A compiled model with the samples that were taken of it; durations in nanoseconds.

    `latencies_ns` are those of runs awaited one at a time, `busy_ns` the CPU time of the process
    during them; the `flight_*` figures are those of several runs in flight.
    """

    def __init__(
        self,
        name: str,
        net: Net,
        values: Mapping[str, Array],
        *,
        compile_ns: int,
        clock: Clock,
        cpu_clock: Clock,
    ) -> None:
        self.name = name
        self.net = net
        self.compile_ns = compile_ns
        self.failure: NNError | None = None
        self.first_ns = 0
        self.latencies_ns: list[int] = []
        self.busy_ns = 0
        self.flight_runs = 0
        self.flight_ns = 0
        self.flight_busy_ns = 0
        self._values = values
        self._clock = clock
        self._cpu_clock = cpu_clock

    async def run(self) -> None:
        """One run, without a trace in the samples."""
        await self.net(self._values)

    async def run_first(self) -> None:
        """The first run, kept apart from all others."""
        started_ns = self._clock()
        await self.net(self._values)
        self.first_ns = self._clock() - started_ns

    async def run_one_by_one(self, duration_ns: int) -> None:
        """Runs awaited one after the other, at least one."""
        clock, net, values, samples = self._clock, self.net, self._values, self.latencies_ns
        busy_ns, ended_ns = self._cpu_clock(), clock()
        until_ns = ended_ns + duration_ns
        while True:
            started_ns = clock()
            await net(values)
            ended_ns = clock()
            samples.append(ended_ns - started_ns)
            if ended_ns >= until_ns:
                break
        self.busy_ns += self._cpu_clock() - busy_ns

    async def run_in_flight(self, in_flight: int, duration_ns: int) -> None:
        """Runs so many clients, each of which awaits one run after the other, at least one."""
        busy_ns, started_ns = self._cpu_clock(), self._clock()
        async with anyio.create_task_group() as clients:
            for _ in range(in_flight):
                clients.start_soon(self._client, started_ns + duration_ns)
        self.flight_ns += self._clock() - started_ns
        self.flight_busy_ns += self._cpu_clock() - busy_ns

    async def _client(self, until_ns: int) -> None:
        while True:
            await self.net(self._values)
            self.flight_runs += 1
            if self._clock() >= until_ns:
                return


async def enter(
    runtime: Runtime,
    model: Model,
    setting: Setting,
    values: Callable[[Net], Awaitable[Mapping[str, Array]]],
    *,
    clock: Clock = now_ns,
    cpu_clock: Clock = time.process_time_ns,
) -> Contestant | Refusal:
    """Compile a model and run it once; a device that cannot is a Refusal, not an error.

    `values` gives the inputs by name; what it raises is raised.
    """
    started_ns = clock()
    try:
        net = await runtime.compile(
            model,
            devices=setting.devices,
            preference=setting.preference,
            precision=setting.precision,
            options=CompileOptions(pin=setting.pin, wait="best"),
        )
    except NNError as error:
        return refusal_of(setting.name, error)
    compile_ns = clock() - started_ns
    try:
        contestant = Contestant(
            setting.name,
            net,
            await values(net),
            compile_ns=compile_ns,
            clock=clock,
            cpu_clock=cpu_clock,
        )
        return await _after_first_run(contestant)
    except BaseException:
        net.close()
        raise


async def _after_first_run(contestant: Contestant) -> Contestant | Refusal:
    try:
        await contestant.run_first()
    except NNError as error:
        contestant.net.close()
        return refusal_of(contestant.name, error)
    return contestant


def refusal_of(name: str, error: NNError) -> Refusal:
    """Returns why a contestant is out, in one line."""
    return Refusal(name, " ".join(str(error).split()) or type(error).__name__)
