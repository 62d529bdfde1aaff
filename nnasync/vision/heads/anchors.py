"""Heads with anchors, as SSD has them: how each of many boxes that are known before is to be moved.

With the variances v, the center of a box is that of its anchor, moved by v0 tx and v1 ty sides of
the anchor; its sides are those of the anchor, times exp(v2 tw) and exp(v3 th). TensorFlow's "scale
factors" are the reciprocals of the variances.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from nnasync._core.arguments import check_choice, check_size, check_whole, entries, told
from nnasync.errors import InvalidArgument
from nnasync.hal import Array, Struct
from nnasync.vision.boxes import Boxes
from nnasync.vision.heads.head import (
    Scores,
    around,
    best_classes,
    boxes_and_scores,
    check_background,
    check_scores,
)


class AnchorHead(Struct, frozen=True, eq=False):
    """Outputs: moves [1, n, 4] and scores [1, n, classes].

    `anchors`, float32 [n, 4], are center x, center y, width and height as shares of the input.
    `order` says whether moves are (x, y, w, h) or, as TensorFlow has them, (y, x, h, w). The class
    `background` is none, and classes after it are numbered one lower; None if there is none.
    """

    anchors: Array
    variances: tuple[float, float, float, float] = (0.1, 0.1, 0.2, 0.2)
    order: Literal["xywh", "yxhw"] = "xywh"
    scores: Scores = "probabilities"
    background: int | None = 0

    outputs: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Raise InvalidArgument for anchors that are no array [n, 4], and what else is none."""
        check_choice("order", self.order, ("xywh", "yxhw"))
        check_scores(self.scores)
        check_background(self.background)
        variances = self.variances
        is_row = isinstance(variances, tuple | list | np.ndarray)
        if not is_row or np.shape(variances) != (4,):
            raise InvalidArgument(f"variances are {told(variances)}, they must be four numbers")
        shape = np.shape(self.anchors)
        if not isinstance(self.anchors, np.ndarray) or len(shape) != 2 or shape[1] != 4:
            raise InvalidArgument(
                f"anchors are a float32 array [n, 4], not {type(self.anchors).__name__} "
                f"{list(shape)}"
            )

    def decode(self, outputs: Sequence[Array], size: tuple[int, int], threshold: float) -> Boxes:
        """Boxes in the input; see `Head`."""
        moves, scores = boxes_and_scores(outputs, "moves of anchors")
        if self.anchors.shape != moves.shape:
            raise InvalidArgument(
                f"anchors have shape {list(self.anchors.shape)}, the network moves {len(moves)}"
            )
        chosen, labels, best = best_classes(scores, threshold, self.scores, self.background)
        moved = moves[chosen][:, [1, 0, 3, 2]] if self.order == "yxhw" else moves[chosen]
        moved = moved * np.array(self.variances, np.float32)
        anchors = self.anchors[chosen]
        centers = anchors[:, :2] + moved[:, :2] * anchors[:, 2:]
        with np.errstate(over="ignore"):
            sides = anchors[:, 2:] * np.exp(moved[:, 2:])
        corners = around(centers, sides)
        return Boxes.of(corners * np.tile(size[::-1], 2), best, labels)


def _grids(cells: object, sides: object) -> list[tuple[int, Any]]:
    """Returns the cells of each map with the sides of its anchors."""
    each, anchors = entries(cells), entries(sides)
    if each is None or anchors is None or len(each) != len(anchors):
        raise InvalidArgument(
            f"cells are {told(cells)} and sides {told(sides)}, they must be two lists of a length: "
            "the size of the cells of each map, and the sides of its anchors"
        )
    for cell in each:
        check_whole("an entry of cells", cell, 1)
    return list(zip(each, anchors, strict=True))


def anchors_on_grids(
    size: tuple[int, int],
    cells: Sequence[int],
    sides: Sequence[Sequence[float | tuple[float, float]]],
) -> Array:
    """Anchors in the middle of all cells, float32 [n, 4], for an input of `size` (height, width).

    `cells` are the sizes of the cells of each map in pixels, `sides` the anchors of each of its
    cells: pixels, or (width, height). Maps follow one another, in them the rows, in those the
    cells, in each its anchors. Where cells do not divide the input there is one more, and all of
    the map are evenly spaced, as in SSD. Raises InvalidArgument for other sizes, and where cells
    and sides are not as many.
    """
    check_size("size", size)
    height, width = size
    found = []
    for cell, each in _grids(cells, sides):
        rows, columns = -(-height // cell), -(-width // cell)
        y, x = np.mgrid[:rows, :columns] + 0.5
        centers = np.stack([x / columns, y / rows], axis=-1).reshape(-1, 1, 2)
        shapes = np.array([side if isinstance(side, tuple) else (side, side) for side in each])
        both = np.broadcast_arrays(centers, shapes[None] / (width, height))
        found.append(np.concatenate(both, axis=-1).reshape(-1, 4))
    return np.concatenate(found).astype(np.float32)
