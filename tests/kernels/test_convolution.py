"""CONV_2D and DEPTHWISE_CONV_2D against the definition, element by element."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import Array, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from nnasync.kernels.fixed_point import multiply_by_quantized_multiplier, quantize_multiplier
from nnasync.kernels.steps import float_bounds, quantized_bounds
from tests.kernels.running import run, scalar, tensor

CONV, DEPTHWISE = OperationType.CONV_2D, OperationType.DEPTHWISE_CONV_2D


class Case(NamedTuple):
    batches: int
    size: tuple[int, int]
    channels: int
    filter: tuple[int, int]
    outputs: int
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: str
    fused: int
    nchw: bool
    seed: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    filter = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    dilation = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    smallest = [(f - 1) * d + 1 for f, d in zip(filter, dilation, strict=True)]
    size = (
        draw(st.integers(smallest[0], smallest[0] + 9)),
        draw(st.integers(smallest[1], smallest[1] + 9)),
    )
    return Case(
        batches=draw(st.integers(1, 2)),
        size=size,
        channels=draw(st.sampled_from([1, 2, 3, 8])),
        filter=filter,
        outputs=draw(st.sampled_from([1, 2, 5, 16])),
        stride=(draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        dilation=dilation,
        padding=draw(st.sampled_from(["same", "valid", "explicit"])),
        fused=draw(st.integers(0, 3)),
        nchw=draw(st.booleans()),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def pads_of(case: Case) -> list[tuple[int, int]]:
    pads = []
    for size, filter, stride, dilation in zip(
        case.size, case.filter, case.stride, case.dilation, strict=True
    ):
        extent = (filter - 1) * dilation + 1
        if case.padding == "valid":
            pads.append((0, 0))
        elif case.padding == "same":
            total = max((-(-size // stride) - 1) * stride + extent - size, 0)
            pads.append((total // 2, total - total // 2))
        else:
            pads.append((extent - 1, (extent - 1) // 2))
    return pads


def naive(x: Array, w: Array, bias: Array, case: Case, depthwise: bool) -> Array:
    """The definition, element by element, on integers or float64 in NHWC."""
    (top, bottom), (left, right) = pads_of(case)
    x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    (fh, fw), (sh, sw), (dh, dw) = case.filter, case.stride, case.dilation
    height = (x.shape[1] - (fh - 1) * dh - 1) // sh + 1
    width = (x.shape[2] - (fw - 1) * dw - 1) // sw + 1
    outputs = w.shape[3] if depthwise else w.shape[0]
    y = np.zeros((x.shape[0], height, width, outputs), np.result_type(x, w))
    for n, i, j, o in np.ndindex(*y.shape):
        window = x[n, i * sh : i * sh + (fh - 1) * dh + 1 : dh]
        window = window[:, j * sw : j * sw + (fw - 1) * dw + 1 : dw]
        if depthwise:
            multiplier = outputs // x.shape[3]
            y[n, i, j, o] = (window[:, :, o // multiplier] * w[0, :, :, o]).sum()
        else:
            y[n, i, j, o] = (window * w[o]).sum()
    sums: Array = y + bias
    return sums


def arguments(case: Case, depthwise: bool, *tensors: Tensor) -> list[Tensor]:
    (sh, sw), (dh, dw) = case.stride, case.dilation
    if case.padding == "explicit":
        (top, bottom), (left, right) = pads_of(case)
        scalars = [left, right, top, bottom, sw, sh]
    else:
        scalars = [1 if case.padding == "same" else 2, sw, sh]
    if depthwise:
        scalars.append(tensors[1].shape[3] // case.channels)
    scalars.append(case.fused)
    layout = [scalar(case.nchw), scalar(dw), scalar(dh)]
    return [*tensors, *(scalar(value) for value in scalars), *layout]


def filter_shape(case: Case, depthwise: bool) -> tuple[int, ...]:
    if depthwise:
        return (1, *case.filter, case.channels * (1 + case.outputs % 2))
    return (case.outputs, *case.filter, case.channels)


def in_layout(x: Array, case: Case) -> Array:
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if case.nchw else x


@settings(max_examples=150)
@given(cases(), st.booleans())
def test_float_matches_the_definition(case: Case, depthwise: bool) -> None:
    rng = np.random.default_rng(case.seed)
    x = rng.normal(size=(case.batches, *case.size, case.channels)).astype(np.float32)
    w = rng.normal(size=filter_shape(case, depthwise)).astype(np.float32)
    channels = w.shape[3] if depthwise else w.shape[0]
    bias = rng.normal(size=(channels,)).astype(np.float32)
    operation = DEPTHWISE if depthwise else CONV
    inputs = arguments(case, depthwise, tensor(in_layout(x, case)), tensor(w), tensor(bias))
    (got,) = run(operation, *inputs)
    expected = naive(x.astype(np.float64), w.astype(np.float64), bias, case, depthwise)
    expected = np.clip(expected, *float_bounds(case.fused))
    np.testing.assert_allclose(got, in_layout(expected, case), rtol=1e-5, atol=1e-5)


@settings(max_examples=200)
@given(cases(), st.booleans(), st.sampled_from(["uint8", "int8"]), st.booleans())
def test_quantized_is_within_one_step_of_the_fixed_point_rule(
    case: Case, depthwise: bool, dtype: str, per_channel: bool
) -> None:
    rng = np.random.default_rng(case.seed)
    low, high = (0, 256) if dtype == "uint8" else (-128, 128)
    x = rng.integers(low, high, (case.batches, *case.size, case.channels)).astype(dtype)
    shape = filter_shape(case, depthwise)
    channels = shape[3] if depthwise else shape[0]
    zero_x, zero_y = (int(z) for z in rng.integers(low, high, 2))
    bias = rng.integers(-2000, 2000, channels).astype(np.int32)
    dim = 3 if depthwise else 0
    if per_channel:
        scales: Array = rng.uniform(0.001, 0.1, channels).astype(np.float32)
        w, zero_w = rng.integers(-127, 128, shape).astype(np.int8), 0
        filter = tensor(w, scales=[float(s) for s in scales], channel_dim=dim)
        bias_tensor = tensor(bias)
    else:
        scales = rng.uniform(0.001, 0.1, 1).astype(np.float32)
        w, zero_w = rng.integers(low, high, shape).astype(dtype), int(rng.integers(low, high))
        filter = tensor(w, scale=float(scales[0]), zero_point=zero_w)
        bias_tensor = tensor(bias, scale=float(np.float32(0.02) * scales[0]))
    source = tensor(in_layout(x, case), scale=0.02, zero_point=zero_x)
    operation = DEPTHWISE if depthwise else CONV
    inputs = arguments(case, depthwise, source, filter, bias_tensor)
    scale = float(rng.uniform(0.001, 1.0))
    (got,) = run(operation, *inputs, scale=scale, zero_point=zero_y)
    sums = naive(x.astype(np.int64) - zero_x, w.astype(np.int64) - zero_w, bias, case, depthwise)
    output = Tensor(type=source.type, scale=scale, zero_point=zero_y)
    expected = np.empty_like(sums)
    for channel in range(channels):
        product = np.float32(0.02) * scales[channel if per_channel else 0]
        q, shift = quantize_multiplier(float(product) / scale)
        ruled = multiply_by_quantized_multiplier(sums[..., channel], q, shift)
        expected[..., channel] = ruled + zero_y
    expected = np.clip(expected, *quantized_bounds(case.fused, output))
    difference = np.abs(got.astype(np.int64) - in_layout(expected, case))
    assert difference.max() <= (0 if depthwise and case.channels > 1 else 1)


def test_sums_too_large_for_float32_stay_exact() -> None:
    x = np.full((1, 1, 1, 4096), 255, np.uint8)
    x[..., 0] = 254
    w = np.full((1, 1, 1, 4096), 255, np.uint8)
    total = 255 * 255 * 4096 - 255
    bias = np.asarray([-total + 7], np.int32)
    (got,) = run(
        CONV,
        tensor(x, scale=1.0),
        tensor(w, scale=1.0),
        tensor(bias, scale=1.0),
        *(scalar(value) for value in (2, 1, 1, 0)),
        scale=1.0,
    )
    assert got.item() == 7


def test_large_image_is_computed_in_blocks() -> None:
    case = Case(1, (70, 90), 8, (3, 3), 24, (1, 1), (1, 1), "same", 3, False, 5)
    rng = np.random.default_rng(5)
    x = rng.normal(size=(1, 70, 90, 8)).astype(np.float32)
    for depthwise in (False, True):
        w = rng.normal(size=(1, 3, 3, 8) if depthwise else (24, 3, 3, 8)).astype(np.float32)
        bias = np.zeros(8 if depthwise else 24, np.float32)
        inputs = arguments(case, depthwise, tensor(x), tensor(w), tensor(bias))
        (got,) = run(DEPTHWISE if depthwise else CONV, *inputs)
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        expected = np.zeros(got.shape)
        for i, j in np.ndindex(3, 3):
            part = padded[:, i : i + 70, j : j + 90]
            expected += part * w[0, i, j] if depthwise else part @ w[:, i, j].T
        np.testing.assert_allclose(got, np.clip(expected, 0, 6), rtol=1e-4, atol=1e-4)


def test_float16_and_weights_known_only_at_run_time() -> None:
    rng = np.random.default_rng(2)
    x, w = rng.normal(size=(1, 4, 4, 2)), rng.normal(size=(3, 1, 1, 2))
    scalars = [scalar(value) for value in (1, 1, 1, 0)]
    for dtype, tolerance in ((np.float32, 1e-5), (np.float16, 0.02)):
        inputs = [tensor(x.astype(dtype)), tensor(w.astype(dtype)), tensor(np.zeros(3, dtype))]
        for runtime in ((0,), (0, 1, 2)):
            (got,) = run(CONV, *inputs, *scalars, runtime=runtime)
            assert got.dtype == dtype
            np.testing.assert_allclose(got, x @ w[:, 0, 0].T, atol=tolerance)


def ok_inputs() -> list[Tensor]:
    x, w = np.zeros((1, 4, 4, 2), np.float32), np.zeros((3, 3, 3, 2), np.float32)
    tensors = [tensor(x), tensor(w), tensor(np.zeros(3, np.float32))]
    return [*tensors, *(scalar(value) for value in (1, 1, 1, 0))]


@pytest.mark.parametrize(
    ("index", "value", "message"),
    [
        (
            1,
            tensor(np.zeros((3, 3, 3, 5), np.float32)),
            r"input 1 \(filter\): has 5 channels \(last dimension\), expected 2",
        ),
        (1, tensor(np.zeros((3, 3), np.float32)), r"input 1 \(filter\): has shape \(3, 3\)"),
        (3, scalar(7), r"input 3 \(padding_scheme\): is 7"),
        (4, scalar(0), r"input 4 \(stride_width\): is 0, expected at least 1"),
        (1, tensor(np.zeros((3, 3, 3, 2), np.uint8)), r"input 1 \(filter\) is TENSOR_QUANT8_ASYMM"),
        (2, None, r"input 2 \(bias\) must not be omitted"),
    ],
)
def test_infer_says_which_argument_is_wrong(index: int, value: Tensor, message: str) -> None:
    inputs: list[Tensor | None] = [*ok_inputs()]
    inputs[index] = value
    with pytest.raises(ModelError, match="CONV_2D: " + message):
        OPERATIONS[CONV].infer(inputs)


def test_wrong_count_window_and_activation() -> None:
    inputs = ok_inputs()
    with pytest.raises(ModelError, match="has 6 inputs, expected 7 or 8 or 10 or 11 or 13"):
        OPERATIONS[CONV].infer(inputs[:6])
    small = [tensor(np.zeros((1, 2, 2, 2), np.float32)), *inputs[1:3], scalar(2), *inputs[4:]]
    with pytest.raises(ModelError, match="larger than the padded input"):
        OPERATIONS[CONV].infer(small)
    with pytest.raises(ModelError, match=r"input 6 \(activation\): is 9"):
        OPERATIONS[CONV].prepare([*inputs[:6], scalar(9)], OPERATIONS[CONV].infer(inputs))


def test_unknown_shapes_give_unknown_shapes() -> None:
    inputs = ok_inputs()
    inputs[0] = Tensor(type=inputs[0].type, shape=(0, 4, 4, 2))
    (out,) = OPERATIONS[CONV].infer(inputs)
    assert out.shape == ()
    with pytest.raises(ModelError, match="input 0: shape"):
        OPERATIONS[CONV].prepare(inputs, [out])


def test_quantization_of_bias_and_filter_is_checked() -> None:
    x = tensor(np.zeros((1, 2, 2, 1), np.uint8), scale=0.5)
    w = tensor(np.zeros((2, 1, 1, 1), np.uint8), scale=0.5)
    scalars = [scalar(value) for value in (1, 1, 1, 0)]
    output = Tensor(type=x.type, shape=(1, 2, 2, 2), scale=1.0)
    good = tensor(np.zeros(2, np.int32), scale=0.25)
    OPERATIONS[CONV].prepare([x, w, good, *scalars], [output])
    bad = tensor(np.zeros(2, np.int32), scale=0.3)
    with pytest.raises(ModelError, match=r"input 2 \(bias\): has scale 0.3, expected 0.25"):
        OPERATIONS[CONV].prepare([x, w, bad, *scalars], [output])
    per = tensor(np.zeros((2, 1, 1, 1), np.int8), scales=[1.0, 1.0], channel_dim=3)
    plain = tensor(np.zeros(2, np.int32))
    with pytest.raises(ModelError, match="along dimension 3, expected 0"):
        OPERATIONS[CONV].prepare([x, per, plain, *scalars], [output])
    with pytest.raises(ModelError, match="output 0: has scale 0.0, expected a positive one"):
        OPERATIONS[CONV].prepare([x, w, good, *scalars], [Tensor(type=x.type, shape=output.shape)])
