"""Small TFLite files on random numbers: what we make of them beside LiteRT's own kernels."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nnasync import hal
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync.engine import OutputBuffer, StopFlag
from nnasync.hal import Array, ExecutionPreference, Model, Struct
from tests.importers.tflite_files import Op, T, tflite_file

DTYPES = {
    "FLOAT32": np.float32,
    "INT32": np.int32,
    "INT64": np.int64,
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "INT8": np.int8,
    "INT16": np.int16,
}


class Network(Struct, frozen=True):
    """A file to write: the tensors without data that no operator writes are its inputs."""

    tensors: Sequence[T]
    ops: Sequence[Op]
    low: float = -4.0
    high: float = 4.0
    tolerance: float = 1e-5
    step: int = 0
    """How far integers may be apart: 1 where the HAL rounds and LiteRT cuts off."""

    @property
    def outputs(self) -> list[int]:
        """What the last operator writes."""
        return list(self.ops[-1].outputs)

    @property
    def inputs(self) -> list[int]:
        """What nobody writes and is no constant."""
        written = {index for op in self.ops for index in op.outputs}
        return [
            index
            for index, tensor in enumerate(self.tensors)
            if tensor.data is None and not tensor.variable and index not in written
        ]

    def file(self) -> bytes:
        """The file."""
        return tflite_file(self.tensors, self.ops, self.inputs, self.outputs)


Make = Callable[[np.random.Generator], Network]


def numbers(random: np.random.Generator, network: Network, tensor: T) -> Array:
    """Random numbers for an input."""
    dtype: Any = np.dtype(DTYPES[tensor.type])
    if tensor.type == "BOOL":
        return random.integers(0, 2, tensor.shape).astype(dtype)
    if tensor.type in ("UINT8", "INT8", "INT16"):
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max + 1, tensor.shape).astype(dtype)
    if tensor.type == "FLOAT32":
        return random.uniform(network.low, network.high, tensor.shape).astype(dtype)
    return random.integers(int(network.low), int(network.high) + 1, tensor.shape).astype(dtype)


def litert(content: bytes, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of LiteRT's own kernels."""
    engine: Any = importlib.import_module("ai_edge_litert.interpreter")
    runner: Any = engine.Interpreter(
        model_content=content,
        experimental_op_resolver_type=engine.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    runner.allocate_tensors()
    for detail, array in zip(runner.get_input_details(), inputs, strict=True):
        runner.set_tensor(detail["index"], array)
    runner.invoke()
    return [runner.get_tensor(detail["index"]) for detail in runner.get_output_details()]


def reference(model: Model, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of the reference; states are zero, and what becomes of them is left out."""
    main = model.main
    given = [np.ascontiguousarray(array.reshape(array.shape or (1,))) for array in inputs]
    given = [array.astype(np.int32) if array.dtype == np.int64 else array for array in given]
    for index in main.input_indexes[len(given) :]:
        operand = main.operands[index]
        given.append(np.zeros(operand.dimensions, hal.dtype_of(operand.type)))
    targets: list[Any] = []
    for index in main.output_indexes:
        operand = main.operands[index]
        room = np.zeros(1 << 18, np.uint8)
        targets.append(OutputBuffer(room, hal.dtype_of(operand.type), operand.dimensions))
    plan = ReferenceEngine().compile(model, ExecutionPreference.FAST_SINGLE_ANSWER)
    assert plan.bind(given, targets).run(StopFlag())
    kept = targets[: len(targets) - len(model.state)]
    return [target.array(target.shape) for target in kept]


def compare(network: Network, got: Sequence[Array], wanted: Sequence[Array]) -> None:
    """Equal integers, and floats within the tolerance."""
    assert len(got) == len(wanted)
    for ours, theirs in zip(got, wanted, strict=True):
        assert ours.shape == (theirs.shape or (1,))
        theirs = theirs.reshape(ours.shape)
        if theirs.dtype == np.float32:
            scale = network.tolerance
            np.testing.assert_allclose(ours, theirs, rtol=scale, atol=scale)
        else:
            apart = np.abs(ours.astype(np.int64) - theirs.astype(np.int64))
            assert apart.max(initial=0) <= network.step, (ours, theirs)


def written(folder: Path, network: Network) -> Path:
    """The file of a network."""
    path = folder / "network.tflite"
    path.write_bytes(network.file())
    return path


def cases(*groups: Mapping[str, Make]) -> dict[str, Make]:
    """All cases of some groups by name."""
    return {name: make for group in groups for name, make in group.items()}
