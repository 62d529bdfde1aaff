"""Functions of one or two 8-bit values, as tables of all their results.

A quantized operation on single elements has 256 results, and one on pairs of elements 65536: a
table made with the rule itself is exact by construction, fits the second-level cache, and costs
about as much per element as two passes of arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.hal import Array, Shape
from nnasync.kernels.broadcast import BroadcastLayout
from nnasync.kernels.fixed_point import single
from nnasync.kernels.operation import ArraySpec, Kernel, Step, Tensor, quantized_range
from nnasync.kernels.steps import Call, blocks, copy, sequence

_INDEXES_AT_ONCE = 1 << 17
"""Indexes of one block: 1 MiB of integers of 64 bits."""
_LOOKED_UP_AT_ONCE = 1 << 14
"""Bytes looked up by one call, which makes an index of 64 bits for each."""
_BYTE = np.asarray(8, np.intp)


def all_values(tensor: Tensor) -> Array:
    """The 256 values of a quantized type in ascending order, as integers less the zero point."""
    lowest, highest = quantized_range(tensor.type)
    return np.arange(lowest, highest + 1, dtype=np.int64) - tensor.zero_point


def real_values(tensor: Tensor) -> Array:
    """The real values that they stand for, in float32."""
    return all_values(tensor).astype(np.float32) * np.float32(single(tensor.scale))


def same_quantization(*tensors: Tensor) -> bool:
    """Returns whether all have the same scale and zero point."""
    return len({(tensor.scale, tensor.zero_point) for tensor in tensors}) == 1


def requantization(source: Tensor, output: Tensor) -> Array:
    """The values of one quantization as those of another: 256 integers within the output's range.

    Halves go up, which for unsigned values is away from zero, so that both 8-bit types agree.
    """
    lowest, highest = quantized_range(output.type)
    real = real_values(source).astype(np.float64)
    steps = np.floor(real / single(output.scale) + output.zero_point + 0.5)
    return np.clip(steps, lowest, highest).astype(np.int64)


def _by_byte(table: Array, source: Tensor, axis: int) -> Array:
    """A table in ascending order of a type's values, in the order of their bytes."""
    return np.roll(table, quantized_range(source.type)[0], axis)


def lookup(table: Array, source: Tensor, array: Array, target: Array) -> list[Call]:
    """Calls that put the table's value for each element of `array` into the contiguous `target`.

    `table` has the values for `source`'s type in ascending order.
    """
    by_byte = _by_byte(table, source, 0).astype(target.dtype)
    raw, flat = array.view(np.uint8).reshape(-1), target.reshape(-1)
    return [
        (by_byte.take, (raw[part], None, flat[part], "clip"))
        for part in blocks(raw.size, 1, _LOOKED_UP_AT_ONCE)
    ]


def lookup_kernel(source: Tensor, table: Array) -> Kernel:
    """The kernel that looks each value up in a table in ascending order."""

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        return sequence(lookup(table, source, inputs[0], outputs[0]))

    return Kernel(bind)


def pair_kernel(a: Tensor, b: Tensor, shape: Shape, table: Array) -> Kernel:
    """The kernel that looks each pair of broadcast values up in a table [values of a, of b]."""
    swapped = a.size < b.size
    by_byte = _by_byte(_by_byte(table, a, 0), b, 1)
    if swapped:
        layout = BroadcastLayout(b.shape, a.shape, shape, _INDEXES_AT_ONCE)
    else:
        by_byte = by_byte.T
        layout = BroadcastLayout(a.shape, b.shape, shape, _INDEXES_AT_ONCE)
    flat = np.ascontiguousarray(by_byte).reshape(-1)
    specs = [ArraySpec(layout.largest(layout.output), np.intp)]
    if layout.b != layout.output:
        specs.append(ArraySpec(layout.largest(layout.b), np.intp))

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        first, second = (array.view(np.uint8) for array in inputs[:2])
        if swapped:
            first, second = second, first
        table = flat.astype(outputs[0].dtype)
        return sequence(_pair_calls(layout, table, first, second, outputs[0], scratch))

    return Kernel(bind, specs)


def _pair_calls(
    layout: BroadcastLayout,
    table: Array,
    a: Array,
    b: Array,
    target: Array,
    scratch: Sequence[Array],
) -> list[Call]:
    """The byte of b times 256 plus the byte of a is the index."""
    a, b, target = a.reshape(layout.a), b.reshape(layout.b), target.reshape(layout.output)
    rows = scratch[-1]
    calls: list[Call] = []
    if layout.is_row(layout.b):
        calls += [copy(rows, b), (np.left_shift, (rows, _BYTE, rows))]
    for part in layout.parts:
        index = scratch[0][: part.stop - part.start]
        high = rows
        if not layout.is_row(layout.b):
            high = rows[: part.stop - part.start]
            calls += [copy(high, b[part]), (np.left_shift, (high, _BYTE, high))]
        low = a if layout.is_row(layout.a) else a[part]
        calls.append((np.add, (high, low, index)))
        calls.append((table.take, (index, None, target[part], "clip")))
    return calls
