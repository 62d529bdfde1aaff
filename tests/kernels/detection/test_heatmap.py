"""HEATMAP_MAX_KEYPOINT against its definition, one keypoint at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import Array, OperationType
from nnasync.kernels import Tensor
from tests.kernels.detection.kinds import BOX_SCALE, KINDS, assert_near, boxes, data, is_float, real
from tests.kernels.running import run, scalar

HEATMAP = OperationType.HEATMAP_MAX_KEYPOINT
SCORE_SCALE, SCORE_ZERO = 0.1, 60
BOXES = [[0, 0, 16, 32], [4.5, 8, 20, 24], [1, 2, 3, 100]]


def arguments(kind: str, maps: Array, nchw: bool) -> list[Tensor]:
    """`maps` are [n, size, size, keypoints]."""
    given = maps.transpose(0, 3, 1, 2) if nchw else maps
    return [data(kind, given), boxes(kind, BOXES[: len(maps)]), scalar(nchw)]


def results(kind: str, given: list[Tensor]) -> list[Array]:
    """Scores and keypoints; the score of a quantized kind has its own scale."""
    if is_float(kind):
        return run(HEATMAP, *given)
    return run(HEATMAP, *given, scale=SCORE_SCALE, zero_point=score_zero(kind))


def score_zero(kind: str) -> int:
    return SCORE_ZERO - (128 if kind == "int8" else 0)


def by_the_book(heat: Array, box: Array, flat: float) -> tuple[float, list[float], bool]:
    """Score, place, and whether rounding may decide if the surface counts as flat."""
    size = len(heat)
    y, x = divmod(int(heat.argmax()), size)

    def mirrored(at: int) -> int:
        return 1 if at < 0 else size - 2 if at >= size else at

    g = [[heat[mirrored(y + i), mirrored(x + j)] for j in (-1, 0, 1)] for i in (-1, 0, 1)]
    slope = np.array([-(g[1][2] - g[1][0]) / 2, -(g[2][1] - g[0][1]) / 2])
    cross = (g[2][2] - g[2][0] - g[0][2] + g[0][0]) / 4
    bend = np.array(
        [
            [g[1][0] - 2 * g[1][1] + g[1][2], cross],
            [cross, g[0][1] - 2 * g[1][1] + g[2][1]],
        ]
    )
    delta = np.zeros(2)
    bound = flat + flat * bend[0, 0] * bend[1, 1]
    size_of = abs(np.linalg.det(bend))
    if not size_of < bound:
        delta = np.linalg.solve(bend, slope)
        delta *= 1.5 / max(1.5, *np.abs(delta))
    score = g[1][1] - slope @ delta + delta @ bend @ delta / 2
    place = (np.array([x, y]) + delta + 0.5) / size * (box[2:] - box[:2]) + box[:2]
    return float(score), place.tolist(), abs(size_of - bound) < 0.1 * bound


@given(
    st.sampled_from(KINDS),
    st.integers(1, 3),
    st.integers(2, 5),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_keypoints_match_the_definition(
    kind: str, count: int, size: int, keypoints: int, nchw: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    maps = rng.integers(-80, 120, (count, size, size, keypoints)) / 16
    given = arguments(kind, maps, nchw)
    scores, places = results(kind, given)
    heat = real(given[0])
    heat = heat if nchw else heat.transpose(0, 3, 1, 2)
    corners = real(given[1])
    flat = 1e-3 if kind == "float16" else 1e-5
    for n, k in np.ndindex(count, keypoints):
        score, place, unsure = by_the_book(heat[n, k], corners[n], flat)
        if not unsure:
            assert_near(scores[n, k], score, SCORE_SCALE, score_zero(kind))
            if kind == "float16":
                np.testing.assert_allclose(places[n, k], place, rtol=2e-3, atol=0.02)
            else:
                assert_near(places[n, k], place, BOX_SCALE)


def test_signed_results_are_the_unsigned_ones() -> None:
    for seed in range(10):
        maps = np.random.default_rng(seed).normal(size=(3, 4, 4, 2)) * 3
        (scores, places), (signed, same) = (
            results(kind, arguments(kind, maps, nchw=False)) for kind in ("uint8", "int8")
        )
        np.testing.assert_array_equal(scores, signed.astype(int) + 128)
        np.testing.assert_array_equal(places, same)


@pytest.mark.parametrize(("kind", "refined"), [("float32", True), ("float16", False)])
def test_float16_counts_more_surfaces_as_flat(kind: str, refined: bool) -> None:
    heat = np.array([[0, 0, 0], [0, 1 / 64, 1 / 128], [0, 0, 0]])
    _, places = results(kind, arguments(kind, heat[None, :, :, None], nchw=False))
    assert bool(places[0, 0, 0] > 8) == refined


def test_first_of_equal_cells_counts() -> None:
    heat = np.zeros((1, 4, 4, 1), np.float32)
    heat[0, 1, 2] = heat[0, 2, 1] = 1
    _, places = results("float32", arguments("float32", heat, nchw=False))
    assert places[0, 0, 0] > 8
    assert places[0, 0, 1] < 16


@pytest.mark.parametrize(
    ("index", "replacement", "message"),
    [
        (0, data("float32", np.ones((1, 3, 2, 1))), r"input 0 \(heatmaps\): has maps of 3 x 2"),
        (0, data("float32", np.ones((1, 1, 1, 4))), r"input 0 \(heatmaps\): has maps of 1 x 1"),
        (1, boxes("float32", BOXES), r"input 1 \(boxes\): has shape"),
        (1, boxes("float32", [[4, 0, 3, 9]]), r"input 1 \(boxes\): box 0"),
    ],
)
def test_what_is_wrong_is_named(index: int, replacement: Tensor, message: str) -> None:
    given = arguments("float32", np.ones((1, 3, 3, 2)), nchw=False)
    given[index] = replacement
    with pytest.raises(ModelError, match=message):
        run(HEATMAP, *given)
