"""How large the values of a graph become when LiteRT runs it, also where the file says otherwise.

LiteRT finds the shape of each result by itself, from the shapes before it and from constants such
as the size of a picture; what the file states for it counts for nothing. So results are compared
here with what they are made of, by the few operators that can give more than they are given. What a
result has in excess of what is stated, everything that is computed of it may have, too: converters
state 1 for sizes that they do not know, so that is no fault by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from nnasync._core.formats.value_sizes import check_value
from nnasync._core.importers.tflite.tflite_file import Graph, OperatorInfo
from nnasync.hal import Array

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
_SAME = 0
"""The number of the padding with which windows are put at every step."""


class _Site:
    """An operator with its tensors, and the constants among them."""

    def __init__(self, graph: Graph, operator: OperatorInfo, data: memoryview) -> None:
        self.operator = operator
        tensors = graph.tensors
        self.inputs = [tensors[index] if index >= 0 else None for index in operator.inputs]
        self._data = data

    def shape(self, place: int) -> tuple[int, ...]:
        """The stated shape of an input; a LookupError where it has none."""
        info = self.inputs[place]
        if info is None:
            raise LookupError(place)
        return info.shape

    def numbers(self, place: int) -> list[float]:
        """The numbers of a constant; a LookupError where only a run tells them."""
        info = self.inputs[place]
        if info is None or not info.length or info.type not in _NUMBERS:
            raise LookupError(place)
        data = self._data[info.offset : info.offset + info.length]
        found: Array = np.frombuffer(data, info.type.lower())
        numbers: list[float] = found.tolist()
        return numbers

    def option(self, name: str) -> int:
        """An option that is a number, 0 where it is not stated."""
        return int(self.operator.options.get(name, 0))  # type: ignore[arg-type]  # it is none else


def check_sizes(graph: Graph, data: memoryview) -> None:
    """Raise ModelError where a value takes more memory than one of a file of this size may."""
    excess: dict[int, float] = {}
    for operator in graph.operators:
        factor = max((excess.get(index, 1.0) for index in operator.inputs), default=1.0)
        rule, site = _RULES.get(operator.name), _Site(graph, operator, data)
        elements = 0 if rule is None else _elements(rule, site)
        where = f"operator {operator.index} ({operator.name})"
        if operator.name == "RESIZE_BILINEAR":
            pixels = _elements(_listed(1), site)
            check_value(f"{where}: a table", (pixels,), pixels * _TABLE_BYTES, len(data))
        for index in operator.outputs:
            info = graph.tensors[index]
            stated = max(1, math.prod(info.shape))
            larger = factor * max(1.0, elements / stated)
            if larger > 1:
                excess[index] = larger
            nbytes = math.ceil(larger * stated) * _BYTES.get(info.type, 1)
            check_value(f"{where}: a result", info.shape, nbytes, len(data))


def _elements(rule: _Rule, site: _Site) -> int:
    """The elements of a result as far as inputs tell them; 0 where they do not."""
    try:
        return max(0, int(rule(site)))
    except (LookupError, ValueError, OverflowError, ZeroDivisionError):
        return 0


def _broadcast(site: _Site) -> float:
    """Of shapes that are stretched to each other."""
    shapes = [each.shape for each in site.inputs if each is not None]
    if all(shape == shapes[0] for shape in shapes):
        return 0
    rank = max(map(len, shapes))
    wide = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    found: int = math.prod(max(sizes) for sizes in zip(*wide, strict=True))
    return found


def _listed(place: int) -> Callable[[_Site], float]:
    """Of the shape that a constant gives."""
    return lambda site: math.prod(site.numbers(place))


def _resized(site: _Site) -> float:
    batch, *_, channels = site.shape(0)
    height, width = site.numbers(1)
    return batch * channels * height * width


def _padded(site: _Site) -> float:
    around: list[list[float]] = np.reshape(site.numbers(1), (-1, 2)).tolist()
    return math.prod(n + sum(more) for n, more in zip(site.shape(0), around, strict=True))


def _tiled(site: _Site) -> float:
    return math.prod(site.shape(0)) * math.prod(site.numbers(1))


def _one_hot(site: _Site) -> float:
    return math.prod(site.shape(0)) * site.numbers(1)[0]


def _range(site: _Site) -> float:
    first, end, step = (site.numbers(place)[0] for place in range(3))
    return math.ceil((end - first) / step)


def _in_blocks(site: _Site) -> float:
    """Of SPACE_TO_BATCH_ND: what is padded."""
    batch, *sizes = site.shape(0)
    around: list[list[float]] = np.reshape(site.numbers(2), (-1, 2)).tolist()
    more = [sum(each) for each in around] + [0] * (len(sizes) - len(around))
    return batch * math.prod(n + m for n, m in zip(sizes, more, strict=True))


def _convolved(site: _Site) -> float:
    batch, height, width, _ = site.shape(0)
    count, *window, last = site.shape(1)
    channels = last if site.operator.name == "DEPTHWISE_CONV_2D" else count
    total = batch * channels
    for size, taps, letter in zip((height, width), window, "HW", strict=True):
        stride = site.option(f"Stride{letter}")
        reach = (taps - 1) * max(1, site.option(f"Dilation{letter}Factor"))
        total *= -(-(size if site.option("Padding") == _SAME else size - reach) // stride)
    return total


def _connected(site: _Site) -> float:
    units, depth = site.shape(1)
    return math.prod(site.shape(0)) // depth * units


def _multiplied(site: _Site) -> float:
    *outer, rows, columns = site.shape(0)
    *inner, depth, units = site.shape(1)
    rows = columns if site.option("AdjX") else rows
    units = depth if site.option("AdjY") else units
    most = max(
        math.prod(outer), math.prod(inner), math.prod(map(max, zip(outer, inner, strict=False)))
    )
    return most * rows * units


def _gathered(site: _Site) -> float:
    shape = site.shape(0)
    return math.prod(site.shape(1)) * math.prod(shape) // max(1, shape[site.option("Axis")])


def _looked_up(site: _Site) -> float:
    return math.prod(site.shape(0)) * math.prod(site.shape(1)[1:])


_Rule = Callable[[_Site], float]
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
"""The operators whose results may be larger than what they are made of, and by how much."""
