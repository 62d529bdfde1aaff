"""The lines of conformance case files: their form, and reading them from files.

A line is an object with `name`, `spec`, `version`, `relaxed`, perhaps `expect_failure` and
`multinomial_tolerance`, and the subgraphs `main` and `referenced`. Operands have `name`, `type`,
`dims`, `lifetime`, and where they apply `scale`, `zero_point`, `channel_dim`, `channel_scales`,
`ignored` (do not compare) and `data`: base64 of the little-endian values, row-major; for the type
SUBGRAPH it is an index into `referenced`.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec

from nnasync.errors import InvalidArgument

MAX_LINE_BYTES = 256 << 20
MAX_RANK = 32

_Index = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Dimension = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class OperandLine(msgspec.Struct):
    """An operand."""

    type: str
    dims: Annotated[list[_Dimension], msgspec.Meta(max_length=MAX_RANK)]
    lifetime: str
    name: str = ""
    scale: float = 0.0
    zero_point: _Int32 = 0
    channel_dim: _Index = 0
    channel_scales: list[float] | None = None
    ignored: bool = False
    data: bytes | _Index | None = None


class OperationLine(msgspec.Struct, rename={"inputs": "in", "outputs": "out"}):
    """An operation: indices of operands."""

    op: str
    inputs: list[_Index]
    outputs: list[_Index]


class SubgraphLine(msgspec.Struct):
    """A subgraph."""

    operands: list[OperandLine]
    operations: list[OperationLine]
    inputs: list[_Index]
    outputs: list[_Index]


class CaseLine(msgspec.Struct):
    """A whole line."""

    name: str
    spec: str
    main: SubgraphLine
    version: str | None = None
    relaxed: bool = False
    expect_failure: bool = False
    multinomial_tolerance: float | None = None
    referenced: list[SubgraphLine] = []


class Head(msgspec.Struct):
    """What a line is chosen by."""

    spec: str
    version: str | None = None


_cases = msgspec.json.Decoder(CaseLine)
_heads = msgspec.json.Decoder(Head)


def decoded_line(line: bytes, where: str) -> CaseLine:
    """A whole line; raises InvalidArgument, whose message begins with `where`."""
    case: CaseLine = _decoded(_cases, line, where)
    return case


def decoded_head(line: bytes, where: str) -> Head:
    """The parts by which a line is chosen; raises InvalidArgument."""
    head: Head = _decoded(_heads, line, where)
    return head


def _decoded(decoder: msgspec.json.Decoder[Any], line: bytes, where: str) -> Any:
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{where}: not a conformance case: {error}") from error


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields each line of a plain or compressed file with its number; raises InvalidArgument."""
    try:
        with path.open("rb") as raw:
            file = gzip.GzipFile(fileobj=raw) if path.name.endswith(".gz") else raw
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise InvalidArgument(
                        f"{path.name}:{number}: longer than {MAX_LINE_BYTES} bytes"
                    )
                if not line.isspace():
                    yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidArgument(f"{path.name}: is no gzip file, or damaged: {error}") from error
