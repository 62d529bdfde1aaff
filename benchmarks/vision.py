"""Pictures around networks: what preparing, drawing and decoding take, and the way from a decoder.

Figures are processor time of this process, so that others disturb little.

* work: preparing pictures for a network, drawing boxes, decoding outputs, non-maximum suppression.
* way: a picture of H.264's format (yuv420p) goes to a network of bytes, as an array, as an image in
  shared memory, and as a frame that `prepare` writes into such an image. "Made" is what that takes
  of a thread beside the loop, "called" what the call takes of the loop's own thread; the device is
  in this process or in another one. Copies are those of what PyAV's scaler wrote, before the call,
  and of images that a device could not read in place; of an array, every call makes one more, into
  memory of its own.
"""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

import nnasync as nn
from benchmarks._report import BEST, arguments, interleave, median, publish, table
from nnasync import ModelBuilder
from nnasync.hal import Array, Model, OperandType
from nnasync.memory import ImageFormat, Pool, statistics
from nnasync.streaming.sources.pictures import Pictures
from nnasync.vision import (
    Boxes,
    DistanceHead,
    PictureInput,
    YoloGridHead,
    YoloHead,
    draw,
    prepare,
    suppressed,
)

BYTES, FLOATS = OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_FLOAT32
CLASSES = 80


def network(shape: tuple[int, ...], type: OperandType) -> Model:
    """Returns a network that averages a picture, so that the way to it dominates."""
    builder = ModelBuilder("mean")
    if type == BYTES:
        x = builder.input("x", shape, type=type, scale=1 / 128, zero_point=128)
    else:
        x = builder.input("x", shape, type=type)
    builder.output("y", builder.mean(x, [1, 2]))
    return builder.build()


def frame(width: int, height: int) -> Any:
    """Returns a decoded picture."""
    import av

    rows = np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8)
    return av.VideoFrame.from_ndarray(rows, format="rgb24").reformat(format="yuv420p")


def some_boxes(count: int, classes: int, side: float) -> Boxes:
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, side, (count, 2)).repeat(2, axis=0).reshape(count, 4)
    corners[:, 2:] += rng.uniform(side / 50, side / 5, (count, 2))
    return Boxes.of(corners, rng.uniform(0.3, 1, count), rng.integers(0, classes, count))


def scores(count: int) -> Array:
    """Returns scores of which one row in a hundred is worth a box."""
    found = np.random.default_rng(0).uniform(0, 0.3, (1, count, CLASSES)).astype(np.float32)
    found[:, ::100, 3] = 0.9
    return found


def grids() -> list[Array]:
    """Returns maps of 640 x 640 with three anchors; one cell in a hundred has a box."""
    rng, found = np.random.default_rng(0), []
    for cells in (80, 40, 20):
        numbers = rng.normal(-4, 1, (1, 3, cells, cells, 5 + CLASSES)).astype(np.float32)
        numbers.reshape(-1, 5 + CLASSES)[::100, 4:6] = 4
        found.append(numbers)
    return found


