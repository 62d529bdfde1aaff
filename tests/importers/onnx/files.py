"""Small ONNX files for tests, and models run synchronously on an engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.drivers.onnxruntime import OnnxRuntimeEngine
from nnasync._core.importers.onnx import translate, wrap
from nnasync.extensions import type_within
from nnasync.hal import Array, Model, dtype_of, is_extension
from nnasync.hal.file_operands import FileOperand
from scripts.onnx_nodes import run as run

onnx = pytest.importorskip("onnx", reason="needs the package onnx")
pytest.importorskip("onnxruntime", reason="needs the package onnxruntime")

FLOAT, UINT8, INT8, INT32, INT64, BOOL, HALF, DOUBLE = 1, 2, 3, 6, 7, 9, 10, 11
Port = tuple[str, int, Sequence[int | str]]

node = onnx.helper.make_node


def message(
    nodes: Sequence[Any],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
) -> Any:
    """A model of ONNX."""
    helper = onnx.helper
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info(*port) for port in inputs],
        [helper.make_tensor_value_info(*port) for port in outputs],
        [
            onnx.numpy_helper.from_array(np.asarray(value), name)
            for name, value in (constants or {}).items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def written(folder: Path, model: Any, name: str = "net.onnx") -> Path:
    """The path of a file with a model."""
    path = folder / name
    path.write_bytes(model.SerializeToString())
    return path


def compared(path: Path, seed: int = 0) -> Iterator[tuple[Array, Array]]:
    """Each output of a translated file, and what ONNX Runtime gives: of one shape and type."""
    translated = translate(path)
    inputs = samples(translated, seed)
    pairs = zip(run(ReferenceEngine(), translated, inputs), run_whole(path, inputs), strict=True)
    for got, wanted in pairs:
        assert got.shape == wanted.shape
        assert got.dtype == wanted.dtype
        yield got, wanted


def run_whole(path: Path, inputs: Sequence[Array]) -> list[Array]:
    """What ONNX Runtime makes of a file, given and told in the types of the translated model."""
    model = wrap(path)
    operands = [model.main.operands[index] for index in model.main.input_indexes]
    wide = [
        each.astype(FileOperand(type_within(operand.type)).name.lower())
        if is_extension(operand.type)
        else each
        for each, operand in zip(inputs, operands, strict=True)
    ]
    narrow = {np.dtype(np.int64): np.int32, np.dtype(np.float64): np.float32}
    results = run(OnnxRuntimeEngine(), model, wide)
    return [each.astype(narrow.get(each.dtype, each.dtype)) for each in results]


def samples(model: Model, seed: int = 0) -> list[Array]:
    """Random inputs of a model; unknown dimensions become 2."""
    rng = np.random.default_rng(seed)
    found = []
    for index in model.main.input_indexes:
        operand = model.main.operands[index]
        dtype, shape = dtype_of(operand.type), [n or 2 for n in operand.dimensions]
        if dtype.kind == "f":
            found.append(rng.standard_normal(shape).astype(dtype))
        else:
            found.append(rng.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype))
    return found
