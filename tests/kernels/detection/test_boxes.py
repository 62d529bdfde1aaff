"""Overlap of boxes, and AXIS_ALIGNED_BBOX_TRANSFORM against its definition."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import Array, HalVersion, OperandType, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from nnasync.kernels.detection.boxes import overlap
from tests.kernels.detection.kinds import BOX_SCALE, KINDS, assert_near, boxes, data, real
from tests.kernels.running import integers, run, tensor

TRANSFORM = OperationType.AXIS_ALIGNED_BBOX_TRANSFORM


def some_boxes(rng: np.random.Generator, count: int, limit: float = 80.0) -> Array:
    ends = np.sort(rng.integers(0, int(limit) * 8, (2, count, 2)) / 8, axis=0)
    return np.concatenate([ends[0], ends[1]], axis=1)


def arguments(kind: str, seed: int, count: int = 6, classes: int = 2) -> list[Tensor]:
    rng = np.random.default_rng(seed)
    return [
        boxes(kind, some_boxes(rng, count)),
        data(kind, rng.normal(size=(count, 4 * classes)), scale=0.02, zero_point=128),
        integers(*np.sort(rng.integers(0, 3, count))),
        boxes(kind, [[64, 80], [70, 70], [100, 60]]),
    ]


def moved(box: Array, delta: Array, height: float, width: float) -> list[float]:
    x1, y1, x2, y2 = box
    dx, dy, dw, dh = delta
    w, h = x2 - x1, y2 - y1
    x, y = (x1 + x2) / 2 + dx * w, (y1 + y2) / 2 + dy * h
    w, h = w * math.exp(dw), h * math.exp(dh)
    corners = x - w / 2, y - h / 2, x + w / 2, y + h / 2
    limits = width, height, width, height
    return [min(max(v, 0.0), limit) for v, limit in zip(corners, limits, strict=True)]


@given(st.sampled_from(KINDS), st.integers(1, 5), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_transform_matches_the_definition(kind: str, count: int, classes: int, seed: int) -> None:
    given = arguments(kind, seed, count, classes)
    (got,) = run(TRANSFORM, *given)
    rois, deltas, sizes = real(given[0]), real(given[1]), real(given[3])
    batches = given[2].value
    assert batches is not None
    expected = [
        [moved(rois[i], deltas[i, c : c + 4], *sizes[batches[i]]) for c in range(0, 4 * classes, 4)]
        for i in range(count)
    ]
    if kind == "float16":
        np.testing.assert_allclose(got, np.reshape(expected, got.shape), rtol=2e-3, atol=0.1)
    else:
        assert_near(got, expected, BOX_SCALE)


def test_signed_deltas_give_the_same_boxes() -> None:
    for seed in range(20):
        one, two = (run(TRANSFORM, *arguments(kind, seed))[0] for kind in ("uint8", "int8"))
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("kind", KINDS)
def test_no_boxes_give_no_boxes(kind: str) -> None:
    (got,) = run(TRANSFORM, *arguments(kind, 0, count=0, classes=3))
    assert got.shape == (0, 12)


def test_signed_deltas_came_with_hal_1_3() -> None:
    since = [signature.since for signature in OPERATIONS[TRANSFORM].signatures]
    assert since == [HalVersion.V1_2] * 3 + [HalVersion.V1_3]


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (0, [[0, 0, 1, 1], [5, 0, 4, 9]], r"input 0 \(rois\): box 1"),
        (0, [[0, 0, 1, math.nan], [0, 0, 4, 9]], r"input 0 \(rois\): box 0"),
        (0, [[0, 0, 1, 1]], r"input 0 \(rois\): has shape \(1, 4\)"),
        (1, [[0] * 6] * 2, r"input 1 \(deltas\)"),
        (3, [[9, 9, 9]], r"input 3 \(image_info\)"),
    ],
)
def test_malformed_arguments_are_named(index: int, value: list[list[float]], message: str) -> None:
    good = [
        tensor(np.array([[0, 0, 1, 1], [2, 0, 4, 9]], np.float32)),
        tensor(np.zeros((2, 4), np.float32)),
        integers(0, 0),
        tensor(np.array([[9, 9]], np.float32)),
    ]
    run(TRANSFORM, *good)
    good[index] = tensor(np.array(value, np.float32))
    with pytest.raises(ModelError, match=message):
        run(TRANSFORM, *good)


@pytest.mark.parametrize("batch", [-1, 3])
def test_image_that_is_not_there_is_refused(batch: int) -> None:
    given = arguments("float32", 0, count=1)
    given[2] = integers(batch)
    with pytest.raises(ModelError, match=r"input 2 \(batch_indexes\): element 0 is"):
        run(TRANSFORM, *given)


@pytest.mark.parametrize("index", [0, 3])
def test_quantized_boxes_have_steps_of_an_eighth(index: int) -> None:
    given = arguments("uint8", 0)
    given[index] = msgspec.structs.replace(given[index], scale=0.25)
    with pytest.raises(ModelError, match=rf"input {index} .*scale 0.25"):
        run(TRANSFORM, *given)


def test_output_has_steps_of_an_eighth_too() -> None:
    given = arguments("uint8", 0)
    output = Tensor(OperandType.TENSOR_QUANT16_ASYMM, given[1].shape, 0.25)
    with pytest.raises(ModelError, match=r"output 0: has scale 0.25"):
        OPERATIONS[TRANSFORM].prepare(given, [output])


def test_overlap_is_intersection_over_union() -> None:
    rois = [[0, 0, 4, 4], [2, 2, 6, 6], [4, 0, 6, 4], [1, 1, 3, 3], [5, 5, 5, 5]]
    corners = np.array(rois, np.float32).T
    expected = np.array([[1, 4 / 28, 0, 4 / 16, 0], [0] * 5])
    np.testing.assert_allclose(overlap(corners[:, [0, 4]], corners), expected, rtol=1e-6)
