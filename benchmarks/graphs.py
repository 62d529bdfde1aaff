"""Graphs of streams: what they cost above the awaits and the decoding that are done anyway.

Four questions, the first three answered by processor time of this process, so that others
disturb little:

* stages: what a stage adds to an item. Beside the graph the same coroutines are awaited by hand.
* streams: how much of a core many slow streams take, and how much memory they gain.
* video: H.264 that a child process sends in real time is decoded, scaled to 224 x 224 and given to
  a small network. Beside the graph a plain loop over PyAV decodes and scales the same bytes, and
  the network is called as often on its own; the ratio is the graph's time by the sum of the two.
  Results are also timed: how far they are behind the sender, with the loop's lag for comparison.
* memory: what `--pictures` of the same way leave behind. They are of `--memory-size`, come as fast
  as they are taken, and their timestamps jump back whenever the clip begins again. Memory is looked
  at after each hundredth of them: what the process has after a twentieth and at the end, and the
  slope of a line through the second half, in kilobytes for 1,000 pictures.

`--only memory --memory-size 1920x1080 --pictures 100000` asks the last one alone, for a long time.
"""

from __future__ import annotations

import functools
import io
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np

import nnasync as nn
from benchmarks._report import BEST, arguments, interleave, median, percentile, publish, table
from nnasync import ModelBuilder
from nnasync.hal import Array, Model
from nnasync.streaming import Graph, Item, Policy, network, synthetic

STAGES = 4
SIDE = 224
RATE_HZ = 30
SENDS = """
import pathlib, socket, sys, time
data = pathlib.Path(sys.argv[1]).read_bytes()
frames, place = [], 0
while place < len(data):
    size = int.from_bytes(data[place : place + 4], "big")
    frames.append(data[place + 4 : place + 4 + size])
    place += 4 + size
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    while True:
        line, _ = server.accept()
        begun = time.monotonic()
        try:
            for index in range(int(sys.argv[3]) or len(frames)):
                time.sleep(max(0.0, begun + index / float(sys.argv[2]) - time.monotonic()))
                line.sendall(frames[index % len(frames)])
        except OSError:
            pass
        line.close()
"""


async def touch(value: int) -> int:
    """Is awaited by a stage: takes a turn of the loop, and does nothing else."""
    await anyio.lowlevel.checkpoint()
    return value


async def numbers(count: int) -> AsyncIterator[Item]:
    for index in range(count):
        yield Item(index, 0, index)


async def by_hand(count: int) -> float:
    """Returns the microseconds of an item without a graph."""
    begun = time.process_time()
    async for item in numbers(count):
        value = item.data
        for _ in range(STAGES):
            value = await touch(value)
    return (time.process_time() - begun) / count * 1e6


async def by_graph(count: int) -> float:
    """Returns the microseconds of an item in a graph."""
    graph = Graph()
    stream = graph.source(numbers(count), policy=Policy.BLOCK)
    for _ in range(STAGES):
        stream = stream.map(touch, capacity=8)
    stream.sink(lambda item: None)
    begun = time.process_time()
    await graph.run()
    return (time.process_time() - begun) / count * 1e6


async def stages(options: Any) -> dict[str, float]:
    """Returns what a stage adds."""
    contestants = {
        "by hand": functools.partial(by_hand, options.items),
        "graph": functools.partial(by_graph, options.items),
    }
    results = await interleave(contestants, options.rounds)
    found = {name: median(values) for name, values in results.items()}
    return found | {"a stage adds": (found["graph"] - found["by hand"]) / STAGES}


