"""TRANSPOSE_CONV_2D against the definition, pixel by pixel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import OperationType
from nnasync.kernels import OPERATIONS, Tensor
from nnasync.kernels.steps import float_bounds
from tests.kernels.running import integers, run, tensor
from tests.kernels.windows.images import Pads, Quantized, layout, scalars, transpose_convolve

TRANSPOSED = OperationType.TRANSPOSE_CONV_2D

Pair = tuple[int, int]

windows = {
    "size": st.tuples(st.integers(1, 5), st.integers(1, 5)),
    "filter": st.tuples(st.integers(1, 4), st.integers(1, 4)),
    "stride": st.tuples(st.integers(1, 4), st.integers(1, 4)),
    "padding": st.sampled_from(["same", "valid", "explicit", "negative"]),
    "fused": st.integers(0, 3),
    "nchw": st.booleans(),
    "seed": st.integers(0, 2**32 - 1),
}


def same_pads(size: int, filter: int, stride: int) -> Pair:
    """Padding that makes an output of size * stride; what is behind may be negative."""
    total = filter - stride
    head = max(total, 0) // 2
    return head, total - head


def padding_of(
    padding: str, size: Pair, filter: Pair, stride: Pair, nchw: bool
) -> tuple[Pads, list[Tensor]]:
    """Padding of height and width, and the arguments that say so."""
    if padding in ("same", "valid"):
        same = padding == "same"
        pads = [
            same_pads(*each) if same else (0, 0) for each in zip(size, filter, stride, strict=True)
        ]
        height, width = (n * s for n, s in zip(size, stride, strict=True))
        shape = integers(1, 1, height, width) if nchw else integers(1, height, width, 1)
        return pads, [shape, *scalars(1 if same else 2)]
    head = [min(f - 1, (n - 1) * s // 2) for n, f, s in zip(size, filter, stride, strict=True)]
    tail = -2 if padding == "negative" else 0
    return [(head[0], tail), (head[1], tail)], scalars(head[1], tail, head[0], tail)


@given(**windows)
def test_float_matches_the_definition(
    size: Pair, filter: Pair, stride: Pair, padding: str, fused: int, nchw: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2, *size, 3)).astype(np.float32)
    w = rng.normal(size=(4, *filter, 3)).astype(np.float32)
    bias = rng.normal(size=4).astype(np.float32)
    pads, first = padding_of(padding, size, filter, stride, nchw)
    options = [*first, *scalars(stride[1], stride[0], fused, nchw)]
    (got,) = run(TRANSPOSED, tensor(layout(x, nchw=nchw)), tensor(w), tensor(bias), *options)
    sums = transpose_convolve(x.astype(np.float64), w, pads, stride) + bias
    expected = layout(sums.clip(*float_bounds(fused)), nchw=nchw)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@given(**windows, dtype=st.sampled_from(["uint8", "int8"]), per_channel=st.booleans())
def test_quantized_is_the_fixed_point_rule(
    size: Pair,
    filter: Pair,
    stride: Pair,
    padding: str,
    fused: int,
    nchw: bool,
    seed: int,
    dtype: str,
    per_channel: bool,
) -> None:
    rng = np.random.default_rng(seed)
    given = Quantized(rng, dtype, (2, *size, 3), (4, *filter, 3), per_channel=per_channel)
    pads, first = padding_of(padding, size, filter, stride, nchw)
    (got,) = run(
        TRANSPOSED,
        *given.tensors(nchw=nchw),
        *first,
        *scalars(stride[1], stride[0], fused, nchw),
        scale=given.scale_y,
        zero_point=given.zero_y,
    )
    expected = given.ruled(transpose_convolve(*given.centered, pads, stride), fused)
    np.testing.assert_array_equal(got, layout(expected, nchw=nchw))


def test_float16_blocks_and_weights_known_only_at_run_time() -> None:
    rng = np.random.default_rng(2)
    x, w = rng.normal(size=(1, 60, 40, 8)), rng.normal(size=(16, 2, 2, 8))
    expected = np.einsum("nhwc,oijc->nhiwjo", x, w).reshape(1, 120, 80, 16)
    inputs = [tensor(value.astype(np.float16)) for value in (x, w, np.zeros(16))]
    options = scalars(0, 0, 0, 0, 2, 2, 0, False)
    for runtime in ((0,), (0, 1, 2)):
        (got,) = run(TRANSPOSED, *inputs, *options, runtime=runtime)
        assert got.dtype == np.float16
        np.testing.assert_allclose(got, expected, atol=0.05)


def inputs(*first: Tensor) -> list[Tensor]:
    shapes = (1, 4, 4, 2), (3, 3, 3, 2), (3,)
    tensors = [tensor(np.zeros(shape, np.float32)) for shape in shapes]
    return [*tensors, *first, *scalars(1, 1, 0, False)]


def test_the_size_is_computed_whatever_the_shape_says() -> None:
    (out,) = OPERATIONS[TRANSPOSED].infer(inputs(integers(9, 4, 5, 7), *scalars(1)))
    assert out.shape == (1, 4, 4, 3)


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ([integers(1, 4, 4), *scalars(1)], r"input 3 \(output_shape\): has 3 elements"),
        ([integers(1, 4, 4, 3), *scalars(5)], r"input 4 \(padding_scheme\): is 5"),
        (scalars(-1, 0, 0, 0), r"input 3 \(padding_left\): is -1, expected at least 0"),
        (scalars(0, 0, -1, 0), r"input 5 \(padding_top\): is -1, expected at least 0"),
        (scalars(0, 9, 0, 0), "the output would be 6 x -3"),
        (scalars(0, -(2**31), 0, -(2**31)), "too large"),
    ],
)
def test_refusals(first: list[Tensor], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        OPERATIONS[TRANSPOSED].infer(inputs(*first))


def test_empty_batches_give_empty_outputs() -> None:
    empty = Tensor(type=inputs()[0].type, shape=(0, 4, 4, 2), exact=True)
    options = inputs(*scalars(0, 0, 0, 0))[1:]
    (out,) = OPERATIONS[TRANSPOSED].infer([empty, *options])
    assert out.shape == (0, 6, 6, 3)
