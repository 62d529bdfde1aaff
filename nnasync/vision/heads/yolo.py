"""Heads as exported YOLO networks have them: finished centers and sides, and scores, in one output.

[1, n, 5 + classes] with a score for anything at all before the classes (version 5 and 7), or
[1, 4 + classes, n] without (version 8 and later). Which way the output lies is seen at its shape:
there are more boxes than columns. Networks that leave that to who reads them have a `YoloGridHead`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from nnasync.errors import InvalidArgument
from nnasync.hal import Array, Struct
from nnasync.vision.boxes import Boxes
from nnasync.vision.heads.head import (
    Scores,
    around,
    best_classes,
    check_count,
    check_scores,
    probabilities,
)


class YoloHead(Struct, frozen=True):
    """Decodes one output of center x, center y, width, height, (anything,) and scores of boxes.

    `has_objectness` says whether there is a score for anything, which those of the classes are
    multiplied with; `relative` whether places are shares of the input (as in .tflite files) instead
    of pixels.
    """

    has_objectness: bool = False
    relative: bool = False
    scores: Scores = "probabilities"

    outputs: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Raise InvalidArgument for an unknown kind of scores."""
        check_scores(self.scores)

    def decode(self, outputs: Sequence[Array], size: tuple[int, int], threshold: float) -> Boxes:
        """Boxes in the input; see `Head`."""
        check_count(outputs, self.outputs)
        output = outputs[0]
        first = 5 if self.has_objectness else 4
        table = output[0] if output.ndim == 3 and len(output) == 1 else output
        if table.ndim != 2 or min(table.shape) <= first:
            raise InvalidArgument(
                f"boxes have shape {list(output.shape)}, this head has [1, n, {first} + classes] "
                f"or [1, {first} + classes, n]"
            )
        rows = table.T if table.shape[0] < table.shape[1] else table
        scores = probabilities(rows[:, first:], self.scores)
        if self.has_objectness:
            scores = scores * probabilities(rows[:, 4:5], self.scores)
        chosen, labels, best = best_classes(scores, threshold, "probabilities", None)
        corners = around(rows[chosen, :2], rows[chosen, 2:4])
        scale = np.tile(size[::-1], 2) if self.relative else 1
        return Boxes.of(corners * scale, best, labels)