async def streams(options: Any) -> dict[str, float]:
    """Returns the share of a core that many streams take, and their growth in memory."""
    graph = Graph()
    for _ in range(options.streams):
        source = synthetic(lambda index: index, rate_hz=10)
        source.start(time.monotonic_ns() + random.randrange(10**8))
        graph.source(source).map(touch).sink(lambda item: None)
    async with graph:
        await anyio.sleep(1)
        cpu, wall, memory = time.process_time(), time.perf_counter(), resident_mb()
        await anyio.sleep(options.seconds)
        share = (time.process_time() - cpu) / (time.perf_counter() - wall)
        gained = resident_mb() - memory
    account = graph.account()
    items = sum(part.submitted for name, part in account.stages.items() if "source" in name)
    return {"share of a core": share, "items": items, "gained MB": gained}


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def clip(size: tuple[int, int], count: int) -> bytes:
    """Returns a clip of moving boxes, MPEG-TS with H.264, as bytes behind each picture's number."""
    import av

    file, frames, told = io.BytesIO(), [], 0
    rng = np.random.default_rng(0)
    background = rng.integers(0, 255, (*size, 3), np.uint8)
    background = np.repeat(np.repeat(background[::8, ::8], 8, 0), 8, 1)[: size[0], : size[1]]
    with av.open(file, "w", format="mpegts") as container:
        stream: Any = container.add_stream("libx264", rate=RATE_HZ)
        stream.height, stream.width, stream.pix_fmt = *size, "yuv420p"
        stream.options = {"preset": "veryfast", "tune": "zerolatency", "g": "30"}
        for index in range(count):
            picture = background.copy()
            left = index * 7 % (size[1] // 2)
            picture[size[0] // 4 : size[0] // 2, left : left + size[1] // 8] = 255
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            container.mux(stream.encode(frame.reformat(format="yuv420p")))
            frames.append(file.getvalue()[told:])
            told = file.tell()
        container.mux(stream.encode(None))
    frames[-1] += file.getvalue()[told:]
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


@contextmanager
def sender(data: bytes, rate_hz: float = RATE_HZ, count: int = 0) -> Iterator[str]:
    """Plays the clip from a child process to each client; yields the process's address.

    Once, or over and over until `count` pictures were sent.
    """
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        command = [sys.executable, "-c", SENDS, file.name, str(rate_hz), str(count)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            try:
                if child.stdout is None:
                    raise RuntimeError("the sender has no output")
                yield f"tcp://127.0.0.1:{int(child.stdout.readline())}"
            finally:
                child.terminate()


def small_network() -> Model:
    """Returns a convolution and an average over pictures of 224 x 224."""
    builder = ModelBuilder("small")
    x = builder.input("x", (1, SIDE, SIDE, 3))
    weights = np.random.default_rng(0).normal(0, 0.1, (16, 5, 5, 3)).astype(np.float32)
    y = builder.conv_2d(x, weights, np.zeros(16, np.float32), stride=(4, 4))
    builder.output("y", builder.mean(y, [1, 2]))
    return builder.build()


def prepared(picture: Array) -> Array:
    return np.multiply(picture, np.float32(1 / 255), dtype=np.float32)[None]


def behind_ms(ready_s: list[float]) -> float:
    """Returns the p95 of how far results lag behind a fixed rate; the quickest counts as 0.

    The first second is left out: meanwhile FFmpeg finds out what is sent.
    """
    late = [at - index / RATE_HZ for index, at in enumerate(ready_s)]
    late = late[RATE_HZ:] or late
    return (percentile(late, 0.95) - min(late)) * 1e3


async def plain_loop(url: str) -> tuple[float, list[float]]:
    """Returns the processor seconds of decoding and scaling by PyAV alone, and all ready times."""
    return await anyio.to_thread.run_sync(_plain_loop, url)


def _plain_loop(url: str) -> tuple[float, list[float]]:
    import av

    begun, ready = time.process_time(), []
    with av.open(url, options={"analyzeduration": "2000000"}) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        reformatter = av.video.reformatter.VideoReformatter()
        for frame in container.decode(stream):
            reformatter.reformat(frame, SIDE, SIDE, "rgb24").to_ndarray()
            ready.append(time.monotonic())
    return time.process_time() - begun, ready


async def inference(net: Any, count: int) -> float:
    """Returns the processor seconds of the network alone, at the same rate."""
    picture = np.zeros((SIDE, SIDE, 3), np.uint8)
    begun = time.process_time()
    for _ in range(count):
        await net(prepared(picture))
        await anyio.sleep(1 / RATE_HZ / 4)
    return time.process_time() - begun


async def graph_of_video(url: str, net: Any) -> tuple[float, list[float], Any]:
    """Returns the processor seconds, when each result was there, and the account."""
    ready: list[float] = []
    graph = Graph()
    begun = time.process_time()
    source = network(url, retry=None).video(size=(SIDE, SIDE), pixels="rgb24")
    answers = graph.source(source, name="camera").map(prepared).map(net, name="net")
    answers.sink(lambda item: ready.append(time.monotonic()))
    await graph.run()
    return time.process_time() - begun, ready, graph.account()


async def video(options: Any) -> dict[str, float]:
    """Compares the graph with a plain loop and the network on its own."""
    size = tuple(map(int, options.size.split("x")))
    data = clip((size[1], size[0]), options.frames)
    plain, alone, ours, lost = [], [], [], 0
    behind: dict[str, list[float]] = {"loop": [], "graph": []}
    async with nn.open_runtime() as rt:
        net = await rt.compile(small_network(), options=BEST)
        with sender(data) as url:
            for _ in range(options.rounds):
                seconds, ready = await plain_loop(url)
                behind["loop"].append(behind_ms(ready))
                count = len(ready)
                plain.append(seconds / count * 1e3)
                alone.append(await inference(net, count) / count * 1e3)
                seconds, ready, account = await graph_of_video(url, net)
                behind["graph"].append(behind_ms(ready))
                ours.append(seconds / count * 1e3)
                camera = account.stages["camera"]
                told = camera.passed + camera.dropped + camera.failed
                lost += abs(count - told) + account.pending
    found = {"decode and scale": median(plain), "network": median(alone), "graph": median(ours)}
    ratio = found["graph"] / (found["decode and scale"] + found["network"])
    late = {f"{name} behind": median(values) for name, values in behind.items()}
    return found | late | {"ratio": ratio, "unaccounted": lost}


async def memory(options: Any) -> dict[str, float]:
    """Returns the megabytes of this process early and late in a long stream."""
    seen, looks = 0, []
    period = max(options.pictures // 100, 1)

    def look(item: Item) -> None:
        nonlocal seen
        seen += 1
        if seen % period == 0:
            looks.append((seen, resident_mb()))

    width, height = map(int, options.memory_size.split("x"))
    async with nn.open_runtime() as rt:
        net = await rt.compile(small_network(), options=BEST)
        with sender(clip((height, width), 150), 1e9, options.pictures) as url:
            graph = Graph()
            source = network(url, retry=None).video(size=(SIDE, SIDE), pixels="rgb24")
            frames = graph.source(source, name="camera", policy=Policy.BLOCK)
            frames.map(prepared).map(net, name="net").sink(look)
            await graph.run()
    early, late = looks[len(looks) // 20][1], looks[-1][1]
    half = np.array(looks[len(looks) // 2 :])
    slope = float(np.polynomial.polynomial.polyfit(half[:, 0], half[:, 1], 1)[1])
    camera = graph.account().stages["camera"]
    return {
        "pictures": seen,
        "unaccounted": options.pictures - seen - camera.dropped - camera.failed,
        "early MB": early,
        "late MB": late,
        "grown": late / early - 1,
        "kB for 1,000": slope * 1e6,
    }


Figures = dict[str, float]
Rows = list[list[str]]


def told_stages(options: Any, found: Figures) -> Rows:
    return [
        [f"{STAGES} stages by hand", f"{found['by hand']:.2f} us an item"],
        [f"{STAGES} stages of a graph", f"{found['graph']:.2f} us an item"],
        ["a stage adds", f"{found['a stage adds']:.2f} us an item"],
    ]


def told_streams(options: Any, found: Figures) -> Rows:
    return [
        [f"{options.streams} streams of 10 items/s", f"{found['share of a core']:.0%} of a core"],
        ["memory gained by them", f"{found['gained MB']:.1f} MB"],
    ]


def told_video(options: Any, found: Figures) -> Rows:
    return [
        [f"{options.size}: decode and scale", f"{found['decode and scale']:.2f} ms a picture"],
        ["network alone", f"{found['network']:.2f} ms a picture"],
        ["graph with both", f"{found['graph']:.2f} ms a picture, {found['ratio']:.2f} times"],
        ["behind the sender, p95: loop", f"{found['loop behind']:.1f} ms"],
        ["behind the sender, p95: graph", f"{found['graph behind']:.1f} ms"],
        ["pictures unaccounted", f"{found['unaccounted']:.0f}"],
    ]


def told_memory(options: Any, found: Figures) -> Rows:
    grown = f"{found['early MB']:.1f} to {found['late MB']:.1f} MB, {found['grown']:+.2%}"
    return [
        [f"memory over {found['pictures']:,} pictures of {options.memory_size}", grown],
        ["slope of the second half", f"{found['kB for 1,000']:+.1f} kB for 1,000 pictures"],
        ["pictures of these unaccounted", f"{found['unaccounted']:.0f}"],
    ]


QUESTIONS: dict[str, tuple[Callable[[Any], Awaitable[Figures]], Callable[[Any, Figures], Rows]]] = {
    "stages": (stages, told_stages),
    "streams": (streams, told_streams),
    "video": (video, told_video),
    "memory": (memory, told_memory),
}


async def measure(options: Any) -> None:
    rows, figures = [], {}
    for name in options.only or QUESTIONS:
        ask, told = QUESTIONS[name]
        figures[name] = await ask(options)
        rows += told(options, figures[name])
    publish("Graphs of streams", table(["what", "figure"], rows), figures, options)


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, help="ask these alone")
    parser.add_argument("--items", type=int, default=20_000, help="of each round (%(default)s)")
    parser.add_argument("--streams", type=int, default=1000, help="at once (%(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of them (%(default)s)")
    parser.add_argument("--size", default="1920x1080", help="of the pictures (%(default)s)")
    parser.add_argument("--frames", type=int, default=150, help="of the clip (%(default)s)")
    parser.add_argument("--pictures", type=int, default=10_000, help="for memory (%(default)s)")
    parser.add_argument("--memory-size", default="320x240", help="of those (%(default)s)")
    nn.run(measure, parser.parse_args())


if __name__ == "__main__":
    main()
