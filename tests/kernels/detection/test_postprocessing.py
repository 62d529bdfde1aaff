"""DETECTION_POSTPROCESSING against the algorithm written as loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import Array, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from tests.kernels.detection.kinds import assert_near, data, number, real
from tests.kernels.detection.test_nms import iou
from tests.kernels.running import run, scalar, tensor

POSTPROCESSING = OperationType.DETECTION_POSTPROCESSING
SCALES = (10.0, 8.0, 5.0, 4.0)

Detection = tuple[float, int, int]
"""Score, anchor and class."""


def arguments(
    kind: str,
    seed: int,
    *,
    regular: bool,
    limits: tuple[int, int, int] = (5, 2, 3),
    classes: int = 4,
    length: int = 4,
    background: bool = False,
) -> list[Tensor]:
    rng = np.random.default_rng(seed)
    batches, anchors = 2, 7
    corners = np.concatenate(
        [rng.uniform(0, 1, (anchors, 2)), rng.uniform(0.2, 0.8, (anchors, 2))], axis=1
    )
    return [
        data(kind, rng.integers(0, 32, (batches, anchors, classes)) / 32),
        data(kind, rng.normal(size=(batches, anchors, length))),
        data(kind, corners),
        *(number(kind, scale) for scale in SCALES),
        scalar(regular),
        *(scalar(limit) for limit in limits),
        number(kind, 0.33),
        number(kind, 0.37),
        scalar(background),
    ]


def decoded(encoding: Array, anchor: Array) -> list[float]:
    y = anchor[0] + anchor[2] * encoding[0] / SCALES[0]
    x = anchor[1] + anchor[3] * encoding[1] / SCALES[1]
    height = anchor[2] * math.exp(encoding[2] / SCALES[2])
    width = anchor[3] * math.exp(encoding[3] / SCALES[3])
    return [y - height / 2, x - width / 2, y + height / 2, x + width / 2]


def suppressed(
    candidates: list[Detection], boxes: list[list[float]], limit: int
) -> list[Detection]:
    chosen: list[Detection] = []
    for each in sorted(candidates, key=lambda candidate: -candidate[0]):
        box = np.asarray(boxes[each[1]])
        if len(chosen) < limit and all(iou(box, np.asarray(boxes[a])) < 0.37 for _, a, _ in chosen):
            chosen.append(each)
    return chosen


def by_the_book(
    scores: Array, boxes: list[list[float]], regular: bool, limits: tuple[int, int, int]
) -> list[Detection]:
    detections, classes, per_class = limits
    anchors = range(scores.shape[0])
    labels = range(1, scores.shape[1])
    if regular:
        found: list[Detection] = []
        for label in labels:
            candidates = [(float(scores[a, label]), a, label) for a in anchors]
            above = [each for each in candidates if each[0] > 0.33]
            found += suppressed(above, boxes, per_class)
        return sorted(found, key=lambda each: -each[0])[:detections]
    best = [(float(scores[a, 1:].max()), a, 0) for a in anchors]
    found = []
    for _, a, _ in suppressed([each for each in best if each[0] > 0.33], boxes, detections):
        ranked = sorted(((float(scores[a, label]), a, label) for label in labels), reverse=False)
        ranked.sort(key=lambda each: (-each[0], each[2]))
        found += ranked[:classes]
    return found


@given(
    st.sampled_from(["float32", "float16"]),
    st.booleans(),
    st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(1, 4)),
    st.integers(2, 5),
    st.sampled_from([4, 6]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_detections_match_the_definition(
    kind: str,
    regular: bool,
    limits: tuple[int, int, int],
    classes: int,
    length: int,
    background: bool,
    seed: int,
) -> None:
    given = arguments(
        kind,
        seed,
        regular=regular,
        limits=limits,
        classes=classes,
        length=length,
        background=background,
    )
    scores, boxes, labels, counts = run(POSTPROCESSING, *given, runtime=(0, 1))
    places = limits[0] if regular else limits[0] * limits[1]
    assert scores.shape == labels.shape == (2, places)
    assert boxes.shape == (2, places, 4)
    for batch in range(2):
        anchors = [
            decoded(*pair) for pair in zip(real(given[1])[batch], real(given[2]), strict=True)
        ]
        expected = by_the_book(real(given[0])[batch], anchors, regular, limits)
        count = int(counts[batch])
        assert count == len(expected)
        first = 0 if background else 1
        assert labels[batch, :count].tolist() == [label - first for *_, label in expected]
        assert_near(scores[batch, :count], [score for score, *_ in expected])
        corners = [anchors[anchor] for _, anchor, _ in expected]
        assert_near(boxes[batch, :count], np.reshape(corners, (-1, 4)))
        assert not scores[batch, count:].any()
        assert not boxes[batch, count:].any()
        assert not labels[batch, count:].any()


def test_shapes_need_only_the_limits() -> None:
    given = arguments("float32", 0, regular=False)
    hidden = [Tensor(given[i].type, given[i].shape) for i in range(3)]
    shapes = [each.shape for each in OPERATIONS[POSTPROCESSING].infer([*hidden, *given[3:]])]
    assert shapes == [(2, 10), (2, 10, 4), (2, 10), (2,)]


@pytest.mark.parametrize(
    ("index", "replacement", "regular", "message"),
    [
        (0, tensor(np.ones((2, 7, 1), np.float32)), False, r"input 0 \(scores\)"),
        (1, tensor(np.ones((2, 7, 3), np.float32)), False, r"input 1 \(box_encodings\)"),
        (1, tensor(np.ones((2, 6, 4), np.float32)), False, r"input 1 \(box_encodings\)"),
        (2, tensor(np.ones((6, 4), np.float32)), False, r"input 2 \(anchors\)"),
        (3, scalar(0.0), False, r"input 3 \(dy_scale\): is 0.0"),
        (6, scalar(-1.0), False, r"input 6 \(dw_scale\): is -1.0"),
        (8, scalar(0), False, r"input 8 \(max_num_detections\): is 0"),
        (9, scalar(0), False, r"input 9 \(max_classes_per_detection\): is 0"),
        (10, scalar(0), True, r"input 10 \(max_num_detections_per_class\): is 0"),
        (11, scalar(-0.5), True, r"input 11 \(score_threshold\): is -0.5"),
        (12, scalar(-0.5), True, r"input 12 \(iou_threshold\): is -0.5"),
    ],
)
def test_what_is_wrong_is_named(
    index: int, replacement: Tensor, regular: bool, message: str
) -> None:
    given = arguments("float32", 0, regular=regular)
    given[index] = replacement
    with pytest.raises(ModelError, match=message):
        run(POSTPROCESSING, *given)


def test_limits_of_the_other_mode_do_not_matter() -> None:
    assert run(POSTPROCESSING, *arguments("float32", 0, regular=True, limits=(5, 0, 3)))
    assert run(POSTPROCESSING, *arguments("float32", 0, regular=False, limits=(5, 2, 0)))
