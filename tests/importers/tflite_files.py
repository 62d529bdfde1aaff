"""Writes small TFLite files through the published schema, as input of the importer's tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import tflite

from nnasync._core import importers
from nnasync._core.importers.tflite import translate
from nnasync.hal import Model, Struct


class T(Struct, frozen=True):
    """A tensor of a file to write."""

    type: str
    shape: tuple[int, ...]
    data: Any = None
    scales: tuple[float, ...] = ()
    zero_points: tuple[int, ...] = ()
    dimension: int = 0
    variable: bool = False
    open: tuple[int, ...] = ()


class Op(Struct, frozen=True):
    """An operator of a file to write; `options` are those of the schema, by name."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options_type: str = ""
    options: Mapping[str, Any] = {}
    custom: str = ""
    intermediates: tuple[int, ...] = ()
    version: int = 1
    custom_options: bytes = b""


class G(Struct, frozen=True):
    """A subgraph of a file to write."""

    tensors: Sequence[T]
    ops: Sequence[Op]
    inputs: Sequence[int]
    outputs: Sequence[int]


class Signature(Struct, frozen=True):
    """Names for the inputs and outputs of a subgraph, each with its tensor."""

    name: str
    graph: int
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]


def tflite_file(
    tensors: Sequence[T], ops: Sequence[Op], inputs: Sequence[int], outputs: Sequence[int]
) -> bytes:
    """A TFLite file of one subgraph, written through the published schema."""
    return graphs_file([G(tensors, ops, inputs, outputs)])


def graphs_file(
    graphs: Sequence[G],
    signatures: Sequence[Signature] = (),
    metadata: Mapping[str, bytes] = {},
) -> bytes:
    """A TFLite file of several subgraphs, the main one first."""
    b = flatbuffers.Builder(1024)
    buffers = [buffer(b, None)]
    codes: list[int] = []
    made = []
    for graph in graphs:
        first_buffer, first_code = len(buffers), len(codes)
        buffers += [buffer(b, tensor.data) for tensor in graph.tensors]
        codes += [operator_code(b, op) for op in graph.ops]
        made.append(subgraph(b, graph, first_buffer, first_code))
    entries = [signature_table(b, each) for each in signatures]
    said = []
    for name, content in metadata.items():
        said.append(metadata_table(b, name, len(buffers)))
        buffers.append(buffer(b, np.frombuffer(content, np.uint8)))
    fields = [
        vector(b, items, 4, b.PrependUOffsetTRelative)
        for items in (codes, made, buffers, entries, said)
    ]
    tflite.ModelStart(b)
    tflite.ModelAddVersion(b, 3)
    tflite.ModelAddOperatorCodes(b, fields[0])
    tflite.ModelAddSubgraphs(b, fields[1])
    tflite.ModelAddBuffers(b, fields[2])
    if entries:
        tflite.ModelAddSignatureDefs(b, fields[3])
    if said:
        tflite.ModelAddMetadata(b, fields[4])
    b.Finish(tflite.ModelEnd(b), b"TFL3")
    return bytes(b.Output())


def subgraph(b: Any, graph: G, first_buffer: int, first_code: int) -> int:
    made = [
        tensor_table(b, index, tensor, first_buffer + index)
        for index, tensor in enumerate(graph.tensors)
    ]
    operators = [operator_table(b, first_code + index, op) for index, op in enumerate(graph.ops)]
    fields = [
        vector(b, made, 4, b.PrependUOffsetTRelative),
        vector(b, graph.inputs, 4, b.PrependInt32),
        vector(b, graph.outputs, 4, b.PrependInt32),
        vector(b, operators, 4, b.PrependUOffsetTRelative),
    ]
    tflite.SubGraphStart(b)
    tflite.SubGraphAddTensors(b, fields[0])
    tflite.SubGraphAddInputs(b, fields[1])
    tflite.SubGraphAddOutputs(b, fields[2])
    tflite.SubGraphAddOperators(b, fields[3])
    return int(tflite.SubGraphEnd(b))


def signature_table(b: Any, signature: Signature) -> int:
    maps = [
        vector(b, [tensor_map(b, *item) for item in names.items()], 4, b.PrependUOffsetTRelative)
        for names in (signature.inputs, signature.outputs)
    ]
    key = b.CreateString(signature.name)
    tflite.SignatureDefStart(b)
    tflite.SignatureDefAddInputs(b, maps[0])
    tflite.SignatureDefAddOutputs(b, maps[1])
    tflite.SignatureDefAddSignatureKey(b, key)
    tflite.SignatureDefAddSubgraphIndex(b, signature.graph)
    return int(tflite.SignatureDefEnd(b))


def metadata_table(b: Any, name: str, number: int) -> int:
    text = b.CreateString(name)
    tflite.MetadataStart(b)
    tflite.MetadataAddName(b, text)
    tflite.MetadataAddBuffer(b, number)
    return int(tflite.MetadataEnd(b))


def tensor_map(b: Any, name: str, tensor: int) -> int:
    text = b.CreateString(name)
    tflite.TensorMapStart(b)
    tflite.TensorMapAddName(b, text)
    tflite.TensorMapAddTensorIndex(b, tensor)
    return int(tflite.TensorMapEnd(b))


