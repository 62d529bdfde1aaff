"""How large the values of a graph become when LiteRT runs it, also where the file says otherwise.

LiteRT finds the shape of each result by itself, from the shapes before it and from constants such
as the size of a picture; what the file states for it counts for nothing. So results are compared
here with what they are made of, by the few operators that can give more than they are given. What a
result has in excess of what is stated, everything that is computed of it may have, too: converters
state 1 for sizes that they do not know, so that is no fault by itself. By how much it is larger is
known for each size as long as operators keep these apart: a row more on each side of a picture, at
each of twenty convolutions, is forty rows more, though 1 is stated for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from nnasync._core.formats.value_sizes import check_value, most_bytes
from nnasync._core.importers.tflite.tflite_file import Graph, OperatorInfo
from nnasync.hal import Array, Shape

_BYTES = {
    **dict.fromkeys(("FLOAT64", "INT64", "UINT64", "COMPLEX64"), 8),
    **dict.fromkeys(("FLOAT32", "INT32", "UINT32"), 4),
    **dict.fromkeys(("FLOAT16", "BFLOAT16", "INT16", "UINT16"), 2),
    "COMPLEX128": 16,
}
_INTEGERS = ("INT32", "INT64")
_NUMBERS = (*_INTEGERS, "FLOAT32")
_TABLE_BYTES = 40
"""XNNPACK interpolates by a table with four addresses and two weights for each pixel."""
_NOTHING: frozenset[int] = frozenset()
_SAME = 0
"""The number of the padding with which windows are put at every step."""


class _Site:
    """An operator with its tensors, and the constants among them."""

    def __init__(
        self, graph: Graph, operator: OperatorInfo, data: memoryview, known: Mapping[int, Shape]
    ) -> None:
        """`known` has the shapes of results, whatever is stated for them."""
        self.operator = operator
        self._tensors, self._data, self._known = graph.tensors, data, known

    @property
    def shapes(self) -> list[Shape]:
        """Returns the shapes of all inputs that are there."""
        indexes = self.operator.inputs
        return [self.shape(place) for place, index in enumerate(indexes) if index >= 0]

    def shape(self, place: int) -> Shape:
        """The shape of an input; a LookupError where it has none."""
        index = self._input(place)
        return self._known[index] if index in self._known else self._tensors[index].shape

    def _input(self, place: int) -> int:
        """The number of the tensor of an input; a LookupError where it is left out."""
        index = self.operator.inputs[place]
        if index < 0:
            raise LookupError(place)
        return index

    def numbers(self, place: int) -> list[float]:
        """The numbers of a constant; a LookupError where only a run tells them."""
        info = self._tensors[self._input(place)]
        if not info.length or info.type not in _NUMBERS:
            raise LookupError(place)
        data = self._data[info.offset : info.offset + info.length]
        found: Array = np.frombuffer(data, info.type.lower())
        numbers: list[float] = found.tolist()
        return numbers

    def option(self, name: str) -> int:
        """An option that is a number, 0 where it is not stated."""
        return int(self.operator.options.get(name, 0))  # type: ignore[arg-type]  # it is none else


def check_sizes(graph: Graph, data: memoryview, value_limit_bytes: int | None = None) -> None:
    """Raise ModelError where a value takes more memory than it may, or one of such a file."""

    def check(label: str, shape: Shape, nbytes: int) -> None:
        check_value(label, shape, nbytes, len(data), value_limit_bytes)

    excess: dict[int, float] = {}
    known: dict[int, Shape] = {}
    most = most_bytes(len(data), value_limit_bytes)
    for operator in graph.operators:
        larger = {index for index in operator.inputs if index in excess} if excess else _NOTHING
        is_known = larger <= known.keys()
        site = _Site(graph, operator, data, known if is_known else {})
        if operator.name == "RESIZE_BILINEAR":
            pixels = math.prod(_sizes(_listed(1), site))
            check(f"{_named(operator)}: a table", (pixels,), pixels * _TABLE_BYTES)
        rule = _RULES.get(operator.name)
        sizes = _NONE if rule is None else _sizes(rule, site)
        factor = max([excess[index] for index in larger], default=1.0)
        for index in operator.outputs:
            info = graph.tensors[index]
            stated = max(1, math.prod(info.shape))
            by_rule = max(1.0, math.prod(sizes) / stated)
            if not is_known:
                by_rule *= factor
            elif sizes == _NONE:
                by_rule = factor
            if by_rule > 1:
                excess[index] = by_rule
            if is_known and sizes != _NONE and operator.name not in _COUNTED:
                known[index] = sizes
            nbytes = math.ceil(by_rule * stated) * _BYTES.get(info.type, 1)
            if nbytes > most:
                check(f"{_named(operator)}: a result", info.shape, nbytes)


def _named(operator: OperatorInfo) -> str:
    return f"operator {operator.index} ({operator.name})"


def _sizes(rule: _Rule, site: _Site) -> Shape:
    """The sizes of a result as far as inputs tell them; `_NONE` where they do not."""
    try:
        sizes = tuple(map(int, rule(site)))
    except (LookupError, ValueError, OverflowError, ZeroDivisionError):
        return _NONE
    return sizes if min(sizes, default=1) > 0 else _NONE


def _unknown(site: _Site) -> Sequence[float]:
    raise LookupError(site.operator.name)


def _broadcast(site: _Site) -> Sequence[float]:
    """Returns the sizes of shapes that are broadcast to each other."""
    shapes = site.shapes
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    rank = max(map(len, shapes))
    wide = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return [max(sizes) for sizes in zip(*wide, strict=True)]


def _as_first(site: _Site) -> Sequence[float]:
    """Returns the sizes of the first input."""
    return site.shape(0)


def _reduced(site: _Site) -> Sequence[float]:
    """Returns the sizes of a reduction."""
    sizes = list(site.shape(0))
    for axis in site.numbers(1) if site.option("KeepDims") else _unknown(site):
        sizes[int(axis)] = 1
    return sizes


def _transposed(site: _Site) -> Sequence[float]:
    sizes = site.shape(0)
    return [sizes[int(axis)] for axis in site.numbers(1)]


def _reshaped(site: _Site) -> Sequence[float]:
    sizes = site.numbers(1)
    rest = math.prod(site.shape(0)) // abs(int(math.prod(sizes)))
    return [rest if n == -1 else n for n in sizes]


def _listed(place: int) -> Callable[[_Site], Sequence[float]]:
    """Returns a function that gives the sizes stated by a constant input."""
    return lambda site: site.numbers(place)


def _resized(site: _Site) -> Sequence[float]:
    batch, *_, channels = site.shape(0)
    height, width = site.numbers(1)
    return batch, height, width, channels


def _padded(site: _Site) -> Sequence[float]:
    around: list[list[float]] = np.reshape(site.numbers(1), (-1, 2)).tolist()
    return [n + sum(more) for n, more in zip(site.shape(0), around, strict=True)]


def _tiled(site: _Site) -> Sequence[float]:
    return [n * times for n, times in zip(site.shape(0), site.numbers(1), strict=True)]


def _one_hot(site: _Site) -> Sequence[float]:
    return [math.prod(site.shape(0)) * site.numbers(1)[0]]


def _range(site: _Site) -> Sequence[float]:
    first, end, step = (site.numbers(place)[0] for place in range(3))
    return [math.ceil((end - first) / step)]


def _in_blocks(site: _Site) -> Sequence[float]:
    """Returns the sizes of the padded input of SPACE_TO_BATCH_ND."""
    batch, *sizes = site.shape(0)
    around: list[list[float]] = np.reshape(site.numbers(2), (-1, 2)).tolist()
    more = [sum(each) for each in around] + [0] * (len(sizes) - len(around))
    return [batch, *(n + m for n, m in zip(sizes, more, strict=True))]


def _convolved(site: _Site) -> Sequence[float]:
    count, rows, columns, last = site.shape(1)
    high = (rows - 1) * max(1, site.option("DilationHFactor"))
    wide = (columns - 1) * max(1, site.option("DilationWFactor"))
    channels = last if site.operator.name == "DEPTHWISE_CONV_2D" else count
    return _in_windows(site, high, wide, channels)


def _pooled(site: _Site) -> Sequence[float]:
    high, wide = site.option("FilterHeight") - 1, site.option("FilterWidth") - 1
    return _in_windows(site, high, wide, site.shape(0)[-1])


def _in_windows(site: _Site, high: int, wide: int, channels: int) -> Sequence[float]:
    """Returns the sizes of windows that reach so far beyond their first row and column."""
    batch, rows, columns, _ = site.shape(0)
    if site.option("Padding") != _SAME:
        rows, columns = rows - high, columns - wide
    return (
        batch,
        -(-rows // site.option("StrideH")),
        -(-columns // site.option("StrideW")),
        channels,
    )


def _connected(site: _Site) -> Sequence[float]:
    units, depth = site.shape(1)
    return [math.prod(site.shape(0)) // depth * units]


def _multiplied(site: _Site) -> Sequence[float]:
    *outer, rows, columns = site.shape(0)
    *inner, depth, units = site.shape(1)
    rows = columns if site.option("AdjX") else rows
    units = depth if site.option("AdjY") else units
    most = max(
        math.prod(outer), math.prod(inner), math.prod(map(max, zip(outer, inner, strict=False)))
    )
    return most, rows, units


def _gathered(site: _Site) -> Sequence[float]:
    shape = site.shape(0)
    return [math.prod(site.shape(1)) * math.prod(shape) // max(1, shape[site.option("Axis")])]


def _looked_up(site: _Site) -> Sequence[float]:
    return [math.prod(site.shape(0)) * math.prod(site.shape(1)[1:])]


_NONE: Shape = (0,)
_Rule = Callable[[_Site], Sequence[float]]
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(
        (
            *("ADD", "SUB", "MUL", "DIV", "FLOOR_DIV", "FLOOR_MOD", "POW", "SQUARED_DIFFERENCE"),
            *("MAXIMUM", "MINIMUM", "EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER"),
            *("GREATER_EQUAL", "LOGICAL_AND", "LOGICAL_OR", "SELECT_V2", "ATAN2", "BITWISE_XOR"),
            "RIGHT_SHIFT",
        ),
        _broadcast,
    ),
    **dict.fromkeys(("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"), _resized),
    **dict.fromkeys(("PAD", "PADV2", "MIRROR_PAD"), _padded),
    **dict.fromkeys(
        ("FILL", "RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "TRANSPOSE_CONV"), _listed(0)
    ),
    **dict.fromkeys(("BROADCAST_TO", "SPARSE_TO_DENSE"), _listed(1)),
    **dict.fromkeys(("CONV_2D", "DEPTHWISE_CONV_2D"), _convolved),
    **dict.fromkeys(
        (
            *("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "LEAKY_RELU", "PRELU", "ELU", "GELU"),
            *("LOGISTIC", "TANH", "HARD_SWISH", "ABS", "NEG", "EXP", "LOG", "SQRT", "RSQRT"),
            *("SQUARE", "SOFTMAX", "QUANTIZE", "DEQUANTIZE", "CAST"),
        ),
        _as_first,
    ),
    **dict.fromkeys(("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"), _pooled),
    "TRANSPOSE": _transposed,
    "RESHAPE": _reshaped,
    **dict.fromkeys(("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN"), _reduced),
    "SCATTER_ND": _listed(2),
    "TILE": _tiled,
    "ONE_HOT": _one_hot,
    "RANGE": _range,
    "SPACE_TO_BATCH_ND": _in_blocks,
    "FULLY_CONNECTED": _connected,
    "BATCH_MATMUL": _multiplied,
    "GATHER": _gathered,
    "EMBEDDING_LOOKUP": _looked_up,
}
"""The sizes of results that may be larger than what they are made of, or keep sizes apart."""
_COUNTED = frozenset(
    {
        *("ONE_HOT", "SPACE_TO_BATCH_ND", "FULLY_CONNECTED", "BATCH_MATMUL", "GATHER"),
        "EMBEDDING_LOOKUP",
    }
)
"""Of these the rule gives the elements alone, not the shape."""
