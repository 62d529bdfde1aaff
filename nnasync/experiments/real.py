"""Experiments for real: a workload on the runtime of this machine, in real time.

The streams of a workload become networks of a runtime, with their priorities, deadlines, clients
and policy, and their requests become calls. They are the very requests of a simulation with the
same seed. What a request costs is spent by a device that takes exactly as long (`real_device`);
streams of a real network run that.

Latencies count from the planned arrival to the moment at which the caller hears of the answer, so
they have in them what the machine adds: threads, wake-ups, the loop, and everything else that runs
there. A request that is late is given up by the runtime; for streams that finish what is late it
is not told of the deadline, and so cannot go by it.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import anyio
import numpy as np

from nnasync._core.clock import Deadline, Watchdog, now_ns
from nnasync._core.drivers import default_devices
from nnasync._core.execution import Net
from nnasync._core.model import ModelBuilder
from nnasync._core.runtime import CompileOptions, Options, Runtime, open_runtime
from nnasync._core.wakeup import Wakeup
from nnasync.batching import Batcher
from nnasync.engine import Engine
from nnasync.errors import ExperimentError, MissedDeadline, NNError, Refused
from nnasync.experiments.arrivals import ClosedLoop, Trace
from nnasync.experiments.checks import MOST_CORES, at_least, to_ns
from nnasync.experiments.clients import client_numbers
from nnasync.experiments.costs import Batching, Network, Recorded, Steps
from nnasync.experiments.real_arrivals import Arrival, Planner
from nnasync.experiments.real_cores import ANSWERED, Cores
from nnasync.experiments.real_device import (
    Borders,
    CostEngine,
    at_multiples,
    at_shares,
    whole,
)
from nnasync.experiments.record import Outcome, Recorder, Recording, RunResult
from nnasync.experiments.workload import (
    Stream,
    Workload,
    arrival_blocks,
    checked,
    costs_of,
    request_blocks,
    think_times,
)
from nnasync.hal import NEVER_NS, Array, Model, Priority
from nnasync.machine import WaitMeter
from nnasync.scheduler import AGING_NS, Policy

Called = Net[Array] | Batcher
"""What the requests of a stream call."""

FINEST_NS = 100_000
"""How often an execution that may be stopped at any moment looks whether it should."""


async def run_real(
    workload: Workload,
    *,
    cores: int = 1,
    policy: str | Policy | None = None,
    seed: int = 0,
    duration_ns: int | None = None,
    requests: int | None = None,
    queue_limit: int = 1024,
    aging_ns: int = AGING_NS,
    device: Literal["sleep", "spin"] = "sleep",
    inline_budget_us: float | None = 0.0,
    record: Recording | None = None,
) -> RunResult:
    """Runs a workload on this machine in real time, and returns the record of the run.

    The run ends after `duration_ns`, when what has no answer yet is given up, or when so many
    `requests` have come, or all streams have ended, and everything is answered. `policy` is a name,
    an object, or None for the default rule. With `device` "spin", costs load their cores as
    arithmetic would, with "sleep" they take as long and load nothing. With an `inline_budget_us` of
    0 every execution has a core of its own, with None the runtime decides what runs on the thread
    of its loop.

    Raises ExperimentError where that cannot be run, or where a trace is not as it should be;
    InvalidArgument for an unknown policy, and what compiling a network raises. A policy that breaks
    its contract is replaced by the default rule; the notes of the record say so.
    """
    workload = checked(workload)
    if duration_ns is None and requests is None and not all(map(_ends, workload.streams)):
        raise ExperimentError("duration_ns or requests: one must be given, for streams do not end")
    at_least("cores", cores, 1, MOST_CORES)
    options = Options(
        cores=cores,
        inline_budget_us=inline_budget_us,
        queue_limit=queue_limit,
        aging_ms=aging_ns / 1e6,
        competition_budget_ms=300 if _networks(workload) else 0,
    )
    run = _RealRun(workload, record or Recording(), seed, cores, spins=device == "spin")
    async with run.runtime(options, policy) as runtime:
        return await run.result(runtime, NEVER_NS if duration_ns is None else duration_ns, requests)


async def best_form(
    runtime: Runtime, model: str, priority: Priority, value_limit_bytes: int | None
) -> Net[Array]:
    """Returns the network in a file with its best plan, so that no contest disturbs the run."""
    options = CompileOptions(value_limit_bytes=value_limit_bytes)
    devices = default_devices()
    net = await runtime.compile(model, priority=priority, devices=devices, options=options)
    await net.optimized()
    return net


class _RealRun:
    """One real run: the streams as networks, and the record of their requests."""

    def __init__(
        self, workload: Workload, recording: Recording, seed: int, cores: int, *, spins: bool
    ) -> None:
        self.workload = workload
        self.seed = seed
        self.cores = cores
        self.recorder = Recorder(workload, recording)
        self.trace = Cores(self.recorder, cores)
        self.engines = {
            number: CostEngine(
                f"costs of {stream.name}", borders, spins=spins, batching=stream.batching
            )
            for number, stream in enumerate(workload.streams)
            if (borders := _borders(stream)) is not None
        }
        self.streams: list[_RealStream] = []
        self.due: collections.deque[_Request] = collections.deque()
        self.start_ns = 0
        self.failure: NNError | None = None

    @contextlib.asynccontextmanager
    async def runtime(
        self, options: Options, policy: str | Policy | None
    ) -> AsyncIterator[Runtime]:
        """Opens a runtime with a device for each stream, and the devices of real networks."""
        devices: list[Engine | str] = [*self.engines.values()]
        if _networks(self.workload):
            devices += default_devices()
        async with (
            open_runtime(
                devices=devices, options=options, instruments=[self.trace], policy=policy
            ) as runtime,
            contextlib.AsyncExitStack() as batchers,
        ):
            numbers = client_numbers(self.workload.streams)
            clients = {
                name: runtime._workers.open_client(queue_limit=options.queue_limit) if name else 0
                for name in numbers
            }
            for number, stream in enumerate(self.workload.streams):
                net = await self._compiled(runtime, number, stream)
                prepared: Any = net._prepared
                prepared.client = clients[stream.client]
                call: Called = net
                if stream.batching is not None:
                    call = await batchers.enter_async_context(
                        _batcher(net, stream.batching, self.cores, options.queue_limit)
                    )
                self.streams.append(_RealStream(self, number, stream, net, call))
            yield runtime

    async def _compiled(self, runtime: Runtime, number: int, stream: Stream) -> Net[Array]:
        cost = stream.cost
        if isinstance(cost, Network):
            return await best_form(runtime, cost.model, stream.urgency, cost.value_limit_bytes)
        device = self.engines[number].name
        return await runtime.compile(_model(stream), priority=stream.urgency, devices=[device])

    async def result(self, runtime: Runtime, end_ns: int, most: int | None) -> RunResult:
        """Runs to the end, and returns the record."""
        before = runtime.statistics().workers.preemptions
        if end_ns < NEVER_NS:
            self.recorder.until(end_ns)
        meter = WaitMeter()
        await self._answer_all(runtime, end_ns, most)
        statistics = runtime.statistics().workers
        failure = statistics.scheduler.policy_failure
        return self.recorder.result(
            "real",
            seed=self.seed,
            cores=self.cores,
            policy=statistics.scheduler.policy,
            duration_ns=min(now_ns() - self.start_ns, end_ns),
            busy_ns=self.trace.busy_ns,
            preemptions=statistics.preemptions - before,
            notes=(*self._untold(), *([f"{failure}; the default rule since"] if failure else ())),
            waited=meter.read(),
        )

    async def _answer_all(self, runtime: Runtime, end_ns: int, most: int | None) -> None:
        """Starts each request when it is planned; returns when all are answered, or at the end."""
        planner = Planner(
            {each.number: each.arrivals() for each in self.streams if not each.is_closed},
            callers=sum(each.is_closed for each in self.streams),
            end_ns=end_ns,
            most=most,
        )
        for each in self.streams:
            each.begin_callers(planner)
        with _little_garbage():
            self.start_ns = now_ns()
            self.trace.begin(self.start_ns)
            with _given_up_at(self.start_ns + end_ns, runtime._watchdog):
                await self._answer_due(planner, runtime._workers._scheduler.totals)
        if self.failure is not None:
            raise self.failure
        for arrival in planner.untold():
            self.streams[arrival.stream].request(arrival)

    async def _answer_due(self, planner: Planner, queued: Sequence[int]) -> None:
        async with (
            anyio.create_task_group() as answers,
            contextlib.aclosing(planner.arrivals(self.start_ns)) as arrivals,
        ):
            async for due in arrivals:
                self._sample(sum(queued))
                for arrival in due:
                    self.due.append(self.streams[arrival.stream].request(arrival))
                    answers.start_soon(self._answer, planner, answers.cancel_scope)

    async def _answer(self, planner: Planner, scope: anyio.CancelScope) -> None:
        """Answers the next request; a call that fails, and is not refused, ends the run."""
        # The next one, and not a certain one, as tasks of a loop may begin in any order.
        request = self.due.popleft()
        try:
            await self.streams[request.stream].answer(request, planner)
        except NNError as error:
            self.failure = self.failure or error
            scope.cancel()

    def _sample(self, queued: int) -> None:
        now, lengths = now_ns() - self.start_ns, self.recorder.queue
        while lengths.next_ns <= now:
            lengths.sample(queued)

    def _untold(self) -> list[str]:
        return [
            f"stream {stream.name} finishes what is late: the policy is not told of its deadlines"
            for stream in self.workload.streams
            if stream.late == "finish" and stream.deadline_ms is not None
        ]


class _Request(NamedTuple):
    """A request that is due; `number` is its number in the record."""

    stream: int
    number: int
    planned_ns: int
    cost_ns: int


class _RealStream:
    """A stream as a network whose calls are the stream's requests."""

    def __init__(
        self, run: _RealRun, number: int, stream: Stream, net: Net[Array], call: Called
    ) -> None:
        self.number = number
        self.is_closed = isinstance(stream.arrivals, ClosedLoop)
        self._run = run
        self._stream = stream
        self._call = call
        self._costs = iter(()) if _has_no_costs(stream) else costs_of(stream, run.seed)
        self._thinking = think_times(stream, run.seed) if self.is_closed else iter(())
        rng = np.random.default_rng(run.seed)
        self._given = tuple(
            rng.random([max(1, n) for n in port.shape]).astype(port.dtype) for port in net.inputs
        )

    def arrivals(self) -> Iterator[Arrival]:
        """Yields the requests of an open stream."""
        stream, seed = self._stream, self._run.seed
        if isinstance(stream.cost, Network):
            for times_ns in arrival_blocks(stream, seed):
                yield from (Arrival(planned_ns, self.number, 0) for planned_ns in times_ns)
            return
        for times_ns, costs_ns in request_blocks(stream, seed):
            for planned_ns, cost_ns in zip(times_ns, costs_ns, strict=True):
                yield Arrival(planned_ns, self.number, cost_ns)

    def begin_callers(self, planner: Planner) -> None:
        """Has each caller of a closed loop think, and then plan its first request."""
        if isinstance(self._stream.arrivals, ClosedLoop):
            for _ in range(self._stream.arrivals.callers):
                self._think(planner, 0)

    def request(self, arrival: Arrival) -> _Request:
        """Records that a request is due, and returns it."""
        number = self._run.recorder.submitted(self.number, arrival.planned_ns)
        self._run.recorder.told(number, arrival.told_ns)
        cost_ns = next(self._costs, 0) if self.is_closed else arrival.cost_ns
        return _Request(self.number, number, arrival.planned_ns, cost_ns)

    async def answer(self, request: _Request, planner: Planner) -> None:
        """Makes the call and records its outcome; then its caller thinks."""
        run, stream, planned_ns = self._run, self._stream, request.planned_ns
        ANSWERED.set((self.number, request.number))
        outcome = await self._outcome(planned_ns, self._arrays(request.cost_ns))
        ended_ns = now_ns() - run.start_ns
        if outcome is Outcome.MET and ended_ns > planned_ns + stream.deadline_ns:
            outcome = Outcome.LATE
        run.recorder.ended(self.number, request.number, planned_ns, ended_ns, outcome)
        if self.is_closed:
            self._think(planner, ended_ns)

    async def _outcome(self, planned_ns: int, arrays: Sequence[Array]) -> Outcome:
        stream, planned_at_ns = self._stream, self._run.start_ns + planned_ns
        is_told = stream.deadline_ns < NEVER_NS and stream.late == "drop"
        deadline = Deadline(planned_at_ns + stream.deadline_ns) if is_told else None
        patience_s = math.inf
        if stream.cancel_after_ms is not None:
            gone_ns = planned_at_ns + to_ns(stream.cancel_after_ms)
            patience_s = max(0.0, (gone_ns - now_ns()) / 1e9)
        with anyio.move_on_after(patience_s):
            try:
                await self._call(*arrays, deadline=deadline)
                return Outcome.MET
            except Refused as error:
                return _what_became(error)
        return Outcome.CANCELLED

    def _arrays(self, cost_ns: int) -> Sequence[Array]:
        if isinstance(self._stream.cost, Network):
            return self._given
        return (np.array([[cost_ns]], np.float32),)

    def _think(self, planner: Planner, from_ns: int) -> None:
        planner.plan(Arrival(from_ns + next(self._thinking), self.number, 0))


