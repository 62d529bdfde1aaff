"""A LiteRT file in memory: tensors, buffers and operators of one subgraph, packed by its schema."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from nnasync._core.formats.flatbuffer import fields
from nnasync._core.formats.tflite_schema import OPERATORS, OPTIONS, TABLES, TENSOR_TYPES
from nnasync.hal import Array, Shape, Struct

Options = Mapping[str, int | float | bool]
"""Parameters of an operator by the schema's names."""

NO_OPTIONS: Options = MappingProxyType({})

_SCHEMA_VERSION = 3
_ALIGNMENT = 16
_IDENTIFIER = b"TFL3"
_FIRST_CODE_OF_ITS_OWN = 127
"""Operators from here on do not fit in the schema's first field for their number."""
_ROOM_BYTES = 1 << 16
_OPERATORS, _OPTIONS, _TYPES = OPERATORS.split(), OPTIONS.split(), TENSOR_TYPES.split()
_WRITERS = {
    "?": "Bool",
    "b": "Int8",
    "B": "Uint8",
    "i": "Int32",
    "I": "Uint32",
    "q": "Int64",
    "Q": "Uint64",
    "f": "Float32",
}
"""What the builder calls the types of fields that are numbers; others lead to what they hold."""


class FileTensor(Struct, frozen=True, eq=False):
    """A tensor of the file; `type` is the schema's name, such as "FLOAT32".

    `dimension` is the one along which there are several scales. `value` is that of a constant.
    """

    type: str
    shape: Shape
    scales: tuple[float, ...] = ()
    zero_points: tuple[int, ...] = ()
    dimension: int = 0
    value: Array | None = None
    is_variable: bool = False


class _Operator(Struct, frozen=True):
    """An operator of the file; -1 is an omitted input."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    table: str
    options: Options
    intermediates: tuple[int, ...]


class FileWriter:
    """Collects tensors and operators, in the order of execution."""

    def __init__(self) -> None:
        self.tensors: list[FileTensor] = []
        self.operators: list[_Operator] = []

    def tensor(self, tensor: FileTensor) -> int:
        """Add a tensor; returns its index."""
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def operator(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        table: str = "",
        options: Options = NO_OPTIONS,
        intermediates: Sequence[int] = (),
    ) -> None:
        """Add an operator; `table` is the schema's name of its options."""
        self.operators.append(
            _Operator(name, tuple(inputs), tuple(outputs), table, options, tuple(intermediates))
        )

    def arrange(self, first: Sequence[int]) -> dict[int, int]:
        """Renumber the tensors, these first; returns the new number of each.

        The engine lays out tensors that live as long in this order.
        """
        order = list(dict.fromkeys((*first, *range(len(self.tensors)))))
        places = {old: new for new, old in enumerate(order)}
        places[-1] = -1
        self.tensors = [self.tensors[old] for old in order]
        self.operators = [
            msgspec.structs.replace(
                each,
                inputs=tuple(places[index] for index in each.inputs),
                outputs=tuple(places[index] for index in each.outputs),
                intermediates=tuple(places[index] for index in each.intermediates),
            )
            for each in self.operators
        ]
        return places

    def finish(self, inputs: Sequence[int], outputs: Sequence[int]) -> bytes:
        """The file, whose inputs and outputs are these tensors."""
        constants = [tensor.value for tensor in self.tensors if tensor.value is not None]
        size = sum(constant.nbytes + _ALIGNMENT for constant in constants)
        builder = importlib.import_module("flatbuffers").Builder(size + _ROOM_BYTES)
        return _Packer(builder).pack(self, inputs, outputs)


