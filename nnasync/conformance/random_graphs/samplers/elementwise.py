"""Samplers of operations that work on each element: arithmetic, activations, comparisons, types."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnasync.conformance.random_graphs.graph import GraphOperand
from nnasync.conformance.random_graphs.operands import LARGEST_SCALE, Property
from nnasync.conformance.random_graphs.sketch import Pick, Sampler, TooLarge
from nnasync.hal import OperandType, OperationType, Shape
from nnasync.kernels import Operation

_ACTIVATIONS = (0, 0, 0, 1, 2, 3)
_MAX_ALPHA = 2.0
_FINEST = 64
_POSITIVE = Property.NON_NEGATIVE | Property.NON_ZERO


def any_tensor(pick: Pick, name: str, *, needs: Property = Property.NONE) -> GraphOperand:
    """Give a tensor of any shape."""
    return pick.tensor(
        name, lambda: pick.shape(pick.rank(name)), fits=lambda shape: True, needs=needs
    )


def activation(pick: Pick, *, integers: bool = False) -> None:
    """Give a fused activation; integers have none."""
    pick.scalar("activation", 0 if integers else pick.choose(_ACTIVATIONS))


def broadcast(
    pick: Pick,
    first: str,
    second: str,
    *,
    first_needs: Property = Property.NONE,
    second_needs: Property = Property.NONE,
) -> None:
    """Give two tensors of which each is stretched to the other where it has a dimension of 1."""
    shape = any_tensor(pick, first, needs=first_needs).shape
    pick.tensor(
        second,
        lambda: _partner(pick, shape),
        fits=lambda found: _stretches(shape, found),
        needs=second_needs,
    )


def _partner(pick: Pick, shape: Shape) -> Shape:
    """A shape to broadcast with: dimensions are kept or 1, some in front are left out."""
    partner = [1 if pick.chance(0.25) else size for size in shape]
    if pick.chance(0.25):
        partner = partner[pick.integer(0, len(partner) - 1) :]
    elif len(partner) < 4 and pick.chance(0.1):
        partner = [pick.integer(1, 3), *partner]
    return tuple(partner)


def _stretches(first: Shape, second: Shape) -> bool:
    pairs = zip(reversed(first), reversed(second), strict=False)
    return len(second) <= 4 and all(a == b or 1 in (a, b) for a, b in pairs)


def not_too_fine(pick: Pick, source: GraphOperand) -> None:
    """State an output scale that is not much finer than the input's."""
    scale, zero_point = pick.quantization(source.type)
    if scale:
        pick.output(0, (max(scale, float(np.float32(source.scale / _FINEST))), zero_point))


def _unary(needs: Property = Property.NONE) -> Sampler:
    def sample(pick: Pick) -> None:
        any_tensor(pick, "input", needs=needs)

    return sample


def _elu(pick: Pick) -> None:
    any_tensor(pick, "input")
    pick.scalar("alpha", pick.uniform(0, _MAX_ALPHA))


def _hard_swish(pick: Pick) -> None:
    not_too_fine(pick, any_tensor(pick, "input"))


def _any_type(pick: Pick) -> None:
    if pick.type_of("input") != OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL:
        any_tensor(pick, "input")
        return
    shape = pick.shape(pick.rank("input"))
    pick.channels("input", shape, pick.integer(0, len(shape) - 1))


def _arithmetic(pick: Pick) -> None:
    integers = pick.type_of("a") == OperandType.TENSOR_INT32
    divides = pick.operation.type == OperationType.DIV
    needs = Property.NON_ZERO if divides else Property.NONE
    broadcast(pick, "a", "b", second_needs=needs)
    activation(pick, integers=integers)


def _multiplication(pick: Pick) -> None:
    """The scale of the output is to be above the product of the others."""
    _arithmetic(pick)
    first, second = pick.given("a"), pick.given("b")
    product = float(np.float32(first.scale) * np.float32(second.scale))
    if product > LARGEST_SCALE:
        raise TooLarge
    if product:
        scale, zero_point = pick.quantization(first.type)
        scale = product * pick.uniform(32, 128) if pick.chance(0.5) else product + scale
        pick.output(0, (float(np.float32(scale)), zero_point))


def _pair(pick: Pick) -> None:
    broadcast(pick, "a", "b")


def _power(pick: Pick) -> None:
    broadcast(pick, "base", "exponent", first_needs=_POSITIVE)


def _prelu(pick: Pick) -> None:
    broadcast(pick, "input", "alpha")


def _select(pick: Pick) -> None:
    shape = any_tensor(pick, "a").shape
    pick.tensor("b", shape)
    pick.tensor("condition", shape)


SAMPLERS: Mapping[OperationType, Sampler] = {
    OperationType.ADD: _arithmetic,
    OperationType.DEQUANTIZE: _any_type,
    OperationType.DIV: _arithmetic,
    OperationType.ELU: _elu,
    OperationType.HARD_SWISH: _hard_swish,
    OperationType.LOG: _unary(_POSITIVE),
    OperationType.MUL: _multiplication,
    OperationType.POW: _power,
    OperationType.PRELU: _prelu,
    OperationType.RANK: _any_type,
    OperationType.RSQRT: _unary(_POSITIVE),
    OperationType.SELECT: _select,
    OperationType.SQRT: _unary(Property.NON_NEGATIVE),
    OperationType.SUB: _arithmetic,
}


def usual(operation: Operation) -> Sampler | None:
    """Returns the sampler of an operation on one tensor, or two broadcast ones; else None."""
    taken = {tuple(each.name for each in signature.inputs) for signature in operation.signatures}
    if taken == {("input",)}:
        return _unary()
    return _pair if taken == {("a", "b")} else None