async def tasks() -> dict[str, Callable[[], object]]:
    """Returns the functions to be timed, by name."""
    async with nn.open_runtime(devices=["nnasync-reference"]) as rt:
        small = await rt.compile(network((1, 160, 160, 1), BYTES))
        large = await rt.compile(network((1, 224, 224, 3), FLOATS))
        ports = [PictureInput.of(net).port for net in (small, large)]
    camera, hd = frame(640, 480), frame(1920, 1080)
    picture = camera.to_ndarray(format="rgb24")
    cells = sum((320 // cell) ** 2 for cell in (8, 16, 32))
    distances = np.ones((1, cells, 4), np.float32)
    rows = np.concatenate([np.ones((1, 8400, 4), np.float32), scores(8400)], axis=2)
    columns = np.ascontiguousarray(rows.transpose(0, 2, 1))
    few, many = some_boxes(10, 10, 400), some_boxes(2000, CLASSES, 640)
    of_cells = scores(cells)
    grid_head, maps = YoloGridHead((((10.0, 13.0), (33.0, 23.0), (62.0, 45.0)),) * 3), grids()
    return {
        "prepare 640x480 RGB array to 160x160 gray bytes": lambda: prepare(picture, ports[0]),
        "prepare 640x480 frame to 160x160 gray bytes": lambda: prepare(camera, ports[0]),
        "prepare 1920x1080 frame to 224x224 RGB floats": lambda: prepare(hd, ports[1]),
        "draw 10 boxes on 640x480 RGB": lambda: draw(picture, few),
        f"decode {cells} cells, {CLASSES} classes (DistanceHead)": lambda: DistanceHead().decode(
            [distances, of_cells], (320, 320), 0.5
        ),
        f"decode 8400 boxes, {CLASSES} classes (YoloHead)": lambda: YoloHead().decode(
            [columns], (640, 640), 0.5
        ),
        f"decode 25200 anchors, {CLASSES} classes (YoloGridHead)": lambda: grid_head.decode(
            maps, (640, 640), 0.5
        ),
        f"suppress 2000 boxes of {CLASSES} classes": lambda: suppressed(many, most=100),
    }


async def timed(task: Callable[[], object], repeats: int) -> float:
    """Returns the microseconds of processor time of this process."""
    begun = time.process_time()
    for _ in range(repeats):
        task()
    return (time.process_time() - begun) / repeats * 1e6


async def work(options: Any) -> dict[str, float]:
    """Returns the microseconds of each task."""
    contestants = {
        name: functools.partial(timed, task, options.repeats)
        for name, task in (await tasks()).items()
    }
    results = await interleave(contestants, options.rounds)
    return {name: median(values) for name, values in results.items()}


class Ways:
    """How a frame becomes what a network is given."""

    def __init__(self, size: tuple[int, int], net: Any) -> None:
        self._arrays, self._images = Pictures(size, "rgb24"), Pictures(size, "image")
        self._net = net

    def array(self, decoded: Any) -> Array:
        """Returns an array over the scaler's memory."""
        found: Array = self._arrays.picture(decoded)
        return found[None]

    def image(self, decoded: Any) -> Pool:
        """Returns an image in shared memory, to which the scaler's memory is copied."""
        found: Pool = self._images.picture(decoded)
        return found

    def prepared(self, decoded: Any) -> Pool:
        """Returns an image in shared memory that `prepare` writes."""
        target = PictureInput.of(self._net)
        image = Pool.image(ImageFormat.RGB_888, target.width, target.height)
        prepare(decoded, self._net, fit="stretch", out=image.planes[0][None])
        return image


def is_copied(given: Array | Pool) -> bool:
    """Returns whether a picture lies elsewhere than where PyAV's scaler wrote it."""
    root: Any = given
    while isinstance(root, np.ndarray):
        root = root.base
    return not type(root).__module__.startswith("av.")


async def one_way(
    make: Callable[[Any], Any], net: Callable[[Any], Awaitable[Any]], decoded: Any, repeats: int
) -> dict[str, float]:
    """Returns microseconds of making and of calling, and copies, of each picture."""
    made = called = 0.0
    copies, before = 0, statistics().copied_bytes
    for _ in range(repeats):
        begun = time.process_time()
        given = make(decoded)
        made += time.process_time() - begun
        copies += is_copied(given)
        begun = time.thread_time()
        await net(given)
        called += time.thread_time() - begun
        size = given.nbytes if isinstance(given, np.ndarray) else given.size
    copied = copies + (statistics().copied_bytes - before) / size
    return {
        "made": made / repeats * 1e6,
        "called": called / repeats * 1e6,
        "copies": copied / repeats,
    }


@asynccontextmanager
async def opened(model: Model, *, isolated: bool) -> AsyncIterator[Any]:
    """Yields the network on a device in this process or in another one."""
    device = "nnasync-reference"
    async with nn.open_runtime(devices=[device], isolate=[device] * isolated) as rt:
        yield await rt.compile(model, options=BEST)


async def way(options: Any) -> dict[str, dict[str, float]]:
    """Measures the way from a decoder to a network, in each of the ways."""
    width, height = map(int, options.size.split("x"))
    decoded, found = frame(1280, 720), {}
    for isolated in (False, True):
        async with opened(network((1, height, width, 3), BYTES), isolated=isolated) as net:
            ways = Ways((height, width), net)
            for name in ("array", "image", "prepared"):
                make = getattr(ways, name)
                rounds = [
                    await one_way(make, net, decoded, options.repeats)
                    for _ in range(options.rounds)
                ]
                where = "another process" if isolated else "this process"
                found[f"{name}, {where}"] = {
                    what: median([each[what] for each in rounds]) for what in rounds[0]
                }
    return found


async def measure(options: Any) -> None:
    works = await work(options)
    ways = await way(options)
    text = table(["what", "us"], [[name, f"{value:.0f}"] for name, value in works.items()])
    rows = [
        [name, *(f"{each[what]:.0f}" for what in ("made", "called")), f"{each['copies']:.2f}"]
        for name, each in ways.items()
    ]
    heads = [f"1280x720 to {options.size}, device in", "made, us", "called, us", "copies"]
    figures = {"work": works, "way": ways}
    publish("Pictures around networks", f"{text}\n\n{table(heads, rows)}", figures, options)


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--repeats", type=int, default=50, help="of each round (%(default)s)")
    parser.add_argument("--size", default="224x224", help="of the network (%(default)s)")
    nn.run(measure, parser.parse_args())


if __name__ == "__main__":
    main()
