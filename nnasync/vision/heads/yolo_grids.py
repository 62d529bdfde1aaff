"""Heads of YOLO networks that give their grids as they are, version 3 to 7: anchors in every cell.

A map has a cell for every so many pixels of the input, and in each cell a few anchors. Of each
anchor there are tx, ty, tw, th, a number for anything at all, and one for each class. With s the
sigmoid and c the side of a cell, the center of a box in column i is

    x = (i + s(tx) spread - (spread - 1) / 2) c

so that it can lie (spread - 1) / 2 cells outside of its own, and y alike. Its width is that of the
anchor, times exp(tw) up to version 4, and (2 s(tw))^2 from version 5 on. The score of a class is
s(anything) s(class).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from nnasync._core.arguments import check_choice, check_number, entries, told
from nnasync.errors import InvalidArgument
from nnasync.hal import Array, Struct
from nnasync.vision.boxes import Boxes
from nnasync.vision.heads.head import around, best_classes, sigmoid

_PLACE = 5


class YoloGridHead(Struct, frozen=True):
    """Outputs: a map for each of `anchors`, which are (width, height) in pixels of the input.

    Maps are [1, rows, columns, anchors x (5 + classes)], with `channels_first` [1, anchors x (5 +
    classes), rows, columns], or [1, anchors, rows, columns, 5 + classes]. The defaults are those of
    version 5 and 7; version 3 has the `sides` "exponential" and a `spread` of 1, version 4 one of
    1.05 to 1.2 for each map.
    """

    anchors: tuple[tuple[tuple[float, float], ...], ...]
    sides: Literal["squared", "exponential"] = "squared"
    spread: float | tuple[float, ...] = 2.0
    channels_first: bool = False

    def __post_init__(self) -> None:
        """Raise InvalidArgument for anchors, sides and spreads that are none."""
        check_choice("sides", self.sides, ("squared", "exponential"))
        _check_anchors(self.anchors)
        for spread in self.spread if isinstance(self.spread, tuple) else (self.spread,):
            check_number("spread", spread)

    @property
    def outputs(self) -> int:
        """Returns how many maps there are."""
        return len(self.anchors)

    def decode(self, outputs: Sequence[Array], size: tuple[int, int], threshold: float) -> Boxes:
        """Returns boxes in pixels of the input; see `Head`."""
        if len(outputs) != len(self.anchors):
            raise InvalidArgument(f"{len(outputs)} maps do not go with {len(self.anchors)} anchors")
        found = [
            self._of_map(output, size, threshold, anchors, spread)
            for output, anchors, spread in zip(outputs, self.anchors, self._spreads(), strict=True)
        ]
        corners, scores, labels = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return Boxes.of(corners, scores, labels)

    def _spreads(self) -> Iterator[float]:
        if not isinstance(self.spread, tuple):
            return iter([self.spread] * len(self.anchors))
        if len(self.spread) != len(self.anchors):
            raise InvalidArgument(
                f"spread has {len(self.spread)} values for {len(self.anchors)} maps"
            )
        return iter(self.spread)

    def _of_map(
        self,
        output: Array,
        size: tuple[int, int],
        threshold: float,
        anchors: tuple[tuple[float, float], ...],
        spread: float,
    ) -> tuple[Array, Array, Array]:
        """Corners, scores and classes of the boxes of one map."""
        table = self._table(output, len(anchors))
        cell = _cell(table.shape[:2], size)
        # No score is higher than that for anything, and most of those are low.
        row, column, anchor = np.nonzero(sigmoid(table[..., 4]) >= threshold)
        numbers = table[row, column, anchor]
        anything = sigmoid(numbers[:, 4:5])
        scores = sigmoid(numbers[:, _PLACE:]) * anything
        chosen, labels, best = best_classes(scores, threshold, "probabilities", None)
        place = np.stack([column, row], axis=1)[chosen]
        moves, stretches = numbers[chosen, :2], numbers[chosen, 2:4]
        centers = (place + sigmoid(moves) * spread - (spread - 1) / 2) * cell
        with np.errstate(over="ignore"):
            squared = self.sides == "squared"
            factors = (2 * sigmoid(stretches)) ** 2 if squared else np.exp(stretches)
            sides = np.array(anchors, np.float32)[anchor[chosen]] * factors
            corners = around(centers, sides).astype(np.float32)
        return corners, best, labels

    def _table(self, output: Array, anchors: int) -> Array:
        """Returns a map as [rows, columns, anchors, 5 + classes]."""
        shape = output.shape
        if output.ndim == 5 and shape[:2] == (1, anchors) and shape[4] > _PLACE:
            whole: Array = output[0].transpose(1, 2, 0, 3)
            return whole
        if output.ndim == 4 and shape[0] == 1:
            rows: Array = output[0].transpose(1, 2, 0) if self.channels_first else output[0]
            columns, rest = divmod(rows.shape[2], anchors)
            if not rest and columns > _PLACE:
                return rows.reshape(*rows.shape[:2], anchors, columns)
        channels = f"{anchors} x (5 + classes)"
        plain = f"[1, {channels}, h, w]" if self.channels_first else f"[1, h, w, {channels}]"
        raise InvalidArgument(
            f"a map has shape {list(shape)}, this head has {plain} or "
            f"[1, {anchors}, h, w, 5 + classes]"
        )


def _check_anchors(anchors: object) -> None:
    maps = entries(anchors) if isinstance(anchors, tuple | list | np.ndarray) else None
    if not maps or not all(_is_map(each) for each in maps):
        raise InvalidArgument(
            f"anchors are {told(anchors)}, they must be a tuple with one of (width, height) pairs "
            "for each map"
        )


def _is_map(pairs: object) -> bool:
    try:
        table = np.asarray(pairs, np.float64)
    except (TypeError, ValueError):
        return False
    return table.ndim == 2 and table.shape[1] == 2


def _cell(cells: tuple[int, ...], size: tuple[int, int]) -> float:
    """Returns the side of a cell in pixels; raises InvalidArgument where cells are no squares."""
    (rows, columns), (height, width) = cells, size
    if not rows or not columns or height * columns != width * rows:
        raise InvalidArgument(
            f"a map of {columns} by {rows} cells does not divide an input of {width} by {height} "
            "into squares"
        )
    return width / columns
