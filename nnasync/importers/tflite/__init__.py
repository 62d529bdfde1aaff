"""TFLite files to models.

A tensor becomes an operand, an operator one operation (a few become two). Large constants stay in
the file, which is mapped. A variable tensor becomes a state: an input and an output of the model
that `Model.state` pairs. All operators that the HAL does not have are listed in one error.
"""

from __future__ import annotations

import os
from pathlib import Path

from nnasync.errors import InvalidArgument, ModelError
from nnasync.hal import Model
from nnasync.importers.tflite.conversion import convert
from nnasync.importers.tflite.reader import read_graph
from nnasync.memory import Pool

__all__ = ["load"]


def load(path: str | os.PathLike[str]) -> Model:
    """The model in a `.tflite` file, which must not be changed while the model is in use.

    Raises ModelError, with the file's name and the place, where the file is broken or has operators
    that the HAL does not; OSError where it cannot be opened.
    """
    try:
        pool = Pool.from_file(path)
        return convert(read_graph(pool.view), pool, Path(path).stem)
    except InvalidArgument as error:
        raise ModelError(f"{os.fspath(path)}: {error}") from error
