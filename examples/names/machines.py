"""What is known of a machine, its memory and its devices, and what suites say of them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

import nnasync as nn
from nnasync import conformance, devices, dump, machine, memory, scheduler
from nnasync.batching import Batcher, BatchingReport, Trial
from nnasync.conformance import CaseResult, Plan, Selection, Variant
from nnasync.machine import (
    BusyProcess,
    FolderFacts,
    Installation,
    Listener,
    Margins,
    PackageFacts,
    Surroundings,
)
from nnasync.memory import ImageLayout, MemoryStatistics, Pool, Region, SharedArena, Unusable
from nnasync.scheduler import Job, Ordered, Policy, PolicyError
from nnasync.serving import Limits, ModelServer, ServeOptions, ServingError
from nnasync.suites import Bars, Better, FigureChange, Finding, Standing, SuiteFigure, SuiteRow

ROW = SuiteRow(
    "mobilenet",
    "litert-cpu",
    Standing.SUCCESS,
    seconds=1.5,
    figures=(SuiteFigure("median", 1.2, "ms", better=Better.LESS),),
    bars=(Bars("latency", "ms", start=1.0, step=0.1, counts=(3, 5, 1)),),
    findings=(Finding("one answer was wrong", command="nnasync fuzz --repeat x.json"),),
)
"""A row of a suite."""


def doubler() -> nn.Model:
    """Output y = 2 x."""
    builder = nn.ModelBuilder("doubler")
    x = builder.input("x", (0, 4))
    builder.output("y", builder.add(x, x))
    return builder.build()


def this_machine(found: Surroundings) -> None:
    """What `nnasync doctor` prints."""
    installation: Installation = found.installation
    packages: tuple[PackageFacts, ...] = installation.packages
    folders: tuple[FolderFacts, ...] = found.folders
    busy: tuple[BusyProcess, ...] = found.busy
    listeners: tuple[Listener, ...] = found.listeners
    print(len(packages) > 3, all(folder.path for folder in folders))
    print(len(busy) >= 0, len(listeners) >= 0)
    print(isinstance(machine.processor_flags(), frozenset))
    costs = machine.kept_costs(devices.state_folder())
    margins: Margins = machine.decide(costs, 1_000_000).margins
    print(margins.tie < margins.far)
    waits = machine.WaitMeter()
    share = waits.read()
    print(share is None or 0 <= share <= 1)


def shared() -> None:
    """Memory that other processes may read."""
    offsets, total = memory.layout([100, 28], memory.ALIGNMENT)
    print(offsets, total)
    with Pool.allocate(total) as pool:
        region: Region = pool.region(0, 100, dtype=np.uint8, shape=(10, 10))
        print(region.array.shape, len(memory.mapped(pool, "a pool")))
    with Pool.image(memory.ImageFormat.RGB_888, 8, 4) as image:
        layout: ImageLayout | None = image.image_layout
        print(image.name == memory.IMAGE, layout)
    pool, offset = SharedArena().take(64)
    print(offset < pool.size)
    memory.count_copied(96)
    broken = Unusable("ashmem", 64, "it was truncated")
    print(broken.size)


class LongestFirst(Ordered):
    """A policy of one's own: who takes longest goes first."""

    name = "longest-first"

    def key(self, job: Job, now_ns: int) -> float:
        """The lowest goes first."""
        return -scheduler.remaining_ns(job, now_ns)


def policies() -> None:
    policy: Policy = LongestFirst()
    print(policy.name, "edf" in scheduler.policy_names())
    print(scheduler.at_ns(None) == scheduler.NEVER_NS, issubclass(PolicyError, Exception))


def gives_way(job: Job) -> nn.NNError:
    """What a job is told that lost its place to another one."""
    return scheduler.displaced(job)


async def batched() -> None:
    async with nn.open_runtime() as runtime:
        net = await runtime.compile(doubler(), devices=["nnasync-reference"])
        async with Batcher(net, max_rows=4) as batcher:
            report: BatchingReport = batcher.report
            trials: tuple[Trial, ...] = report.trials
            print(report.most_rows >= 1, len(trials) >= 0)


async def first_cases(count: int = 3) -> None:
    """Conformance cases of the reference device."""
    results: list[CaseResult] = []
    selection = Selection(spec="add", part=0, parts=5)
    plan = Plan(str(conformance.OWN_CASES), "nnasync-reference", selection)
    await conformance.run_plan(plan, results.append)
    print(sum(run.variant is Variant.AS_GIVEN for each in results for run in each.runs))


async def server(runtime: nn.Runtime, folder: Path) -> None:
    """A server with limits of its own; what is no request of its clients is an error."""
    options = ServeOptions(limits=Limits(body_bytes=1 << 20), cache_dir=folder)
    try:
        async with ModelServer(runtime, [folder / "words.onnx"], options=options):
            pass
    except ServingError as error:
        print(error.code, error)


async def on_a_node_of_ray() -> nn.Runtime:
    """A device on another machine of a cluster: pip install 'nnasync[ray]'."""
    from nnasync import ray

    node = ray.device("litert-cpu", cores=2)
    return nn.open_runtime(devices=[node, "nnasync-reference"])


def told(change: FigureChange) -> str:
    return f"{change.subject}: {change.before.value} -> {change.after.value} {change.trend}"


def main() -> None:
    this_machine(machine.read_surroundings())
    shared()
    policies()
    nn.run(batched)
    nn.run(first_cases)
    memory_now: MemoryStatistics = memory.statistics()
    print(memory_now.pools >= 0, ROW.figures[0].value)
    _, damaged = devices.verdicts()
    unreadable: devices.UnreadableVerdict
    for unreadable in damaged:
        print(unreadable.file, unreadable.reason)
    graph = io.StringIO()
    dump.graph_dump("doubler", doubler(), graph)
    print(graph.getvalue().splitlines()[0])


if __name__ == "__main__":
    main()
