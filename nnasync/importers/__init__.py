"""Foreign model files to models: `load` by the file's suffix."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from nnasync.errors import InvalidArgument, ModelError
from nnasync.hal import Model
from nnasync.importers import tflite
from nnasync.model import load_nnm

__all__ = ["LOADERS", "load"]


def load(path: str | os.PathLike[str]) -> Model:
    """The model in a file: `.tflite` or `.nnm`.

    Raises ModelError where the file is broken or has operators that the HAL does not,
    InvalidArgument for another suffix, OSError where the file cannot be opened.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in LOADERS:
        known = ", ".join(LOADERS)
        raise InvalidArgument(f"{os.fspath(path)}: no importer for {suffix!r} files, only {known}")
    return LOADERS[suffix](path)


def _load_onnx(path: str | os.PathLike[str]) -> Model:
    raise ModelError(f"{os.fspath(path)}: the ONNX importer is not there yet")


LOADERS: dict[str, Callable[[str | os.PathLike[str]], Model]] = {
    ".nnm": load_nnm,
    ".tflite": tflite.load,
    ".onnx": _load_onnx,
}
