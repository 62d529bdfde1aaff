"""The models: those of a folder, and a MobileNet v1 1.0 224 float that is built when missing."""

from __future__ import annotations

import fnmatch
from pathlib import Path

import msgspec
import numpy as np

import nnasync as nn
from benchmarks.peers import mobilenet
from benchmarks.peers.conversion import to_onnx
from nnasync.hal import Array, Operand, dtype_of

__all__ = ["Entry", "catalog", "input_arrays", "onnx_bytes"]


class Entry(msgspec.Struct, frozen=True):
    """A model by name."""

    name: str
    path: str

    @property
    def is_quantized_mobilenet(self) -> bool:
        """Returns whether the model is a quantized MobileNet, which has a target of its own."""
        return self.name.startswith("mobilenet") and self.name.endswith(("quant", "uint8"))


def catalog(folder: Path, cache: Path, pattern: str = "*") -> list[Entry]:
    """Returns the models whose names match, the smallest file first.

    `cache` is where one is built.
    """
    paths = sorted(folder.glob("*.tflite"), key=lambda path: path.stat().st_size)
    built = cache / f"{mobilenet.NAME}.tflite"
    if fnmatch.fnmatch(mobilenet.NAME, pattern):
        built.write_bytes(mobilenet.mobilenet_v1())
        paths.append(built)
    return [Entry(path.stem, str(path)) for path in paths if fnmatch.fnmatch(path.stem, pattern)]


def input_arrays(model: nn.Model) -> list[Array]:
    """Returns an array for each input but states.

    Random from -1 to 1, or over a small type's range.
    """
    generator = np.random.default_rng(0)
    states = {pair.input for pair in model.state}
    indexes = (i for n, i in enumerate(model.main.input_indexes) if n not in states)
    return [_numbers(model.main.operands[index], generator) for index in indexes]


def _numbers(operand: Operand, generator: np.random.Generator) -> Array:
    shape, dtype = operand.dimensions, dtype_of(operand.type)
    if dtype.kind == "f":
        return generator.uniform(-1, 1, shape).astype(dtype)
    limits = np.iinfo(dtype)
    return generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def onnx_bytes(entry: Entry) -> bytes:
    """Returns a model as ONNX; raises NoConversion where there is no conversion."""
    return to_onnx(nn.load(entry.path))
