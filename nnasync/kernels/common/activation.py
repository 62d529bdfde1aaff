"""GELU and ROUND.

GELU is each number times the share of a normal distribution that is below it. That share comes from
the error function, or from the usual approximation by a hyperbolic tangent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnasync.extensions import CommonOperation
from nnasync.hal import Array, OperandType
from nnasync.kernels.common import common_operation
from nnasync.kernels.facts import MEDIUM
from nnasync.kernels.operation import Arguments, ArraySpec, Kernel, Parameter, Step, Tensor
from nnasync.kernels.steps import Call, blocks, clip, sequence
from nnasync.kernels.uniform import FLOATS, same_shape, signatures

_NUMERATOR = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
_DENOMINATOR = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)
"""The error function is x * numerator(x * x) / denominator(x * x), to the precision of float32."""
_FLAT = 4.0
"""Beyond it the error function is 1 in float32."""
_LEAST = -10.0
"""Below it the result is 0, which rounding of the share must not spoil; the tanh is flat there."""
_INNER, _CUBE = math.sqrt(2 / math.pi), 0.044715


def _number(value: float) -> Array:
    return np.asarray(value, np.float32)


def _polynomial(coefficients: Sequence[float], x: Array, target: Array) -> list[Call]:
    """Calls of the polynomial of x, by Horner's rule."""
    first, second, *rest = (_number(value) for value in coefficients)
    calls: list[Call] = [(np.multiply, (x, first, target)), (np.add, (target, second, target))]
    for value in rest:
        calls += [(np.multiply, (target, x, target)), (np.add, (target, value, target))]
    return calls


def erf_calls(x: Array, square: Array, work: Array) -> list[Call]:
    """Calls of the error function of float32 in place; `square` and `work` are like `x`."""
    return [
        (clip, (x, _number(-_FLAT), _number(_FLAT), x)),
        (np.multiply, (x, x, square)),
        *_polynomial(_NUMERATOR, square, work),
        (np.multiply, (x, work, x)),
        *_polynomial(_DENOMINATOR, square, work),
        (np.divide, (x, work, x)),
    ]


def _tanh_calls(x: Array, square: Array) -> list[Call]:
    """Calls of tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)) in place."""
    return [
        (np.multiply, (x, x, square)),
        (np.multiply, (square, _number(_INNER * _CUBE), square)),
        (np.add, (square, _number(_INNER), square)),
        (np.multiply, (x, square, x)),
        (np.tanh, (x, x)),
    ]


def _prepare_round(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    """To the nearest whole number, halves to the even one."""

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        return sequence([(np.rint, (inputs[0], outputs[0]))])

    return Kernel(bind)


def _prepare_gelu(arguments: Arguments, outputs: Sequence[Tensor]) -> Kernel:
    approximate = arguments.flag(1)
    parts = list(blocks(outputs[0].size, 1))
    specs = [ArraySpec((parts[0].stop,))] * 3

    def bind(inputs: Sequence[Any], outputs: Sequence[Array], scratch: Sequence[Array]) -> Step:
        source, target = inputs[0].reshape(-1), outputs[0].reshape(-1)
        calls: list[Call] = []
        for part in parts:
            share, square, work = (array[: part.stop - part.start] for array in scratch)
            if approximate:
                calls.append((clip, (source[part], _number(_LEAST), _number(-_LEAST), share)))
                calls += _tanh_calls(share, square)
            else:
                calls.append((np.multiply, (source[part], _number(math.sqrt(0.5)), share)))
                calls += erf_calls(share, square, work)
            calls += [
                (np.add, (share, _number(1), share)),
                (clip, (source[part], _number(_LEAST), _number(math.inf), square)),
                (np.multiply, (share, square, share)),
                (np.multiply, (share, _number(0.5), target[part])),
            ]
        return sequence(calls)

    return Kernel(bind, specs)


GELU = common_operation(
    CommonOperation.GELU,
    signatures(FLOATS, ("input",), Parameter("approximate", OperandType.BOOL)),
    same_shape,
    _prepare_gelu,
)
ROUND = common_operation(
    CommonOperation.ROUND, signatures(FLOATS, ("input",)), same_shape, _prepare_round, facts=MEDIUM
)
