"""SVDF of org.nnasync.tflite: 8-bit data, and time weights and state of 8 or of 16 bits.

Unlike the HAL's, the state that comes out is not moved yet: its last entry is the newest feature,
and the next run moves it first. That is how TFLite keeps it. Its sums have 32 bits, as in TFLite's
kernels: what is beyond loses its upper bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.extensions import TfliteOperation
from nnasync.hal import Array, HalVersion, OperandType
from nnasync.kernels.facts import Facts, matrices
from nnasync.kernels.fixed_point import single
from nnasync.kernels.movement.copying import like
from nnasync.kernels.operation import (
    Arguments,
    ArraySpec,
    Kernel,
    Signature,
    Step,
    Tensor,
)
from nnasync.kernels.recurrent.directions import named
from nnasync.kernels.recurrent.integer_steps import (
    Multiplier,
    exact_dtype,
    ratio,
    saturate,
    scale_of,
)
from nnasync.kernels.recurrent.svdf import SvdfSizes, svdf_parameters, svdf_sizes
from nnasync.kernels.steps import Call, copy, quantized_bounds, sequence
from nnasync.kernels.tflite.quantization import tflite_operation
from nnasync.kernels.windows.linear import activation

_Q8S, _Q8SYM = OperandType.TENSOR_QUANT8_ASYMM_SIGNED, OperandType.TENSOR_QUANT8_SYMM
_Q16S, _I32 = OperandType.TENSOR_QUANT16_SYMM, OperandType.TENSOR_INT32
_SOURCE, _FEATURE, _TIME, _BIAS, _STATE, _ACTIVATION = 0, 1, 2, 3, 4, 6


def _signatures() -> list[Signature]:
    return [
        Signature(
            HalVersion.V1_3,
            svdf_parameters(_Q8S, _Q8SYM, time, _I32, state),
            (*named(state, 2, "state"), *named(_Q8S, 2, "output")),
        )
        for time, state in ((_Q8SYM, _Q8S), (_Q16S, _Q16S))
    ]


def _infer(arguments: Arguments) -> list[Tensor]:
    sizes, state = svdf_sizes(arguments), arguments.tensor(_STATE)
    return [
        like(state, state.shape),
        Tensor(type=_Q8S, shape=(sizes.batches, sizes.units)),
    ]


class _Layer:
    """Packed weights of a layer."""

    def __init__(self, arguments: Arguments, sizes: SvdfSizes, output: Tensor) -> None:
        self.sizes = sizes
        source, state = arguments.tensor(_SOURCE), arguments.tensor(_STATE)
        weights = arguments.value(_FEATURE).astype(np.int64).T
        self.by_feature = np.ascontiguousarray(weights, exact_dtype(weights, 128))
        self.feature_bias = -source.zero_point * weights.sum(axis=0)
        self.state_zero = np.asarray(state.zero_point)
        limits = np.iinfo(state.dtype)
        self.state_limits = np.asarray(limits.min), np.asarray(limits.max)
        scales = [scale_of(arguments, index) for index in range(5) if index != _BIAS]
        by_source, by_feature, by_time, by_state = scales
        self.to_state = Multiplier([ratio(by_source, by_feature, by_state)])
        self.to_output = Multiplier([ratio(by_state, by_time, single(output.scale))])
        time = arguments.value(_TIME).astype(np.float64)
        self.by_time = time
        self.bias = -state.zero_point * time.reshape(sizes.units, -1).sum(axis=1).astype(np.int64)
        if arguments.has(_BIAS):
            self.bias = self.bias + arguments.value(_BIAS)
        most = np.abs(self.state_limits[0] - state.zero_point)
        largest = most * np.abs(time).reshape(sizes.units, -1).sum(axis=1) + np.abs(self.bias)
        self.overflows = bool(largest.max(initial=0) > np.iinfo(np.int32).max)
        self.output_zero = np.asarray(output.zero_point)
        lowest, highest = quantized_bounds(activation(arguments, _ACTIVATION), output)
        self.output_limits = np.asarray(lowest), np.asarray(highest)

    def scratch(self) -> list[ArraySpec]:
        """Scratch: input and features as floats and integers, products, sums."""
        batches, filters, _ = self.sizes.state
        units = (batches, self.sizes.units)
        return [
            ArraySpec((batches, len(self.by_feature)), self.by_feature.dtype),
            ArraySpec((batches, filters), self.by_feature.dtype),
            *[ArraySpec((batches, filters), np.int64)] * 2,
            ArraySpec(self.sizes.state, np.float64),
            ArraySpec(units, np.float64),
            *[ArraySpec(units, np.int64)] * 2,
            ArraySpec(units, np.int32),
        ]

    def new_state(
        self, source: Array, before: Array, after: Array, scratch: Sequence[Array]
    ) -> list[Call]:
        """Calls that move the state [batches, filters, memory] and add the newest features."""
        rows, features, wide, work = scratch
        return [
            copy(rows, source),
            (rows.dot, (self.by_feature, features)),
            copy(wide, features),
            (np.add, (wide, self.feature_bias, wide)),
            *self.to_state.calls(wide, work),
            (np.add, (wide, self.state_zero, wide)),
            saturate(wide, self.state_limits),
            copy(after[..., :-1], before[..., 1:]),
            copy(after[..., -1], wide),
        ]

    def output(self, state: Array, output: Array, scratch: Sequence[Array]) -> list[Call]:
        """Calls from the state to the output."""
        products, sums, wide, work, words = scratch
        return [
            copy(products, state),
            (np.multiply, (products, self.by_time, products)),
            (np.add.reduce, (products.reshape(*sums.shape, -1), -1, None, sums)),
            copy(wide, sums),
            (np.add, (wide, self.bias, wide)),
            *([copy(words, wide), copy(wide, words)] if self.overflows else []),
            *self.to_output.calls(wide, work),
            (np.add, (wide, self.output_zero, wide)),
            saturate(wide, self.output_limits),
            copy(output, wide),
        ]


def _prepare(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    sizes, given = svdf_sizes(arguments), arguments.tensor(_STATE)
    state = outputs[0]
    if (state.scale, state.zero_point) != (given.scale, given.zero_point):
        raise arguments.fail("output 0 must be quantized like the state that comes in")
    layer = _Layer(arguments, sizes, outputs[1])

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        before, after = inputs[_STATE].reshape(sizes.state), outputs[0].reshape(sizes.state)
        calls = layer.new_state(inputs[_SOURCE], before, after, scratch[:4])
        return sequence([*calls, *layer.output(after, outputs[1], scratch[4:])])

    return Kernel(bind, layer.scratch())


SVDF = tflite_operation(
    TfliteOperation.SVDF, _signatures(), _infer, _prepare, facts=Facts(multiply_adds=matrices)
)
