"""Whether the shapes of a graph's results follow from the shapes of its inputs.

Converters leave the number of examples open and state 1 for it, which is what the file means where
nobody asks for more. The results then have the shapes that are stated, unless one depends on what
the values are: that of WHERE does, or that of a RESHAPE whose shape was computed from an input.
What is computed from shapes alone, as converters do to keep the open dimension, is known, too.
"""

from __future__ import annotations

from nnasync._core.importers.tflite.tflite_file import Graph, OperatorInfo

_INTEGERS = ("INT32", "INT64", "UINT32")
_OF_SHAPES = ("SHAPE", "RANK")
_FOUND_BY_VALUES = (
    "CALL",
    "CALL_ONCE",
    "CUSTOM",
    "HASHTABLE_LOOKUP",
    "IF",
    "NON_MAX_SUPPRESSION_V4",
    "NON_MAX_SUPPRESSION_V5",
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


def is_settled(graph: Graph) -> bool:
    """Whether all results have the stated shapes where all inputs have."""
    known = {index for index, info in enumerate(graph.tensors) if info.length}
    for operator in graph.operators:
        given = {index for index in operator.inputs if index >= 0}
        if operator.name in _OF_SHAPES or given <= known:
            known.update(operator.outputs)
        elif _depends(graph, operator, given - known):
            return False
    return True


def _depends(graph: Graph, operator: OperatorInfo, computed: set[int]) -> bool:
    """Whether the shapes of results may depend on values that are computed."""
    if operator.name.split()[0] in _FOUND_BY_VALUES:
        return True
    if operator.name in _OF_ANY_NUMBERS:
        return False
    return any(graph.tensors[index].type in _INTEGERS for index in computed)
