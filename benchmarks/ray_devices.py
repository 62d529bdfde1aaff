"""Devices on nodes of Ray: what a call costs, how late errors are, and how long a death lasts.

    python benchmarks/ray_devices.py            needs the extra ray

Two nodes are simulated on this machine (`ray.cluster_utils.Cluster`), each with a device. A call of
a network there is compared, in turns, with a call of an actor of Ray on one of the nodes that
computes the same with numpy, waited for with `ray.get` and with `await`. Then a network that takes
longer than its deadline is called: how long after the deadline is the error there, and how late is
a timer of the same loop, in turns? With `--real-time` that loop, and what waits for deadlines, has
`Options(real_time=True)`. At last the node of the device is removed while clients call
without pause: how long is there no answer, and has each call exactly one end?
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import numpy as np

import nnasync as nn
from benchmarks._report import arguments, median, percentile, publish, table
from nnasync.errors import DeviceError, MissedDeadline
from nnasync.hal import Array
from nnasync.ray import device

MEMORY = 200 << 20
SIZES = {"16 B": (1, 4), "600 kB": (1, 150_000)}
DEADLINE_MS = 20.0
LONG_STEPS, LONG_SHAPE = 3000, (1, 200_000)
"""A network that takes much longer than the deadline, in steps that are shorter."""
_TRIES = 10
"""What is refused on arrival does not count, and is tried again so often at most."""
CLIENTS = 8
WHILE_S, AFTERWARDS_S = 1.0, 15.0
"""How long clients call before a node is removed, and after that."""
NAME = "nnasync-reference"
OPTIONS = nn.Options(competition_budget_ms=0, revive=True)

Call = Callable[[], Awaitable[object]]


class Doubler:
    """What an actor of Ray computes."""

    def double(self, x: Array) -> Array:
        """Returns twice its input."""
        return x + x


def network(shape: tuple[int, ...], steps: int = 1) -> nn.Model:
    """Returns a network that doubles its input, or applies tanh so many times."""
    builder = nn.ModelBuilder("network")
    x = builder.input("x", shape)
    if steps == 1:
        builder.output("y", builder.add(x, x))
        return builder.build()
    for _ in range(steps):
        x = builder.tanh(x)
    builder.output("y", x)
    return builder.build()


async def timed(call: Call, times: int) -> float:
    """Returns the microseconds of one call."""
    begin = time.perf_counter()
    for _ in range(times):
        await call()
    return (time.perf_counter() - begin) / times * 1e6


async def costs(runtime: nn.Runtime, ray: Any, rounds: int, calls: int) -> dict[str, list[float]]:
    """Returns the microseconds of a call by each way and size, in each round."""
    actor = ray.remote(Doubler).options(num_cpus=1, resources={"device": 0.5}).remote()
    ways: dict[str, tuple[Call, int]] = {}
    for size, shape in SIZES.items():
        x = np.ones(shape, np.float32)
        net = await runtime.compile(network(shape))
        times = calls if size == "16 B" else max(1, calls // 5)

        async def ours(net: Any = net, x: Array = x) -> object:
            return await net(x)

        async def awaited(x: Array = x) -> object:
            return await actor.double.remote(x)

        async def got(x: Array = x) -> object:
            return ray.get(actor.double.remote(x))

        ways[f"remote device, {size}"] = ours, times
        ways[f"actor of Ray, ray.get, {size}"] = got, times
        ways[f"actor of Ray, await, {size}"] = awaited, times
    found: dict[str, list[float]] = {name: [] for name in ways}
    for call, times in ways.values():
        await timed(call, times)
    for _ in range(rounds):
        for name, (call, times) in ways.items():
            found[name].append(await timed(call, times))
    ray.kill(actor)
    return found


async def lateness_ms(runtime: nn.Runtime, times: int) -> tuple[list[float], list[float]]:
    """Returns how late after their deadlines missed calls end, and how late timers are."""
    net = await runtime.compile(network(LONG_SHAPE, LONG_STEPS))
    x = np.ones(LONG_SHAPE, np.float32)
    await net(x)
    found: list[float] = []
    timers: list[float] = []
    for _ in range(_TRIES * times):
        if len(found) == times:
            break
        due = nn.within(ms=DEADLINE_MS)
        try:
            await net(x, deadline=due)
        except MissedDeadline:
            late_ns = time.monotonic_ns() - due.at_ns
            if late_ns >= 0:  # What is refused on arrival is early.
                found.append(late_ns / 1e6)
        planned_s = time.monotonic() + DEADLINE_MS / 1000
        await anyio.sleep(DEADLINE_MS / 1000)
        timers.append(max(0.0, (time.monotonic() - planned_s) * 1000))
    return found, timers


async def death(runtime: nn.Runtime, kill: Callable[[], object]) -> tuple[float, Counter[str]]:
    """Returns the seconds without an answer after a node was removed, and counts of call ends."""
    shape = SIZES["16 B"]
    net = await runtime.compile(network(shape))
    ends: Counter[str] = Counter()
    answered: list[float] = []
    is_over = anyio.Event()

    async def client(number: int) -> None:
        x = np.full(shape, number, np.float32)
        while not is_over.is_set():
            ends["begun"] += 1
            try:
                value = await net(x)
            except DeviceError as error:
                ends[type(error).__name__] += 1
                await anyio.sleep(0.001)
            else:
                ends["right" if (value == 2 * x).all() else "wrong"] += 1
                answered.append(time.monotonic())

    async with anyio.create_task_group() as tasks:
        for number in range(CLIENTS):
            tasks.start_soon(client, number)
        await anyio.sleep(WHILE_S)
        killed_s = time.monotonic()
        await anyio.to_thread.run_sync(kill)
        await anyio.sleep(AFTERWARDS_S)
        is_over.set()
    pauses = [after - before for before, after in pairwise(answered) if after > killed_s]
    return max(pauses, default=math.inf), ends


async def measured(options: Any) -> dict[str, Any]:
    """Returns all figures."""
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "object_store_memory": MEMORY}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for number in range(2):
        own = {"device": 1, f"node{number}": 1}
        cluster.add_node(num_cpus=2, object_store_memory=MEMORY, resources=own)
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    found: dict[str, Any] = {}
    try:
        devices = [
            device(NAME, called=f"node{number}", resources={f"node{number}": 1})
            for number in range(2)
        ]
        own_options = msgspec.structs.replace(OPTIONS, real_time=options.real_time)
        async with nn.open_runtime(devices=devices, options=own_options) as runtime:
            found["us"] = await costs(runtime, ray, options.rounds, options.calls)
            found["late ms"], found["timers ms"] = await lateness_ms(runtime, options.calls)

            def kill() -> None:
                actor = devices[0]._source._actor
                home = ray.get(actor.node.remote())
                gone = next(each for each in cluster.worker_nodes if each.node_id == home)
                cluster.remove_node(gone, False)

            found["pause s"], ends = await death(runtime, kill)
            found["ends"] = dict(ends)
    finally:
        ray.shutdown()
        cluster.shutdown()
    return found


def _shares(values: list[float]) -> str:
    return ", ".join(
        f"p{share * 100:g} {percentile(values, share):.2f}" for share in (0.5, 0.9, 0.99)
    )


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=9)
    parser.add_argument("--calls", type=int, default=100, help="in a round (%(default)s)")
    parser.add_argument("--real-time", action="store_true", help="Options(real_time=True)")
    options = parser.parse_args()
    found = anyio.run(measured, options, backend_options={"use_uvloop": True})
    rows = []
    for name, values in found["us"].items():
        size = name.rpartition(", ")[2]
        base = found["us"][f"actor of Ray, ray.get, {size}"]
        ratio = median([a / b for a, b in zip(values, base, strict=True)])
        rows.append(
            [name, f"{percentile(values, 0.25):.0f}", f"{median(values):.0f}", f"{ratio:.2f}"]
        )
    late = found["late ms"]
    ends = dict(found["ends"])
    begun = ends.pop("begun")
    told = ", ".join(f"{count} {name}" for name, count in sorted(ends.items()))
    text = (
        f"{table(['call', 'us, lower quartile', 'median', 'to ray.get'], rows)}\n\n"
        f"errors after their deadlines, ms: {_shares(late)} ({len(late)})\n"
        f"timers of the same loop, late by ms: {_shares(found['timers ms'])}\n"
        f"without an answer when the node was removed: {found['pause s']:.2f} s\n"
        f"calls: {begun} begun, {sum(ends.values())} ended: {told}"
    )
    publish("Devices on nodes of Ray", text, found, options)


if __name__ == "__main__":
    main()
