"""Of boxes around the same thing, the best: non-maximum suppression.

The box with the highest score stays; those that overlap it more than they may go, or, in the soft
form of Bodla et al. (2017), lose score the more they overlap it: two things that stand close
together are then both found. The same is done with the next of those that are left.
"""

from __future__ import annotations

import msgspec
import numpy as np

from nnasync._core.arguments import check_number, check_positive, check_share, check_whole, or_none
from nnasync.hal import Array
from nnasync.vision.boxes import Boxes, check_boxes, overlaps


def suppressed(
    boxes: Boxes,
    *,
    overlap: float = 0.5,
    per_class: bool = True,
    soft_sigma: float | None = None,
    threshold: float = 0.0,
    most: int | None = None,
) -> Boxes:
    """Returns the best boxes, the highest score first; at most `most` of them.

    A box goes if its intersection over union with a better one is above `overlap`; with `per_class`
    only boxes of the same label are compared. With `soft_sigma` (0.5 is usual) none goes at once:
    its score is multiplied by exp(-overlap² / sigma) for every better one, and it goes when the
    score falls below `threshold`. Raises InvalidArgument for what are no `Boxes`, an overlap
    that is not in 0 to 1, a sigma that is not above 0, and less than none.
    """
    check_boxes("boxes", boxes)
    check_share("overlap", overlap)
    check_number("threshold", threshold)
    or_none(check_positive, "soft_sigma", soft_sigma)
    or_none(check_whole, "most", most, 0)
    ranked = boxes.above(threshold).sorted()
    if soft_sigma is None:
        return ranked.chosen(_hard(ranked, overlap, most, per_class=per_class))
    return _soft(ranked, soft_sigma, threshold, most, per_class=per_class)


def _hard(ranked: Boxes, overlap: float, most: int | None, *, per_class: bool) -> Array:
    """Indexes of those that stay."""
    left = np.arange(len(ranked))
    kept: list[int] = []
    while len(left) and (most is None or len(kept) < most):
        best, left = int(left[0]), left[1:]
        kept.append(best)
        left = left[~(_against(ranked, best, left, per_class=per_class) > overlap)]
    return np.array(kept, np.int64)


def _soft(
    ranked: Boxes, sigma: float, threshold: float, most: int | None, *, per_class: bool
) -> Boxes:
    scores = ranked.scores.copy()
    left = np.arange(len(ranked))
    kept: list[int] = []
    while len(left) and (most is None or len(kept) < most):
        position = int(scores[left].argmax())
        best, left = int(left[position]), np.delete(left, position)
        kept.append(best)
        common = _against(ranked, best, left, per_class=per_class)
        scores[left] *= np.exp(-(common**2) / np.float32(sigma))
        left = left[scores[left] >= threshold]
    return msgspec.structs.replace(ranked, scores=scores).chosen(np.array(kept, np.int64))


def _against(boxes: Boxes, best: int, others: Array, *, per_class: bool) -> Array:
    """Returns how much boxes overlap the best one; with `per_class` other labels do not."""
    common: Array = overlaps(boxes.corners[best : best + 1], boxes.corners[others])[0]
    if per_class:
        common = common * (boxes.labels[others] == boxes.labels[best])
    return common
