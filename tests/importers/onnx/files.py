"""Small ONNX files for tests, and models run synchronously on an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnasync.engine import Engine, OutputBuffer, StopFlag, Target
from nnasync.extensions import ONNX, sized
from nnasync.hal import Array, ExecutionPreference, Model, dtype_of, is_fully_specified

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


def run(engine: Engine, model: Model, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of one execution; those of unknown shape get memory for plenty of elements."""
    model = sized(model, (ONNX,), "ONNX Runtime")
    plan = engine.compile(model, ExecutionPreference.SUSTAINED_SPEED)
    main = model.main
    targets: list[Target] = []
    for index in main.output_indexes:
        operand = main.operands[index]
        dtype = dtype_of(operand.type)
        if is_fully_specified(operand.type, operand.dimensions):
            targets.append(np.zeros(operand.dimensions, dtype))
        else:
            memory = np.zeros(4096 * dtype.itemsize, np.uint8)
            targets.append(OutputBuffer(memory, dtype, operand.dimensions))
    assert plan.bind(list(inputs), targets).run(StopFlag())
    return [_array(target) for target in targets]


def _array(target: Target) -> Array:
    if not isinstance(target, OutputBuffer):
        return target
    array = target.array(target.shape)
    assert array is not None
    return array


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
