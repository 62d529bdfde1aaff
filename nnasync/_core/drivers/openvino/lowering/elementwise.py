"""Arithmetic, comparisons, logic and selection, element by element."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nnasync._core.drivers.openvino.graph_scope import Node, Planar, Result, Scope, is_float
from nnasync._core.drivers.openvino.lowered import (
    BOOLEANS,
    BYTES,
    INTEGERS,
    REALS,
    Build,
    Lower,
    OpenVinoUnsupported,
    Rule,
    Rules,
    one,
)
from nnasync._core.drivers.openvino.lowering.requantization import rescale
from nnasync.hal import FusedActivationFunc, OperationType, is_quantized
from nnasync.kernels import Arguments, Tensor
from nnasync.kernels.steps import float_bounds, quantized_bounds


def bounds_of(fused: int, output: Tensor) -> tuple[float, float]:
    """Returns the range that a fused activation lets through, in raw values if quantized."""
    if is_quantized(output.type):
        return quantized_bounds(fused, output)
    return float_bounds(fused)


def pointwise(
    scope: Scope, positions: Sequence[int], build: Callable[[Sequence[Node]], Node], *, real: bool
) -> Result:
    """Apply a function to inputs of the same layout, in the form in which they are there.

    With `real`, it gets quantized values times their scale, else canonical ones.
    """
    planar = scope.prefers_planar(positions)
    if real:
        nodes = [scope.real(position, planar=planar) for position in positions]
    else:
        nodes = [scope.planar(p) if planar else scope.value(p) for p in positions]
    result = build(nodes)
    return Planar(result) if planar else result


def _arithmetic(name: str) -> Lower:
    def lower(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
        output, fused = outputs[0], arguments.integer(2)
        if output.type in INTEGERS and fused != FusedActivationFunc.NONE:
            raise OpenVinoUnsupported("a fused activation of integers is not lowered")
        if output.type in INTEGERS and name == "divide":
            raise OpenVinoUnsupported("OpenVINO divides integers otherwise than the HAL")
        if output.type in INTEGERS and name == "multiply":
            raise OpenVinoUnsupported("OpenVINO multiplies integers in float32")
        if is_quantized(output.type):
            return one(lambda scope: _quantized(scope, name, output, fused))

        def build(scope: Scope) -> Result:
            function = getattr(scope.op, name)

            def apply(nodes: Sequence[Node]) -> Node:
                result = function(*nodes)
                if output.type in INTEGERS:
                    return result
                return scope.store(result, output, bounds_of(fused, output))

            return pointwise(scope, (0, 1), apply, real=False)

        return one(build)

    return lower


def _quantized(scope: Scope, name: str, output: Tensor, fused: int) -> Result:
    """Sums and products of quantized values, in steps of the output."""
    one_, other = scope.tensor(0), scope.tensor(1)
    bounds = bounds_of(fused, output)
    function = getattr(scope.op, name)
    if name == "multiply":
        product = np.float64(one_.scale) * other.scale / output.scale

        def multiply(nodes: Sequence[Node]) -> Node:
            sums = function(*map(scope.rounded, nodes))
            return rescale(scope, sums, output, product, bounds, halves_up=False)

        return pointwise(scope, (0, 1), multiply, real=False)
    scale = np.float64(other.scale) / one_.scale

    def apply(nodes: Sequence[Node]) -> Node:
        first, second = map(scope.rounded, nodes)
        if scale != 1:
            second = scope.op.multiply(second, scope.number(float(scale)))
        step = np.float64(one_.scale) / output.scale
        return scope.quantize(function(first, second), output, step, bounds)

    return pointwise(scope, (0, 1), apply, real=False)


def _extreme(name: str) -> Lower:
    def lower(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
        output = outputs[0]
        keeps = not is_quantized(output.type)

        def build(scope: Scope) -> Result:
            function = getattr(scope.op, name)

            def apply(nodes: Sequence[Node]) -> Node:
                return function(*nodes) if keeps else scope.store(function(*nodes), output)

            return pointwise(scope, (0, 1), apply, real=not keeps)

        return one(build)

    return lower


def _comparison(name: str) -> Lower:
    def lower(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
        if arguments.tensor(0).type in BOOLEANS and name not in ("equal", "not_equal"):
            raise OpenVinoUnsupported("an order of booleans is not lowered")

        quantized = is_quantized(arguments.tensor(0).type)

        def build(scope: Scope) -> Result:
            def apply(nodes: Sequence[Node]) -> Node:
                prepare = _dequantized if quantized else Scope.as_stored
                first, second = (prepare(scope, node, place) for place, node in enumerate(nodes))
                return getattr(scope.op, name)(first, second)

            return pointwise(scope, (0, 1), apply, real=not quantized)

        return one(build)

    return lower


def _dequantized(scope: Scope, node: Node, position: int) -> Node:
    """An input's whole numbers times its scale, the same for the same numbers wherever they are.

    OpenVINO makes one operation of a quantization and a product, whose zero is not quite zero;
    the rounding between keeps them apart.
    """
    whole = scope.op.round(node, "half_to_even")
    return scope.op.multiply(whole, scope.number(scope.tensor(position).scale))


def _logic(name: str, inputs: int) -> Lower:
    def lower(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
        return one(lambda scope: getattr(scope.op, name)(*(scope.value(i) for i in range(inputs))))

    return lower


def _floor(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    return one(
        lambda scope: pointwise(
            scope, (0,), lambda nodes: scope.op.floor(scope.as_stored(nodes[0], 0)), real=False
        )
    )


def _unary(name: str) -> Lower:
    def lower(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
        return one(
            lambda scope: pointwise(
                scope, (0,), lambda nodes: getattr(scope.op, name)(*nodes), real=False
            )
        )

    return lower


def _reciprocal_root(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    def build(scope: Scope) -> Result:
        def apply(nodes: Sequence[Node]) -> Node:
            return scope.op.divide(scope.number(1), scope.op.sqrt(nodes[0]))

        return pointwise(scope, (0,), apply, real=False)

    return one(build)


def _power(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    return one(
        lambda scope: pointwise(scope, (0, 1), lambda nodes: scope.op.power(*nodes), real=False)
    )


def _prelu(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    output = outputs[0]

    def build(scope: Scope) -> Result:
        op, zero = scope.op, scope.number(0)

        def apply(nodes: Sequence[Node]) -> Node:
            source, alpha = nodes
            negative = op.multiply(op.minimum(source, zero), alpha)
            return scope.store(op.add(op.relu(source), negative), output)

        return pointwise(scope, (0, 1), apply, real=True)

    return one(build)


def _select(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    output = outputs[0]

    def build(scope: Scope) -> Result:
        return scope.op.select(scope.value(0), *(_adapted(scope, i, output) for i in (1, 2)))

    return one(build)


def _adapted(scope: Scope, position: int, output: Tensor) -> Node:
    """An input with the scale and zero point of the output."""
    source = scope.tensor(position)
    same = (source.scale, source.zero_point) == (output.scale, output.zero_point)
    if same or not is_quantized(output.type):
        return scope.value(position)
    return scope.store(scope.real(position), output)


def _fill(arguments: Arguments, outputs: Sequence[Tensor]) -> Build:
    value = arguments.value(1).reshape(-1)[0]
    filled = np.full(outputs[0].shape, value)
    if is_float(outputs[0].type):
        filled = filled.astype(np.float32)
    return one(lambda scope: scope.constant(filled))


_NUMBERS = (*REALS, *BYTES, *INTEGERS)
_ANY = (*_NUMBERS, *BOOLEANS)

RULES: Rules = {
    OperationType.ADD: Rule(_arithmetic("add"), _NUMBERS),
    OperationType.SUB: Rule(_arithmetic("subtract"), _NUMBERS),
    OperationType.MUL: Rule(_arithmetic("multiply"), _NUMBERS),
    OperationType.DIV: Rule(_arithmetic("divide"), REALS),
    OperationType.MAXIMUM: Rule(_extreme("maximum"), _NUMBERS),
    OperationType.MINIMUM: Rule(_extreme("minimum"), _NUMBERS),
    OperationType.EQUAL: Rule(_comparison("equal"), _ANY),
    OperationType.NOT_EQUAL: Rule(_comparison("not_equal"), _ANY),
    OperationType.LESS: Rule(_comparison("less"), _ANY),
    OperationType.LESS_EQUAL: Rule(_comparison("less_equal"), _ANY),
    OperationType.GREATER: Rule(_comparison("greater"), _ANY),
    OperationType.GREATER_EQUAL: Rule(_comparison("greater_equal"), _ANY),
    OperationType.LOGICAL_AND: Rule(_logic("logical_and", 2), BOOLEANS),
    OperationType.LOGICAL_OR: Rule(_logic("logical_or", 2), BOOLEANS),
    OperationType.LOGICAL_NOT: Rule(_logic("logical_not", 1), BOOLEANS),
    OperationType.ABS: Rule(_unary("abs"), (*REALS, *INTEGERS)),
    OperationType.EXP: Rule(_unary("exp"), REALS),
    OperationType.FLOOR: Rule(_floor, REALS),
    OperationType.LOG: Rule(_unary("log"), REALS),
    OperationType.NEG: Rule(_unary("negative"), (*REALS, *INTEGERS)),
    OperationType.SIN: Rule(_unary("sin"), REALS),
    OperationType.SQRT: Rule(_unary("sqrt"), REALS),
    OperationType.RSQRT: Rule(_reciprocal_root, REALS),
    OperationType.POW: Rule(_power, REALS),
    OperationType.PRELU: Rule(_prelu),
    OperationType.SELECT: Rule(_select, BOOLEANS),
    OperationType.FILL: Rule(_fill, INTEGERS),
}
