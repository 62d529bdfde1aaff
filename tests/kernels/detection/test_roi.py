"""ROI_ALIGN and ROI_POOLING against their definitions, one bin at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import Array, OperationType
from nnasync.kernels import Tensor
from nnasync.kernels.fixed_point import multiply_by_quantized_multiplier, quantize_multiplier
from tests.kernels.detection.kinds import KINDS, assert_near, boxes, data, is_float, number, real
from tests.kernels.running import integers, run, scalar, tensor

ALIGN, POOLING = OperationType.ROI_ALIGN, OperationType.ROI_POOLING
F = np.float32
OUTPUT_SCALE, OUTPUT_ZERO = 0.1, 70


def arguments(
    kind: str,
    seed: int,
    *,
    bins: tuple[int, int] = (2, 3),
    ratios: tuple[float, float] = (2.0, 4.0),
    samples: tuple[int, int] | None = None,
    nchw: bool = False,
    count: int = 4,
) -> list[Tensor]:
    """Of ROI_ALIGN with `samples`, of ROI_POOLING without."""
    rng = np.random.default_rng(seed)
    height, width = 5, 6
    maps = rng.integers(-90, 90, (2, height, width, 3)) / 20
    limits = np.array([width * ratios[1], height * ratios[0]])
    ends = np.sort(rng.integers(0, (limits * 8).astype(int) + 1, (2, count, 2)) / 8, axis=0)
    return [
        data(kind, maps.transpose(0, 3, 1, 2) if nchw else maps),
        boxes(kind, np.concatenate([ends[0], ends[1]], axis=1)),
        integers(*rng.integers(0, 2, count)),
        *(scalar(each) for each in bins),
        *(number(kind, ratio) for ratio in ratios),
        *(scalar(each) for each in samples or ()),
        scalar(nchw),
    ]


def results(operation: OperationType, kind: str, given: list[Tensor]) -> Array:
    """The output with the channels last."""
    if is_float(kind):
        (got,) = run(operation, *given)
    else:
        zero = OUTPUT_ZERO - (128 if kind == "int8" else 0)
        (got,) = run(operation, *given, scale=OUTPUT_SCALE, zero_point=zero)
    nchw = bool(np.asarray(given[-1].value))
    return got.transpose(0, 2, 3, 1) if nchw else got


def images(given: list[Tensor], array: Array) -> Array:
    nchw = bool(np.asarray(given[-1].value))
    return array.transpose(0, 2, 3, 1) if nchw else array


def regions(given: list[Tensor]) -> Iterator[tuple[int, int, Array]]:
    """Number, image and coordinates in cells, x1 y1 x2 y2."""
    ratios = [F(np.asarray(given[index].value)) for index in (6, 5, 6, 5)]
    batches = np.asarray(given[2].value)
    for index, box in enumerate(real(given[1]).astype(F)):
        yield index, int(batches[index]), box / np.asarray(ratios, F)


def points(start: F, end: F, size: int, bins: int, samples: int) -> list[list[tuple[int, int, F]]]:
    """For each bin the points, as the cells on both sides and the place between them."""
    step = max(end - start, F(1)) / F(bins)
    count = samples or math.ceil(step)
    part = step / F(count)
    found = []
    for i in range(bins):
        places = [start + F(i) * step + (part / 2 + part * F(a)) for a in range(count)]
        inside = [(int(at), int(at) + 1, F(at - int(at))) for at in places]
        found.append(
            [each if each[0] < size - 1 else (size - 1, size - 1, F(0)) for each in inside]
        )
    return found


def corners(one: tuple[int, int, F], two: tuple[int, int, F]) -> list[tuple[int, int, F]]:
    """Row, column and weight of the four cells around a point."""
    (y0, y1, dy), (x0, x1, dx) = one, two
    return [
        (y0, x0, (1 - dy) * (1 - dx)),
        (y0, x1, (1 - dy) * dx),
        (y1, x0, dy * (1 - dx)),
        (y1, x1, dy * dx),
    ]


def aligned(given: list[Tensor]) -> Array:
    """The mean of interpolated values, for floats."""
    maps = images(given, real(given[0]))
    bins, samples = scalars(given, 3, 4), scalars(given, 7, 8)
    found = np.zeros((len(real(given[1])), *bins, maps.shape[3]))
    for index, batch, (x1, y1, x2, y2) in regions(given):
        rows = points(y1, y2, maps.shape[1], bins[0], samples[0])
        columns = points(x1, x2, maps.shape[2], bins[1], samples[1])
        for i, j in np.ndindex(*bins):
            cells = [each for y in rows[i] for x in columns[j] for each in corners(y, x)]
            total = sum(maps[batch, y, x] * float(weight) for y, x, weight in cells)
            found[index, i, j] = total / (len(rows[i]) * len(columns[j]))
    return found


def aligned_steps(given: list[Tensor], scale: float, zero_point: int) -> Array:
    """The same by the integer rule, for quantized maps."""
    source = given[0]
    assert source.value is not None
    maps = images(given, source.value.astype(np.int64) - source.zero_point)
    bins, samples = scalars(given, 3, 4), scalars(given, 7, 8)
    limits = np.iinfo(source.dtype)
    found = np.zeros((len(real(given[1])), *bins, maps.shape[3]), np.int64)
    for index, batch, (x1, y1, x2, y2) in regions(given):
        rows = points(y1, y2, maps.shape[1], bins[0], samples[0])
        columns = points(x1, x2, maps.shape[2], bins[1], samples[1])
        count = len(rows[0]) * len(columns[0])
        multiplier = float(F(source.scale)) / 255 / float(F(scale)) / count
        for i, j in np.ndindex(*bins):
            cells = [each for y in rows[i] for x in columns[j] for each in corners(y, x)]
            total = sum(maps[batch, y, x] * math.floor(w * F(255) + F(0.5)) for y, x, w in cells)
            scaled = multiply_by_quantized_multiplier(total, *quantize_multiplier(multiplier))
            found[index, i, j] = np.clip(scaled + zero_point, limits.min, limits.max)
    return found


def scalars(given: list[Tensor], *indexes: int) -> list[int]:
    return [int(np.asarray(given[index].value)) for index in indexes]


sizes = st.tuples(st.integers(1, 4), st.integers(1, 4))
ratios = st.tuples(*[st.sampled_from([0.5, 1.0, 2.0, 3.0])] * 2)
samples = st.tuples(*[st.sampled_from([0, 0, 1, 2, 3])] * 2)
seeds = st.integers(0, 2**32 - 1)


@given(st.sampled_from(["float32", "float16"]), sizes, ratios, samples, st.booleans(), seeds)
def test_align_matches_the_definition(
    kind: str,
    bins: tuple[int, int],
    ratios: tuple[float, float],
    samples: tuple[int, int],
    nchw: bool,
    seed: int,
) -> None:
    given = arguments(kind, seed, bins=bins, ratios=ratios, samples=samples, nchw=nchw)
    got = results(ALIGN, kind, given)
    tolerance = 4e-3 if kind == "float16" else 2e-5
    np.testing.assert_allclose(got, aligned(given), rtol=tolerance, atol=tolerance)


@given(st.sampled_from(["uint8", "int8"]), sizes, ratios, samples, st.booleans(), seeds)
@example("uint8", (3, 3), (0.5, 0.5), (2, 2), False, 3).via("weights halfway between two steps")
def test_quantized_align_is_the_integer_rule(
    kind: str,
    bins: tuple[int, int],
    ratios: tuple[float, float],
    samples: tuple[int, int],
    nchw: bool,
    seed: int,
) -> None:
    given = arguments(kind, seed, bins=bins, ratios=ratios, samples=samples, nchw=nchw)
    zero = OUTPUT_ZERO - (128 if kind == "int8" else 0)
    got = results(ALIGN, kind, given)
    np.testing.assert_array_equal(got, aligned_steps(given, OUTPUT_SCALE, zero))
    np.testing.assert_allclose(got, aligned(given) / OUTPUT_SCALE + zero, rtol=0, atol=1.2)


@given(st.sampled_from(KINDS), sizes, ratios, st.booleans(), seeds)
def test_pooling_matches_the_definition(
    kind: str, bins: tuple[int, int], ratios: tuple[float, float], nchw: bool, seed: int
) -> None:
    given = arguments(kind, seed, bins=bins, ratios=ratios, nchw=nchw)
    (got,) = run(POOLING, *given)
    got = images(given, got)
    maps = images(given, real(given[0]))
    height, width, channels = maps.shape[1:]
    expected = np.zeros(got.shape)
    for index, batch, (x1, y1, x2, y2) in regions(given):
        for i, j in np.ndindex(*bins):
            rows = touched(y1, y2, height, bins[0], i)
            columns = touched(x1, x2, width, bins[1], j)
            cells = maps[batch, rows, columns].reshape(-1, channels)
            expected[index, i, j] = cells.max(axis=0) if len(cells) else 0
    assert_near(got, expected, given[0].scale, given[0].zero_point)


def touched(start: F, end: F, size: int, bins: int, index: int) -> slice:
    first, last = (math.floor(float(each) + 0.5) for each in (start, end))
    step = F(max(last - first + 1, 1)) / F(bins)
    return slice(
        min(math.floor(F(first) + F(index) * step), size),
        min(math.ceil(F(first) + F(index + 1) * step), size),
    )


@pytest.mark.parametrize("samples", [(0, 0), (2, 3), None])
def test_signed_results_are_the_unsigned_ones(samples: tuple[int, int] | None) -> None:
    operation = POOLING if samples is None else ALIGN
    for seed in range(10):
        unsigned, signed = (
            run(operation, *arguments(kind, seed, samples=samples), scale=0.07, zero_point=zero)[0]
            for kind, zero in (("uint8", 100), ("int8", -28))
        )
        np.testing.assert_array_equal(unsigned, signed.astype(int) + 128)


@pytest.mark.parametrize("kind", KINDS)
def test_bin_beyond_the_map_is_empty(kind: str) -> None:
    given = arguments(kind, 0, bins=(1, 1), count=1)
    given[1] = boxes(kind, [[24, 10, 24, 10]])
    (got,) = run(POOLING, *given)
    assert (got == given[0].zero_point).all()


def test_align_of_many_points_sums_beyond_32_bits() -> None:
    maps = np.full((1, 300, 300, 1), 255, np.uint8)
    box = boxes("uint8", [[0, 0, 300, 300]])
    given = [tensor(maps, scale=0.5, zero_point=0), box, integers(0), scalar(1), scalar(1)]
    given += [scalar(1.0), scalar(1.0), scalar(0), scalar(0), scalar(False)]
    (got,) = run(ALIGN, *given, scale=1.0, zero_point=3)
    assert got.tolist() == [[[[131]]]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nchw", [False, True])
def test_align_takes_no_regions(kind: str, nchw: bool) -> None:
    given = arguments(kind, 0, samples=(2, 2), nchw=nchw)
    given[1], given[2] = boxes(kind, np.zeros((0, 4))), integers()
    assert results(ALIGN, kind, given).shape == (0, 2, 3, 3)


def test_pooling_takes_at_least_one_region() -> None:
    given = arguments("float32", 0)
    given[1], given[2] = boxes("float32", np.zeros((0, 4))), integers()
    with pytest.raises(ModelError, match=r"input 1 \(rois\).*no elements"):
        run(POOLING, *given)


@pytest.mark.parametrize("operation", [ALIGN, POOLING])
@pytest.mark.parametrize(
    ("index", "replacement", "message"),
    [
        (1, boxes("float32", [[0, 0, 1, 1, 1]] * 4), r"input 1 \(rois\): has shape"),
        (1, boxes("float32", [[0, 0, 1, 1]] * 3 + [[2, 0, 1, 1]]), r"input 1 \(rois\): box 3"),
        (1, boxes("float32", [[-1, 0, 1, 1]] * 4), r"input 1 \(rois\): region 0"),
        (1, boxes("float32", [[0, 0, 24.1, 1]] * 4), r"input 1 \(rois\): region 0"),
        (1, boxes("float32", [[0, 0, 24, 10.1]] * 4), r"input 1 \(rois\): region 0"),
        (2, integers(0, 0, 0, 2), r"input 2 \(batch_indexes\): element 3 is 2"),
        (2, integers(0, -1, 0, 0), r"input 2 \(batch_indexes\): element 1 is -1"),
        (2, integers(0, 0, 0), r"input 2 \(batch_indexes\): has shape"),
        (3, scalar(0), r"input 3 \(output_height\): is 0"),
        (4, scalar(-1), r"input 4 \(output_width\): is -1"),
        (5, scalar(0.0), r"input 5 \(height_ratio\): is 0.0"),
        (6, scalar(math.nan), r"input 6 \(width_ratio\): is nan"),
    ],
)
def test_what_is_wrong_is_named(
    operation: OperationType, index: int, replacement: Tensor, message: str
) -> None:
    given = arguments("float32", 0, samples=(0, 0) if operation is ALIGN else None)
    given[index] = replacement
    with pytest.raises(ModelError, match=message):
        run(operation, *given)


@pytest.mark.parametrize(("index", "count"), [(7, -1), (8, -1), (8, 2**31 - 1)])
def test_number_of_points_is_checked(index: int, count: int) -> None:
    given = arguments("float32", 0, samples=(0, 0))
    given[index] = scalar(count)
    with pytest.raises(ModelError, match=rf"input {index} \((height|width)_sampling\)"):
        run(ALIGN, *given)


def test_quantized_regions_have_steps_of_an_eighth() -> None:
    given = arguments("uint8", 0)
    given[1] = msgspec.structs.replace(given[1], scale=0.5)
    with pytest.raises(ModelError, match=r"input 1 \(rois\): has scale 0.5"):
        run(POOLING, *given)


def test_output_steps_may_not_be_too_fine() -> None:
    given = arguments("uint8", 0, samples=(1, 1))
    with pytest.raises(ModelError, match="expected less than 1"):
        run(ALIGN, *given, scale=given[0].scale / 256, zero_point=0)
