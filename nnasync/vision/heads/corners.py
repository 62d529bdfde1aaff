"""Heads of networks that decode their boxes themselves: corners, relative or in pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from nnasync._core.arguments import check_choice
from nnasync.errors import InvalidArgument
from nnasync.hal import Array, Struct
from nnasync.vision.boxes import Boxes
from nnasync.vision.heads.head import (
    Scores,
    best_classes,
    boxes_and_scores,
    check_background,
    check_count,
    check_scores,
    rows_of,
)

Order: TypeAlias = Literal["xyxy", "yxyx"]
_ORDERS = ("xyxy", "yxyx")


class CornerHead(Struct, frozen=True):
    """Outputs: corners [1, n, 4] and scores [1, n, classes].

    Corners are (left, top, right, bottom), or with the `order` "yxyx" (top, left, bottom, right);
    shares of the input if they are `relative`, else pixels. For `background` see `AnchorHead`.
    """

    order: Order = "xyxy"
    relative: bool = True
    scores: Scores = "probabilities"
    background: int | None = None

    outputs: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Raise InvalidArgument for an unknown order or kind of scores, and for no class."""
        check_choice("order", self.order, _ORDERS)
        check_scores(self.scores)
        check_background(self.background)

    def decode(self, outputs: Sequence[Array], size: tuple[int, int], threshold: float) -> Boxes:
        """Boxes in the input; see `Head`."""
        corners, scores = boxes_and_scores(outputs, "corners of boxes")
        chosen, labels, best = best_classes(scores, threshold, self.scores, self.background)
        return Boxes.of(_pixels(corners[chosen], self.order, size, self.relative), best, labels)


class PostprocessHead(Struct, frozen=True):
    """Outputs of TFLite_Detection_PostProcess: places, classes, scores, and how many there are.

    Places [1, n, 4] are (top, left, bottom, right) as shares of the input, the surest box first.
    """

    order: Order = "yxyx"
    relative: bool = True

    outputs: ClassVar[int] = 4

    def __post_init__(self) -> None:
        """Raise InvalidArgument for an unknown order."""
        check_choice("order", self.order, _ORDERS)

    def decode(self, outputs: Sequence[Array], size: tuple[int, int], threshold: float) -> Boxes:
        """Boxes in the input; see `Head`."""
        check_count(outputs, self.outputs)
        places = rows_of(outputs[0], 4, "corners of boxes")
        labels, scores, count = (np.asarray(output).reshape(-1) for output in outputs[1:])
        if not (len(places) == len(labels) == len(scores)) or count.size != 1:
            raise InvalidArgument(
                f"{len(places)} places, {len(labels)} classes, {len(scores)} scores and "
                f"{count.size} counts are not those of one picture"
            )
        if not np.isfinite(count[0]):
            raise InvalidArgument(f"the network says that there are {count[0]} boxes")
        there = slice(0, max(min(int(count[0]), len(places)), 0))
        corners = _pixels(places[there], self.order, size, self.relative)
        return Boxes.of(corners, scores[there], labels[there]).above(threshold)


def _pixels(corners: Array, order: Order, size: tuple[int, int], relative: bool) -> Array:
    turned = corners[:, [1, 0, 3, 2]] if order == "yxyx" else corners
    return turned * np.tile(size[::-1], 2) if relative else turned
