"""Runs for tests of figures and reports: a queue without a simulator, recorded as all runs are."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from nnasync.experiments import (
    Constant,
    Outcome,
    Poisson,
    Recorder,
    Recording,
    RequestRow,
    RunResult,
    Span,
    Stream,
    Workload,
    request_blocks,
)
from nnasync.experiments.record import StreamResult
from nnasync.experiments.run_of_point import Run

WORD = Stream(
    name="wake word", arrivals=Poisson(100.0), cost=Constant(1.0), priority="high", deadline_ms=5.0
)
PHOTOS = Stream(name="photos", arrivals=Poisson(40.0), cost=Constant(20.0))
WORKLOAD = Workload((WORD, PHOTOS))


def served(
    kind: str = "simulated", *, seed: int = 0, slower: float = 1.0, duration_ns: int = 2_000_000_000
) -> RunResult:
    """All requests of the workload on two cores, first come first served."""
    recorder = Recorder(WORKLOAD, Recording(timeline_requests=60))
    requests = [
        (at_ns, index, cost_ns)
        for index, stream in enumerate(WORKLOAD.streams)
        for at_ns, cost_ns in _until(stream, seed, duration_ns)
    ]
    free = [(0, 0), (0, 1)]
    busy_ns = 0
    for at_ns, index, cost_ns in sorted(requests):
        free_ns, core = heapq.heappop(free)
        began_ns = max(free_ns, at_ns)
        ended_ns = began_ns + round(cost_ns * slower)
        heapq.heappush(free, (ended_ns, core))
        number = recorder.submitted(index, at_ns)
        recorder.ran(core, index, number, began_ns, ended_ns)
        deadline_ns = WORKLOAD.streams[index].deadline_ns
        outcome = Outcome.MET if ended_ns - at_ns <= deadline_ns else Outcome.LATE
        recorder.ended(index, number, at_ns, ended_ns, outcome)
        busy_ns += ended_ns - began_ns
        while recorder.queue.next_ns <= at_ns:
            recorder.queue.sample(max(0, (began_ns - at_ns) // 1_000_000))
    return recorder.result(
        "real" if kind == "real" else "simulated",
        seed=seed,
        cores=2,
        policy="fifo",
        duration_ns=duration_ns,
        busy_ns=busy_ns,
        preemptions=0,
    )


def _until(stream: Stream, seed: int, duration_ns: int) -> list[tuple[int, int]]:
    found = []
    for times_ns, costs_ns in request_blocks(stream, seed):
        found += [pair for pair in zip(times_ns, costs_ns, strict=True) if pair[0] < duration_ns]
        if times_ns[-1] >= duration_ns:
            break
    return found


def runs(kinds: tuple[str, ...] = ("simulated",), repeats: int = 2) -> tuple[Run, ...]:
    """A sweep over two loads and two words, which change how long everything takes."""
    found = []
    for kind in kinds:
        point = 0
        for load in (0.5, 1.0):
            for policy, factor in (("slow", 1.2), ("quick", 0.8)):
                for repeat in range(repeats):
                    off = 1.0 if kind == "simulated" else 1.05
                    result = served(kind, seed=repeat, slower=factor * load * off)
                    values: dict[str, float | str] = {"load": load, "policy": policy}
                    found.append(Run(point, values, repeat, 0.1, result))
                point += 1
    return tuple(found)


def real_run(
    requests: Iterable[RequestRow] = (),
    spans: Iterable[Span] = (),
    *,
    cores: int = 2,
    streams: tuple[StreamResult, ...] = (),
) -> RunResult:
    """A real run of a second with these rows and spans."""
    return RunResult(
        kind="real",
        seed=0,
        cores=cores,
        policy="default",
        duration_ns=10**9,
        busy_ns=0,
        preemptions=0,
        streams=streams,
        spans=tuple(spans),
        requests=tuple(requests),
    )