def vector(b: Any, items: Sequence[Any], size: int, prepend: Callable[[Any], object]) -> int:
    b.StartVector(size, len(items), size)
    for item in reversed(items):
        prepend(item)
    return int(b.EndVector())


def buffer(b: Any, data: Any) -> int:
    where = None
    if data is not None:
        raw = np.asarray(data).tobytes()
        b.StartVector(1, len(raw), 16)
        for byte in reversed(raw):
            b.PrependByte(byte)
        where = b.EndVector()
    tflite.BufferStart(b)
    if where is not None:
        tflite.BufferAddData(b, where)
    return int(tflite.BufferEnd(b))


def tensor_table(b: Any, index: int, tensor: T, number: int = 1) -> int:
    shape = vector(b, tensor.shape, 4, b.PrependInt32)
    signature = vector(b, tensor.open, 4, b.PrependInt32) if tensor.open else None
    name = b.CreateString(f"t{index}")
    quantization = None
    if tensor.scales:
        scales = vector(b, tensor.scales, 4, b.PrependFloat32)
        zero_points = vector(b, tensor.zero_points or (0,) * len(tensor.scales), 8, b.PrependInt64)
        tflite.QuantizationParametersStart(b)
        tflite.QuantizationParametersAddScale(b, scales)
        tflite.QuantizationParametersAddZeroPoint(b, zero_points)
        tflite.QuantizationParametersAddQuantizedDimension(b, tensor.dimension)
        quantization = tflite.QuantizationParametersEnd(b)
    tflite.TensorStart(b)
    tflite.TensorAddShape(b, shape)
    tflite.TensorAddType(b, getattr(tflite.TensorType, tensor.type))
    tflite.TensorAddBuffer(b, number)
    tflite.TensorAddName(b, name)
    tflite.TensorAddIsVariable(b, tensor.variable)
    if signature is not None:
        tflite.TensorAddShapeSignature(b, signature)
    if quantization is not None:
        tflite.TensorAddQuantization(b, quantization)
    return int(tflite.TensorEnd(b))


def operator_code(b: Any, op: Op) -> int:
    custom = b.CreateString(op.custom) if op.custom else None
    code = getattr(tflite.BuiltinOperator, op.name)
    tflite.OperatorCodeStart(b)
    tflite.OperatorCodeAddDeprecatedBuiltinCode(b, min(code, 127))
    tflite.OperatorCodeAddBuiltinCode(b, code)
    tflite.OperatorCodeAddVersion(b, op.version)
    if custom is not None:
        tflite.OperatorCodeAddCustomCode(b, custom)
    return int(tflite.OperatorCodeEnd(b))


def operator_table(b: Any, index: int, op: Op) -> int:
    inputs = vector(b, op.inputs, 4, b.PrependInt32)
    outputs = vector(b, op.outputs, 4, b.PrependInt32)
    intermediates = vector(b, op.intermediates, 4, b.PrependInt32)
    options = None
    if op.options_type:
        values = {
            name: vector(b, value, 4, b.PrependInt32)
            if isinstance(value, tuple)
            else b.CreateString(value)
            if isinstance(value, str)
            else value
            for name, value in op.options.items()
        }
        getattr(tflite, f"{op.options_type}Start")(b)
        for name, value in values.items():
            getattr(tflite, f"{op.options_type}Add{name}")(b, value)
        options = getattr(tflite, f"{op.options_type}End")(b)
    custom = b.CreateByteVector(op.custom_options) if op.custom_options else None
    tflite.OperatorStart(b)
    if custom is not None:
        tflite.OperatorAddCustomOptions(b, custom)
    tflite.OperatorAddOpcodeIndex(b, index)
    tflite.OperatorAddInputs(b, inputs)
    tflite.OperatorAddOutputs(b, outputs)
    tflite.OperatorAddIntermediates(b, intermediates)
    if options is not None:
        number = getattr(tflite.BuiltinOptions, op.options_type)
        tflite.OperatorAddBuiltinOptionsType(b, number)
        tflite.OperatorAddBuiltinOptions(b, options)
    return int(tflite.OperatorEnd(b))


def load_bytes(data: bytes, folder: Path) -> Model:
    path = folder / "model.tflite"
    path.write_bytes(data)
    return importers.load(path)


def translate_parts(
    folder: Path, tensors: Sequence[T], ops: Sequence[Op], inputs: Sequence[int] = (0,)
) -> Model:
    """The model in operations; raises ModelError where a file would be kept whole."""
    path = folder / "model.tflite"
    path.write_bytes(tflite_file(tensors, ops, inputs, ops[-1].outputs[:1]))
    return translate(path)


def load_parts(
    folder: Path, tensors: Sequence[T], ops: Sequence[Op], inputs: Sequence[int] = (0,)
) -> Model:
    outputs = ops[-1].outputs[:1]
    return load_bytes(tflite_file(tensors, ops, inputs, outputs), folder)


def floats(*shape: int) -> T:
    return T("FLOAT32", shape)


def weights(*shape: int) -> T:
    return T("FLOAT32", shape, np.arange(math.prod(shape), dtype=np.float32))


def integers(*values: int) -> T:
    return T("INT32", (len(values),), np.array(values, np.int32))


def q8(*shape: int, scale: float = 0.5, data: Any = None, type: str = "INT8") -> T:
    return T(type, shape, data, (scale,), (3 if data is None else 0,))
