"""The parts of a TFLite file, read by the published schema into plain structs.

Everything is read once, in order, while `_where` keeps track of what is being read; every failure
becomes a ModelError that says so. A budget bounds the work: an honest file is read about once, a
hostile one may refer to the same bytes often.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from nnasync._core.formats.flatbuffer import BROKEN, Table, empty, fields, root, text
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


class Quantization(Struct, frozen=True):
    """Scales and zero points of a tensor: one of each, or one per index of a dimension."""

    scales: tuple[float, ...] = ()
    zero_points: tuple[int, ...] = ()
    dimension: int = 0


class TensorInfo(Struct, frozen=True):
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
        """Its scales, none where it is not quantized."""
        return self.quantization.scales


def labeled(index: int, info: TensorInfo) -> str:
    """A tensor as it is called in messages."""
    return f'tensor {index} "{info.name}"'


class OperatorInfo(Struct, frozen=True):
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
        self._where = "header"

    def read(self) -> File:
        try:
            return self._read()
        except BROKEN as error:
            if isinstance(error, ModelError):
                raise
            text = str(error) or type(error).__name__
            raise ModelError(f"is broken: {self._where}: {text}") from error

    def _read(self) -> File:
        model = root(self._data, _KNOWN["Model"])
        version = model.integer("Version")
        if version != _SCHEMA_VERSION:
            raise ModelError(f"has schema version {version}, known is {_SCHEMA_VERSION}")
        codes = [
            self._operator_name(code)
            for code in self._tables(model, "OperatorCodes", "OperatorCode", "operator code")
        ]
        buffers = [
            self._extent(buffer) for buffer in self._tables(model, "Buffers", "Buffer", "buffer")
        ]
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
            self._tensor(tensor, buffers)
            for tensor in self._tables(graph, "Tensors", "Tensor", "tensor")
        ]
        operators = [
            self._operator(index, operator, codes, tensors)
            for index, operator in enumerate(
                self._tables(graph, "Operators", "Operator", "operator")
            )
        ]
        self._where = "subgraph inputs"
        inputs = self._tensor_indices(graph, "Inputs", len(tensors), optional=False)
        self._where = "subgraph outputs"
        outputs = self._tensor_indices(graph, "Outputs", len(tensors), optional=False)
        return Graph(tuple(tensors), tuple(operators), inputs, outputs)

    def _charge(self, size: int) -> None:
        self._budget -= size
        if self._budget < 0:
            raise ModelError(f"is broken: {self._where}: parts of the file refer to it too often")

    def _tables(self, table: Table, field: str, kind: str, what: str) -> Iterator[Table]:
        """The tables of a list, each announced before it is read."""
        self._where = f"{what}s"
        self._charge(_TABLE_BYTES * table.extent(field)[1])
        self._where = f"{what} 0"
        for index, entry in enumerate(table.tables(field, _KNOWN[kind]), 1):
            yield entry
            self._where = f"{what} {index}"

    def _vector(self, table: Table, field: str, itemsize: int = 4) -> tuple[Any, ...]:
        numbers = table.numbers(field)
        if numbers:
            self._charge(itemsize * len(numbers))
        return numbers

    def _bytes(self, table: Table, field: str) -> bytes:
        content = table.bytes(field)
        self._charge(len(content))
        return content

    def _text(self, table: Table, field: str) -> str:
        return text(self._bytes(table, field))

    def _operator_name(self, code: Table) -> str:
        number = max(code.integer("BuiltinCode"), code.integer("DeprecatedBuiltinCode"))
        name = _named(_OPERATORS, number, "operator")
        return f"CUSTOM {self._text(code, 'CustomCode')}" if name == "CUSTOM" else name

    def _extent(self, buffer: Table) -> tuple[int, int]:
        """Offset and length of a buffer's bytes in the file, inside of its table or behind all."""
        offset, length = buffer.integer("Offset"), buffer.integer("Size")
        inside = buffer.extent("Data")
        if offset > 1 and inside[1]:
            raise ModelError(f"is broken: {self._where}: states its bytes and where else they are")
        if offset <= 1:
            offset, length = inside
            if not length:
                return (0, 0)
        if offset + length > len(self._data):
            raise ModelError(
                f"is broken: {self._where}: has bytes {offset} to {offset + length} of a file of "
                f"{len(self._data)}"
            )
        return (offset, length)

    def _tensor(self, tensor: Table, buffers: Sequence[tuple[int, int]]) -> TensorInfo:
        shape = self._vector(tensor, "Shape")
        if shape and min(shape) < 0:
            raise ModelError(f"is broken: {self._where}: has shape {list(shape)}")
        number = tensor.integer("Buffer")
        offset, length = buffers[number] if number else _NO_VALUE
        signature = self._vector(tensor, "ShapeSignature")
        return TensorInfo(
            name=self._text(tensor, "Name"),
            type=_named(_TYPES, tensor.integer("Type"), "type"),
            shape=shape,
            quantization=self._quantization(
                tensor.table("Quantization", _KNOWN["QuantizationParameters"])
            ),
            is_variable=bool(tensor.number("IsVariable")),
            offset=offset,
            length=length,
            open_shape=_opened(shape, signature),
            is_sparse=tensor.table("Sparsity", {}) is not None,
        )

    def _quantization(self, quantization: Table | None) -> Quantization:
        if quantization is None:
            return Quantization()
        return Quantization(
            scales=self._vector(quantization, "Scale"),
            zero_points=self._vector(quantization, "ZeroPoint", 8),
            dimension=quantization.integer("QuantizedDimension"),
        )

    def _operator(
        self, index: int, operator: Table, codes: Sequence[str], tensors: Sequence[TensorInfo]
    ) -> OperatorInfo:
        name, count = codes[operator.integer("OpcodeIndex")], len(tensors)
        self._where = f"operator {index} ({name})"
        inputs = self._tensor_indices(operator, "Inputs", count, optional=True)
        outputs = self._tensor_indices(operator, "Outputs", count, optional=False)
        used = [tensors[each] for each in (*inputs, *outputs) if each >= 0]
        self._charge(sum(len(each.shape) + len(each.scales) for each in used) // _FREE_NUMBERS)
        return OperatorInfo(
            index=index,
            name=name,
            inputs=inputs,
            outputs=outputs,
            options=self._options(operator, name),
            intermediates=self._tensor_indices(operator, "Intermediates", count, optional=True),
            custom_options=self._bytes(operator, "CustomOptions"),
        )

    def _tensor_indices(
        self, table: Table, field: str, count: int, *, optional: bool
    ) -> tuple[int, ...]:
        indices = self._vector(table, field)
        for index in indices:
            if not (-1 if optional else 0) <= index < count:
                raise ModelError(
                    f"is broken: {self._where}: {field.lower()} name tensor {index} of {count}"
                )
        return indices

    def _options(self, operator: Table, name: str) -> dict[str, Option]:
        """All parameters of an operator, with the schema's defaults."""
        expected = PARAMETERS.get(name, "")
        if not expected:
            return {}
        known = fields(TABLES[expected])
        kind = operator.integer("BuiltinOptionsType")
        table = operator.table("BuiltinOptions", known)
        if kind and (_named(_OPTIONS, kind, "") != expected or table is None):
            raise ModelError(f"is broken: {self._where}: its options are not {expected}")
        if not kind or table is None:
            table = empty(known)
        return {field: self._option(table, field, type) for field, (_, type, _) in known.items()}

    def _option(self, table: Table, field: str, type: str) -> Option:
        if type == "text":
            return self._text(table, field)
        return self._vector(table, field) if type.startswith("*") else table.number(field)


def _opened(shape: Shape, signature: Sequence[int]) -> Shape:
    """A shape with 0 for the dimensions that the file leaves open."""
    if len(signature) != len(shape) or min(signature, default=0) >= 0:
        return shape
    return tuple(n if s >= 0 else 0 for n, s in zip(shape, signature, strict=True))


def _named(names: Sequence[str], number: int, kind: str) -> str:
    """The name of a number; where the schema has none, the number and what it is of."""
    return names[number] if 0 <= number < len(names) else f"{kind} {number}"
