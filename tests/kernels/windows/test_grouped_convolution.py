"""GROUPED_CONV_2D against the definition, element by element."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import HalVersion, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from nnasync.kernels.steps import float_bounds
from tests.kernels.running import run, tensor
from tests.kernels.windows.images import Pads, Quantized, convolve, layout, same_pads, scalars

GROUPED = OperationType.GROUPED_CONV_2D

Pair = tuple[int, int]

windows = {
    "filter": st.tuples(st.integers(1, 3), st.integers(1, 3)),
    "extra": st.tuples(st.integers(0, 5), st.integers(0, 5)),
    "stride": st.tuples(st.integers(1, 3), st.integers(1, 3)),
    "padding": st.sampled_from(["same", "valid", "explicit"]),
    "groups": st.sampled_from([(1, 3, 2), (2, 1, 2), (2, 3, 1), (3, 2, 4), (4, 1, 1)]),
    "fused": st.integers(0, 3),
    "nchw": st.booleans(),
    "seed": st.integers(0, 2**32 - 1),
}
"""`groups`: how many, channels of each, outputs of each."""


def padding_of(padding: str, size: Pair, filter: Pair, stride: Pair) -> tuple[Pads, list[int]]:
    """Padding of height and width, and the arguments that say so."""
    if padding == "same":
        return same_pads(size, filter, stride), [1]
    if padding == "valid":
        return [(0, 0), (0, 0)], [2]
    (top, bottom), (left, right) = pads = [(f - 1, (f - 1) // 2) for f in filter]
    return pads, [left, right, top, bottom]


@given(**windows)
def test_float_matches_the_definition(
    filter: Pair,
    extra: Pair,
    stride: Pair,
    padding: str,
    groups: tuple[int, int, int],
    fused: int,
    nchw: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    size = filter[0] + extra[0], filter[1] + extra[1]
    count, channels, outputs = groups
    x = rng.normal(size=(2, *size, count * channels)).astype(np.float32)
    w = rng.normal(size=(count * outputs, *filter, channels)).astype(np.float32)
    bias = rng.normal(size=len(w)).astype(np.float32)
    pads, first = padding_of(padding, size, filter, stride)
    options = scalars(*first, stride[1], stride[0], count, fused, nchw)
    (got,) = run(GROUPED, tensor(layout(x, nchw=nchw)), tensor(w), tensor(bias), *options)
    sums = convolve(x.astype(np.float64), w, pads, stride, groups=count) + bias
    expected = layout(sums.clip(*float_bounds(fused)), nchw=nchw)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@given(**windows, dtype=st.sampled_from(["uint8", "int8"]), per_channel=st.booleans())
def test_quantized_is_the_fixed_point_rule(
    filter: Pair,
    extra: Pair,
    stride: Pair,
    padding: str,
    groups: tuple[int, int, int],
    fused: int,
    nchw: bool,
    seed: int,
    dtype: str,
    per_channel: bool,
) -> None:
    size = filter[0] + extra[0], filter[1] + extra[1]
    count, channels, outputs = groups
    shapes = (2, *size, count * channels), (count * outputs, *filter, channels)
    given = Quantized(np.random.default_rng(seed), dtype, *shapes, per_channel=per_channel)
    pads, first = padding_of(padding, size, filter, stride)
    options = scalars(*first, stride[1], stride[0], count, fused, nchw)
    (got,) = run(
        GROUPED,
        *given.tensors(nchw=nchw),
        *options,
        scale=given.scale_y,
        zero_point=given.zero_y,
    )
    expected = given.ruled(convolve(*given.centered, pads, stride, groups=count), fused)
    np.testing.assert_array_equal(got, layout(expected, nchw=nchw))


def test_float16_and_weights_known_only_at_run_time() -> None:
    rng = np.random.default_rng(2)
    x, w = rng.normal(size=(1, 4, 4, 4)), rng.normal(size=(6, 1, 1, 2))
    expected = np.concatenate([x[..., :2] @ w[:3, 0, 0].T, x[..., 2:] @ w[3:, 0, 0].T], axis=3)
    inputs = [tensor(value.astype(np.float16)) for value in (x, w, np.zeros(6))]
    for runtime in ((0,), (0, 1, 2)):
        (got,) = run(GROUPED, *inputs, *scalars(1, 1, 1, 2, 0, False), runtime=runtime)
        assert got.dtype == np.float16
        np.testing.assert_allclose(got, expected, atol=0.02)


def inputs(*options: int | bool) -> list[Tensor]:
    shapes = (1, 4, 4, 4), (6, 3, 3, 2), (6,)
    tensors = [tensor(np.zeros(shape, np.float32)) for shape in shapes]
    return [*tensors, *scalars(*(options or (1, 1, 1, 2, 0, False)))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((1, 1, 1, 3, 0, False), r"input 6 \(groups\): is 3, expected a divisor of 4 channels"),
        ((1, 1, 1, 0, 0, False), r"input 6 \(groups\): is 0, expected at least 1"),
        ((1, 1, 1, 1, 0, False), r"input 1 \(filter\): has 2 channels .* expected 4"),
        ((3, 0, 0, 0, 1, 1, 2, 0, False), r"input 3 \(padding_left\): is 3, expected less"),
        ((1, 1, 1, 2, 0), "has 8 inputs, expected 9 or 12"),
    ],
)
def test_refusals(options: tuple[int | bool, ...], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        OPERATIONS[GROUPED].infer(inputs(*options))


def test_versions_and_empty_batches() -> None:
    signatures = OPERATIONS[GROUPED].signatures
    assert {signature.since for signature in signatures} == {HalVersion.V1_2, HalVersion.V1_3}
    empty = Tensor(type=inputs()[0].type, shape=(0, 4, 4, 4), exact=True)
    with pytest.raises(ModelError, match="has no elements"):
        OPERATIONS[GROUPED].infer([empty, *inputs()[1:]])
