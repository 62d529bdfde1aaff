"""The parts of a TFLite file, read through the published schema into plain structs.

The schema package trusts its input: it follows any offset, and what goes wrong comes out as
whatever Python makes of it. So nothing of it leaves this file. Everything is read once, in order,
while `_where` keeps track of what is being read; every failure becomes a ModelError that says so. A
budget bounds the work: an honest file is read about once, a hostile one may refer to the same bytes
often.
"""

from __future__ import annotations

import functools
import importlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from nnasync.errors import ModelError
from nnasync.hal import Shape, Struct

Option = int | float | bool | str | tuple[int, ...]
"""A parameter of an operator."""

_IDENTIFIER = b"TFL3"
_SCHEMA_VERSION = 3
_TABLE_BYTES = 16
_BROKEN = (
    struct.error,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
)


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


def read_file(data: memoryview, tables: Mapping[str, str]) -> File:
    """The parts of a TFLite file; raises ModelError where the file is broken.

    `tables` names the schema's table of options of each operator whose options matter.
    """
    if len(data) < 8 or bytes(data[4:8]) != _IDENTIFIER:
        raise ModelError(f'is not a TFLite file: bytes 4 to 8 are not "{_IDENTIFIER.decode()}"')
    return _Reader(data, tables).read()


def _schema() -> ModuleType:
    """The published schema; imported late, since its import takes longer than reading a file."""
    import tflite

    module: ModuleType = tflite
    return module


