"""The parts of a TFLite file, read by the published schema into plain structs.

Everything is read once, in order, while `_at` keeps track of what is being read; every failure
becomes a ModelError that says so. A budget bounds the work: an honest file is read about once, a
hostile one may refer to the same bytes often.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from nnasync._core.formats.flatbuffer import (
    BROKEN,
    Rows,
    Table,
    bytes_at,
    count_at,
    fields,
    numbers_at,
    places_at,
    root,
    text_at,
)
from nnasync._core.formats.tflite_schema import (
    FILE_TABLES,
    OPERATORS,
    OPTIONS,
    PARAMETERS,
    TABLES,
    TENSOR_TYPES,
)
from nnasync.errors import ModelError
from nnasync.hal import Shape, Struct

Option = int | float | bool | str | tuple[int, ...]
"""A parameter of an operator."""

_IDENTIFIER = b"TFL3"
_SCHEMA_VERSION = 3
_TABLE_BYTES = 16
_FREE_NUMBERS = 16
"""So many sizes or scales of its tensors an operator refers to for a byte of the budget."""
_NO_VALUE = (0, 0)
"""Offset and length of a tensor without a constant value, which buffer 0 stands for."""
_OPERATORS, _OPTIONS, _TYPES = OPERATORS.split(), OPTIONS.split(), TENSOR_TYPES.split()


class Quantization(Struct, frozen=True, gc=False):
    """Scales and zero points of a tensor: one of each, or one per index of a dimension."""

    scales: tuple[float, ...] = ()
    zero_points: tuple[int, ...] = ()
    dimension: int = 0


_NOT_QUANTIZED = Quantization()


class TensorInfo(Struct, frozen=True, gc=False):
    """One tensor; `offset` and `length` are its constant value's bytes in the file, if any.

    `open_shape` is the shape with 0 for each dimension that the file leaves open.
    """

    name: str
    type: str
    shape: Shape
    quantization: Quantization
    is_variable: bool
    offset: int
    length: int
    open_shape: Shape = ()
    is_sparse: bool = False

    @property
    def scales(self) -> tuple[float, ...]:
        """Returns its scales; none where it is not quantized."""
        return self.quantization.scales


def labeled(index: int, info: TensorInfo) -> str:
    """A tensor as it is called in messages."""
    return f'tensor {index} "{info.name}"'


class OperatorInfo(Struct, frozen=True, gc=False):
    """One operator; inputs that are left out are -1.

    `intermediates` are tensors that only say how values inside the operator are quantized,
    `custom_options` the bytes that only the maker of a custom operator can read.
    """

    index: int
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: dict[str, Option]
    intermediates: tuple[int, ...] = ()
    custom_options: bytes = b""


class Graph(Struct, frozen=True):
    """One subgraph of a file."""

    tensors: tuple[TensorInfo, ...]
    operators: tuple[OperatorInfo, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class SignatureInfo(Struct, frozen=True):
    """Names for the inputs and outputs of a subgraph, each with its tensor."""

    name: str
    graph: int
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]


class File(Struct, frozen=True):
    """All subgraphs of a file, the main one first, and what it says of them.

    `metadata` has offset and length of each entry by name.
    """

    graphs: tuple[Graph, ...]
    signatures: tuple[SignatureInfo, ...]
    metadata: Mapping[str, tuple[int, int]]


def read_file(data: memoryview) -> File:
    """The parts of a TFLite file; raises ModelError where the file is broken."""
    if len(data) < 8 or bytes(data[4:8]) != _IDENTIFIER:
        raise ModelError(f'is not a TFLite file: bytes 4 to 8 are not "{_IDENTIFIER.decode()}"')
    return _Reader(data).read()


_KNOWN = {name: fields(TABLES[name]) for name in FILE_TABLES.split()}
"""The fields of the tables that make up a file."""


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._budget = 2 * len(data) + 4096
        self._at: tuple[object, ...] = ("header",)
        """What is being read, in words, which are joined where something is wrong."""
        self._buffers = Rows(data, _KNOWN["Buffer"], "Data Offset Size")
        self._tensors = Rows(
            data,
            _KNOWN["Tensor"],
            "Shape Type Buffer Name Quantization IsVariable Sparsity ShapeSignature",
        )
        self._quantizations = Rows(
            data, _KNOWN["QuantizationParameters"], "Scale ZeroPoint QuantizedDimension"
        )
        self._operators = Rows(
            data,
            _KNOWN["Operator"],
            "OpcodeIndex Inputs Outputs Intermediates CustomOptions BuiltinOptionsType "
            "BuiltinOptions",
        )
        self._options: dict[str, Rows] = {}

    def read(self) -> File:
        try:
            return self._read()
        except BROKEN as error:
            if isinstance(error, ModelError):
                raise
            text = str(error) or type(error).__name__
            raise ModelError(f"is broken: {self._where}: {text}") from error

    @property
    def _where(self) -> str:
        """Returns the place in the file that is being read, for messages."""
        return " ".join(map(str, self._at))

    def _read(self) -> File:
        model = root(self._data, _KNOWN["Model"])
        version = model.integer("Version")
        if version != _SCHEMA_VERSION:
            raise ModelError(f"has schema version {version}, known is {_SCHEMA_VERSION}")
        codes = [
            self._operator_name(code)
            for code in self._tables(model, "OperatorCodes", "OperatorCode", "operator code")
        ]
        buffers = [self._extent(place) for place in self._places(model, "Buffers", "buffer")]
        graphs = [
            self._graph(graph, codes, buffers)
            for graph in self._tables(model, "Subgraphs", "SubGraph", "subgraph")
        ]
        if not graphs:
            raise ModelError("has no subgraph")
        ports = [(frozenset(graph.inputs), frozenset(graph.outputs)) for graph in graphs]
        signatures = [
            self._signature(signature, ports)
            for signature in self._tables(model, "SignatureDefs", "SignatureDef", "signature")
        ]
        metadata = {
            self._text(entry, "Name"): buffers[entry.integer("Buffer")]
            for entry in self._tables(model, "Metadata", "Metadata", "metadata")
        }
        return File(tuple(graphs), tuple(signatures), metadata)

    def _signature(
        self, signature: Table, ports: Sequence[tuple[Set[int], Set[int]]]
    ) -> SignatureInfo:
        """A signature; `ports` are the inputs and outputs of each subgraph."""
        number = signature.integer("SubgraphIndex")
        inputs, outputs = ports[number]
        return SignatureInfo(
            name=self._text(signature, "SignatureKey"),
            graph=number,
            inputs=self._names(signature, "Inputs", inputs),
            outputs=self._names(signature, "Outputs", outputs),
        )

    def _names(
        self, signature: Table, field: str, tensors: Set[int]
    ) -> tuple[tuple[str, int], ...]:
        self._charge(_TABLE_BYTES * signature.extent(field)[1])
        found = tuple(
            (self._text(entry, "Name"), entry.integer("TensorIndex"))
            for entry in signature.tables(field, _KNOWN["TensorMap"])
        )
        for name, tensor in found:
            if tensor not in tensors:
                raise ModelError(
                    f'is broken: {self._where}: "{name}" is tensor {tensor}, which is none of the'
                    f" {field.lower()} of its subgraph"
                )
        return found

    def _graph(
        self, graph: Table, codes: Sequence[str], buffers: Sequence[tuple[int, int]]
    ) -> Graph:
        tensors = [
            self._tensor(place, buffers) for place in self._places(graph, "Tensors", "tensor")
        ]
        # What it costs to look at each tensor; the last is that of one which is left out, -1.
        numbers = [*(len(each.shape) + len(each.quantization.scales) for each in tensors), 0]
        operators = [
            self._operator(index, place, codes, numbers)
            for index, place in enumerate(self._places(graph, "Operators", "operator"))
        ]
        self._at = ("subgraph inputs",)
        inputs = self._tensor_indices(graph.target("Inputs"), "inputs", 0, len(tensors))
        self._at = ("subgraph outputs",)
        outputs = self._tensor_indices(graph.target("Outputs"), "outputs", 0, len(tensors))
        return Graph(tuple(tensors), tuple(operators), inputs, outputs)

    def _charge(self, size: int) -> None:
        self._budget -= size
        if self._budget < 0:
            raise ModelError(f"is broken: {self._where}: parts of the file refer to it too often")

    def _tables(self, table: Table, field: str, kind: str, what: str) -> Iterator[Table]:
        """The tables of a list, each announced before it is read."""
        for place in self._places(table, field, what):
            yield table.beside(place, _KNOWN[kind])

    def _places(self, table: Table, field: str, what: str) -> Iterator[int]:
        """The places of the tables of a list, each announced before it is read."""
        self._at = (f"{what}s",)
        place = table.target(field)
        self._charge(_TABLE_BYTES * count_at(self._data, place))
        places = places_at(self._data, place)
        self._at = what, 0
        for index, each in enumerate(places, 1):
            yield each
            self._at = what, index

    def _vector(self, place: int, letter: str = "i", itemsize: int = 4) -> tuple[Any, ...]:
        if not place:
            return ()
        numbers = numbers_at(self._data, place, letter)
        # Written out, as in `_text_at`: a file of a few layers has hundreds of lists.
        self._budget -= itemsize * len(numbers)
        if self._budget < 0:
            self._charge(0)
        return numbers

    def _bytes(self, place: int) -> bytes:
        if not place:
            return b""
        content = bytes_at(self._data, place)
        self._charge(len(content))
        return content

    def _text(self, table: Table, field: str) -> str:
        return self._text_at(table.target(field))

    def _text_at(self, place: int) -> str:
        found, count = text_at(self._data, place)
        self._budget -= count
        if self._budget < 0:
            self._charge(0)
        return found

    def _operator_name(self, code: Table) -> str:
        number = max(code.integer("BuiltinCode"), code.integer("DeprecatedBuiltinCode"))
        name = _named(_OPERATORS, number, "operator")
        return f"CUSTOM {self._text(code, 'CustomCode')}" if name == "CUSTOM" else name

    def _extent(self, place: int) -> tuple[int, int]:
        """Offset and length of a buffer's bytes in the file, inside of its table or behind all."""
        data, offset, length = self._buffers.at(place)
        count = count_at(self._data, data)
        if offset > 1 and count:
            raise ModelError(f"is broken: {self._where}: states its bytes and where else they are")
        if offset <= 1:
            offset, length = data + 4, count
            if not length:
                return (0, 0)
        if offset + length > len(self._data):
            raise ModelError(
                f"is broken: {self._where}: has bytes {offset} to {offset + length} of a file of "
                f"{len(self._data)}"
            )
        return (offset, length)

    def _tensor(self, place: int, buffers: Sequence[tuple[int, int]]) -> TensorInfo:
        data = self._data
        sizes, type, buffer, name, quantization, is_variable, sparsity, signature = (
            self._tensors.at(place)
        )
        shape = numbers_at(data, sizes, "i")
        if shape and min(shape) < 0:
            raise ModelError(f"is broken: {self._where}: has shape {list(shape)}")
        offset, length = buffers[buffer] if buffer else _NO_VALUE
        if sparsity:
            Table(data, sparsity, {}, {})  # Which must be there, whatever it says.
        label, read = text_at(data, name)
        self._charge(read + 4 * len(shape))
        return TensorInfo(
            label,
            _named(_TYPES, type, "type"),
            shape,
            self._quantization(quantization) if quantization else _NOT_QUANTIZED,
            is_variable,
            offset,
            length,
            _opened(shape, self._vector(signature)) if signature else shape,
            sparsity != 0,
        )

    def _quantization(self, place: int) -> Quantization:
        scale, zero_point, dimension = self._quantizations.at(place)
        scales = numbers_at(self._data, scale, "f")
        zero_points = numbers_at(self._data, zero_point, "q")
        self._charge(4 * len(scales) + 8 * len(zero_points))
        return Quantization(scales, zero_points, dimension)

    def _operator(
        self, index: int, place: int, codes: Sequence[str], numbers: Sequence[int]
    ) -> OperatorInfo:
        """An operator; `numbers` is how many sizes and scales each tensor has, and a 0."""
        code, inputs, outputs, intermediates, custom_options, kind, options = self._operators.at(
            place
        )
        name, count = codes[code], len(numbers) - 1
        self._at = "operator", index, f"({name})"
        given = self._tensor_indices(inputs, "inputs", -1, count)
        made = self._tensor_indices(outputs, "outputs", 0, count)
        self._charge(sum([numbers[each] for each in (*given, *made)]) // _FREE_NUMBERS)
        return OperatorInfo(
            index,
            name,
            given,
            made,
            self._parameters(name, kind, options),
            self._tensor_indices(intermediates, "intermediates", -1, count),
            self._bytes(custom_options),
        )

    def _tensor_indices(self, place: int, field: str, least: int, count: int) -> tuple[int, ...]:
        """A list of numbers of tensors, from `least` to below `count`."""
        if not place:
            return ()
        indices = self._vector(place)
        if indices and (min(indices) < least or max(indices) >= count):
            wrong = next(each for each in indices if not least <= each < count)
            raise ModelError(f"is broken: {self._where}: {field} name tensor {wrong} of {count}")
        return indices

    def _parameters(self, name: str, kind: int, place: int) -> dict[str, Option]:
        """Returns all parameters of an operator, with the schema's defaults."""
        expected = PARAMETERS.get(name, "")
        if not expected:
            return {}
        known = fields(TABLES[expected])
        if kind and (_named(_OPTIONS, kind, "") != expected or not place):
            raise ModelError(f"is broken: {self._where}: its options are not {expected}")
        if not place or not known:
            return _defaults(expected)
        rows = self._options.get(expected)
        if rows is None:
            rows = self._options[expected] = Rows(self._data, known)
        row = rows.at(place)
        if not kind:
            return _defaults(expected)
        found = dict(zip(known, row, strict=True))
        for field in _lists(expected):
            found[field] = self._list(known[field][1], found[field])
        return found

    def _list(self, type: str, place: int) -> Option:
        return self._text_at(place) if type == "text" else self._vector(place, type[1])


@functools.cache
def _lists(options: str) -> Sequence[str]:
    """Returns the names of the parameters that are lists."""
    return [
        field
        for field, (_, type, _) in fields(TABLES[options]).items()
        if type == "text" or type.startswith("*")
    ]


def _defaults(options: str) -> dict[str, Option]:
    """The parameters in a table of which none is stated."""
    found: dict[str, Option] = {}
    for field, (_, type, number) in fields(TABLES[options]).items():
        found[field] = "" if type == "text" else () if type.startswith("*") else number
    return found


def _opened(shape: Shape, signature: Sequence[int]) -> Shape:
    """A shape with 0 for the dimensions that the file leaves open."""
    if len(signature) != len(shape) or min(signature, default=0) >= 0:
        return shape
    return tuple(n if s >= 0 else 0 for n, s in zip(shape, signature, strict=True))


def _named(names: Sequence[str], number: int, kind: str) -> str:
    """The name of a number; where the schema has none, the number and what it is of."""
    return names[number] if 0 <= number < len(names) else f"{kind} {number}"