@contextlib.contextmanager
def _given_up_at(at_ns: int, watchdog: Watchdog) -> Iterator[None]:
    """Cancels what is inside at a time, and never before it, as timers of event loops may."""
    wakeup = Wakeup.current()
    with anyio.CancelScope() as scope:
        alarm = None
        if at_ns < NEVER_NS:
            alarm = watchdog.arm(at_ns, lambda: wakeup.post(scope.cancel))
        try:
            yield
        finally:
            if alarm is not None:
                alarm.disarm()


@contextlib.contextmanager
def _little_garbage() -> Iterator[None]:
    """Excludes what exists already from garbage collection, which would stop the run for long."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _what_became(error: Refused) -> Outcome:
    if isinstance(error, MissedDeadline):
        return Outcome.REFUSED if error.reason == "admission" else Outcome.EXPIRED
    return Outcome.DISPLACED if error.reason == "displaced" else Outcome.REFUSED


def _ends(stream: Stream) -> bool:
    return isinstance(stream.arrivals, Trace)


def _has_no_costs(stream: Stream) -> bool:
    return isinstance(stream.cost, Network | Recorded)


def _networks(workload: Workload) -> bool:
    return any(isinstance(stream.cost, Network) for stream in workload.streams)


def _borders(stream: Stream) -> Borders | None:
    """Returns where executions of a stream can be stopped; None for a real network."""
    if isinstance(stream.cost, Network):
        return None
    if isinstance(stream.cost, Steps):
        return at_shares(stream.cost.borders)
    if stream.step_ms is None:
        return whole
    return at_multiples(max(FINEST_NS, to_ns(stream.step_ms)))


def _batcher(net: Net[Array], batching: Batching, cores: int, queue_limit: int) -> Batcher:
    return Batcher(
        net,
        max_rows=batching.max_rows,
        window_us=batching.window_ms * 1000,
        when="always",
        concurrency=cores,
        max_waiting=queue_limit,
    )


def _model(stream: Stream) -> Model:
    """Returns a model whose only input is the cost of a request."""
    builder = ModelBuilder(stream.name)
    told = builder.input("cost", (1 if stream.batching is None else 0, 1))
    builder.output("done", builder.add(told, told))
    return builder.build()
