"""What LiteRT survives of the scales in a file, whether we wrote it or somebody else did.

A scale comes from a file, and any positive float32 is legal. The engine's arithmetic is narrower,
and where it ends it ends the process instead of refusing the model:

* XNNPACK defines no tensor whose scale is denormal, and does not look where LiteRT's delegate tells
  it to go on without one.
* Kernels multiply in fixed point: an integer of 31 bits and a shift. The ratios of scales that are
  encoded so must be finite and below 2 to the power of 31, the width of what is shifted.
* Sums are computed in units of twice the larger scale over 2 to the power of 20 (of 15 for words).
  A result with a finer scale than that is a failed check of the kernel, which aborts; so is twice a
  scale, or a scale times that power, which is no float32 any more.
* XNNPACK scales products of matrices up by at most 255 (less than 128 here), and LiteRT's delegate
  does not look whether it may.
* Sums, differences and comparisons of bytes and words take their scales to be there, and positive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np


class LiteRTUnsupported(Exception):
    """An operation cannot be lowered; the message says why."""


class Quantized(Protocol):
    """A tensor of a file: its type by the schema's name, and its scales, none if it has none."""

    @property
    def type(self) -> str: ...

    @property
    def scales(self) -> tuple[float, ...]: ...


_SMALLEST = float(np.finfo(np.float32).tiny)
_LARGEST = float(np.finfo(np.float32).max)
_MOST_SHIFT = 31
_MOST_SHIFT_OF_MATRICES = 7
_SHIFTS_OF_SUMS = {"INT16": 15}
_SHIFT_OF_SUMS = 20
_NARROW = ("INT8", "UINT8", "INT16")
_SUMS = ("ADD", "SUB", "SQUARED_DIFFERENCE")
_COMPARISONS = ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
WITH_RULES = frozenset({*_SUMS, *_COMPARISONS, "RSQRT", "BATCH_MATMUL"})
"""Operators at which `check_operator` looks."""


def check_scales(scales: Sequence[float]) -> None:
    """Raise Unsupported for a scale that the engine has no tensor for."""
    for scale in scales:
        if not _SMALLEST <= scale <= _LARGEST:
            raise LiteRTUnsupported(
                f"a scale of {scale:g}, the engine takes those from {_SMALLEST:g} to {_LARGEST:g}"
            )


def check_tensor(tensor: Quantized) -> None:
    """Raise Unsupported for a tensor of anybody's file that ends the process where it is used."""
    if tensor.type in _NARROW:
        # Of scales by channel, that of one whose weights are all 0 may be 0 itself.
        scales = tensor.scales
        check_scales(scales if len(scales) < 2 else [scale for scale in scales if scale])


def check_operator(name: str, inputs: Sequence[Quantized], outputs: Sequence[Quantized]) -> None:
    """Raise Unsupported for an operator of anybody's file that ends the process.

    Its tensors are those that `check_tensor` takes. What LiteRT refuses by itself, with an error,
    passes.
    """
    if name not in WITH_RULES:
        return
    compared = [*inputs, *outputs] if name in _SUMS else list(inputs)
    if not any(tensor.type in _NARROW for tensor in compared):
        return
    if name != "BATCH_MATMUL":
        plain = name in ("ADD", "SUB") and all(each.type == "INT16" for each in compared)
        if plain and not any(tensor.scales for tensor in compared):
            return
        if not all(tensor.scales and min(tensor.scales) > 0 for tensor in compared):
            raise LiteRTUnsupported("a tensor of integers without a scale")
    if name in _SUMS:
        for output in outputs[:1]:
            _check_sum(inputs, output)
    if name == "BATCH_MATMUL":
        check_multipliers(name, inputs, outputs)


def check_multipliers(name: str, inputs: Sequence[Quantized], outputs: Sequence[Quantized]) -> None:
    """Raise Unsupported where the kernel of an operator cannot encode the ratio of its scales."""
    for output in outputs[:1]:
        if output.scales:
            _CHECKS.get(name, _check_each)(inputs, output)


def _check_each(inputs: Sequence[Quantized], output: Quantized) -> None:
    """Checks that each input can be brought to the scale of the output."""
    for tensor in inputs:
        if tensor.scales and tensor.type != "INT32":
            _check_multiplier(max(tensor.scales), output)


def _check_product(inputs: Sequence[Quantized], output: Quantized) -> None:
    """Products have the product of both scales."""
    _check_multiplier(_scale_of_products(inputs), output)


def _check_product_of_matrices(inputs: Sequence[Quantized], output: Quantized) -> None:
    _check_multiplier(_scale_of_products(inputs), output, _MOST_SHIFT_OF_MATRICES)


def _scale_of_products(factors: Sequence[Quantized]) -> float:
    return math.prod(max(each.scales) for each in factors if each.scales and each.type != "INT32")


def _check_sum(inputs: Sequence[Quantized], output: Quantized) -> None:
    """Sums are computed in common units and brought to the scale of the output."""
    twice = 2 * max((max(each.scales) for each in inputs if each.scales), default=0.0)
    shift = _SHIFTS_OF_SUMS.get(output.type, _SHIFT_OF_SUMS)
    unit = math.ldexp(output.scales[0], shift)
    if not twice < unit <= _LARGEST or twice > _LARGEST:
        raise LiteRTUnsupported(
            f"a sum of numbers with a scale of {twice / 2:g} in one of {output.scales[0]:g}, which"
            " the engine's fixed point cannot hold"
        )


def _check_multiplier(scale: float, output: Quantized, most_shift: int = _MOST_SHIFT) -> None:
    least = min(output.scales)
    if not scale < math.ldexp(least, most_shift) or scale > _LARGEST:
        raise LiteRTUnsupported(
            f"a scale of {scale:g} brought to one of {least:g}, which the engine's fixed point"
            " cannot hold"
        )


_Check = Callable[[Sequence[Quantized], Quantized], None]

_CHECKS: Mapping[str, _Check] = {
    **dict.fromkeys(("ADD", "SUB"), _check_sum),
    **dict.fromkeys(
        (
            "CONV_2D",
            "DEPTHWISE_CONV_2D",
            "FULLY_CONNECTED",
            "MUL",
            "TRANSPOSE_CONV",
        ),
        _check_product,
    ),
    "BATCH_MATMUL": _check_product_of_matrices,
}
