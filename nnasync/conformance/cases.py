"""Conformance cases: a model each, with its inputs and expected outputs, read from case files.

`dims` of a main input or output is also the shape that is fed or expected; a 0 there is an empty
tensor, of which the model knows only that the dimension is unknown. A constant without data is an
omitted argument, and so is an input whose data is empty, unless it is an empty tensor and no
operation that reads it can do without.

A file is not trusted: sizes, indices, names and lengths are checked here. Whether the model is
legal is left to the device under test, as some cases are there to be refused.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from nnasync import hal
from nnasync.conformance.case_lines import (
    CaseLine,
    OperandLine,
    SubgraphLine,
    decoded_head,
    decoded_line,
    read_lines,
)
from nnasync.errors import InvalidArgument
from nnasync.hal import (
    Array,
    ChannelQuant,
    DataLocation,
    HalVersion,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Struct,
    Subgraph,
)
from nnasync.kernels import OPERATIONS
from nnasync.memory import Pool

_ALIGNMENT = 8
_SUFFIXES = (".jsonl", ".jsonl.gz")


class Expected(Struct, frozen=True):
    """An output as it should be: type and value, whose shape is to be reported."""

    name: str
    type: int
    value: Array
    ignored: bool = False


class Case(Struct, frozen=True):
    """One conformance case; an input that is None is omitted in the request.

    `version` is the HAL version that introduced the model, None if it is not to be checked.
    `operations` are the names to count the case under: those of the main subgraph, without ADD
    where it is only a helper of others.
    """

    name: str
    spec: str
    source: str
    version: HalVersion | None
    model: Model
    inputs: tuple[Array | None, ...]
    outputs: tuple[Expected, ...]
    expect_failure: bool
    multinomial_tolerance: float | None
    operations: tuple[str, ...]


class Selection(Struct, frozen=True):
    """Which cases of a file to read: a glob of specs, a version ("V1_2", "none"), one part of many.

    Lines are spread over the parts by their checksum, so that neighbors, which cost alike, are not
    in step with them.
    """

    spec: str = "*"
    version: str | None = None
    part: int = 0
    parts: int = 1


EVERYTHING = Selection()


OWN_CASES = Path(__file__).with_name("operations.jsonl.gz")
"""The cases that come with nnasync: two and more of each operation and type."""


def case_files(place: Path) -> list[Path]:
    """The case files of a folder, or the one that is named; raises InvalidArgument for none."""
    if place.is_file():
        return [place]
    found = sorted(
        path for path in place.glob("*") if path.name.endswith(_SUFFIXES) and path.is_file()
    )
    if not found:
        raise InvalidArgument(f"{place}: no case files (*.jsonl, *.jsonl.gz) there")
    return found


def read_cases(path: Path, selection: Selection = EVERYTHING) -> Iterator[Case]:
    """The selected cases of a file, one at a time.

    Raises InvalidArgument that names file and line where something is not as it should be.
    """
    for number, line in read_lines(path):
        if selection.parts > 1 and zlib.crc32(line) % selection.parts != selection.part:
            continue
        where = f"{path.name}:{number}"
        head = decoded_head(line, where)
        if not fnmatchcase(head.spec, selection.spec):
            continue
        if selection.version is not None and selection.version != (head.version or "none"):
            continue
        yield parse_case(line, path.name, where)


def parse_case(line: bytes, source: str = "", where: str = "case") -> Case:
    """The case of one line; raises InvalidArgument, whose message begins with `where`."""
    parsed = decoded_line(line, where)
    try:
        return _case(parsed, source)
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}: {parsed.name}: {error}") from error


# -- from a line to a case


def _case(parsed: CaseLine, source: str) -> Case:
    constants = _CaseConstants()
    main = _subgraph(parsed.main, constants, "main")
    referenced = [
        _subgraph(each, constants, f"referenced[{index}]")
        for index, each in enumerate(parsed.referenced)
    ]
    values, pools = constants.finish()
    model = Model(
        main=main,
        referenced=tuple(referenced),
        operand_values=values,
        pools=pools,
        relax_computation_float32_to_float16=parsed.relaxed,
        name=parsed.name,
    )
    return Case(
        name=parsed.name,
        spec=parsed.spec,
        source=source,
        version=None if parsed.version is None else _named(HalVersion, parsed.version),
        model=model,
        inputs=tuple(_input(parsed.main, index) for index in parsed.main.inputs),
        outputs=tuple(
            _expected(parsed.main, index, expect_failure=parsed.expect_failure)
            for index in parsed.main.outputs
        ),
        expect_failure=parsed.expect_failure,
        multinomial_tolerance=parsed.multinomial_tolerance,
        operations=_counted(parsed.main),
    )


def _counted(main: SubgraphLine) -> tuple[str, ...]:
    names = dict.fromkeys(operation.op for operation in main.operations)
    return tuple(name for name in names if name != "ADD") or tuple(names)


def _subgraph(parsed: SubgraphLine, constants: _CaseConstants, where: str) -> Subgraph:
    count = len(parsed.operands)
    consumers = [0] * count
    operations = []
    for number, operation in enumerate(parsed.operations):
        place = f"{where}: operation {number}"
        for index in (*operation.inputs, *operation.outputs):
            _check_index(index, count, place)
        for index in operation.inputs:
            consumers[index] += 1
        type = _named(OperationType, operation.op)
        operations.append(Operation(type, tuple(operation.inputs), tuple(operation.outputs)))
    for index in (*parsed.inputs, *parsed.outputs):
        _check_index(index, count, where)
    operands = tuple(
        _operand(each, consumers[index], constants, f"{where}: operand {index}")
        for index, each in enumerate(parsed.operands)
    )
    return Subgraph(operands, tuple(operations), tuple(parsed.inputs), tuple(parsed.outputs))


def _check_index(index: int, count: int, where: str) -> None:
    if index >= count:
        raise InvalidArgument(f"{where}: names operand {index}, but there are {count}")


def _operand(parsed: OperandLine, consumers: int, constants: _CaseConstants, where: str) -> Operand:
    type = _named(OperandType, parsed.type)
    lifetime = _named(OperandLifeTime, parsed.lifetime)
    constant = lifetime in (OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE)
    location = DataLocation()
    if (type == OperandType.SUBGRAPH) != isinstance(parsed.data, int):
        raise InvalidArgument(f"{where}: a SUBGRAPH, and nothing else, has a number as data")
    if isinstance(parsed.data, int):
        location = DataLocation(offset=parsed.data)
    elif constant and parsed.data is None:
        lifetime = OperandLifeTime.NO_VALUE
    elif constant:
        data = _value(parsed, where).tobytes()
        location = constants.add(data, copied=lifetime == OperandLifeTime.CONSTANT_COPY)
    quant = None
    if parsed.channel_scales is not None:
        quant = ChannelQuant(tuple(parsed.channel_scales), parsed.channel_dim)
    return Operand(
        type=type,
        dimensions=tuple(parsed.dims),
        number_of_consumers=consumers,
        scale=parsed.scale,
        zero_point=parsed.zero_point,
        lifetime=lifetime,
        location=location,
        extra_params=quant,
        name=parsed.name,
    )


def _value(parsed: OperandLine, where: str) -> Array:
    """The data of an operand as an array of its type and shape."""
    type = _named(OperandType, parsed.type)
    if not isinstance(parsed.data, bytes) or not hal.has_dtype(type):
        raise InvalidArgument(f"{where}: {parsed.type} with data {parsed.data!r:.60}")
    dtype = hal.dtype_of(type)
    shape = () if hal.is_scalar(type) else tuple(parsed.dims)
    needed = math.prod(shape) * dtype.itemsize
    if len(parsed.data) != needed:
        raise InvalidArgument(
            f"{where}: {len(parsed.data)} bytes of data, {parsed.type} {list(shape)} takes {needed}"
        )
    try:
        return np.ndarray(shape, dtype, parsed.data or b"\0")
    except ValueError as error:
        raise InvalidArgument(f"{where}: no array has the shape {list(shape)}: {error}") from error


def _input(main: SubgraphLine, index: int) -> Array | None:
    parsed = main.operands[index]
    empty = 0 in parsed.dims and not _may_be_omitted(main, index)
    if parsed.data is None or (parsed.data == b"" and not empty):
        return None
    return _value(parsed, f"input operand {index}")


def _may_be_omitted(main: SubgraphLine, index: int) -> bool:
    """Returns whether the operations that read the operand may do without, as far as is known."""
    for operation in main.operations:
        if index not in operation.inputs:
            continue
        known = OPERATIONS.get(OperationType[operation.op])
        if known is None:
            return True
        for signature in known.signatures:
            parameters = signature.parameters(len(operation.inputs)) or ()
            for parameter, operand in zip(parameters, operation.inputs, strict=False):
                if operand == index and parameter.optional:
                    return True
    return False


def _expected(main: SubgraphLine, index: int, *, expect_failure: bool) -> Expected:
    parsed = main.operands[index]
    type = _named(OperandType, parsed.type)
    if parsed.data is None and expect_failure and hal.has_dtype(type):
        return Expected(parsed.name, type, np.zeros((), hal.dtype_of(type)), ignored=True)
    value = _value(parsed, f"output operand {index}")
    return Expected(parsed.name, type, value, ignored=parsed.ignored)


def _named(kind: Any, name: str) -> Any:
    try:
        return kind[name]
    except KeyError:
        raise InvalidArgument(f"{name!r:.60} is no {kind.__name__}") from None


class _CaseConstants:
    """Collects the constants of a model: copied ones in its values, the others in one pool."""

    def __init__(self) -> None:
        self._copied = bytearray()
        self._pooled = bytearray()

    def add(self, data: bytes, *, copied: bool) -> DataLocation:
        target = self._copied if copied else self._pooled
        target.extend(bytes(-len(target) % _ALIGNMENT))
        target.extend(data)
        return DataLocation(0, len(target) - len(data), len(data))

    def finish(self) -> tuple[bytes, tuple[Pool, ...]]:
        return bytes(self._copied), pools_of([self._pooled] if self._pooled else [])


def pools_of(contents: Sequence[bytes | bytearray]) -> tuple[Pool, ...]:
    """Pools that hold these bytes."""
    pools = []
    for content in contents:
        pool = Pool.allocate(len(content))
        pool.view[:] = content
        pools.append(pool)
    return tuple(pools)
