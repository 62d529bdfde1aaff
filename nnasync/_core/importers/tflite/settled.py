"""Whether a graph that runs as it is means the same as the model that it is translated to.

Its states must be kept alike, and the shapes of its results follow from those of its inputs.

Converters leave the number of examples open and state 1 for it, which is what the file means where
nobody asks for more. The results then have the shapes that are stated, unless one depends on what
the values are: that of WHERE does, or that of a RESHAPE whose shape was computed from an input.
What is computed from shapes alone, as converters do to keep the open dimension, is known, too.
Of any other open dimension the stated size says nothing: some converters put 1 for all of them.
"""

from __future__ import annotations

from nnasync._core.importers.tflite.tflite_file import Graph, OperatorInfo, TensorInfo
from nnasync.errors import ModelError

_INTEGERS = ("INT32", "INT64", "UINT32")
_OF_SHAPES = ("SHAPE", "RANK")
_LEFT_OUT = frozenset({-1})
_FOUND_BY_VALUES = (
    "CALL",
    "CALL_ONCE",
    "CUSTOM",
    "HASHTABLE_LOOKUP",
    "IF",
    "NON_MAX_SUPPRESSION_V4",
    "NON_MAX_SUPPRESSION_V5",
    "RANGE",
    "SEGMENT_SUM",
    "UNIQUE",
    "WHERE",
    "WHILE",
)
_OF_ANY_NUMBERS = (
    "ABS",
    "ADD",
    "CAST",
    "CONCATENATION",
    "DEQUANTIZE",
    "EMBEDDING_LOOKUP",
    "EQUAL",
    "FLOOR_DIV",
    "FLOOR_MOD",
    "GATHER",
    "GREATER",
    "GREATER_EQUAL",
    "LESS",
    "LESS_EQUAL",
    "MAXIMUM",
    "MINIMUM",
    "MUL",
    "NEG",
    "NOT_EQUAL",
    "PACK",
    "SELECT",
    "SELECT_V2",
    "SQUEEZE",
    "SUB",
    "UNPACK",
)
"""Operators whose results have the same shapes whatever integers they are given."""


_SAME_STATES = (
    "BIDIRECTIONAL_SEQUENCE_RNN",
    "LSTM",
    "RNN",
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
    "UNIDIRECTIONAL_SEQUENCE_RNN",
)
"""Operators whose states the HAL keeps as LiteRT does; that of SVDF is shifted at another time."""


def check_replaceable(graph: Graph) -> None:
    """Raise ModelError where the translated model has other states or numbers in its place."""
    variables = {index for index, info in enumerate(graph.tensors) if info.is_variable}
    for operator in graph.operators if variables else ():
        if operator.name not in _SAME_STATES and not variables.isdisjoint(operator.inputs):
            raise ModelError(f"operator {operator.index} ({operator.name}): its state is not alike")
    for index in (*graph.inputs, *graph.outputs):
        info = graph.tensors[index]
        if info.type == "INT32" and info.quantization.scales:
            raise ModelError(f"tensor {index} ({info.name!r}) is INT32 with a scale")


def is_settled(graph: Graph) -> bool:
    """Returns whether all results have the stated shapes where all inputs have.

    Only the number of examples may be open, and where an output leaves it open an input does, too.
    """
    inputs = [graph.tensors[index] for index in graph.inputs]
    outputs = [graph.tensors[index] for index in graph.outputs]
    opens = [_open_places(info) for info in (*inputs, *outputs)]
    if any(places not in ([], [0]) for places in opens):
        return False
    if [0] in opens[len(inputs) :] and [0] not in opens[: len(inputs)]:
        return False
    known = {index for index, info in enumerate(graph.tensors) if info.length}
    integers = {index for index, info in enumerate(graph.tensors) if info.type in _INTEGERS}
    for operator in graph.operators:
        given = set(operator.inputs) - _LEFT_OUT
        if operator.name in _OF_SHAPES or given <= known:
            known.update(operator.outputs)
        elif _depends(operator, integers & given - known):
            return False
    return True


def _open_places(info: TensorInfo) -> list[int]:
    """Returns the indexes of the dimensions that a tensor leaves open."""
    return [place for place, size in enumerate(info.open_shape) if not size]


def _depends(operator: OperatorInfo, integers: set[int]) -> bool:
    """Returns whether the shapes of results may depend on values; `integers` are those computed."""
    if operator.name.split()[0] in _FOUND_BY_VALUES:
        return True
    return bool(integers) and operator.name not in _OF_ANY_NUMBERS
