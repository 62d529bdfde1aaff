"""Launches, fences, buffers and timings: what calls give, by its name."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import nnasync as nn
from nnasync import fences, hal
from nnasync.memory import MemoryStatistics
from nnasync.scheduler import ClientStatistics, SchedulerStatistics
from nnasync.sync import BlockingBurst, BlockingNet, BlockingRuntime

ROW = np.ones((1, 4), np.float32)


def doubler() -> nn.Model:
    """Output y = 2 x."""
    builder = nn.ModelBuilder("doubler")
    x: nn.Value = builder.input("x", (1, 4))
    builder.output("y", builder.add(x, x))
    return builder.build()


async def launches(net: nn.Net) -> None:
    """Two runs of which the second waits for the first, and a third that waits for nothing."""
    first: nn.Execution = await net.launch(ROW)
    second = await net.launch(first.outputs, wait_for=[first.fence])
    third = await net.launch(ROW, wait_for=[fences.signaled()])
    both: nn.Fence = nn.merge([second.fence, third.fence])
    await both
    print(both.status is fences.FenceStatus.SIGNALED)
    print(second.outputs[0].array, third.outputs[0].array)


async def measured(net: nn.Net) -> None:
    timing: nn.Timing
    _, timing = await net.measured(ROW)
    if timing.time_on_device_ns != hal.NOT_AVAILABLE:
        print(f"{timing.time_on_device_ns / 1e3:.0f} us")


async def buffers(runtime: nn.Runtime, net: nn.Net) -> None:
    """Memory that stays where the device has it, from one network to the next."""
    between: nn.Buffer
    async with await runtime.allocate(net.output_role("y"), net.input_role("x")) as between:
        await net(ROW, out={"y": between})
        print(await net(between))


async def failures(net: nn.Net) -> None:
    """Each error is an exception of its own, and belongs to a kind."""
    try:
        await net(np.ones((2, 4), np.float32))
    except nn.CallerError as error:
        print(error)
    fence = nn.Fence()
    fence.fail(nn.Cancelled("nobody wants it"))
    try:
        await fence
    except nn.Cancelled as error:
        print(fences.fresh(error))


async def kept(folder: Path) -> None:
    """A model in a file of ours."""
    nn.save(doubler(), folder / "doubler.nnm")
    print(nn.load(folder / "doubler.nnm").name)


async def main() -> None:
    async with nn.open_runtime(devices=["nnasync-reference"]) as runtime:
        net = await runtime.compile(doubler())
        await launches(net)
        await measured(net)
        await buffers(runtime, net)
        await failures(net)
        with tempfile.TemporaryDirectory() as folder:
            await kept(Path(folder))
        memory: MemoryStatistics = runtime.statistics().memory
        scheduler: SchedulerStatistics = runtime.statistics().workers.scheduler
        clients: tuple[ClientStatistics, ...] = scheduler.clients  # of devices that it serves
        print(memory.pools, scheduler.queued, [each.used_ns for each in clients])


def blocking() -> None:
    """The same without an event loop."""
    runtime: BlockingRuntime
    net: BlockingNet
    burst: BlockingBurst
    with (
        nn.sync.open_runtime(devices=["nnasync-reference"]) as runtime,
        runtime.compile(doubler()) as net,
        net.burst() as burst,
    ):
        print(burst(ROW))


if __name__ == "__main__":
    nn.run(main)
    blocking()
