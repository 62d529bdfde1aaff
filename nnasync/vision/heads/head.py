"""What every head is, and what their decoders have in common: shapes, the best class of a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

import numpy as np

from nnasync._core.arguments import check_choice, check_whole, or_none
from nnasync.errors import InvalidArgument
from nnasync.hal import Array
from nnasync.vision.boxes import Boxes

Scores: TypeAlias = Literal["probabilities", "logits", "softmax"]
"""What a network gives for scores: themselves, or numbers that a function makes them of."""


class Head(Protocol):
    """Decodes the outputs of a detection network."""

    @property
    def outputs(self) -> int:
        """Returns how many outputs the head takes."""
        ...

    def decode(self, outputs: Sequence[Array], size: tuple[int, int], threshold: float) -> Boxes:
        """Returns boxes in pixels of the input whose score is at least `threshold`.

        `outputs` are real values, as `net.dequantize` gives them; `size` is the height and width of
        the input. Raises InvalidArgument for other shapes.
        """
        ...


def check_scores(scores: object) -> None:
    """Raise InvalidArgument for what is no `Scores`."""
    check_choice("scores", scores, ("probabilities", "logits", "softmax"))


def check_background(background: object) -> None:
    """Raise InvalidArgument for what is neither None nor a number of a class."""
    or_none(check_whole, "background", background)


def check_count(outputs: Sequence[Array], count: int) -> None:
    """Raise InvalidArgument unless there are so many outputs."""
    if len(outputs) != count:
        raise InvalidArgument(f"this head has {count} outputs, not {len(outputs)}")


def rows_of(output: Array, columns: int | None, what: str) -> Array:
    """Returns an output [1, n, columns] or [n, columns] as [n, columns]; raises InvalidArgument."""
    rows: Array = output[0] if output.ndim == 3 and len(output) == 1 else output
    if rows.ndim != 2 or (columns is not None and rows.shape[1] != columns):
        wanted = f"[1, n, {'classes' if columns is None else columns}]"
        raise InvalidArgument(
            f"{what} have shape {list(output.shape)}, this head has {wanted}; "
            "where they have another order, Detector(..., outputs=(...)) names them in the head's"
        )
    return rows


def boxes_and_scores(outputs: Sequence[Array], what: str) -> tuple[Array, Array]:
    """Two outputs as [n, 4] and [n, classes]; raises InvalidArgument for others."""
    check_count(outputs, 2)
    boxes, scores = rows_of(outputs[0], 4, what), rows_of(outputs[1], None, "scores")
    if len(boxes) != len(scores):
        raise InvalidArgument(f"{len(boxes)} boxes do not go with {len(scores)} rows of scores")
    return boxes, scores


def best_classes(
    rows: Array, threshold: float, kind: Scores, background: int | None
) -> tuple[Array, Array, Array]:
    """Indexes of rows whose best class reaches the threshold, that class, and its score.

    `rows` [n, classes]; the class `background` is none, and those after it have a number less.
    Raises InvalidArgument for no class, or a background that is none of them.
    """
    classes = rows.shape[1]
    if background is not None and not -classes <= background < classes:
        raise InvalidArgument(f"the background is class {background}, of {classes} classes")
    if classes <= (background is not None):
        raise InvalidArgument("a head needs scores of at least one class beside the background")
    scores = probabilities(rows, kind)
    if background is not None:
        scores = np.delete(scores, background, axis=1)
    best: Array = scores.max(axis=1)
    chosen = np.flatnonzero(best >= threshold)
    return chosen, scores[chosen].argmax(axis=1), best[chosen]


def probabilities(rows: Array, kind: Scores) -> Array:
    """Scores from 0 to 1."""
    if kind == "probabilities":
        return rows
    if kind == "logits":
        return sigmoid(rows)
    # What a network gives that is infinite makes scores that are NaN, which no threshold keeps.
    with np.errstate(invalid="ignore"):
        powers = np.exp(rows - rows.max(axis=1, keepdims=True))
        shares: Array = powers / powers.sum(axis=1, keepdims=True)
    return shares


def sigmoid(values: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    small = np.exp(-np.abs(values))
    found: Array = np.where(values >= 0, 1, small) / (1 + small)
    return found


def around(centers: Array, sides: Array) -> Array:
    """Corners [n, 4] of boxes of centers and sides [n, 2]."""
    return np.concatenate([centers - sides / 2, centers + sides / 2], axis=1)