class _Packer:
    """Writes one file, backwards, as flatbuffers are."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder

    def pack(self, file: FileWriter, inputs: Sequence[int], outputs: Sequence[int]) -> bytes:
        names = list(dict.fromkeys(operator.name for operator in file.operators))
        buffers = [self._table("Buffer")]
        tensors = []
        for tensor in file.tensors:
            number = 0
            if tensor.value is not None:
                number = len(buffers)
                buffers.append(self._table("Buffer", Data=self._bytes(tensor.value)))
            tensors.append(self._tensor(tensor, number))
        operators = [self._operator(each, names.index(each.name)) for each in file.operators]
        graph = self._table(
            "SubGraph",
            Tensors=self._offsets(tensors),
            Inputs=self._numbers(np.asarray(inputs, np.int32)),
            Outputs=self._numbers(np.asarray(outputs, np.int32)),
            Operators=self._offsets(operators),
        )
        codes = [self._code(name) for name in names]
        model = self._table(
            "Model",
            Version=_SCHEMA_VERSION,
            OperatorCodes=self._offsets(codes),
            Subgraphs=self._offsets([graph]),
            Buffers=self._offsets(buffers),
        )
        self._builder.Finish(model, _IDENTIFIER)
        return bytes(self._builder.Output())

    def _table(self, name: str, **given: Any) -> int:
        """A table of the schema; its fields that are tables or vectors must have been written."""
        known = fields(TABLES[name])
        self._builder.StartObject(1 + max((slot for slot, _, _ in known.values()), default=-1))
        for field, value in given.items():
            slot, kind, default = known[field]
            write = getattr(self._builder, f"Prepend{_WRITERS.get(kind, 'UOffsetTRelative')}Slot")
            write(slot, value, default)
        offset: int = self._builder.EndObject()
        return offset

    def _tensor(self, tensor: FileTensor, buffer: int) -> int:
        further: dict[str, Any] = {}
        if tensor.scales:
            further["Quantization"] = self._table(
                "QuantizationParameters",
                Scale=self._numbers(np.asarray(tensor.scales, np.float32)),
                ZeroPoint=self._numbers(np.asarray(tensor.zero_points, np.int64)),
                QuantizedDimension=tensor.dimension,
            )
        return self._table(
            "Tensor",
            Shape=self._numbers(np.asarray(tensor.shape, np.int32)),
            Type=_TYPES.index(tensor.type),
            Buffer=buffer,
            IsVariable=tensor.is_variable,
            **further,
        )

    def _operator(self, operator: _Operator, code: int) -> int:
        given: dict[str, Any] = {
            "OpcodeIndex": code,
            "Inputs": self._numbers(np.asarray(operator.inputs, np.int32)),
            "Outputs": self._numbers(np.asarray(operator.outputs, np.int32)),
        }
        if operator.intermediates:
            numbers = np.asarray(operator.intermediates, np.int32)
            given["Intermediates"] = self._numbers(numbers)
        if operator.table:
            given["BuiltinOptions"] = self._table(operator.table, **operator.options)
            given["BuiltinOptionsType"] = _OPTIONS.index(operator.table)
        return self._table("Operator", **given)

    def _code(self, name: str) -> int:
        number = _OPERATORS.index(name)
        return self._table(
            "OperatorCode",
            DeprecatedBuiltinCode=min(number, _FIRST_CODE_OF_ITS_OWN),
            BuiltinCode=number,
            Version=1,
        )

    def _numbers(self, numbers: Array) -> int:
        offset: int = self._builder.CreateNumpyVector(numbers)
        return offset

    def _offsets(self, offsets: Sequence[int]) -> int:
        self._builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self._builder.PrependUOffsetTRelative(offset)
        end: int = self._builder.EndVector()
        return end

    def _bytes(self, value: Array) -> int:
        """The bytes of a constant, aligned for vector instructions."""
        builder = self._builder
        builder.StartVector(1, value.nbytes, _ALIGNMENT)
        start = builder.Head() - value.nbytes
        builder.head = start
        room = np.frombuffer(builder.Bytes, np.uint8, value.nbytes, start)
        room[:] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        end: int = builder.EndVector()
        return end
