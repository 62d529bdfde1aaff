"""The parts of a TFLite file, read through the published schema into plain structs.

The schema package trusts its input: it follows any offset, and what goes wrong comes out as
whatever Python makes of it. So nothing of it leaves this file. Everything is read once, in order,
while `_where` keeps track of what is being read; every failure becomes a ModelError that says so. A
budget bounds the work: an honest file is read about once, a hostile one may refer to the same bytes
often.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from nnasync.errors import ModelError
from nnasync.formats.tflite import OPERATORS, Default
from nnasync.hal import Shape, Struct

__all__ = ["Graph", "OperatorInfo", "Quantization", "TensorInfo", "read_graph"]

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
    """One tensor; `offset` and `length` are its constant value's bytes in the file, if any."""

    name: str
    type: str
    shape: Shape
    quantization: Quantization
    is_variable: bool
    offset: int
    length: int


class OperatorInfo(Struct, frozen=True):
    """One operator; inputs that are left out are -1.

    `intermediates` are tensors that only say how values inside the operator are quantised.
    """

    index: int
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: dict[str, Default]
    intermediates: tuple[int, ...] = ()


class Graph(Struct, frozen=True):
    """The main subgraph of a file."""

    tensors: tuple[TensorInfo, ...]
    operators: tuple[OperatorInfo, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def read_graph(data: memoryview) -> Graph:
    """The main subgraph of a TFLite file; raises ModelError where the file is broken."""
    if len(data) < 8 or bytes(data[4:8]) != _IDENTIFIER:
        raise ModelError(f'is not a TFLite file: bytes 4 to 8 are not "{_IDENTIFIER.decode()}"')
    return _Reader(data).read()


def _schema() -> ModuleType:
    """The published schema; imported late, since its import takes longer than reading a file."""
    import tflite

    module: ModuleType = tflite
    return module


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._start = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
        self._budget = 2 * len(data) + 4096
        self._where = "header"
        self._schema = _schema()
        self._type_names = _names(self._schema.TensorType)
        self._operator_names = _names(self._schema.BuiltinOperator)

    def read(self) -> Graph:
        try:
            return self._read()
        except _BROKEN as error:
            text = str(error) or type(error).__name__
            raise ModelError(f"is broken: {self._where}: {text}") from error

    def _read(self) -> Graph:
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
        self._where = "subgraph 0"
        if model.SubgraphsLength() < 1:
            raise ModelError("has no subgraph")
        return self._graph(model.Subgraphs(0), codes, buffers)

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
        if tensor.Sparsity() is not None:
            raise ModelError(f"{self._where}: sparse tensors are not supported")
        return TensorInfo(
            name=self._text(tensor.Name()),
            type=self._type_names.get(tensor.Type(), f"type {tensor.Type()}"),
            shape=shape,
            quantization=self._quantization(tensor.Quantization()),
            is_variable=tensor.IsVariable(),
            offset=offset,
            length=length,
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

    def _options(self, operator: Any, name: str) -> dict[str, Default]:
        entry = OPERATORS.get(name)
        if entry is None or not entry.defaults:
            return {}
        kind = operator.BuiltinOptionsType()
        if not kind:
            return dict(entry.defaults)
        expected = getattr(self._schema.BuiltinOptions, entry.options)
        table = operator.BuiltinOptions()
        if kind != expected or table is None:
            raise ModelError(f"is broken: {self._where}: its options are not {entry.options}")
        options = getattr(self._schema, entry.options)()
        options.Init(table.Bytes, table.Pos)
        return {
            field: tuple(self._vector(options, field))
            if isinstance(default, tuple)
            else getattr(options, field)()
            for field, default in entry.defaults.items()
        }


def _names(enumeration: Any) -> dict[int, str]:
    return {number: name for name, number in vars(enumeration).items() if isinstance(number, int)}
