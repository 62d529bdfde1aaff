"""CONV_2D and DEPTHWISE_CONV_2D against the definition, element by element."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import ModelError
from nnasync.hal import Array, HalVersion, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from nnasync.kernels.steps import float_bounds
from tests.kernels.running import run, scalar, tensor
from tests.kernels.windows.images import (
    Quantized,
    as_grouped,
    convolve,
    layout,
    same_pads,
    scalars,
)

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
        channels=draw(st.sampled_from([1, 2, 3, 8, 300])),
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
    extents = [(f - 1) * d + 1 for f, d in zip(case.filter, case.dilation, strict=True)]
    if case.padding == "same":
        return same_pads(case.size, extents, case.stride)
    if case.padding == "valid":
        return [(0, 0), (0, 0)]
    return [(extent - 1, (extent - 1) // 2) for extent in extents]


def summed(x: Array, w: Array, case: Case, depthwise: bool) -> Array:
    filter = as_grouped(w) if depthwise else w
    groups = x.shape[3] if depthwise else 1
    return convolve(x, filter, pads_of(case), case.stride, case.dilation, groups)


def arguments(case: Case, depthwise: bool, *tensors: Tensor) -> list[Tensor]:
    (sh, sw), (dh, dw) = case.stride, case.dilation
    if case.padding == "explicit":
        (top, bottom), (left, right) = pads_of(case)
        padding = [left, right, top, bottom]
    else:
        padding = [1 if case.padding == "same" else 2]
    channels = tensors[0].shape[1 if case.nchw else 3]
    multiplier = [tensors[1].shape[3] // channels] if depthwise else []
    return [*tensors, *scalars(*padding, sw, sh, *multiplier, case.fused, case.nchw, dw, dh)]


def filter_shape(case: Case, depthwise: bool) -> tuple[int, ...]:
    if depthwise:
        return (1, *case.filter, case.channels * (1 + case.outputs % 2))
    return (case.outputs, *case.filter, case.channels)


@given(cases(), st.booleans())
def test_float_matches_the_definition(case: Case, depthwise: bool) -> None:
    rng = np.random.default_rng(case.seed)
    x = rng.normal(size=(case.batches, *case.size, case.channels)).astype(np.float32)
    w = rng.normal(size=filter_shape(case, depthwise)).astype(np.float32)
    bias = rng.normal(size=(w.shape[3 if depthwise else 0],)).astype(np.float32)
    tensors = tensor(layout(x, nchw=case.nchw)), tensor(w), tensor(bias)
    (got,) = run(DEPTHWISE if depthwise else CONV, *arguments(case, depthwise, *tensors))
    expected = summed(x.astype(np.float64), w.astype(np.float64), case, depthwise) + bias
    expected = np.clip(expected, *float_bounds(case.fused))
    np.testing.assert_allclose(got, layout(expected, nchw=case.nchw), rtol=1e-5, atol=3e-4)


@given(cases(), st.booleans(), st.sampled_from(["uint8", "int8"]), st.booleans())
def test_quantized_is_within_one_step_of_the_fixed_point_rule(
    case: Case, depthwise: bool, dtype: str, per_channel: bool
) -> None:
    given = Quantized(
        np.random.default_rng(case.seed),
        dtype,
        (case.batches, *case.size, case.channels),
        filter_shape(case, depthwise),
        channel_dim=3 if depthwise else 0,
        per_channel=per_channel,
    )
    inputs = arguments(case, depthwise, *given.tensors(nchw=case.nchw))
    operation = DEPTHWISE if depthwise else CONV
    (got,) = run(operation, *inputs, scale=given.scale_y, zero_point=given.zero_y)
    expected = given.ruled(summed(*given.centered, case, depthwise), case.fused)
    difference = np.abs(got.astype(np.int64) - layout(expected, nchw=case.nchw))
    assert difference.max() <= (0 if depthwise else 1)


@given(cases(), st.booleans(), st.booleans())
def test_signed_is_unsigned_shifted(case: Case, depthwise: bool, per_channel: bool) -> None:
    given = Quantized(
        np.random.default_rng(case.seed),
        "uint8",
        (case.batches, *case.size, case.channels),
        filter_shape(case, depthwise),
        channel_dim=3 if depthwise else 0,
        per_channel=per_channel,
    )
    operation = DEPTHWISE if depthwise else CONV
    inputs = arguments(case, depthwise, *given.tensors(nchw=case.nchw))
    (unsigned,) = run(operation, *inputs, scale=given.scale_y, zero_point=given.zero_y)
    for index in (0,) if per_channel else (0, 1):
        twin = inputs[index]
        assert twin.value is not None
        inputs[index] = tensor(
            (twin.value ^ 128).view(np.int8), scale=twin.scale, zero_point=twin.zero_point - 128
        )
    (signed,) = run(operation, *inputs, scale=given.scale_y, zero_point=given.zero_y - 128)
    np.testing.assert_array_equal(signed.view(np.uint8) ^ 128, unsigned)


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


def test_a_bias_beyond_what_float32_holds_is_added_exactly() -> None:
    x = tensor(np.full((1, 1, 1, 2), 255, np.uint8), scale=0.5)
    w = tensor(np.full((1, 1, 1, 2), 255, np.uint8), scale=0.5)
    for bias in (2**24 + 1, -(2**24) - 3, 2**30 + 7):
        total = bias + 2 * 255 * 255
        given = tensor(np.asarray([bias], np.int32), scale=0.25)
        zero = (100 - total) % 256
        scale = 0.25 * 2.0**22
        (got,) = run(CONV, x, w, given, *scalars(2, 1, 1, 0), scale=scale, zero_point=zero)
        assert got.item() == min(max(round(total / 2**22) + zero, 0), 255)
    sums = tensor(np.asarray([-(2**24) - 1 - 2 * 255 * 255 + 9], np.int32), scale=0.25)
    wide = tensor(np.asarray([[[[255, 255]]]], np.uint8), scale=0.5)
    (got,) = run(CONV, wide, w, sums, *scalars(2, 1, 1, 0), scale=0.25 * 2**20, zero_point=40)
    assert got.item() == 40 - 16


def test_empty_batches_give_empty_outputs() -> None:
    for nchw in (False, True):
        x = tensor(layout(np.zeros((0, 5, 4, 2), np.float32), nchw=nchw))
        x = msgspec.structs.replace(x, exact=True)
        for operation, w, middle in (
            (CONV, np.zeros((3, 3, 3, 2), np.float32), ()),
            (DEPTHWISE, np.zeros((1, 3, 3, 2), np.float32), (1,)),
        ):
            bias = tensor(np.zeros(w.shape[3] if middle else 3, np.float32))
            inputs = [x, tensor(w), bias, *scalars(1, 2, 1, *middle, 0, nchw)]
            (got,) = run(operation, *inputs)
            channels = 2 if middle else 3
            assert got.shape == ((0, channels, 5, 2) if nchw else (0, 5, 2, channels))
    empty = msgspec.structs.replace(tensor(np.zeros((2, 0, 4, 2), np.float32)), exact=True)
    with pytest.raises(ModelError, match=r"input 0 \(input\).* only the batch may be empty"):
        run(CONV, empty, *ok_inputs()[1:])


def test_explicit_padding_is_smaller_than_the_dilated_filter() -> None:
    tensors = ok_inputs()[:3]
    fine = scalars(4, 0, 0, 2, 1, 1, 0, False, 2, 1)
    assert OPERATIONS[CONV].infer([*tensors, *fine])[0].shape == (1, 4, 4, 3)
    wide = scalars(5, 0, 0, 2, 1, 1, 0, False, 2, 1)
    with pytest.raises(ModelError, match=r"input 3 \(padding_left\): is 5, .* less than .* 5"):
        OPERATIONS[CONV].infer([*tensors, *wide])
    high = scalars(0, 0, 0, 3, 1, 1, 0, False, 2, 1)
    with pytest.raises(ModelError, match=r"input 6 \(padding_bottom\): is 3"):
        OPERATIONS[CONV].infer([*tensors, *high])


def test_windows_too_large_for_memory_are_refused() -> None:
    tensors = ok_inputs()[:3]
    far = scalars(1, 1, 1, 0, False, 2**31 - 1, 2**31 - 1)
    with pytest.raises(ModelError, match="which is too large for input"):
        OPERATIONS[CONV].infer([*tensors, *far])


def test_strides_beyond_the_image_see_its_corner() -> None:
    x = np.arange(32, dtype=np.float32).reshape(1, 4, 4, 2)
    w, bias = np.ones((1, 1, 1, 2), np.float32), np.zeros(2, np.float32)
    far = 2**31 - 1
    (got,) = run(DEPTHWISE, tensor(x), tensor(w), tensor(bias), *scalars(2, far, far, 1, 0))
    assert got.reshape(-1).tolist() == [0, 1]


def versions(operation: OperationType, inputs: list[Tensor], scale: float) -> HalVersion:
    output = Tensor(type=inputs[0].type, shape=(), scale=scale)
    return OPERATIONS[operation].minimum_version(inputs, [output])


def test_versions() -> None:
    assert versions(CONV, ok_inputs(), 0.0) == HalVersion.V1_0
    assert versions(CONV, [*ok_inputs(), scalar(False)], 0.0) == HalVersion.V1_2
    x = tensor(np.zeros((1, 2, 2, 1), np.uint8), scale=0.5)
    for filter_scale, version in ((0.5, HalVersion.V1_0), (1.5, HalVersion.V1_2)):
        w = tensor(np.zeros((1, 1, 1, 1), np.uint8), scale=filter_scale)
        bias = tensor(np.zeros(1, np.int32), scale=0.5 * filter_scale)
        assert versions(CONV, [x, w, bias, *scalars(1, 1, 1, 0)], 1e-4) == version
        assert versions(DEPTHWISE, [x, w, bias, *scalars(1, 1, 1, 1, 0)], 1e-4) == version
    per = tensor(np.zeros((1, 1, 1, 1), np.int8), scales=[1.0], channel_dim=3)
    plain = tensor(np.zeros(1, np.int32))
    assert versions(DEPTHWISE, [x, per, plain, *scalars(1, 1, 1, 1, 0)], 1) == HalVersion.V1_2
    with pytest.raises(ModelError, match="along dimension 3, expected 0"):
        versions(CONV, [x, per, plain, *scalars(1, 1, 1, 0)], 1.0)


def test_ranks() -> None:
    inputs = ok_inputs()
    for index, name in enumerate(("input", "filter", "bias")):
        wrong = [*inputs]
        wrong[index] = Tensor(type=inputs[index].type, shape=(1, 2, 3))
        with pytest.raises(ModelError, match=rf"input {index} \({name}\): has shape .* rank"):
            OPERATIONS[CONV].infer(wrong)
