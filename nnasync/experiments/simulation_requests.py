"""Requests of a simulation, and where they come from: open streams, and callers of closed loops."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from nnasync.errors import ExperimentError
from nnasync.experiments.arrivals import ClosedLoop, Trace
from nnasync.experiments.checks import to_ns
from nnasync.experiments.clients import client_numbers
from nnasync.experiments.costs import Network, Recorded, Steps
from nnasync.experiments.record import StreamAccount
from nnasync.experiments.simulation_batching import Line
from nnasync.experiments.workload import Stream, costs_of, request_blocks, think_times
from nnasync.hal import NEVER_NS
from nnasync.scheduler import Estimate, Job


class Request(Job):
    """A job with what the simulation knows of it, and the scheduler must not.

    `ends_ns` is when its run stops as things stand, negative while it does not run. `is_asked` is
    whether it was asked to give way, `is_over` whether its outcome is known. It takes `slower`
    times as long as alone, for what ran beside it when it began; `is_joined` is whether another
    one began since. Of a network's runs it has this `rank` by length, negative until it is known,
    and the `is_wide` form or the usual one. Requests that are
    run together are `members` of a `run`.
    """

    __slots__ = (
        "began_ns",
        "core",
        "cost_ns",
        "ends_ns",
        "is_asked",
        "is_joined",
        "is_over",
        "is_watched",
        "is_wide",
        "members",
        "number",
        "planned_ns",
        "rank",
        "run",
        "slower",
        "source",
    )

    source: Source
    planned_ns: int
    cost_ns: int
    number: int
    ends_ns: int
    began_ns: int
    core: int
    is_asked: bool
    is_joined: bool
    is_over: bool
    is_watched: bool
    slower: float
    is_wide: bool
    rank: int
    members: tuple[Request, ...]
    run: Request | None


class Source:
    """A stream in a simulation: its next requests, its estimate and its account."""

    __slots__ = (
        "_borders",
        "_cost_ns",
        "_step_ns",
        "account",
        "batching",
        "callers",
        "cancel_after_ns",
        "client",
        "costs",
        "deadline_ns",
        "estimate",
        "is_endless",
        "is_network",
        "line",
        "name",
        "number",
        "priority",
        "relative_ns",
        "thinking",
        "times_ns",
    )

    def __init__(
        self,
        stream: Stream,
        seed: int,
        *,
        number: int,
        client: int,
        account: StreamAccount,
        cores: int = 1,
    ) -> None:
        self.name = stream.name
        self.batching = stream.batching
        self.line: Line[Request] | None = None
        if stream.batching is not None:
            self.line = Line(stream.batching, cores)
        self.number = number
        self.client = client
        self.account = account
        self.priority = stream.urgency
        self.deadline_ns = stream.deadline_ns
        """What counts as met; `relative_ns` is the deadline that the scheduler is told of."""
        self.relative_ns = NEVER_NS if stream.late == "finish" else stream.deadline_ns
        self.cancel_after_ns = NEVER_NS
        if stream.cancel_after_ms is not None:
            self.cancel_after_ns = to_ns(stream.cancel_after_ms)
        self.estimate = _estimate(stream)
        cost = stream.cost.steps() if isinstance(stream.cost, Network) else stream.cost
        self._borders = cost.borders if isinstance(cost, Steps) else ()
        self._step_ns = -1 if stream.step_ms is None else to_ns(stream.step_ms)
        self.thinking: Iterator[int] | None = None
        self.costs: Iterator[int] = iter(())
        self.times_ns: Iterator[int] = iter(())
        """When the next requests of an open stream are planned, until it ends."""
        self.is_network = isinstance(stream.cost, Network)
        self.is_endless = not isinstance(stream.arrivals, Trace)
        self.callers = 1
        """How many requests may come before any is answered, but for those of open streams."""
        self._cost_ns = 0
        if isinstance(stream.arrivals, ClosedLoop):
            self.callers = stream.arrivals.callers
            self.thinking, self.costs = think_times(stream, seed), costs_of(stream, seed)
        else:
            self.times_ns = self._upcoming(stream, seed)

    def _upcoming(self, stream: Stream, seed: int) -> Iterator[int]:
        """Yields the planned times of an open stream; `_cost_ns` is the cost of the last one."""
        for times_ns, costs_ns in request_blocks(stream, seed):
            for planned_ns, cost_ns in zip(times_ns, costs_ns, strict=True):
                self._cost_ns = cost_ns or 1
                yield planned_ns

    def request(self, planned_ns: int) -> Request:
        """Returns the request whose planned time was yielded last."""
        relative_ns = self.relative_ns
        request = Request(
            self.priority,
            self.estimate,
            NEVER_NS if relative_ns == NEVER_NS else planned_ns + relative_ns,
            self.client,
        )
        request.source = self
        request.planned_ns = planned_ns
        if self.thinking is None:
            request.cost_ns = self._cost_ns
        else:
            request.cost_ns = next(self.costs)
        request.ends_ns = request.rank = -1
        request.slower = 1.0
        request.members, request.run = (), None
        request.is_asked = request.is_over = request.is_watched = request.is_wide = False
        request.is_joined = False
        return request

    def run_of(self, members: Sequence[Request]) -> Request:
        """Returns one request that stands for a batch, which is due when the last of them is."""
        first = members[0]
        run = Request(
            self.priority, self.estimate, max(each.deadline_ns for each in members), self.client
        )
        run.source = self
        run.planned_ns, run.number = first.planned_ns, first.number
        costs_ns = [each.cost_ns for each in members]
        run.cost_ns = costs_ns[0] if self.batching is None else self.batching.cost_ns(costs_ns)
        run.ends_ns, run.rank, run.slower = -1, -1, 1.0
        run.is_asked = run.is_over = run.is_watched = run.is_wide = run.is_joined = False
        run.members, run.run = tuple(members), None
        for each in members:
            each.run = run
        return run

    def border_ns(self, request: Request, done_ns: int) -> int:
        """Returns how much of a request is done at its next border, if `done_ns` is done now."""
        cost_ns = request.cost_ns
        if self._borders:
            place = bisect_left(self._borders, done_ns / cost_ns)
            return round(self._borders[place] * cost_ns)
        if self._step_ns < 0:
            return cost_ns
        if self._step_ns == 0:
            return done_ns
        return min(cost_ns, -(-done_ns // self._step_ns) * self._step_ns)


def sources(
    streams: tuple[Stream, ...], seed: int, accounts: list[StreamAccount], cores: int
) -> list[Source]:
    """Returns the streams with the numbers of their clients, in order of appearance from 0.

    The application is client 0.
    """
    clients = client_numbers(streams)
    return [
        Source(
            stream,
            seed,
            number=number,
            client=clients[stream.client],
            account=account,
            cores=cores,
        )
        for number, stream, account in zip(itertools.count(), streams, accounts, strict=False)
    ]


def _estimate(stream: Stream) -> Estimate:
    """Returns a stream's estimate before its first request, as after a run of the usual length."""
    estimate = Estimate()
    try:
        mean_ns = stream.cost.mean_ns
    except ExperimentError as error:
        raise ExperimentError(f"{stream.name}: {error}") from error
    if not isinstance(stream.cost, Recorded) or mean_ns:
        estimate.observe(max(1, round(mean_ns)))
    return estimate
