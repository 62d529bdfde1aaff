"""Heads without anchors: every cell says how far the sides of its box are from its center.

FCOS, YOLOX and their like in the plain form: maps of cells, the finest first, each row by row; of
each cell four distances (left, top, right, bottom) in cells, and a score for each class.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from nnasync._core.arguments import is_whole, told
from nnasync.errors import InvalidArgument
from nnasync.hal import Array, Struct
from nnasync.vision.boxes import Boxes
from nnasync.vision.heads.head import Scores, best_classes, boxes_and_scores, check_scores


class DistanceHead(Struct, frozen=True):
    """Outputs: distances [1, n, 4] in cells, and scores [1, n, classes].

    `cells` are the sizes of the cells of each map in pixels.
    """

    cells: tuple[int, ...] = (8, 16, 32)
    scores: Scores = "probabilities"

    outputs: ClassVar[int] = 2

    def __post_init__(self) -> None:
        """Raise InvalidArgument for cells that have no size, and an unknown kind of scores."""
        check_scores(self.scores)
        is_row = isinstance(self.cells, tuple) and len(self.cells) > 0
        if not is_row or not all(is_whole(cell) and cell >= 1 for cell in self.cells):
            raise InvalidArgument(
                f"cells are {told(self.cells)}, they must be a tuple of one size or more, each of "
                "1 pixel at least"
            )

    def decode(self, outputs: Sequence[Array], size: tuple[int, int], threshold: float) -> Boxes:
        """Boxes in the input; see `Head`."""
        distances, scores = boxes_and_scores(outputs, "distances")
        centers, sides = _grid(size, self.cells)
        if len(distances) != len(centers):
            raise InvalidArgument(
                f"cells of {self.cells} pixels divide an input of {size[1]} by {size[0]} into "
                f"{len(centers)}, the network gives {len(distances)}"
            )
        chosen, labels, best = best_classes(scores, threshold, self.scores, None)
        reach = distances[chosen] * sides[chosen]
        middle = centers[chosen]
        corners = np.concatenate([middle - reach[:, :2], middle + reach[:, 2:]], axis=1)
        return Boxes.of(corners, best, labels)


@functools.lru_cache(maxsize=16)
def _grid(size: tuple[int, int], cells: tuple[int, ...]) -> tuple[Array, Array]:
    """Centers of all cells, float32 [n, 2], and their sides [n, 1], in pixels."""
    centers, sides = [], []
    for cell in cells:
        y, x = np.mgrid[: -(-size[0] // cell), : -(-size[1] // cell)].astype(np.float32)
        centers.append((np.stack([x.ravel(), y.ravel()], axis=1) + np.float32(0.5)) * cell)
        sides.append(np.full((x.size, 1), cell, np.float32))
    return np.concatenate(centers), np.concatenate(sides)
