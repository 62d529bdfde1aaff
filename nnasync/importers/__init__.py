"""Foreign model files to models: `load` by the file's suffix."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from nnasync.errors import InvalidArgument
from nnasync.hal import Model
from nnasync.importers import onnx, tflite
from nnasync.model import load_nnm

__all__ = ["LOADERS", "load"]


def load(path: str | os.PathLike[str]) -> Model:
    """The model in a file: `.tflite`, `.onnx` or `.nnm`.

    Raises ModelError where the file is broken or has operators that the HAL does not (an ONNX file
    that has them is kept whole, for ONNX Runtime), InvalidArgument for another suffix or a missing
    package, OSError where the file cannot be opened.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in LOADERS:
        known = ", ".join(LOADERS)
        raise InvalidArgument(f"{os.fspath(path)}: no importer for {suffix!r} files, only {known}")
    return LOADERS[suffix](path)


LOADERS: dict[str, Callable[[str | os.PathLike[str]], Model]] = {
    ".nnm": load_nnm,
    ".tflite": tflite.load,
    ".onnx": onnx.load,
}
