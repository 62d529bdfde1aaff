"""What holds for every operation that moves data: types, versions, quantization, late options."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from nnasync.errors import ModelError
from nnasync.hal import Array, HalVersion, OperandType, OperationType, dtype_of
from nnasync.kernels import OPERATIONS, Tensor
from tests.kernels.running import integers, run, scalar, tensor

Op, T, V = OperationType, OperandType, HalVersion

BLOCK, NO_BORDER = integers(2, 2), tensor(np.zeros((2, 2), np.int32))
PADDINGS = tensor(np.asarray([[0, 1], [1, 0], [0, 0], [2, 0]], np.int32))
OPTIONS: dict[OperationType, list[Sequence[Tensor | None]]] = {
    Op.RESHAPE: [[integers(8, -1)]],
    Op.DEPTH_TO_SPACE: [[scalar(2)], [scalar(2), scalar(True)]],
    Op.SPACE_TO_DEPTH: [[scalar(2)], [scalar(2), scalar(True)]],
    Op.BATCH_TO_SPACE_ND: [[BLOCK], [BLOCK, scalar(True)]],
    Op.SPACE_TO_BATCH_ND: [[BLOCK, NO_BORDER], [BLOCK, NO_BORDER, scalar(True)]],
    Op.PAD: [[PADDINGS]],
    Op.SQUEEZE: [[None]],
    Op.EXPAND_DIMS: [[scalar(1)]],
    Op.TRANSPOSE: [[None], [integers(1, 3, 0, 2)]],
    Op.STRIDED_SLICE: [
        [integers(0, 3, 1, 0), integers(4, 0, 4, 4), integers(1, -1, 2, 3), *[scalar(0)] * 3]
    ],
    Op.SLICE: [[integers(1, 0, 2, 0), integers(-1, 2, 1, 3)]],
    Op.SPLIT: [[scalar(2), scalar(2)]],
    Op.GATHER: [[scalar(1), tensor(np.asarray([[2, 0]], np.int32))]],
    Op.TILE: [[integers(1, 2, 1, 3)]],
    Op.CHANNEL_SHUFFLE: [[scalar(2), scalar(3)]],
}
"""Legal options for data of the shape [4, 4, 4, 4]."""

SHAPE = (4, 4, 4, 4)
EARLY = {T.TENSOR_FLOAT32, T.TENSOR_QUANT8_ASYMM}
AFTER = {T.TENSOR_FLOAT16: V.V1_2, T.TENSOR_QUANT8_ASYMM_SIGNED: V.V1_3}
SINCE = {
    **dict.fromkeys((Op.RESHAPE, Op.DEPTH_TO_SPACE, Op.SPACE_TO_DEPTH, Op.CONCATENATION), V.V1_0),
    **dict.fromkeys(
        (
            Op.BATCH_TO_SPACE_ND,
            Op.SPACE_TO_BATCH_ND,
            Op.PAD,
            Op.SQUEEZE,
            Op.TRANSPOSE,
            Op.STRIDED_SLICE,
        ),
        V.V1_1,
    ),
    **dict.fromkeys(
        (
            Op.PAD_V2,
            Op.EXPAND_DIMS,
            Op.SLICE,
            Op.SPLIT,
            Op.GATHER,
            Op.TILE,
            Op.CHANNEL_SHUFFLE,
        ),
        V.V1_2,
    ),
}
WITH_INTEGERS = {Op.EXPAND_DIMS, Op.SLICE, Op.SPLIT, Op.GATHER, Op.TILE}

CASES = [
    pytest.param(type, options, id=f"{type.name}-{number}")
    for type, choices in OPTIONS.items()
    for number, options in enumerate(choices)
]


def source(type: OperandType, numbers: Array) -> Tensor:
    """Numbers from 0 to 255 as a tensor; signed bytes are 128 smaller, like their zero point."""
    signed = type == T.TENSOR_QUANT8_ASYMM_SIGNED
    scale = 0.5 if signed or type == T.TENSOR_QUANT8_ASYMM else 0.0
    zero_point = -128 if signed else 0
    return tensor((numbers + zero_point).astype(dtype_of(type)), scale=scale, zero_point=zero_point)


@pytest.mark.parametrize("type", SINCE, ids=lambda type: type.name)
def test_the_types_and_their_versions(type: OperationType) -> None:
    wanted = dict.fromkeys(EARLY, SINCE[type]) | AFTER
    if type in WITH_INTEGERS:
        wanted[T.TENSOR_INT32] = V.V1_2
    found: dict[int, HalVersion] = {}
    for signature in OPERATIONS[type].signatures:
        data = signature.inputs[0].type
        assert signature.outputs[0].type == data
        found[data] = min(signature.since, found.get(data, V.V1_3))
    assert found == wanted


@pytest.mark.parametrize(
    "type",
    [Op.DEPTH_TO_SPACE, Op.SPACE_TO_DEPTH, Op.BATCH_TO_SPACE_ND, Op.SPACE_TO_BATCH_ND],
    ids=lambda type: type.name,
)
def test_the_layout_flag_came_with_1_2(type: OperationType) -> None:
    flagged = [s for s in OPERATIONS[type].signatures if s.inputs[-1].type == T.BOOL]
    assert {s.inputs[0].type: s.since for s in flagged} == dict.fromkeys(EARLY, V.V1_2) | AFTER


@pytest.mark.parametrize(("type", "options"), CASES)
def test_every_type_is_moved_alike(type: OperationType, options: Sequence[Tensor | None]) -> None:
    numbers = np.random.default_rng(int(type)).permutation(256).reshape(SHAPE)
    if type == Op.SQUEEZE:
        numbers = numbers.reshape(1, 16, 1, 16)
    wanted = run(type, source(T.TENSOR_QUANT8_ASYMM, numbers), *options)
    for data in {signature.inputs[0].type for signature in OPERATIONS[type].signatures}:
        given = source(T(data), numbers)
        for runtime in ((0,), range(len(options) + 1)):
            results = run(type, given, *options, runtime=runtime)
            for got, expected in zip(results, wanted, strict=True):
                assert got.dtype == dtype_of(data)
                np.testing.assert_array_equal(got.astype(int) - given.zero_point, expected)


@pytest.mark.parametrize(("type", "options"), CASES)
def test_the_result_is_quantized_like_the_data(
    type: OperationType, options: Sequence[Tensor | None]
) -> None:
    shape = (1, 16, 1, 16) if type == Op.SQUEEZE else SHAPE
    given = Tensor(T.TENSOR_QUANT8_ASYMM_SIGNED, shape, 0.5, -3)
    results = OPERATIONS[type].infer([given, *options])
    for result in results:
        assert (result.type, result.scale, result.zero_point) == (given.type, 0.5, -3)
    others = [Tensor(given.type, out.shape, 0.25, -3) for out in results]
    with pytest.raises(ModelError, match=r"output 0: has scale 0.25 .* expected 0.5 and -3"):
        OPERATIONS[type].prepare([given, *options], others)


@pytest.mark.parametrize(("type", "options"), CASES)
def test_nothing_is_refused_unless_the_operation_takes_it(
    type: OperationType, options: Sequence[Tensor | None]
) -> None:
    empty = Tensor(T.TENSOR_FLOAT32, (0, 4, 4, 4), exact=True)
    if type in (Op.TRANSPOSE, Op.SLICE):
        options = [integers(*[0] * 4), integers(*[-1] * 4)] if type == Op.SLICE else options
        (result,) = OPERATIONS[type].infer([empty, *options])
        assert sorted(result.shape) == [0, 4, 4, 4]
    else:
        with pytest.raises(ModelError, match=r"input 0 \(input\): has shape .* no elements"):
            OPERATIONS[type].infer([empty, *options])


@pytest.mark.parametrize("type", [Op.RESHAPE, Op.TRANSPOSE, Op.PAD, Op.STRIDED_SLICE])
def test_an_unknown_shape_gives_an_unknown_one(type: OperationType) -> None:
    unknown = Tensor(T.TENSOR_FLOAT32, (4, 0, 4, 4))
    (result,) = OPERATIONS[type].infer([unknown, *OPTIONS[type][0]])
    assert result.type == T.TENSOR_FLOAT32
    assert not result.is_known


@pytest.mark.parametrize(
    ("type", "options"), [(type, options) for type, forms in OPTIONS.items() for options in forms]
)
def test_float16_keeps_its_bits(type: OperationType, options: Sequence[Tensor | None]) -> None:
    """Any bits, those of a NaN that signals too."""
    bits = np.random.default_rng(0).integers(0, 2**16, SHAPE).astype(np.uint16)
    bits[0, 0, 0] = 0x7C01
    moved = run(type, tensor(bits.view(np.float16)), *options)
    places = np.arange(bits.size, dtype=np.int32).reshape(SHAPE) + 1
    expected = run(type, tensor(places.view(np.float32)), *options)
    for half, index in zip(moved, expected, strict=True):
        source = np.concatenate([np.zeros(1, np.uint16), bits.reshape(-1)])
        np.testing.assert_array_equal(half.view(np.uint16), source[index.view(np.int32)])


@pytest.mark.parametrize("type", OPTIONS, ids=lambda type: type.name)
def test_float16_is_not_widened(type: OperationType) -> None:
    source = tensor(np.zeros(SHAPE, np.float16))
    for options in OPTIONS[type]:
        outputs = OPERATIONS[type].infer([source, *options])
        kernel = OPERATIONS[type].prepare([source, *options], outputs)
        assert not any(spec.dtype == np.float32 for spec in kernel.scratch)
        assert kernel.view_of == (0 if type in (Op.RESHAPE, Op.SQUEEZE, Op.EXPAND_DIMS) else None)
