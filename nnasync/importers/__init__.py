"""Foreign model files to models: `load` by the file's suffix."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping

from nnasync.errors import InvalidArgument
from nnasync.hal import Model
from nnasync.tracing import vlog

__all__ = ["LOADERS", "check_suffix", "load"]

LOADERS: Mapping[str, str] = {
    ".nnm": "nnasync.model:load_nnm",
    ".tflite": "nnasync.importers.tflite:load",
    ".onnx": "nnasync.importers.onnx:load",
}
"""What loads the files of each suffix, as "module:function"; imported when it is wanted."""


def load(path: str | os.PathLike[str]) -> Model:
    """The model in a file: `.tflite`, `.onnx` or `.nnm`.

    It blocks while the file is read and converted, up to seconds for a large one: a coroutine gives
    the path to `Runtime.compile` instead, which loads it in a thread.

    Raises ModelError where the file is broken or has operators that the HAL does not (an ONNX file
    that has them is kept whole, for ONNX Runtime), InvalidArgument for another suffix or a missing
    package, OSError where the file cannot be opened.
    """
    module, _, name = LOADERS[check_suffix(path)].partition(":")
    loader: Callable[[str | os.PathLike[str]], Model]
    loader = getattr(importlib.import_module(module), name)
    model = loader(path)
    main = model.main
    vlog.model(
        "loaded %s: %d operations, %d operands, %d referenced subgraphs",
        os.fspath(path),
        len(main.operations),
        len(main.operands),
        len(model.referenced),
    )
    return model


def check_suffix(path: str | os.PathLike[str]) -> str:
    """The suffix of a file that can be loaded; raises InvalidArgument for another."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in LOADERS:
        known = ", ".join(LOADERS)
        raise InvalidArgument(f"{os.fspath(path)}: no importer for {suffix!r} files, only {known}")
    return suffix
