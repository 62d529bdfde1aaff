"""BOX_WITH_NMS_LIMIT against the algorithm written as loops, and hard suppression."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import Array, OperandType, OperationType
from nnasync.kernels import OPERATIONS, Kernel, Tensor
from nnasync.kernels.detection.nms import hard_suppression
from tests.kernels.detection.kinds import BOX_SCALE, KINDS, assert_near, boxes, data, number, real
from tests.kernels.detection.test_boxes import some_boxes
from tests.kernels.running import integers, run, scalar, without_value

NMS = OperationType.BOX_WITH_NMS_LIMIT
HARD, LINEAR, GAUSSIAN = range(3)


def iou(one: Array, two: Array) -> float:
    width = min(one[2], two[2]) - max(one[0], two[0])
    height = min(one[3], two[3]) - max(one[1], two[1])
    common = max(width, 0) * max(height, 0)
    union = sum((b[2] - b[0]) * (b[3] - b[1]) for b in (one, two)) - common
    return float(common / union) if union > 0 else 0.0


def factor(kernel: int, overlap: float, threshold: float, sigma: float) -> float:
    if kernel == GAUSSIAN:
        return math.exp(-overlap * overlap / sigma)
    if overlap < threshold:
        return 1.0
    return 1 - overlap if kernel == LINEAR else 0.0


def by_the_book(
    scores: Array, rois: Array, batches: list[int], options: list[float]
) -> list[tuple[float, int, int, int]]:
    """(score, row, class, batch) of every detection; rois are [rows, classes, 4]."""
    threshold, limit, kernel, apart, sigma, lowest = options
    groups: list[list[int]] = []
    for row, batch in enumerate(batches):
        if row and batches[row - 1] == batch:
            groups[-1].append(row)
        else:
            groups.append([row])
    found = []
    for rows in groups:
        image: list[tuple[float, int, int, int]] = []
        for label in range(1, scores.shape[1]):
            left = {row: scores[row, label] for row in rows if scores[row, label] > threshold}
            picks = 0
            while left and (limit < 0 or picks < limit):
                top = max(left, key=lambda row: (left[row], -row))
                image.append((left.pop(top), top, label, batches[top]))
                picks += 1
                for row in list(left):
                    overlap = iou(rois[top, label], rois[row, label])
                    left[row] *= factor(int(kernel), overlap, apart, sigma)
                    if left[row] < lowest:
                        del left[row]
        image.sort(key=lambda pick: -pick[0])
        if limit >= 0:
            image = image[: int(limit)]
        found += sorted(image, key=lambda pick: (pick[2], -pick[0]))
    return found


def arguments(
    kind: str,
    seed: int,
    *,
    rows: int = 12,
    classes: int = 3,
    limit: int = -1,
    kernel: int = HARD,
    batches: list[int] | None = None,
    options: tuple[float, float, float, float] = (0.31, 0.37, 0.5, 0.27),
) -> list[Tensor]:
    rng = np.random.default_rng(seed)
    rois = np.concatenate([some_boxes(rng, rows, 16) for _ in range(classes)], axis=1)
    threshold, apart, sigma, lowest = options
    return [
        data(kind, rng.integers(0, 64, (rows, classes)) / 64, scale=1 / 64, zero_point=90),
        boxes(kind, rois),
        integers(*(batches or np.sort(rng.integers(0, 3, rows)).tolist())),
        number(kind, threshold),
        scalar(limit),
        scalar(kernel),
        number(kind, apart),
        number(kind, sigma),
        number(kind, lowest),
    ]


def expected_of(given: list[Tensor]) -> list[tuple[float, int, int, int]]:
    scores = real(given[0])
    batches = [int(batch) for batch in np.asarray(given[2].value)]
    options = [float(np.asarray(each.value)) for each in given[3:]]
    return by_the_book(scores, real(given[1]).reshape(*scores.shape, 4), batches, options)


@given(
    st.sampled_from(KINDS),
    st.sampled_from([HARD, LINEAR, GAUSSIAN]),
    st.integers(1, 14),
    st.integers(2, 4),
    st.sampled_from([-1, 0, 1, 3, 7, 100]),
    st.sampled_from([0.27, 0.62]),
    st.integers(0, 2**32 - 1),
)
def test_detections_match_the_definition(
    kind: str, kernel: int, rows: int, classes: int, limit: int, lowest: float, seed: int
) -> None:
    options = (0.31, 0.37, 0.5, lowest)
    given = arguments(
        kind, seed, rows=rows, classes=classes, limit=limit, kernel=kernel, options=options
    )
    expected = expected_of(given)
    scores, found, labels, batches = run(NMS, *given)
    assert labels.tolist() == [label for _, _, label, _ in expected]
    assert batches.tolist() == [batch for *_, batch in expected]
    rois = np.asarray(given[1].value).reshape(rows, classes, 4)
    picked = [rois[row, label] for _, row, label, _ in expected]
    np.testing.assert_array_equal(found, np.reshape(picked, (-1, 4)))
    values = [score for score, *_ in expected]
    assert_near(scores, values, given[0].scale, given[0].zero_point)


@pytest.mark.parametrize("kernel", [HARD, LINEAR, GAUSSIAN])
def test_signed_results_are_the_unsigned_ones(kernel: int) -> None:
    for seed in range(10):
        unsigned, signed = (
            run(NMS, *arguments(kind, seed, kernel=kernel)) for kind in ("uint8", "int8")
        )
        np.testing.assert_array_equal(unsigned[0], signed[0].astype(int) + 128)
        for one, two in zip(unsigned[1:], signed[1:], strict=True):
            np.testing.assert_array_equal(one, two)


def test_a_changed_batch_begins_a_group_even_where_it_was_before() -> None:
    given = arguments("float32", 3, batches=[4, 4, 4, 1, 1, 1, 4, 4, 4, 4, -2, -2], limit=2)
    *_, batches = run(NMS, *given)
    assert batches.tolist() == [batch for *_, batch in expected_of(given)]
    changes = [int(batches[0])]
    changes += [b for a, b in pairwise(batches.tolist()) if a != b]
    assert changes == [4, 1, 4, -2]


def test_first_choice_may_be_below_the_second_threshold() -> None:
    given = arguments("float32", 0, options=(0.0, 0.37, 0.5, 2.0))
    scores, *_ = run(NMS, *given)
    assert scores.size
    assert len(expected_of(given)) == scores.size


def test_score_at_the_threshold_is_no_candidate() -> None:
    given = arguments("float32", 0, rows=1, classes=2)
    given[0] = data("float32", [[1.0, 0.5]])
    given[3] = number("float32", 0.5)
    assert run(NMS, *given)[0].size == 0
    given[3] = number("float32", 0.4999)
    assert run(NMS, *given)[0].tolist() == [0.5]


@pytest.mark.parametrize("kind", KINDS)
def test_no_boxes_give_no_detections(kind: str) -> None:
    given = arguments(kind, 0)
    given[0] = data(kind, np.zeros((0, 2)))
    given[1] = boxes(kind, np.zeros((0, 8)))
    given[2] = integers()
    shapes = [result.shape for result in run(NMS, *given)]
    assert shapes == [(0,), (0, 4), (0,), (0,)]


def test_number_of_detections_is_not_known_without_values() -> None:
    given = arguments("uint8", 0)
    hidden = [without_value(given[0]), *given[1:]]
    inferred = OPERATIONS[NMS].infer(hidden)
    assert [tensor.shape for tensor in inferred] == [()] * 4
    known = OPERATIONS[NMS].infer(given)
    count = len(expected_of(given))
    assert [tensor.shape for tensor in known] == [(count,), (count, 4), (count,), (count,)]
    assert (known[0].scale, known[0].zero_point) == (given[0].scale, given[0].zero_point)
    assert (known[1].scale, known[1].zero_point) == (BOX_SCALE, 0)


def test_declared_number_must_be_right_at_the_run() -> None:
    given = arguments("float32", 0)
    count = len(expected_of(given)) + 1
    types = [given[0].type, given[1].type, *[OperandType.TENSOR_INT32] * 2]
    shapes = [(count,), (count, 4), (count,), (count,)]
    outputs = [Tensor(type, shape) for type, shape in zip(types, shapes, strict=True)]
    kernel: Kernel = OPERATIONS[NMS].prepare([without_value(given[0]), *given[1:]], outputs)
    arrays = [tensor.value for tensor in given]
    step = kernel.bind(arrays, [np.zeros(t.shape, t.dtype) for t in outputs], [])
    with pytest.raises(ModelError, match="output 0"):
        step()


@pytest.mark.parametrize(
    ("index", "replacement", "message"),
    [
        (0, data("float32", np.ones((12, 1))), r"input 0 \(scores\)"),
        (1, boxes("float32", np.ones((12, 8))), r"input 1 \(rois\)"),
        (2, integers(0), r"input 2 \(batch_indexes\)"),
        (5, scalar(3), r"input 5 \(soft_nms_kernel\): is 3"),
        (7, scalar(0.0), r"input 7 \(sigma\): is 0.0"),
    ],
)
def test_what_is_wrong_is_named(index: int, replacement: Tensor, message: str) -> None:
    given = arguments("float32", 0, kernel=GAUSSIAN)
    given[index] = replacement
    with pytest.raises(ModelError, match=message):
        run(NMS, *given)


@given(st.integers(0, 12), st.sampled_from([-1, 0, 2, 50]), st.integers(0, 2**32 - 1))
def test_hard_suppression_matches_the_definition(count: int, limit: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rois = some_boxes(rng, count, 10).astype(np.float32)
    scores = rng.integers(0, 6, count).astype(np.float32)
    chosen: list[int] = []
    for index in sorted(range(count), key=lambda i: (-scores[i], i)):
        if all(iou(rois[index], rois[other]) < 0.37 for other in chosen):
            chosen.append(index)
    expected = chosen if limit < 0 else chosen[:limit]
    assert hard_suppression(scores, rois, 0.37, limit).tolist() == expected


def test_hard_suppression_drops_at_the_threshold() -> None:
    rois = np.array([[0, 0, 2, 1], [0, 0, 1, 1], [4, 4, 5, 5]], np.float32)
    scores = np.array([2, 3, 1], np.float32)
    assert hard_suppression(scores, rois, 0.5, -1).tolist() == [1, 2]
    assert hard_suppression(scores, rois, 0.5001, -1).tolist() == [1, 0, 2]


@pytest.mark.parametrize(("lowest", "values"), [(0.0, [0.75, 0.0]), (0.01, [0.75])])
def test_score_at_the_second_threshold_stays(lowest: float, values: list[float]) -> None:
    given = arguments("float32", 0, rows=2, classes=2, batches=[0, 0])
    given[0] = data("float32", [[0, 0.5], [0, 0.75]])
    given[1] = boxes("float32", [[1, 1, 2, 2] * 2] * 2)
    given[8] = number("float32", lowest)
    assert run(NMS, *given)[0].tolist() == values


def test_many_boxes_are_suppressed_like_few() -> None:
    for kernel in (HARD, LINEAR):
        given = arguments("float32", 5, rows=300, classes=2, kernel=kernel, batches=[0] * 300)
        given[1] = boxes("float32", np.tile(some_boxes(np.random.default_rng(5), 300, 90), (1, 2)))
        expected = expected_of(given)
        scores, found, *_ = run(NMS, *given)
        rois = np.asarray(given[1].value)
        np.testing.assert_array_equal(found, [rois[row, 4:] for _, row, *_ in expected])
        assert_near(scores, [score for score, *_ in expected])
