"""TFLite files to models.

A tensor becomes an operand, an operator one operation or a few. Large constants stay in the file,
which is mapped. A variable tensor becomes a state: an input and an output of the model that
`Model.state` pairs.
"""

from __future__ import annotations

import os
from pathlib import Path

from nnasync.errors import InvalidArgument, ModelError
from nnasync.hal import Model
from nnasync.importers.tflite.checking import check
from nnasync.importers.tflite.conversion import convert
from nnasync.importers.tflite.interface import Shapes, interface_of
from nnasync.importers.tflite.operators import OPTIONS
from nnasync.importers.tflite.reader import read_file
from nnasync.memory import Pool

__all__ = ["load", "translate"]


def load(
    path: str | os.PathLike[str], *, signature: str | None = None, shapes: Shapes | None = None
) -> Model:
    """The model in a `.tflite` file, which must not be changed while the model is in use."""
    return translate(path, signature=signature, shapes=shapes)


def translate(
    path: str | os.PathLike[str], *, signature: str | None = None, shapes: Shapes | None = None
) -> Model:
    """The model in operations; raises ModelError that says why it cannot be."""
    try:
        pool = Pool.from_file(path)
        file = read_file(pool.view, OPTIONS)
        check(file)
        interface = interface_of(file, signature, shapes)
        return convert(file, interface, pool, Path(path).stem)
    except InvalidArgument as error:
        raise ModelError(f"{os.fspath(path)}: {error}") from error
