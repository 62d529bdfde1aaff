"""GENERATE_PROPOSALS against the algorithm written as loops."""

from __future__ import annotations

from itertools import product

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import Array, OperandType, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from tests.kernels.detection.kinds import BOX_SCALE, KINDS, assert_near, boxes, data, number, real
from tests.kernels.detection.test_boxes import moved
from tests.kernels.detection.test_nms import iou
from tests.kernels.running import run, scalar, without_value

PROPOSALS = OperationType.GENERATE_PROPOSALS
SHAPE = (2, 3, 4, 2)
STRIDES = (8.0, 6.0)
SMALLEST, APART = 3.06, 0.37


def arguments(
    kind: str, seed: int, *, nchw: bool = False, first: int = -1, last: int = -1
) -> list[Tensor]:
    rng = np.random.default_rng(seed)
    batches, height, width, anchors = SHAPE
    scores = rng.integers(0, 50, SHAPE) / 64
    deltas = rng.normal(scale=0.3, size=(batches, height, width, 4 * anchors))
    if nchw:
        scores, deltas = scores.transpose(0, 3, 1, 2), deltas.transpose(0, 3, 1, 2)
    corners = [[-4, -3.5, 4, 6], [0, -8, 8, 8]]
    return [
        data(kind, scores, scale=1 / 64, zero_point=90),
        data(kind, deltas, scale=0.02, zero_point=128),
        boxes(kind, corners, OperandType.TENSOR_QUANT16_SYMM),
        boxes(kind, [[20, 22], [24, 17.5]]),
        number(kind, STRIDES[0]),
        number(kind, STRIDES[1]),
        scalar(first),
        scalar(last),
        number(kind, APART),
        number(kind, SMALLEST),
        scalar(nchw),
    ]


def by_the_book(given: list[Tensor]) -> list[tuple[float, list[float], int]]:
    scores, deltas, anchors, sizes = (real(each) for each in given[:4])
    first, last, nchw = (int(np.asarray(given[index].value)) for index in (6, 7, 10))
    if nchw:
        scores, deltas = scores.transpose(0, 2, 3, 1), deltas.transpose(0, 2, 3, 1)
    found = []
    for batch in range(SHAPE[0]):
        image = []
        for y, x, a in product(*map(range, SHAPE[1:])):
            shift = np.tile([x * STRIDES[1], y * STRIDES[0]], 2)
            delta: Array = deltas[batch, y, x, 4 * a : 4 * a + 4]
            box = moved(anchors[a] + shift, delta, *sizes[batch])
            image.append((float(scores[batch, y, x, a]), box, batch))
        image.sort(key=lambda each: -each[0])
        if first > 0:
            image = image[:first]
        chosen: list[tuple[float, list[float], int]] = []
        for score, box, _ in image:
            width, height = box[2] - box[0], box[3] - box[1]
            center = box[0] + width / 2, box[1] + height / 2
            if min(width, height) <= SMALLEST:
                continue
            if center[0] >= sizes[batch, 1] or center[1] >= sizes[batch, 0]:
                continue
            if any(iou(np.asarray(box), np.asarray(other)) >= APART for _, other, _ in chosen):
                continue
            chosen.append((score, box, batch))
        found += chosen[:last] if last > 0 else chosen
    return found


@given(
    st.sampled_from(KINDS),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 9, 500]),
    st.sampled_from([-1, 0, 1, 3, 500]),
    st.integers(0, 2**32 - 1),
)
def test_proposals_match_the_definition(
    kind: str, nchw: bool, first: int, last: int, seed: int
) -> None:
    given = arguments(kind, seed, nchw=nchw, first=first, last=last)
    expected = by_the_book(given)
    scores, found, batches = run(PROPOSALS, *given, runtime=(0, 1))
    assert batches.tolist() == [batch for *_, batch in expected]
    values = [score for score, *_ in expected]
    assert_near(scores, values, given[0].scale, given[0].zero_point)
    corners = np.reshape([box for _, box, _ in expected], (-1, 4))
    if kind == "float16":
        np.testing.assert_allclose(found, corners, rtol=2e-3, atol=0.02)
    else:
        assert_near(found, corners, BOX_SCALE)


@pytest.mark.parametrize("nchw", [False, True])
def test_signed_results_are_the_unsigned_ones(nchw: bool) -> None:
    for seed in range(10):
        unsigned, signed = (
            run(PROPOSALS, *arguments(kind, seed, nchw=nchw, first=9)) for kind in ("uint8", "int8")
        )
        np.testing.assert_array_equal(unsigned[0], signed[0].astype(int) + 128)
        for one, two in zip(unsigned[1:], signed[1:], strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("kind", KINDS)
def test_there_may_be_no_proposal(kind: str) -> None:
    given = arguments(kind, 0)
    given[9] = number(kind, 100.0)
    assert [result.shape for result in run(PROPOSALS, *given)] == [(0,), (0, 4), (0,)]


def test_shapes_are_not_known_without_values() -> None:
    given = arguments("uint8", 0)
    hidden = [without_value(given[0]), *given[1:]]
    assert [each.shape for each in OPERATIONS[PROPOSALS].infer(hidden)] == [()] * 3
    known = OPERATIONS[PROPOSALS].infer(given)
    assert (known[1].type, known[1].scale) == (OperandType.TENSOR_QUANT16_ASYMM, BOX_SCALE)


@pytest.mark.parametrize(
    ("index", "replacement", "message"),
    [
        (1, data("float32", np.zeros((2, 3, 4, 4))), r"input 1 \(deltas\)"),
        (2, boxes("float32", np.zeros((3, 4))), r"input 2 \(anchors\)"),
        (2, boxes("float32", [[0, 0, 1, 1], [1, 1, 0, 2]]), r"input 2 \(anchors\): box 1"),
        (3, boxes("float32", [[20, 20]]), r"input 3 \(image_info\)"),
    ],
)
def test_what_is_wrong_is_named(index: int, replacement: Tensor, message: str) -> None:
    given = arguments("float32", 0)
    given[index] = replacement
    with pytest.raises(ModelError, match=message):
        run(PROPOSALS, *given)


@pytest.mark.parametrize("index", [2, 3])
def test_quantized_boxes_have_steps_of_an_eighth(index: int) -> None:
    given = arguments("int8", 0)
    given[index] = msgspec.structs.replace(given[index], scale=0.5)
    with pytest.raises(ModelError, match=rf"input {index} .*scale 0.5"):
        run(PROPOSALS, *given)


@pytest.mark.parametrize(
    ("smallest", "count"), [(7.99, 2), (8.0, 0), (-1.0, 4)], ids=["larger", "equal", "negative"]
)
def test_small_boxes_and_those_beyond_the_image_are_dropped(smallest: float, count: int) -> None:
    """Four boxes in a row begin at 0, 12, 24 and 36 of 24 or 50 pixels."""
    given = [
        data("float32", np.ones((1, 1, 4, 1))),
        data("float32", np.zeros((1, 1, 4, 4))),
        boxes("float32", [[0, 0, 8, 8]]),
        boxes("float32", [[20, 24 if smallest > 0 else 50]]),
        *(number("float32", stride) for stride in (12, 12)),
        *(scalar(-1) for _ in range(2)),
        number("float32", APART),
        number("float32", smallest),
        scalar(False),
    ]
    assert run(PROPOSALS, *given)[0].size == count
    given[3] = boxes("float32", [[20, 24]])
    assert run(PROPOSALS, *given)[0].size == min(count, 2)
