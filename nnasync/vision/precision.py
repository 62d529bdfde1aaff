"""How good a detector is: average precision.

Boxes of all pictures are taken together, the surest first. Each is right if it overlaps a true box
of its class that no surer one has taken. Precision is the share of right ones among those taken so
far, recall the share of true boxes that are found; average precision is the area under precision
over recall, after precision has been made to fall only (all points, as Pascal VOC since 2010 and
COCO).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from nnasync._core.arguments import check_kind, check_share
from nnasync.errors import InvalidArgument
from nnasync.hal import Array
from nnasync.vision.boxes import Boxes, check_boxes, overlaps


def average_precisions(
    found: Sequence[Boxes], truth: Sequence[Boxes], *, overlap: float = 0.5
) -> dict[int, float]:
    """Average precision, 0 to 1, of each class that occurs in `truth`.

    Both have one entry a picture. A box is right from an intersection over union of `overlap` on.
    Raises InvalidArgument where there are not as many pictures in one as in the other, and for what
    are no `Boxes`.
    """
    check_share("overlap", overlap)
    for name, pictures in (("found", found), ("truth", truth)):
        check_kind(name, pictures, Collection, "a list with the Boxes of each picture")
        for boxes in pictures:
            check_boxes(f"an entry of {name}", boxes)
    if len(found) != len(truth):
        raise InvalidArgument(f"{len(found)} pictures have boxes, {len(truth)} have a truth")
    labels = sorted({int(label) for boxes in truth for label in boxes.labels})
    return {label: _of_class(found, truth, label, overlap) for label in labels}


def mean_average_precision(
    found: Sequence[Boxes], truth: Sequence[Boxes], *, overlap: float = 0.5
) -> float:
    """Returns the mean of `average_precisions`, which is mAP@0.5 by default; 0 without any."""
    each = average_precisions(found, truth, overlap=overlap)
    return sum(each.values()) / len(each) if each else 0.0


def _of_class(found: Sequence[Boxes], truth: Sequence[Boxes], label: int, overlap: float) -> float:
    scores: list[Array] = []
    rights: list[Array] = []
    count = 0
    for boxes, true in zip(found, truth, strict=True):
        mine = boxes.chosen(boxes.labels == label).sorted()
        targets = true.corners[true.labels == label]
        count += len(targets)
        scores.append(mine.scores)
        rights.append(_right(mine, targets, overlap))
    order = np.argsort(-np.concatenate(scores), kind="stable")
    right = np.concatenate(rights)[order].astype(np.float64)
    taken = np.cumsum(right)
    precision = taken / np.arange(1, len(right) + 1)
    falling = np.maximum.accumulate(precision[::-1])[::-1]
    return float((falling * right).sum() / count)


def _right(boxes: Boxes, targets: Array, overlap: float) -> Array:
    """Returns for each box, the surest first, whether it has a target to itself."""
    table = overlaps(boxes.corners, targets)
    right = np.zeros(len(boxes), bool)
    for index, row in enumerate(table):
        if len(row) and row.max() >= overlap:
            right[index] = True
            table[:, row.argmax()] = 0
    return right
