"""Signatures, the lookup of combinations, and what all operations share."""

from __future__ import annotations

from contextvars import copy_context

import numpy as np
import pytest

from nnasync.errors import ModelError
from nnasync.hal import HalVersion, OperandType, OperationType
from nnasync.kernels import MEMORY_BYTES, OPERATIONS, Tensor
from tests.kernels.running import integers, run, scalar, tensor, without_value


def test_every_operation_is_listed_under_its_type() -> None:
    assert all(operation.type == type for type, operation in OPERATIONS.items())


@pytest.mark.parametrize("type", OPERATIONS, ids=lambda type: type.name)
def test_signatures_are_distinct(type: OperationType) -> None:
    keys = [
        (
            tuple((p.type, p.ranks) for p in signature.inputs),
            tuple(p.type for p in signature.outputs),
        )
        for signature in OPERATIONS[type].signatures
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("type", "since"),
    [
        (OperationType.CONV_2D, HalVersion.V1_0),
        (OperationType.SUB, HalVersion.V1_1),
        (OperationType.QUANTIZE, HalVersion.V1_2),
        (OperationType.HARD_SWISH, HalVersion.V1_3),
    ],
)
def test_since(type: OperationType, since: HalVersion) -> None:
    assert OPERATIONS[type].since == since


def test_signature_finds_the_version_of_a_combination() -> None:
    t = OperandType
    add = OPERATIONS[OperationType.ADD]
    found = add.signature([t.TENSOR_INT32, t.TENSOR_INT32, t.INT32])
    assert found.since == HalVersion.V1_3
    lstm = OPERATIONS[OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM]
    assert {len(s.outputs): s.since for s in lstm.signatures} == {
        1: HalVersion.V1_2,
        3: HalVersion.V1_3,
    }


def test_variadic_signature_takes_any_number_of_tensors() -> None:
    t = OperandType
    join = OPERATIONS[OperationType.CONCATENATION]
    signature = join.signature([t.TENSOR_FLOAT32] * 5 + [t.INT32])
    assert [p.type for p in signature.parameters(6) or ()] == [t.TENSOR_FLOAT32] * 5 + [t.INT32]
    with pytest.raises(ModelError, match="CONCATENATION: has 1 inputs"):
        join.signature([t.INT32])


def test_wrong_output_types_are_named() -> None:
    t = OperandType
    relu = OPERATIONS[OperationType.RELU]
    with pytest.raises(ModelError, match="outputs are .*FLOAT16.*expected .*FLOAT32"):
        relu.signature([t.TENSOR_FLOAT32], [t.TENSOR_FLOAT16])


def test_output_that_contradicts_the_rule_is_refused() -> None:
    relu = OPERATIONS[OperationType.RELU]
    source = Tensor(type=OperandType.TENSOR_QUANT8_ASYMM, shape=(3,), scale=0.5, zero_point=3)
    wrong = Tensor(type=source.type, shape=(4,), scale=0.5, zero_point=3)
    with pytest.raises(ModelError, match=r"output 0: has shape \(4,\), expected \(3,\)"):
        relu.prepare([source], [wrong])
    wrong = Tensor(type=source.type, shape=(3,), scale=0.25, zero_point=3)
    with pytest.raises(ModelError, match=r"has scale 0.25 and zero point 3, expected 0.5 and 3"):
        relu.prepare([source], [wrong])


@pytest.mark.parametrize("type", OPERATIONS, ids=lambda type: type.name)
def test_signatures_are_well_formed(type: OperationType) -> None:
    for signature in OPERATIONS[type].signatures:
        assert signature.inputs
        assert signature.outputs
        names = [parameter.name for parameter in signature.inputs]
        assert len(set(names)) == len(names)
        types = [[p.type for p in side] for side in (signature.inputs, signature.outputs)]
        assert signature.accepts(*types)


def test_value_known_only_at_run_time_gives_an_unknown_shape_but_runs() -> None:
    source = tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    shape = integers(3, -1)
    unknown = Tensor(type=OperandType.TENSOR_INT32, shape=(2,))
    assert OPERATIONS[OperationType.RESHAPE].infer([source, unknown])[0].shape == ()
    (got,) = run(OperationType.MEAN, source, integers(1), scalar(0), runtime=(0, 1))
    np.testing.assert_allclose(got, [1, 4])
    (got,) = run(OperationType.RESHAPE, source, shape, runtime=(0, 1))
    np.testing.assert_array_equal(got, np.arange(6).reshape(3, 2))


def test_extreme_scales_raise_no_warnings() -> None:
    lowest, highest = 2.0**-149, float(np.finfo(np.float32).max)
    weights = tensor(np.full((2, 2), 255, np.uint8), scale=highest)
    source = tensor(np.full((1, 2), 255, np.uint8), scale=highest)
    bias = tensor(np.zeros(2, np.int32))
    operation = OPERATIONS[OperationType.FULLY_CONNECTED]
    output = Tensor(type=OperandType.TENSOR_QUANT8_ASYMM, shape=(1, 2), scale=lowest)
    with np.errstate(all="raise"):
        with pytest.raises(ModelError, match="has scale 0.0, expected inf"):
            operation.minimum_version([source, weights, bias, scalar(0)], [output])
        run(OperationType.EQUAL, source, weights)


def test_outputs_take_no_more_memory_than_there_is() -> None:
    source = Tensor(type=OperandType.TENSOR_FLOAT32, shape=(1, 50, 50, 4))
    inputs = [source, *map(scalar, (1, 1, 1, 1, 1, 0))]
    operation = OPERATIONS[OperationType.AVERAGE_POOL_2D]
    outputs = operation.infer(inputs)
    context = copy_context()
    context.run(MEMORY_BYTES.set, 40_000)
    context.run(operation.prepare, inputs, outputs)
    context.run(MEMORY_BYTES.set, 39_999)
    with pytest.raises(ModelError, match="its outputs would take 40000 bytes .* at most 39999"):
        context.run(operation.prepare, inputs, outputs)


def test_scratch_of_weights_that_a_run_brings_is_limited_too() -> None:
    source = tensor(np.ones((1, 8, 8, 1), np.float32))
    filter, bias = tensor(np.ones((1, 3, 3, 1), np.float32)), tensor(np.ones(1, np.float32))
    inputs = [source, filter, bias, *map(scalar, (1, 1, 1, 0))]
    operation = OPERATIONS[OperationType.CONV_2D]
    outputs = operation.infer(inputs)
    kernel = operation.prepare([*map(without_value, inputs[:3]), *inputs[3:]], outputs)
    results = [np.empty(output.shape, np.float32) for output in outputs]
    step = kernel.bind([each.value for each in inputs], results, [])
    context = copy_context()
    context.run(MEMORY_BYTES.set, 256)
    with pytest.raises(ModelError, match="CONV_2D: its scratch would take"):
        context.run(step)
    step()
    assert results[0][0, 4, 4, 0] == 10
