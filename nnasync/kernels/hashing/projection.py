"""LSH_PROJECTION: locality-sensitive hashing of rows to bits.

A bit is the sign of the weighted sum, over the rows of the input, of the fingerprint of a seed and
the row's bytes. The seeds are the elements of `hash`: each of its rows is one hash of so many bits.
Dense output is one element for each bit, sparse output one for each hash, its first bit the
highest; the newer sparse form also tells hashes apart, by the hash's index above its bits. Only
dense projections have weights.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, HalVersion, OperandType, OperationType
from nnasync.kernels.facts import Facts
from nnasync.kernels.hashing.farmhash import fingerprint64
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
from nnasync.kernels.steps import blocks

_HASHES = {
    OperandType.TENSOR_FLOAT32: HalVersion.V1_0,
    OperandType.TENSOR_FLOAT16: HalVersion.V1_2,
}
_INPUTS = {
    OperandType.TENSOR_FLOAT32: HalVersion.V1_0,
    OperandType.TENSOR_INT32: HalVersion.V1_0,
    OperandType.TENSOR_QUANT8_ASYMM: HalVersion.V1_0,
    OperandType.TENSOR_FLOAT16: HalVersion.V1_2,
}
_MOST_BITS = 32
_SEED_BYTES = 4
_KEY_BYTES = 1 << 20


class _Form(enum.IntEnum):
    """The values of the argument `type`."""

    SPARSE_DEPRECATED = 1
    DENSE = 2
    SPARSE = 3


def _form(arguments: Arguments) -> _Form:
    form = arguments.integer(3)
    if form not in set(_Form):
        raise arguments.error(3, f"is {form}, expected 1, 2 or 3")
    return _Form(form)


def _check_weight(arguments: Arguments, form: _Form, weight: Array | None) -> None:
    """Raises ModelError; known only when it runs, as an input of the model may be omitted then."""
    if (weight is None) == (form == _Form.DENSE):
        word = "given" if weight is None else "omitted"
        raise arguments.error(2, f"must be {word} where the type is {form}")


def _infer(arguments: Arguments) -> list[Tensor]:
    hashes, bits = arguments.tensor(0).shape
    if bits > _MOST_BITS:
        raise arguments.error(0, f"has {bits} bits a hash, expected at most {_MOST_BITS}")
    dense = _form(arguments) == _Form.DENSE
    if dense:
        arguments.check_shape(2, arguments.tensor(1).shape[:1])
    return [Tensor(type=OperandType.TENSOR_INT32, shape=(hashes * bits if dense else hashes,))]


def _prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    form = _form(arguments)
    hashes, bits = arguments.tensor(0).shape
    source = arguments.tensor(1)
    rows = source.shape[0]
    dtype = np.dtype(np.float16) if source.widened else source.dtype
    length = dtype.itemsize * math.prod(source.shape[1:])
    parts = list(blocks(hashes * bits, rows * (_SEED_BYTES + length), _KEY_BYTES))
    keys = ArraySpec((parts[0].stop, rows, _SEED_BYTES + length), np.uint8)

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        def step() -> None:
            _check_weight(arguments, form, inputs[2])
            content = inputs[1].astype(dtype, copy=False).view(np.uint8).reshape(rows, length)
            seeds = inputs[0].astype(np.float32).reshape(-1, 1, 1).view(np.uint8)
            found = np.empty(hashes * bits, np.bool_)
            for part in parts:
                work = scratch[0][: part.stop - part.start]
                work[..., :_SEED_BYTES] = seeds[part]
                work[..., _SEED_BYTES:] = content
                found[part] = _score(work, inputs[2]) > 0
            outputs[0][:] = found if form == _Form.DENSE else _pack(found, (hashes, bits), form)

        return step

    return Kernel(bind, [keys])


def _score(keys: Array, weight: Array | None) -> Array:
    """The weighted sum of the fingerprints of keys [seeds, rows, bytes], in the order of rows."""
    prints = fingerprint64(keys.reshape(-1, keys.shape[-1])).view(np.int64)
    terms = prints.astype(np.float64).reshape(keys.shape[:2])
    if weight is not None:
        terms *= weight.astype(np.float64)
    sums: Array = np.add.accumulate(terms, -1)[:, -1]
    return sums


def _pack(found: Array, shape: tuple[int, int], form: _Form) -> Array:
    """The bits of each hash as one number, that wraps to 32 bits."""
    hashes, bits = shape
    places = np.uint64(1) << np.arange(bits - 1, -1, -1, dtype=np.uint64)
    numbers = np.where(found.reshape(shape), places, np.uint64(0)).sum(-1, dtype=np.uint64)
    if form == _Form.SPARSE:
        numbers += np.arange(hashes, dtype=np.uint64) << np.uint64(bits)
    packed: Array = numbers.astype(np.uint32).view(np.int32)
    return packed


def _signatures() -> list[Signature]:
    return [
        Signature(
            max(since, input_since),
            (
                Parameter("hash", hash, ranks=(2,)),
                Parameter("input", input),
                Parameter("weight", hash, optional=True, ranks=(1,)),
                Parameter("type", OperandType.INT32),
            ),
            (Parameter("output", OperandType.TENSOR_INT32),),
        )
        for hash, since in _HASHES.items()
        for input, input_since in _INPUTS.items()
    ]


LSH_PROJECTION = Operation(
    OperationType.LSH_PROJECTION, _signatures(), _infer, _prepare, facts=Facts(fragile=True)
)
