"""The metadata of a TFLite file: how inputs are normalized, and which packed files are labels.

It is a flatbuffer of its own inside of the file, of the schema that TensorFlow Lite Support
publishes as metadata_schema.fbs, of which few fields matter here. Counts are bounded, and what is
broken counts as not stated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice

from nnasync._core.formats.flatbuffer import BROKEN, Table, fields, root, text
from nnasync._core.formats.metadata import Metadata, PortMetadata

ENTRY = "TFLITE_METADATA"
"""The name of the file's entry that has it."""

_IDENTIFIER = b"M001"
_MOST_TENSORS, _MOST_UNITS, _MOST_CHANNELS, _MOST_TEXT_BYTES = 256, 16, 4096, 1 << 16
_MOST_NAME_BYTES = 1 << 10
"""Names are shorter than other texts: there are up to 4096 of files, and all may be the same."""
_NORMALIZATION = 1
_LABELS = (2, 3)
"""Files of labels: for the places along an axis, and for values."""

_ROOT = fields("- - - Subgraphs:tables")
_SUBGRAPH = fields("- - Inputs:tables Outputs:tables")
_PORT = fields("Name:text Text:text - - Units:tables Stats:table Files:tables")
_UNIT = fields("Kind:B Normalization:table")
_STEP = fields("Mean:*f Std:*f")
_STATS = fields("Most:*f Least:*f")
_FILE = fields("Name:text - Kind:B")


def read_metadata(data: memoryview) -> Metadata:
    """The metadata in these bytes; nothing is said where they are broken or something else."""
    try:
        if bytes(data[4:8]) != _IDENTIFIER:
            return Metadata()
        for graph in root(data, _ROOT).tables("Subgraphs", _SUBGRAPH):
            return Metadata(_ports(graph, "Inputs"), _ports(graph, "Outputs"))
    except BROKEN:
        pass
    return Metadata()


def _ports(graph: Table, name: str) -> tuple[PortMetadata, ...]:
    return tuple(map(_port, islice(graph.tables(name, _PORT), _MOST_TENSORS)))


def _port(table: Table) -> PortMetadata:
    mean, std = _normalization(islice(table.tables("Units", _UNIT), _MOST_UNITS))
    stats = table.table("Stats", _STATS)
    files = islice(table.tables("Files", _FILE), _MOST_UNITS)
    return PortMetadata(
        name=_text(table, "Name"),
        description=_text(table, "Text"),
        mean=mean,
        std=std,
        least=_finite(stats, "Least") if stats else (),
        most=_finite(stats, "Most") if stats else (),
        label_files=tuple(_text(each, "Name") for each in files if each.integer("Kind") in _LABELS),
    )


def _normalization(units: Iterable[Table]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of the step that normalizes, if both are there and make sense."""
    for unit in units:
        is_step = unit.integer("Kind") == _NORMALIZATION
        step = unit.table("Normalization", _STEP) if is_step else None
        if step is not None:
            mean, std = _finite(step, "Mean"), _finite(step, "Std")
            if mean and std and all(value > 0 for value in std):
                return mean, std
    return (), ()


def _text(table: Table, name: str) -> str:
    _, count = table.extent(name)
    if count > (_MOST_NAME_BYTES if name == "Name" else _MOST_TEXT_BYTES):
        raise ValueError(f"has a text of {count} bytes")
    return text(table.bytes(name))


def _finite(table: Table, name: str) -> tuple[float, ...]:
    """Numbers, or none where one of them is none."""
    _, count = table.extent(name)
    if count > _MOST_CHANNELS:
        raise ValueError(f"has {count} numbers")
    numbers = table.numbers(name)
    return numbers if all(math.isfinite(number) for number in numbers) else ()
