"""Stages, streams and accounts by their names, and what was recorded while they ran."""

from __future__ import annotations

from typing import Annotated

import nnasync as nn
from nnasync import tracing
from nnasync.streaming import (
    CallOptions,
    Entry,
    ErrorPolicy,
    Graph,
    Histogram,
    Item,
    JoinMode,
    Latency,
    Ledger,
    NetworkStatistics,
    NetworkStream,
    Outcome,
    OutputNode,
    Pace,
    Result,
    Stage,
    Stream,
    network,
    open_audio,
    synthetic,
)
from nnasync.tracing import Count, ExecutionLog, Flow, Hooks, Mark, Monitor, Timeline

FAST: Pace = "fast"
SLOW: CallOptions = {"name": "slow", "concurrency": 2}
Waiting = Annotated[tuple[int, int], tracing.labeled("queue", "urgent", "other")]
"""Two numbers of one's own metrics, told apart by a label."""


class Statistics(nn.hal.Struct, frozen=True):
    """Numbers that `render` writes as metrics."""

    pictures: Count
    waiting: Waiting


async def joined() -> None:
    mode: JoinMode = "nearest"
    on_error: ErrorPolicy = "stream"
    graph = Graph()
    left: Stream = graph.source(synthetic(lambda n: n, rate_hz=1000, count=3, pace=FAST))
    right = left.map(twice, **SLOW)
    both = graph.join(left, right, mode=mode, tolerance_ns=10**9)
    output: OutputNode = both.map(lambda pair: pair, on_error=on_error).output()
    async with graph:
        async for item in output:
            print(item.data)


async def twice(number: int) -> int:
    return 2 * number


async def doubled(number: int, *, deadline: nn.Deadline | None = None) -> int:
    """What a stage calls is told by when its answer is due."""
    return 2 * number


async def staged() -> None:
    stage = Stage(doubled, capacity=3)
    async with stage:
        for index in range(3):
            await stage.put(Item(index, nn.now_ns(), index))
        stage.end()
        result: Result
        async for result in stage:
            print(result.item.index, result.outcome, result.value)
    latency: Latency = stage.statistics().latency
    print(latency.count)


def account_of_ones_own() -> None:
    ledger = Ledger()
    entry: Entry = ledger.submit()
    entry.settle(Outcome.COMPLETED, latency_ns=5)
    print(ledger.account)
    times = Histogram()
    times.add(5)
    print(times.percentile(50))


def addresses() -> None:
    """Nothing is connected to yet."""
    stream: NetworkStream = network("rtsp://camera.local/stream")
    statistics: NetworkStatistics = stream.statistics
    print(statistics.attempts)
    print(open_audio("rtsp://camera.local/stream").__class__.__name__)


async def recorded() -> None:
    timeline, hooks = Timeline(), ExecutionLog()
    async with (
        nn.open_runtime(instruments=[timeline, hooks]) as runtime,
        tracing.monitored(runtime),
    ):
        monitors: list[Monitor] = [each for each in tracing.monitors() if each.pid]
        print(len(monitors) > 0)
        with runtime.tracer.mark(tracing.Layer.APPLICATION, tracing.Phase.EXECUTION, "a piece"):
            pass
    print(tracing.vlog.is_on("execution"))
    mark = Mark(tracing.Layer.APPLICATION, tracing.Phase.EXECUTION, "a piece")
    arrows: tuple[Flow, ...] = timeline.flows
    print(mark.detail, len(arrows), len(tracing.chrome_trace(timeline.records)) > 0)
    own: Hooks = ()
    print(len(own), bool(tracing.SWITCH))


async def main() -> None:
    await joined()
    await staged()
    account_of_ones_own()
    addresses()
    await recorded()


if __name__ == "__main__":
    nn.run(main)