class _Reader:
    def __init__(self, data: memoryview, tables: Mapping[str, str]) -> None:
        self._data = data
        self._tables = tables
        self._start = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
        self._budget = 2 * len(data) + 4096
        self._where = "header"
        self._schema = _schema()
        self._type_names = _names(self._schema.TensorType)
        self._operator_names = _names(self._schema.BuiltinOperator)

    def read(self) -> File:
        try:
            return self._read()
        except _BROKEN as error:
            text = str(error) or type(error).__name__
            raise ModelError(f"is broken: {self._where}: {text}") from error

    def _read(self) -> File:
        model = self._schema.Model.GetRootAs(self._data)
        if model.Version() != _SCHEMA_VERSION:
            raise ModelError(f"has schema version {model.Version()}, known is {_SCHEMA_VERSION}")
        codes = [
            self._operator_name(model.OperatorCodes(index))
            for index in self._indices("operator code", model.OperatorCodesLength())
        ]
        buffers = [
            self._extent(model.Buffers(index))
            for index in self._indices("buffer", model.BuffersLength())
        ]
        graphs = [
            self._graph(model.Subgraphs(index), codes, buffers)
            for index in self._indices("subgraph", model.SubgraphsLength())
        ]
        if not graphs:
            raise ModelError("has no subgraph")
        signatures = [
            self._signature(model.SignatureDefs(index), graphs)
            for index in self._indices("signature", model.SignatureDefsLength())
        ]
        metadata = {}
        for index in self._indices("metadata", model.MetadataLength()):
            entry = model.Metadata(index)
            metadata[self._text(entry.Name())] = buffers[entry.Buffer()]
        return File(tuple(graphs), tuple(signatures), metadata)

    def _signature(self, signature: Any, graphs: Sequence[Graph]) -> SignatureInfo:
        number = signature.SubgraphIndex()
        graph = graphs[number]
        return SignatureInfo(
            name=self._text(signature.SignatureKey()),
            graph=number,
            inputs=self._names(signature, "Inputs", graph.inputs),
            outputs=self._names(signature, "Outputs", graph.outputs),
        )

    def _names(
        self, signature: Any, field: str, tensors: Sequence[int]
    ) -> tuple[tuple[str, int], ...]:
        count = getattr(signature, f"{field}Length")()
        self._charge(_TABLE_BYTES * count)
        entries = [getattr(signature, field)(index) for index in range(count)]
        found = tuple((self._text(entry.Name()), entry.TensorIndex()) for entry in entries)
        for name, tensor in found:
            if tensor not in tensors:
                raise ModelError(
                    f'is broken: {self._where}: "{name}" is tensor {tensor}, which is none of the'
                    f" {field.lower()} of its subgraph"
                )
        return found

    def _graph(self, graph: Any, codes: Sequence[str], buffers: Sequence[tuple[int, int]]) -> Graph:
        tensors = [
            self._tensor(graph.Tensors(index), buffers)
            for index in self._indices("tensor", graph.TensorsLength())
        ]
        operators = [
            self._operator(index, graph.Operators(index), codes, len(tensors))
            for index in self._indices("operator", graph.OperatorsLength())
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

    def _indices(self, what: str, count: int) -> Iterator[int]:
        """The numbers below `count`, each announced before it is read."""
        self._where = f"{what}s"
        self._charge(_TABLE_BYTES * count)
        for index in range(count):
            self._where = f"{what} {index}"
            yield index

    def _vector(self, table: Any, field: str, itemsize: int = 4) -> list[Any]:
        count = getattr(table, f"{field}Length")()
        self._charge(itemsize * count)
        return getattr(table, f"{field}AsNumpy")().tolist() if count else []

    def _text(self, raw: bytes | None) -> str:
        self._charge(len(raw or b""))
        return (raw or b"").decode("utf-8", "replace")

    def _operator_name(self, code: Any) -> str:
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        name = self._operator_names.get(number, f"operator {number}")
        return f"CUSTOM {self._text(code.CustomCode())}" if name == "CUSTOM" else name

    def _extent(self, buffer: Any) -> tuple[int, int]:
        """Offset and length of a buffer's bytes in the file."""
        offset, length = buffer.Offset(), buffer.Size()
        if offset <= 1:
            length = buffer.DataLength()
            if not length:
                return (0, 0)
            offset = buffer.DataAsNumpy().__array_interface__["data"][0] - self._start
        if offset + length > len(self._data):
            raise ModelError(
                f"is broken: {self._where}: has bytes {offset} to {offset + length} of a file of "
                f"{len(self._data)}"
            )
        return (offset, length)

    def _tensor(self, tensor: Any, buffers: Sequence[tuple[int, int]]) -> TensorInfo:
        shape = tuple(self._vector(tensor, "Shape"))
        if any(n < 0 for n in shape):
            raise ModelError(f"is broken: {self._where}: has shape {list(shape)}")
        offset, length = buffers[tensor.Buffer()]
        signature = self._vector(tensor, "ShapeSignature")
        if len(signature) != len(shape):
            signature = list(shape)
        return TensorInfo(
            name=self._text(tensor.Name()),
            type=self._type_names.get(tensor.Type(), f"type {tensor.Type()}"),
            shape=shape,
            quantization=self._quantization(tensor.Quantization()),
            is_variable=tensor.IsVariable(),
            offset=offset,
            length=length,
            open_shape=tuple(n if s >= 0 else 0 for n, s in zip(shape, signature, strict=True)),
            is_sparse=tensor.Sparsity() is not None,
        )

    def _quantization(self, quantization: Any) -> Quantization:
        if quantization is None:
            return Quantization()
        return Quantization(
            scales=tuple(self._vector(quantization, "Scale")),
            zero_points=tuple(self._vector(quantization, "ZeroPoint", 8)),
            dimension=quantization.QuantizedDimension(),
        )

    def _operator(
        self, index: int, operator: Any, codes: Sequence[str], tensors: int
    ) -> OperatorInfo:
        name = codes[operator.OpcodeIndex()]
        self._where = f"operator {index} ({name})"
        return OperatorInfo(
            index=index,
            name=name,
            inputs=self._tensor_indices(operator, "Inputs", tensors, optional=True),
            outputs=self._tensor_indices(operator, "Outputs", tensors, optional=False),
            options=self._options(operator, name),
            intermediates=self._tensor_indices(operator, "Intermediates", tensors, optional=True),
            custom_options=bytes(self._vector(operator, "CustomOptions", 1)),
        )

    def _tensor_indices(
        self, table: Any, field: str, count: int, *, optional: bool
    ) -> tuple[int, ...]:
        indices = tuple(self._vector(table, field))
        for index in indices:
            if not (-1 if optional else 0) <= index < count:
                raise ModelError(
                    f"is broken: {self._where}: {field.lower()} name tensor {index} of {count}"
                )
        return indices

    def _options(self, operator: Any, name: str) -> dict[str, Option]:
        expected = self._tables.get(name, "")
        if not expected:
            return {}
        kind = operator.BuiltinOptionsType()
        table = operator.BuiltinOptions()
        if kind and (kind != getattr(self._schema.BuiltinOptions, expected) or table is None):
            raise ModelError(f"is broken: {self._where}: its options are not {expected}")
        options = getattr(self._schema, expected)
        if not kind:
            return self._fields(expected, options.GetRootAs(_empty_table()))
        read = options()
        read.Init(table.Bytes, table.Pos)
        return self._fields(expected, read)

    def _fields(self, name: str, table: Any) -> dict[str, Option]:
        """All parameters in a table of options, with the schema's defaults."""
        found: dict[str, Option] = {}
        for field in _field_names(name):
            if hasattr(table, f"{field}AsNumpy"):
                found[field] = tuple(self._vector(table, field))
            else:
                value = getattr(table, field)()
                is_text = value is None or isinstance(value, bytes)
                found[field] = self._text(value) if is_text else value
        return found


@functools.cache
def _field_names(table: str) -> tuple[str, ...]:
    """The fields of a table of the schema: a class with a method for each, and some others."""
    kind: Any = getattr(_schema(), table)
    ends = ("AsNumpy", "Length", "IsNone", "HasIdentifier")
    return tuple(
        name
        for name in vars(kind)
        if name[0] != "_"
        and name != "Init"
        and not name.startswith("GetRootAs")
        and not name.endswith(ends)
    )


@functools.cache
def _empty_table() -> bytes:
    """A table in which nothing is stated, so that every field has its default."""
    builder: Any = importlib.import_module("flatbuffers").Builder(16)
    builder.StartObject(0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def _names(enumeration: Any) -> dict[int, str]:
    return {number: name for name, number in vars(enumeration).items() if isinstance(number, int)}
