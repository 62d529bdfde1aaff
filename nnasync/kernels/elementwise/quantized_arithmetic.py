"""Quantized MUL and PRELU by the fixed-point rule, for all pairs of values at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnasync.hal import Array
from nnasync.kernels.byte_tables import all_values, pair_kernel
from nnasync.kernels.fixed_point import (
    multiply_by_quantized_multiplier,
    quantize_multiplier,
    quantize_multiplier_below_one,
    single,
)
from nnasync.kernels.operation import Arguments, Kernel, Tensor, quantized_range
from nnasync.kernels.steps import quantized_bounds


def product_scale(arguments: Arguments) -> float:
    """Scale of the products of arguments 0 and 1, a product of float32."""
    return single(single(arguments.tensor(0).scale) * single(arguments.tensor(1).scale))


def product_kernel(arguments: Arguments, output: Tensor, fused: int) -> Kernel:
    """MUL: (a - zero) * (b - zero), scaled."""
    a, b = arguments.tensor(0), arguments.tensor(1)
    multiplier = product_scale(arguments) / single(output.scale)
    pair = quantize_multiplier_below_one(arguments, multiplier)
    products = np.multiply.outer(all_values(a), all_values(b))
    table = multiply_by_quantized_multiplier(products, *pair) + output.zero_point
    return pair_kernel(a, b, output.shape, np.clip(table, *quantized_bounds(fused, output)))


def prelu_kernel(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    """PRELU: a value that is not negative is scaled to the output, others times alpha first."""
    a, b, output = arguments.tensor(0), arguments.tensor(1), outputs[0]
    positive = quantize_multiplier(single(single(a.scale) / single(output.scale)))
    negative = quantize_multiplier(product_scale(arguments) / single(output.scale))
    x, alpha = all_values(a)[:, None], all_values(b)
    table: Array = np.where(
        x >= 0,
        multiply_by_quantized_multiplier(x, *positive),
        multiply_by_quantized_multiplier(x * alpha, *negative),
    )
    clamped = np.clip(table + output.zero_point, *quantized_range(output.type))
    return pair_kernel(a, b, output.shape, clamped)
