"""RANDOM_MULTINOMIAL: classes drawn with the probabilities that logits give them.

The numbers come from Philox, a generator that counts: a pair of seeds is its key, so the same pair
draws the same samples at each run. The pair (0, 0) draws other ones each time. A class is where the
running sum of exp(logit - largest) passes a number below the total; a logit that is not finite has
no chance, and a row of such draws the number of classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, OperationType, Shape
from nnasync.kernels.facts import Facts
from nnasync.kernels.operation import (
    Arguments,
    ArraySpec,
    Kernel,
    Operation,
    Parameter,
    Signature,
    Step,
    Tensor,
)

_TYPES = (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16)
_MANTISSA_BITS = 53


def _infer(arguments: Arguments) -> list[Tensor]:
    rows = arguments.tensor(0).shape[0]
    return [Tensor(type=OperandType.TENSOR_INT32, shape=(rows, arguments.integer(1, 0)))]


def _uniform(generator: np.random.Philox, shape: Shape) -> Array:
    """Numbers in [0, 1) of 53 bits each."""
    raw = generator.random_raw(int(np.prod(shape))).reshape(shape)
    numbers: Array = (raw >> np.uint64(64 - _MANTISSA_BITS)) * 2.0**-_MANTISSA_BITS
    return numbers


def _prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    seeds = arguments.integers(2)
    if len(seeds) != 2:
        raise arguments.error(2, f"has {len(seeds)} elements, expected 2")
    shape = outputs[0].shape
    key = np.asarray(seeds, np.int64).astype(np.uint64)
    numbers = _uniform(np.random.Philox(key=key), shape) if any(seeds) else np.empty(0)
    logits = arguments.tensor(0).shape

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        generator = None if any(seeds) else np.random.Philox()

        def step() -> None:
            _running_sums(inputs[0], *scratch)
            drawn = numbers if generator is None else _uniform(generator, shape)
            for sums, row, target in zip(scratch[0], drawn, outputs[0], strict=True):
                target[:] = sums.searchsorted(row * sums[-1], "right")

        return step

    return Kernel(bind, [ArraySpec(logits, np.float64), ArraySpec(logits, np.bool_)])


def _running_sums(logits: Array, sums: Array, finite: Array) -> None:
    """Fills each row of `sums` with the running sum of exp(logit - largest)."""
    np.isfinite(logits, finite)
    largest = np.max(logits, -1, keepdims=True, initial=np.finfo(np.float32).min, where=finite)
    sums.fill(0)
    np.subtract(logits, largest, sums, where=finite, dtype=np.float64)
    np.exp(sums, sums, where=finite)
    np.cumsum(sums, -1, out=sums)


RANDOM_MULTINOMIAL = Operation(
    OperationType.RANDOM_MULTINOMIAL,
    [
        Signature(
            HalVersion.V1_2,
            (
                Parameter("logits", type, ranks=(2,)),
                Parameter("sample_count", OperandType.INT32),
                Parameter("seeds", OperandType.TENSOR_INT32, ranks=(1,)),
            ),
            (Parameter("output", OperandType.TENSOR_INT32),),
        )
        for type in _TYPES
    ],
    _infer,
    _prepare,
    facts=Facts(fragile=True),
)
