"""TFLite files to models.

`load` translates a file where it can, so that every device may run it: a tensor becomes an operand,
an operator one operation or a few. Large constants stay in the file, which is mapped. A variable
tensor becomes a state: an input and an output of the model that `Model.state` pairs.

Otherwise the file becomes one operation of the extension org.nnasync.litert, which LiteRT runs.
Which of both, and why, is logged, and stands in the name of the operand that holds the file.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from nnasync._core.deferred import deferred
from nnasync._core.formats.metadata import Metadata
from nnasync._core.formats.whole import FileContent
from nnasync._core.importers.tflite.checking import check
from nnasync._core.importers.tflite.interface import Interface, Shapes, interface_of
from nnasync._core.importers.tflite.metadata import ENTRY, read_metadata
from nnasync._core.importers.tflite.tflite_file import File, read_file
from nnasync._core.importers.tflite.wrapping import wrap as wrap_file
from nnasync.errors import InvalidArgument, ModelError
from nnasync.hal import Memory, Model
from nnasync.memory import Pool

__all__ = ["load", "metadata", "signatures", "translate", "wrap"]

if TYPE_CHECKING:
    from nnasync._core.formats import labels
    from nnasync._core.importers import description
    from nnasync._core.importers.description import SignatureDescription
    from nnasync._core.importers.tflite import conversion
else:
    labels = deferred("nnasync._core.formats.labels")
    description = deferred("nnasync._core.importers.description")
    conversion = deferred("nnasync._core.importers.tflite.conversion")

logger = logging.getLogger("nnasync.importers.tflite")

_END_OF_ARCHIVE, _END_BYTES = b"PK\x05\x06", (1 << 16) + 22
"""What an archive behind the model ends with, and how long its end may be."""

_Path = str | os.PathLike[str]
M = TypeVar("M", bound=Memory)
_Make = Callable[[File, Interface, M, str], Model]


def load(
    path: _Path,
    *,
    signature: str | None = None,
    shapes: Shapes | None = None,
    value_limit_bytes: int | None = None,
) -> Model:
    """The model in a `.tflite` file: translated, or else wrapped as one extension operation.

    `signature` names the one whose subgraph and names are taken, otherwise it is the main subgraph
    with the names of its tensors. `shapes` gives shapes of inputs by name where the file leaves
    dimensions open: a number, or None to leave it open; otherwise they are what the file fills in,
    and open where that is a 1 behind the first dimension, which says nothing. Values that LiteRT
    computes in a wrapped file may take `value_limit_bytes`, or what befits the size of the file.

    The file must not be changed while the model is in use. Raises ModelError, with the file's name,
    where the file is broken or nothing runs it, InvalidArgument for a signature, an input or a
    shape that it does not have, OSError where it cannot be opened.
    """
    make = functools.partial(_translated_or_whole, value_limit_bytes=value_limit_bytes)
    return _loaded(path, signature, shapes, make)


def translate(
    path: _Path,
    *,
    signature: str | None = None,
    shapes: Shapes | None = None,
    value_limit_bytes: int | None = None,
) -> Model:
    """The model in operations; raises ModelError that says why it cannot be.

    How large its values are is not looked at: they are operands of it.
    """
    return _loaded(path, signature, shapes, conversion.convert)


def wrap(
    path: _Path,
    *,
    signature: str | None = None,
    shapes: Shapes | None = None,
    value_limit_bytes: int | None = None,
) -> Model:
    """The model as one operation of the extension org.nnasync.litert; raises ModelError."""
    make = functools.partial(wrap_file, reason="", value_limit_bytes=value_limit_bytes)
    return _loaded(path, signature, shapes, make)


def wrap_replaceable(
    path: _Path, content: bytes | None = None, *, value_limit_bytes: int | None = None
) -> Model:
    """The model as one operation whose place the translated one can take; raises ModelError.

    Where the content of the file is given, that is what is checked, and what runs.
    """
    whole = functools.partial(
        wrap_file, reason="", is_replaceable=True, value_limit_bytes=value_limit_bytes
    )
    if content is None:
        return _loaded(path, None, None, whole)
    return _made(path, FileContent(content), None, None, whole)


def signatures(path: _Path) -> tuple[SignatureDescription, ...]:
    """The signatures of a file; raises ModelError where it is broken."""
    file = _parts(path, _mapped(path))
    return tuple(
        description.SignatureDescription(
            each.name,
            tuple(name for name, _ in each.inputs),
            tuple(name for name, _ in each.outputs),
        )
        for each in file.signatures
    )


def metadata(path: _Path) -> Metadata:
    """Returns the metadata of a file's inputs and outputs; raises ModelError if it is broken."""
    memory = _mapped(path)
    return _metadata(memory, _parts(path, memory))


def _metadata(memory: Memory, file: File) -> Metadata:
    offset, length = file.metadata.get(ENTRY, (0, 0))
    return read_metadata(memory.view[offset : offset + length])


def _translated_or_whole(
    file: File, interface: Interface, pool: Pool, name: str, *, value_limit_bytes: int | None
) -> Model:
    try:
        model = conversion.convert(file, interface, pool, name)
    except ModelError as error:
        reason = str(error)
    else:
        logger.info("%s: translated to %d operations", name, len(model.main.operations))
        return model
    try:
        model = wrap_file(file, interface, pool, name, reason, value_limit_bytes=value_limit_bytes)
    except ModelError as error:
        raise ModelError(f"{error}; and not translated: {reason}") from error
    logger.info("%s: not translated, kept as a TFLite file: %s", name, reason)
    return model


def _loaded(path: _Path, signature: str | None, shapes: Shapes | None, make: _Make[Pool]) -> Model:
    return _made(path, _mapped(path), signature, shapes, make)


def _made(
    path: _Path, memory: M, signature: str | None, shapes: Shapes | None, make: _Make[M]
) -> Model:
    """The model that is made of the file in some memory."""
    name = os.fspath(path)
    file = _parts(path, memory)
    try:
        interface = interface_of(file, signature, shapes)
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error}") from error
    try:
        model = make(file, interface, memory, os.path.splitext(os.path.basename(path))[0])
    except InvalidArgument as error:
        raise ModelError(f"{name}: {error}") from error
    if _END_OF_ARCHIVE not in bytes(memory.view[-_END_BYTES:]):
        return model
    stated = [name for port in _metadata(memory, file).outputs for name in port.label_files]
    found = labels.labels_among(labels.packed_labels(path), stated)
    return msgspec.structs.replace(model, labels=found)


def _mapped(path: _Path) -> Pool:
    try:
        return Pool.from_file(path)
    except InvalidArgument as error:
        raise ModelError(f"{os.fspath(path)}: {error}") from error


def _parts(path: _Path, memory: Memory) -> File:
    """The parts of the file in some memory, which are checked."""
    try:
        file = read_file(memory.view)
        check(file)
    except InvalidArgument as error:
        raise ModelError(f"{os.fspath(path)}: {error}") from error
    return file
