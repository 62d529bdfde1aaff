"""Workloads: streams of requests, and the very requests that a seed gives.

The requests of a stream depend on the seed and the stream's name alone: neither other streams nor
the policy, the cores or the kind of run change them. Times of arrivals and costs come from two
generators, so that another cost leaves the arrivals as they are.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import structs

from nnasync._core.arguments import told
from nnasync.errors import ExperimentError
from nnasync.experiments.arrivals import BLOCK, Arrivals, ClosedLoop, Trace
from nnasync.experiments.checks import MOST_CORES, at_least, built_in, positive, row, to_ns
from nnasync.experiments.costs import Batching, Cost, Network, Recorded, Steps
from nnasync.hal import NEVER_NS, Priority

RequestBlock: TypeAlias = tuple[list[int], list[int]]
"""Planned times and costs of some requests, in nanoseconds from the start of the run."""

_TIMES, _COSTS = 0, 1


class Stream(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Requests of one kind: when they come, what they cost, and how urgent they are.

    `deadline_ms` counts from the planned arrival. A request that cannot meet it any more is given
    up (`late` is "drop", as the runtime does), or runs to its end and counts as late ("finish").
    `client` names whose share of the cores it is; the application's own is "". A run may be
    interrupted where its steps end, or, for costs without steps, after each `step_ms`: at any
    moment with 0, nowhere without. Who waits for an answer gives up after `cancel_after_ms`.
    With `batching` requests that wait are run together.
    """

    name: str
    arrivals: Arrivals
    cost: Cost
    priority: Literal["low", "medium", "high"] = "medium"
    deadline_ms: float | None = None
    late: Literal["drop", "finish"] = "drop"
    client: str = ""
    step_ms: float | None = None
    cancel_after_ms: float | None = None
    batching: Batching | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ExperimentError("name is empty: a stream needs one")
        if self.deadline_ms is not None:
            positive("deadline_ms", self.deadline_ms)
        if self.cancel_after_ms is not None:
            positive("cancel_after_ms", self.cancel_after_ms)
        if self.step_ms is not None:
            at_least("step_ms", self.step_ms, 0)
            if isinstance(self.cost, Steps | Network):
                raise ExperimentError("step_ms is given, but the cost has steps of its own")
        if isinstance(self.cost, Recorded) and not isinstance(self.arrivals, Trace):
            raise ExperimentError("costs of the kind recorded need arrivals of the kind trace")

    @property
    def urgency(self) -> Priority:
        """Returns the priority as the HAL's enumeration."""
        return Priority[self.priority.upper()]

    @property
    def deadline_ns(self) -> int:
        """Returns how long after its planned arrival a request is due; NEVER_NS if never."""
        return NEVER_NS if self.deadline_ms is None else to_ns(self.deadline_ms)


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Streams that share the cores; their names differ."""

    streams: tuple[Stream, ...]

    def __post_init__(self) -> None:
        row("streams", self.streams, Stream)
        if not self.streams:
            raise ExperimentError("streams is empty: a workload needs one at least")
        names = [stream.name for stream in self.streams]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise ExperimentError(
                    f"streams[{number}].name: another stream is called {name} too"
                )


def checked(workload: Workload) -> Workload:
    """The same workload, each value of which is as a file would have it.

    Raises ExperimentError, which says where it is not.
    """
    if not isinstance(workload, Workload):
        raise ExperimentError(f"workload is {told(workload)}, and must be a Workload")
    try:
        return msgspec.convert(built_in(workload), Workload)
    except msgspec.ValidationError as error:
        raise ExperimentError(str(error)) from error


def request_blocks(stream: Stream, seed: int) -> Iterator[RequestBlock]:
    """Yields the requests of an open stream in blocks, until it ends, if it does.

    Raises ExperimentError for a closed loop, whose times depend on the answers (see `think_times`),
    for a network without measured steps, and where a trace is not as it should be.
    """
    arrivals = stream.arrivals
    if isinstance(stream.cost, Recorded) and isinstance(arrivals, Trace):
        for block in arrivals.rows(with_costs=True):
            costs_ns = block.costs_ns
            yield block.times_ns.tolist(), [] if costs_ns is None else costs_ns.tolist()
        return
    costs = costs_of(stream, seed)
    for times_ns in arrival_blocks(stream, seed):
        yield times_ns, list(itertools.islice(costs, len(times_ns)))


def arrival_blocks(stream: Stream, seed: int) -> Iterator[list[int]]:
    """Yields the planned times of an open stream alone; raises as `request_blocks` does."""
    arrivals = stream.arrivals
    if isinstance(arrivals, ClosedLoop):
        raise ExperimentError(f"{stream.name}: when requests of a closed loop come, answers decide")
    if isinstance(arrivals, Trace):
        yield from (block.times_ns.tolist() for block in arrivals.rows(with_costs=False))
    else:
        yield from (times.tolist() for times in arrivals.blocks(_generator(stream, seed, _TIMES)))


def costs_of(stream: Stream, seed: int) -> Iterator[int]:
    """Yields the costs of a stream's requests in nanoseconds, without end.

    Raises ExperimentError where the workload does not have them: recorded ones are in the trace.
    """
    cost = stream.cost
    if isinstance(cost, Recorded):
        raise ExperimentError(f"{stream.name}: recorded costs come with the trace")
    rng = _generator(stream, seed, _COSTS)
    while True:
        yield from cost.draw(rng, BLOCK).tolist()


def think_times(stream: Stream, seed: int) -> Iterator[int]:
    """Yields how long callers of a closed loop think in nanoseconds, without end."""
    if not isinstance(stream.arrivals, ClosedLoop):
        raise ExperimentError(f"{stream.name}: only callers of a closed loop think")
    return stream.arrivals.thinking(_generator(stream, seed, _TIMES))


def offered_load(workload: Workload, cores: int) -> float:
    """Returns the load that open streams offer, as a share of each core's time.

    Raises ExperimentError for streams of which that is not known: traces without a mean rate,
    recorded costs without a mean, networks that are not measured.
    """
    at_least("cores", cores, 1, MOST_CORES)
    return sum(_demand(stream) for stream in _open(checked(workload))) / cores


def at_load(workload: Workload, cores: int, load: float) -> Workload:
    """Returns the workload with open arrivals scaled so that `load` of each core is asked for.

    Raises ExperimentError as `offered_load` does, and where no stream could be scaled.
    """
    positive("load", load)
    offered = offered_load(workload, cores)
    if not offered:
        raise ExperimentError("no stream has open arrivals, so that its load could be set")
    factor = load / offered
    return Workload(tuple(_scaled(stream, factor, load) for stream in workload.streams))


def _scaled(stream: Stream, factor: float, load: float) -> Stream:
    if isinstance(stream.arrivals, ClosedLoop):
        return stream
    try:
        return structs.replace(stream, arrivals=stream.arrivals.scaled(factor))
    except ExperimentError as error:
        raise ExperimentError(f"load is {load:g}: of {stream.name}, {error}") from error


def _open(workload: Workload) -> list[Stream]:
    return [each for each in workload.streams if not isinstance(each.arrivals, ClosedLoop)]


def _demand(stream: Stream) -> float:
    """Returns how many seconds of a core a stream asks for per second."""
    arrivals, mean_ns = stream.arrivals, stream.cost.mean_ns
    if isinstance(arrivals, ClosedLoop):
        return 0.0
    if not mean_ns:
        raise ExperimentError(f"{stream.name}: the load of recorded costs needs their mean_ms")
    return arrivals.mean_rate_hz * mean_ns / 1e9


def _generator(stream: Stream, seed: int, purpose: int) -> np.random.Generator:
    key = (zlib.crc32(stream.name.encode()), purpose)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))
