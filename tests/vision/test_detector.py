"""The detector: pictures of any kind and size in, boxes in their pixels out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync.errors import InvalidArgument, MissedDeadline
from nnasync.hal import Array
from nnasync.streaming import Graph, Policy, synthetic
from nnasync.vision import Boxes, Detector, DistanceHead
from tests import rigs

pytestmark = pytest.mark.anyio

SIDE = 32
HEAD = DistanceHead(cells=(8,))


def brightness() -> nn.Model:
    """A detector of bright cells: the score of a cell is its mean brightness, its box the cell."""
    builder = nn.ModelBuilder("brightness")
    image = builder.input("image", (1, SIDE, SIDE, 1))
    cells = builder.average_pool_2d(image, 8)
    scores = builder.reshape(cells, (1, 16, 1))
    zeros = builder.sub(scores, scores)
    halves = builder.add(zeros, np.full((1, 1, 4), 0.5).astype(np.float32))
    builder.output("scores", builder.mul(scores, np.ones(1, np.float32)))
    builder.output("distances", halves)
    return builder.build()


def picture(width: int, height: int) -> np.ndarray:
    """Black with one white square: the right lower quarter of the right lower quarter."""
    pixels = np.zeros((height, width), np.uint8)
    pixels[height * 3 // 4 :, width * 3 // 4 :] = 255
    return pixels


@pytest.mark.parametrize("size", [(32, 32), (64, 64), (640, 640), (128, 64)])
async def test_boxes_are_in_the_pixels_of_the_picture(size: tuple[int, int]) -> None:
    async with rigs.runtime() as runtime:
        net = await runtime.compile(brightness())
        detect = Detector(
            net, HEAD, outputs=("distances", "scores"), names=("light",), fit="stretch"
        )
        (box,) = await detect(picture(*size))
    width, height = size
    assert (box.left, box.top) == pytest.approx((width * 3 / 4, height * 3 / 4), abs=1)
    assert (box.right, box.bottom) == pytest.approx(size, abs=1)
    assert box.name == "light"
    assert box.score > 0.9


class Wild:
    """A head that gives what a broken network may give."""

    outputs = 2

    def decode(self, outputs: Sequence[Array], size: tuple[int, int], threshold: float) -> Boxes:
        corners = np.array([[0, 0, 8, 8]] * 4, np.float32)
        corners[0, 1], corners[1, 2] = np.nan, np.inf
        return Boxes.of(corners, [0.9, 0.8, np.nan, 0.7])


@pytest.mark.one_loop("what it decodes has no part in the loop")
async def test_boxes_that_are_no_numbers_are_left_out() -> None:
    async with rigs.runtime() as runtime:
        net = await runtime.compile(brightness())
        found = await Detector(net, Wild())(picture(32, 32))
    assert found.corners.tolist() == [[0, 0, 8, 8]]


async def test_it_is_a_stage_of_a_graph() -> None:
    async with rigs.runtime() as runtime:
        net = await runtime.compile(brightness())
        detect = Detector(net, HEAD, outputs=("distances", "scores"))
        found: list[Any] = []
        graph = Graph()
        source = synthetic(lambda n: picture(32, 32), rate_hz=1000, count=3, pace="fast")
        items = graph.source(source, policy=Policy.BLOCK)
        items.map(detect).sink(lambda item: found.append(len(item.data)))
        await graph.run()
    assert found == [1] * 3


async def test_a_deadline_that_has_passed_is_missed() -> None:
    async with rigs.runtime() as runtime:
        net = await runtime.compile(brightness())
        detect = Detector(net, HEAD, outputs=("distances", "scores"))
        with pytest.raises(MissedDeadline):
            await detect(picture(32, 32), deadline=nn.Deadline(1))


@pytest.mark.one_loop("what it is made of is checked before anything runs")
async def test_a_network_that_does_not_fit_the_head_is_refused() -> None:
    async with rigs.runtime() as runtime:
        net = await runtime.compile(brightness())
        with pytest.raises(
            InvalidArgument, match=r"2 outputs, the network 2 \(scores, distances\)"
        ):
            Detector(net, HEAD, outputs=("boxes", "scores"))
        plain = await runtime.compile(rigs.doubler())
        with pytest.raises(InvalidArgument, match="a picture needs an input"):
            Detector(plain, HEAD)
        with pytest.raises(InvalidArgument, match="a picture is a uint8 array"):
            await Detector(net, HEAD)("photo.png")  # type: ignore[arg-type]  # a wrong type, on purpose
