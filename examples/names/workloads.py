"""Arrivals and costs of every kind, and all that an experiment writes down."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from pathlib import Path

from nnasync import experiments
from nnasync.experiments import (
    Batching,
    ClosedLoop,
    Constant,
    Delays,
    Experiment,
    Histogram,
    Latencies,
    LatencyHistogram,
    Lognormal,
    Network,
    OnOff,
    Outcome,
    Overheads,
    Periodic,
    Point,
    Poisson,
    Recorded,
    Recorder,
    Recording,
    RequestRow,
    RunResult,
    RunTimes,
    Span,
    Stream,
    StreamResult,
    Trace,
    Workload,
    WrittenReport,
)

SOUND = Stream(name="sound", arrivals=Periodic(period_ms=10), cost=Constant(1), deadline_ms=10)
PHOTOS = Stream(
    name="photos",
    arrivals=OnOff(rate_hz=40, on_ms=500, off_ms=500),
    cost=Histogram(edges_ms=(5, 10, 20), counts=(3, 1)),
    batching=Batching(max_rows=4),
)
PEOPLE = Stream(
    name="people", arrivals=ClosedLoop(callers=2, think_ms=50), cost=Lognormal(mean_ms=2, cv=0.5)
)
FILE = "time,cost\n0.0,3\n0.1,4\n"


def replayed(folder: Path) -> Stream:
    """Requests that were recorded elsewhere."""
    path = folder / "requests.csv"
    path.write_text(FILE)
    return Stream(name="replayed", arrivals=Trace(str(path)), cost=Recorded(mean_ms=3.5))


def of_a_network(path: str) -> Stream:
    """Costs of a real network: three steps, as they were measured."""
    times = RunTimes(usual_ms=(3.5, 4, 4.5), beside_ms={"photos": (3.6, 5, 9)})
    cost = Network(path, (1, 2, 1), times=times)
    return Stream(name="network", arrivals=Poisson(rate_hz=5), cost=cost)


def ahead(workload: Workload) -> None:
    """What is asked for, before anything runs."""
    print(f"load {experiments.offered_load(workload, cores=2):.2f}")
    fuller = experiments.at_load(workload, cores=2, load=0.8)
    print(f"load {experiments.offered_load(fuller, cores=2):.2f}")
    print("arrivals", next(experiments.arrival_blocks(SOUND, seed=0))[:3])
    print("requests", len(next(experiments.request_blocks(PHOTOS, seed=0))[0]))
    print("costs", list(itertools.islice(experiments.costs_of(PHOTOS, seed=0), 2)))
    print("thinking", list(itertools.islice(experiments.think_times(PEOPLE, seed=0), 2)))


def run_down(result: RunResult) -> None:
    """What a run wrote down."""
    stream: StreamResult
    for stream in result.streams:
        latency: Latencies = stream.latency
        print(stream.name, stream.submitted, latency.count, latency.mean_ns)
    spans: tuple[Span, ...] = result.spans
    rows: tuple[RequestRow, ...] = result.requests
    print(len(spans), sum(row.outcome is Outcome.MET for row in rows))


def own_account(workload: Workload) -> Recorder:
    """For a runner of one's own: it tells a recorder of each request."""
    return Recorder(workload, Recording())


def costs_of_this_machine() -> Overheads:
    """What calls cost here, which takes four seconds the first time."""
    return experiments.overheads_here()


async def on_this_machine(workload: Workload) -> RunResult:
    """The same requests for real, on a device that takes as long as each of them costs."""
    return await experiments.run_real(workload, cores=2, requests=20)


async def swept(folder: Path) -> None:
    document = {
        "streams": [
            {
                "name": "sound",
                "arrivals": {"kind": "periodic", "period_ms": 10},
                "cost": {"kind": "constant", "ms": 1},
            }
        ],
        "overheads": "none",
        "duration_s": 1,
        "sweep": {"policy": ["fifo", "edf"]},
    }
    experiment: Experiment = experiments.experiment_of(document)
    point: Point
    for point in experiment.points():
        print(point.index, point.values)
    results = await experiments.run(experiment)
    report: WrittenReport = experiments.write_report(results, folder, pictures=False)
    print(report.page.name)


def main() -> None:
    late = LatencyHistogram()
    late.add([2_000_000, 3_000_000])
    print(late.latencies().mean_ns, Delays().comes_ns)
    workload = Workload((SOUND, PHOTOS, PEOPLE))
    ahead(Workload((SOUND, PHOTOS)))
    recording = Recording(timeline_requests=50)
    second = 10**9
    run_down(experiments.simulate(workload, cores=2, duration_ns=second, record=recording))
    with tempfile.TemporaryDirectory() as folder:
        from_file = Workload((replayed(Path(folder)),))
        run_down(experiments.simulate(from_file, duration_ns=second, record=recording))
        asyncio.run(swept(Path(folder)))


if __name__ == "__main__":
    main()
