"""Pieces of work: few are kept as calls, many are made as they come."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from nnasync.hal import Array, OperandType, OperationType
from nnasync.kernels import OPERATIONS, Tensor
from nnasync.kernels.steps import Call, pieces
from tests.kernels.running import scalar, tensor

FILTER = tensor(np.ones((2, 2, 2, 2), np.float32))
BIAS = tensor(np.ones(2, np.float32))


@pytest.mark.parametrize("count", [0, 1, 256, 257, 1000])
def test_all_pieces_are_done_in_order_at_each_run(count: int) -> None:
    done: list[int] = []
    made = 0

    def make() -> Iterator[Call]:
        nonlocal made
        made += 1
        for number in range(count):
            yield done.append, (number,)

    step = pieces(count, make)
    for _ in range(3):
        done.clear()
        step()
        assert done == list(range(count))
    assert made == (1 if count <= 256 else 3)


@pytest.mark.parametrize(
    ("type", "rest"),
    [
        (OperationType.CONV_2D, (FILTER, BIAS, 1, 1, 1, 0)),
        (OperationType.DEPTHWISE_CONV_2D, (FILTER, BIAS, 1, 1, 1, 1, 0)),
        (OperationType.GROUPED_CONV_2D, (FILTER, BIAS, 1, 1, 1, 1, 0, False)),
        (OperationType.MAX_POOL_2D, (1, 1, 1, 2, 2, 0)),
        (OperationType.AVERAGE_POOL_2D, (2, 1, 1, 2, 2, 0)),
        (OperationType.RESIZE_BILINEAR, (3, 3)),
        (OperationType.RESIZE_NEAREST_NEIGHBOR, (3, 3, False)),
        (OperationType.TRANSPOSE_CONV_2D, (FILTER, BIAS, None, 1, 1, 1, 0, False)),
    ],
)
def test_a_large_batch_is_computed_as_a_small_one_in_little_memory(
    type: OperationType, rest: tuple[Any, ...]
) -> None:
    batch = 3000
    array = np.random.default_rng(0).normal(size=(batch, 2, 2, 2)).astype(np.float32)

    def bound(images: Any) -> Array:
        source = Tensor(type=OperandType.TENSOR_FLOAT32, shape=images.shape)
        inputs = [source, *(each if isinstance(each, Tensor) else scalar(each) for each in given)]
        operation = OPERATIONS[type]
        outputs = operation.infer(inputs)
        kernel = operation.prepare(inputs, outputs)
        results = [np.empty(output.shape, output.dtype) for output in outputs]
        scratch = [np.empty(spec.shape, spec.dtype) for spec in kernel.scratch]
        values = [images, *(each.value for each in inputs[1:])]
        tracemalloc.start(1)
        step = kernel.bind(values, results, scratch)
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        step()
        assert taken < 200_000
        result: Array = results[0]
        return result

    given = tuple(shaped(type, each, batch) for each in rest)
    whole = bound(array)
    given = tuple(shaped(type, each, 1) for each in rest)
    for index in (0, 257, batch - 1):
        np.testing.assert_array_equal(whole[index : index + 1], bound(array[index : index + 1]))


def shaped(type: OperationType, part: Any, batch: int) -> Any:
    """An argument, as the operation and the batch need it."""
    if part is None:
        return tensor(np.array([batch, 2, 2, 2], np.int32))
    if part is FILTER and type == OperationType.DEPTHWISE_CONV_2D:
        return tensor(np.ones((1, 2, 2, 2), np.float32))
    return part
