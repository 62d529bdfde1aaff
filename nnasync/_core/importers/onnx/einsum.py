"""Einsum: sums of products, as products of matrices.

An equation names the axes of each operand, and those of the result. Of two operands, axes are of
one of four kinds: those of a batch are in both and in the result, those that are summed over are in
both only, and the others belong to the rows of the first or to the columns of the second. With each
kind as one axis it is a product of matrices in a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from nnasync._core.importers.onnx.axes import merged_order
from nnasync._core.importers.onnx.dense_layers import product
from nnasync._core.importers.onnx.forms import Convert, is_float
from nnasync._core.importers.onnx.maths import Maths
from nnasync._core.importers.onnx.moving import transposed
from nnasync._core.importers.onnx.preparation import Step
from nnasync._core.importers.onnx.scope import MOST_AXES, OnnxScope
from nnasync._core.model import Value
from nnasync.errors import ModelError
from nnasync.hal import OperationType, Shape

_FURTHER = "\u03b1\u03b2\u03b3\u03b4\u03b5\u03b6"
"""Names for the axes that an ellipsis stands for, from the last one on."""


class _Term(msgspec.Struct, frozen=True, eq=False):
    """A tensor, the names of its axes, and how long these are."""

    value: Value
    names: str
    sizes: dict[str, int]

    @property
    def shape(self) -> Shape:
        """The lengths in order."""
        return tuple(self.sizes[name] for name in self.names)


def _einsum(scope: OnnxScope, step: Step) -> None:
    node = step.node
    shapes = [scope.shape(name) for name in node.inputs]
    inputs, result = _parsed(str(node.attribute("equation", "")), shapes)
    sizes: dict[str, int] = {}
    for names, shape in zip(inputs, shapes, strict=True):
        if len(set(names)) != len(names) or len(names) != len(shape):
            raise ModelError(f"has an operand with axes {names!r}")
        for name, size in zip(names, shape, strict=True):
            if sizes.setdefault(name, size) != size:
                raise ModelError(f"has axis {name!r} of {size} and {sizes[name]} entries")
    values = [scope.value_of_any_rank(name) for name in node.inputs]
    if not all(is_float(value) for value in values):
        raise ModelError("multiplies integers")
    terms = [_Term(value, names, sizes) for value, names in zip(values, inputs, strict=True)]
    total = terms.pop(0)
    while terms:
        other = terms.pop(0)
        total = _multiplied(scope, total, other, {*result, *(n for t in terms for n in t.names)})
    total = _summed(scope, total, set(result))
    total = _ordered(scope, total, result)
    scope.define(step.output, total.value, total.shape)


def _parsed(equation: str, shapes: Sequence[Shape]) -> tuple[list[str], str]:
    """The names of the axes of each operand, and of the result."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    inputs = left.split(",")
    if len(inputs) != len(shapes):
        raise ModelError(f"has {len(shapes)} inputs for equation {equation!r}")
    most = 0
    for place, (names, shape) in enumerate(zip(inputs, shapes, strict=True)):
        if "..." in names:
            count = len(shape) - len(names) + 3
            if not 0 <= count <= len(_FURTHER):
                raise ModelError(f"has equation {equation!r} for shape {list(shape)}")
            inputs[place] = names.replace("...", _FURTHER[len(_FURTHER) - count :])
            most = max(most, count)
    further = _FURTHER[len(_FURTHER) - most :]
    if not arrow:
        once = sorted(n for n in set(left) - {",", "."} if left.count(n) == 1)
        result = ("..." if most else "") + "".join(once)
    names = result.replace("...", further)
    if len(set(names)) != len(names) or not set(names) <= set("".join(inputs)):
        raise ModelError(f"has equation {equation!r}")
    return inputs, names


def _summed(scope: OnnxScope, term: _Term, kept: set[str]) -> _Term:
    """A term without the axes that nobody asks for any more."""
    gone = [name for name in term.names if name not in kept]
    if not gone:
        return term
    ordered = _ordered(scope, term, "".join([n for n in term.names if n in kept] + gone))
    rows = math.prod(term.sizes[name] for name in ordered.names[: -len(gone)])
    x = scope.reshape(ordered.value, (rows, math.prod(ordered.shape) // rows))
    total = Maths(scope).reduced(OperationType.REDUCE_SUM, x, [1])
    return _Term(total, ordered.names[: -len(gone)], term.sizes)


def _multiplied(scope: OnnxScope, a: _Term, b: _Term, kept: set[str]) -> _Term:
    """The product of two terms, without the axes that nobody asks for any more."""
    a, b = _summed(scope, a, kept | {*b.names}), _summed(scope, b, kept | {*a.names})
    batch, summed, rows, columns = (
        [name for name in names if (name in others, name in kept) in kinds]
        for names, others, kinds in (
            (a.names, b.names, ((True, True),)),
            (a.names, b.names, ((True, False),)),
            (a.names, b.names, ((False, True),)),
            (b.names, a.names, ((False, True),)),
        )
    )
    left = _matrices(scope, a, batch, rows, summed)
    right = _matrices(scope, b, batch, summed, columns)
    return _Term(product(scope, left, right), "".join([*batch, *rows, *columns]), a.sizes)


def _matrices(scope: OnnxScope, term: _Term, *kinds: list[str]) -> Value:
    """A term with one axis for each of three kinds."""
    ordered = _ordered(scope, term, "".join(name for names in kinds for name in names))
    shape = [math.prod(term.sizes[name] for name in names) for names in kinds]
    return scope.reshape(ordered.value, shape)


def _ordered(scope: OnnxScope, term: _Term, names: str) -> _Term:
    """A term with its axes in this order."""
    shape, order = merged_order(term.shape, [term.names.index(name) for name in names])
    value = scope.reshape(term.value, shape)
    if order != sorted(order):
        value = transposed(scope, value, order)
    found = _Term(value, names, term.sizes)
    if len(names) <= MOST_AXES:
        found = _Term(scope.reshape(value, found.shape or (1,)), names, term.sizes)
    return found


CONVERTERS: dict[str, Convert] = {"Einsum": _einsum}
"""How each operator becomes operations."""
