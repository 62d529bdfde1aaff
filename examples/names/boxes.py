"""Pictures that fit a network, what its outputs mean, and boxes drawn and judged."""

from __future__ import annotations

import numpy as np

import nnasync as nn
from nnasync import vision
from nnasync.vision import (
    IMAGENET,
    MINUS_ONE_TO_ONE,
    PALETTE,
    ZERO_TO_ONE,
    Boxes,
    Canvas,
    Color,
    Fit,
    Head,
    Normalization,
    Picture,
    Placement,
    Prepared,
    Size,
    VideoFrame,
    Window,
)

ANCHORS = vision.anchors_on_grids((64, 64), [32], [[16.0]])
HEADS: tuple[Head, ...] = (
    vision.AnchorHead(ANCHORS),
    vision.CornerHead(),
    vision.PostprocessHead(),
    vision.YoloHead(),
    vision.YoloGridHead(anchors=(((10, 13), (16, 30), (33, 23)),)),
)
"""What the outputs of five kinds of detectors mean."""


INPUT = nn.Port("image", (1, 64, 64, 3), np.dtype(np.float32), 0.0, 0, 0)
"""What `prepare` looks at of a network: its first input."""


def fitted(width: int, height: int) -> Placement:
    """Where a picture lies in an input that has other proportions."""
    into: Size = (64, 64)
    fit: Fit = "letterbox"
    window: Window = (0, 0, width, height)
    return vision.placement(width, height, into, fit=fit, window=window)


def prepared(picture: Picture | VideoFrame, numbers: Normalization = ZERO_TO_ONE) -> Prepared:
    return vision.prepare(picture, INPUT, normalization=numbers)


def boxes(*corners: tuple[float, float, float, float]) -> Boxes:
    count = len(corners)
    return Boxes(
        np.array(corners, np.float32), np.ones(count, np.float32), np.zeros(count, np.int64)
    )


def main() -> None:
    picture = np.full((48, 96, 3), 255, np.uint8)
    print(fitted(96, 48))
    for numbers in (ZERO_TO_ONE, MINUS_ONE_TO_ONE, IMAGENET, Normalization((0,), (128,))):
        print(numbers.mean, prepared(picture, numbers).input.max())
    found, truth = boxes((8, 8, 24, 24), (40, 8, 56, 24)), boxes((8, 8, 24, 20))
    print(vision.areas(found.corners), vision.overlaps(found.corners, truth.corners)[:, 0])
    print(vision.average_precisions([found], [truth]), len(HEADS))
    print(vision.mean_average_precision([found], [truth]))
    print(vision.resized(picture, (24, 48)).shape)
    color: Color = PALETTE[0]
    Canvas(picture).outline((8, 8, 24, 24), color)
    print((picture != 255).any())


if __name__ == "__main__":
    main()
