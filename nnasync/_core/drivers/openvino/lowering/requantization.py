"""From sums of whole numbers to quantized values, rounded as the rule does.

The rule multiplies by a 31 bit fraction, rounds, divides by 2**shift, and rounds again. With halves
up, that is one rounding after 2**-(shift + 1) is added, so that a single FakeQuantize can do both.
It computes in float32, which is wrong where a sum lies next to one of the places where the result
changes. As sums are whole numbers, those places may be moved as long as none of them passes a whole
number: they are moved to where the nearest is farthest away.

Where halves go away from zero and results may be below it, what is added has the sign of the sum.
OpenVINO does not fuse that behind a convolution, and so rounds the sums if it computes in bfloat16
or with bytes; there halves go up all the same, which below zero may be one step off.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnasync._core.drivers.openvino.graph_scope import Node, Scope
from nnasync.hal import Array
from nnasync.kernels import Tensor

_STEEP = 2.0**20
"""A sum times this is beyond 1, unless it is 0."""


def rescale(
    scope: Scope,
    sums: Node,
    output: Tensor,
    multiplier: Any,
    bounds: tuple[float, float],
    *,
    bias: Any = 0.0,
    halves_up: bool,
) -> Node:
    """Sums plus a bias, in steps of the output, rounded and limited to bounds of raw values.

    `multiplier` and `bias` are numbers or arrays that broadcast to the sums' shape.
    """
    factor = np.asarray(multiplier, np.float64)
    exponents = np.frexp(factor)[1]
    shift = np.where(exponents < 0, np.ldexp(0.5, exponents), 0.0)
    lowest, highest = (bound - output.zero_point for bound in bounds)
    if halves_up or lowest >= 0 or not scope.sums_are_exact:
        levels = np.arange(lowest + 1, highest + 1)
        moved = _centered(levels, factor, shift, np.asarray(bias, np.float64))
        left = bias + shift / factor - moved
        return scope.quantize(sums, output, factor, bounds, left, whole=True)
    levels = np.arange(1, max(-lowest, highest) + 1)
    nudge = shift - factor * _centered(levels, factor, shift, np.zeros(()))
    return _rounded_away(scope, sums, output, factor, bounds, np.asarray(bias), nudge)


def _centered(levels: Array, factor: Array, shift: Array, bias: Array) -> Array:
    """Returns by how much to move the places where results change, in units of the sums."""
    if not levels.size:
        return np.zeros(())
    steps = levels.reshape(-1, *(1,) * np.broadcast(factor, bias).ndim)
    places = (steps - 0.5 - shift) / factor - bias
    above = np.ceil(places) - places
    moved: Array = (above.min(axis=0) + above.max(axis=0) - 1) / 2
    return moved


def _rounded_away(
    scope: Scope,
    sums: Node,
    output: Tensor,
    factor: Array,
    bounds: tuple[float, float],
    bias: Array,
    nudge: Array,
) -> Node:
    op = scope.op
    if bias.any():
        sums = op.add(sums, scope.constant(bias.astype(np.float32)))
    # Not in steps of the output: OpenVINO would fold that factor into filters, and folds it wrong.
    signs = op.clamp(op.multiply(sums, scope.number(_STEEP)), -1.0, 1.0)
    added = scope.constant((nudge / factor).astype(np.float32))
    return scope.quantize(op.add(sums, op.multiply(signs, added)), output, factor, bounds)
