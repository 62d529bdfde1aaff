"""Operators of anybody's file that end the process are refused before LiteRT sees them."""

from __future__ import annotations

import math

import pytest

from nnasync._core.formats.litert_limits import LiteRTUnsupported, check_operator, check_tensor
from nnasync.hal import Struct

SUMS = ("ADD", "SUB", "SQUARED_DIFFERENCE")
COMPARISONS = ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")


class Tensor(Struct, frozen=True):
    """A tensor of a file."""

    type: str
    scales: tuple[float, ...] = ()


def check(name: str, *tensors: Tensor) -> None:
    """The last one is the output."""
    for tensor in tensors:
        check_tensor(tensor)
    check_operator(name, tensors[:-1], tensors[-1:])


@pytest.mark.parametrize("type", ["INT8", "UINT8", "INT16"])
@pytest.mark.parametrize("name", [*SUMS, *COMPARISONS])
def test_scales_that_kernels_die_of(name: str, type: str) -> None:
    usual = Tensor(type, (0.1,))
    result = usual if name in SUMS else Tensor("BOOL")
    check(name, usual, usual, result)
    for scale in (-0.1, 0.0, math.nan, math.inf, 1e-42):
        with pytest.raises(LiteRTUnsupported):
            check(name, usual, Tensor(type, (scale,)), result)
    with pytest.raises(LiteRTUnsupported, match="without a scale"):
        check(name, usual, Tensor(type), result)


@pytest.mark.parametrize("name", SUMS)
def test_results_of_sums(name: str) -> None:
    usual = Tensor("INT8", (0.1,))
    for result in (Tensor("FLOAT32"), Tensor("INT8"), Tensor("INT8", (1e-30,))):
        with pytest.raises(LiteRTUnsupported):
            check(name, usual, usual, result)


@pytest.mark.parametrize("name", ["QUANTIZE", "BATCH_MATMUL", "RELU"])
@pytest.mark.parametrize("scale", [0.0, -0.0, -1.0])
def test_a_tensor_has_a_scale_above_0_or_none(name: str, scale: float) -> None:
    usual = Tensor("INT8", (0.1,))
    with pytest.raises(LiteRTUnsupported, match="a scale of"):
        check(name, Tensor("INT8", (scale,)), usual)
    check(name, Tensor("INT8"), Tensor("INT8"))


def test_products_of_matrices_that_the_engine_cannot_scale_up() -> None:
    factors = Tensor("INT8", (0.5,)), Tensor("INT8", (0.5,))
    check("BATCH_MATMUL", *factors, Tensor("INT8", (0.25 / 127,)))
    with pytest.raises(LiteRTUnsupported, match="fixed point"):
        check("BATCH_MATMUL", *factors, Tensor("INT8", (0.25 / 255.1,)))


def test_what_needs_no_scales() -> None:
    check("ADD", *[Tensor("INT16")] * 3)
    check("ADD", *[Tensor("INT32")] * 3)
    check("EQUAL", Tensor("BOOL"), Tensor("BOOL"), Tensor("BOOL"))
    check("CAST", Tensor("UINT8"), Tensor("FLOAT32"))
    check("CONV_2D", Tensor("INT8", (0.1,)), Tensor("INT8", (0.0, 0.2)), Tensor("INT8", (0.3,)))


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_without_a_result_is_left_to_litert_to_refuse(name: str) -> None:
    usual = Tensor("INT8", (0.1,))
    check_operator(name, [usual, usual], [])
