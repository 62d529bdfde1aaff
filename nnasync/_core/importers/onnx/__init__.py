"""ONNX files to models.

`load` translates a file to operations of the HAL where it can, so that every device may run it.
Otherwise the file becomes one operation of the extension org.nnasync.onnx, which ONNX Runtime runs.
Which of both, and why, is logged, and stands in the name of the operand that holds the file.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nnasync._core.deferred import deferred
from nnasync._core.formats.metadata import Metadata
from nnasync._core.importers.onnx.inference import bytes_of_inputs, checked
from nnasync._core.importers.onnx.onnx_file import (
    OnnxGraph,
    parse,
    read_bytes,
    read_graph,
    without_stated_constants,
)
from nnasync._core.importers.onnx.port_shapes import Shapes, with_shapes
from nnasync._core.importers.onnx.raising import raised
from nnasync._core.importers.onnx.small_integers import with_bytes_outside
from nnasync._core.importers.onnx.understanding import (
    metadata_of,
    with_labels,
    with_numbers_outside,
)
from nnasync._core.importers.onnx.wrapping import wrap as wrap_graph
from nnasync.errors import InvalidArgument, ModelError
from nnasync.hal import Model
from nnasync.memory import Pool

__all__ = ["load", "metadata", "translate", "wrap"]

if TYPE_CHECKING:
    from nnasync._core.importers.onnx import conversion, splitting
else:
    conversion = deferred("nnasync._core.importers.onnx.conversion")
    splitting = deferred("nnasync._core.importers.onnx.splitting")

logger = logging.getLogger("nnasync.importers.onnx")


def load(
    path: str | os.PathLike[str],
    *,
    shapes: Shapes | None = None,
    value_limit_bytes: int | None = None,
) -> Model:
    """The model in an `.onnx` file: translated, or else wrapped as one extension operation.

    `shapes` gives shapes of inputs by name where the file leaves dimensions open: a number, or None
    to leave it open; dimensions of the same name in other inputs and in outputs follow, and those
    of outputs that are not found may be given, too. Values that ONNX Runtime computes in what is
    wrapped may take `value_limit_bytes`, or what befits the size of the file.

    A wrapped file must not be changed while the model is in use. Raises ModelError, with the file's
    name, where the file is broken, InvalidArgument where onnx is not installed, and for an input or
    a shape that the file does not have, OSError.
    """
    file = _read(path, shapes)
    return with_labels(file.message, _translated_or_whole(path, file, value_limit_bytes))


def _translated_or_whole(
    path: str | os.PathLike[str], file: _File, value_limit_bytes: int | None
) -> Model:
    name = Path(path).stem
    newer, newer_graph = file.message, file.graph
    try:
        newer, newer_graph = raised(file.message, file.graph, conversion.is_known)
        model = conversion.convert(newer_graph, name)
    except ModelError as error:
        reason = str(error)
    else:
        logger.info("%s: translated to %d operations", os.fspath(path), len(model.main.operations))
        return model
    try:
        # ONNX Runtime computes values inside of parts, which are none of the model's operands.
        size = file.message.ByteSize() + file.asked_bytes
        checked(newer, newer_graph, size, value_limit_bytes)
        model = splitting.convert_in_parts(newer, newer_graph, name)
    except ModelError as error:
        if str(error) != reason:
            reason = f"{reason}; in parts: {error}"
    else:
        count = len(model.main.operations)
        logger.info("%s: translated in parts to %d operations", os.fspath(path), count)
        return model
    logger.info("%s: not translated, kept as an ONNX file: %s", os.fspath(path), reason)
    return _wrapped(path, file, reason, value_limit_bytes)


def translate(
    path: str | os.PathLike[str],
    *,
    shapes: Shapes | None = None,
    value_limit_bytes: int | None = None,
) -> Model:
    """The model in operations of the HAL; raises ModelError that says why it cannot be.

    How large its values are is not looked at: they are operands of it.
    """
    try:
        message, graph, *_ = _read(path, shapes)
        return with_labels(
            message,
            conversion.convert(raised(message, graph, conversion.is_known)[1], Path(path).stem),
        )
    except ModelError as error:
        raise _named(path, error) from error


def wrap(
    path: str | os.PathLike[str],
    *,
    shapes: Shapes | None = None,
    content: bytes | None = None,
    value_limit_bytes: int | None = None,
) -> Model:
    """The model as one operation of the extension org.nnasync.onnx; raises ModelError.

    `content` is that of the file, where it was read before.
    """
    file = _read(path, shapes, content)
    return with_labels(file.message, _wrapped(path, file, "", value_limit_bytes))


def wrap_replaceable(
    path: str | os.PathLike[str],
    content: bytes | None = None,
    *,
    value_limit_bytes: int | None = None,
) -> Model:
    """The model as one operation whose place the translated one can take; raises ModelError.

    Wide types are its own, which tells that they may not be those of `translate`. What runs is the
    file, mapped, though its content may be at hand: it is large, and not needed for long.
    """
    return wrap(path, content=content, value_limit_bytes=value_limit_bytes)


def metadata(path: str | os.PathLike[str]) -> Metadata:
    """Returns the metadata of a file's inputs and outputs; raises ModelError if it is broken."""
    return metadata_of(_read(path).message)


def _wrapped(
    path: str | os.PathLike[str], file: _File, reason: str, value_limit_bytes: int | None
) -> Model:
    message, graph, is_changed, asked_bytes = file
    is_changed |= without_stated_constants(message)
    try:
        content = message.SerializeToString() if is_changed else Pool.from_file(path)
        size = len(content) if isinstance(content, bytes) else content.size
        graph = checked(message, graph, size + asked_bytes, value_limit_bytes)
        return wrap_graph(graph, content, Path(path).stem, reason)
    except InvalidArgument as error:
        raise _named(path, error) from error


class _File(NamedTuple):
    """What was read of a file."""

    message: Any
    graph: OnnxGraph
    is_changed: bool
    """Whether the message is another one than in the file."""
    asked_bytes: int
    """What the inputs take whose shapes a caller gave."""


def _read(
    path: str | os.PathLike[str], shapes: Shapes | None = None, content: bytes | None = None
) -> _File:
    content = read_bytes(path) if content is None else content
    try:
        message, is_changed = parse(content, Path(path).resolve().parent)
        is_changed |= with_numbers_outside(message)
        is_changed |= with_bytes_outside(message)
        graph = read_graph(message)
    except ModelError as error:
        raise _named(path, error) from error
    try:
        graph = with_shapes(graph, shapes or {})
    except InvalidArgument as error:
        raise InvalidArgument(f"{os.fspath(path)}: {error}") from error
    return _File(message, graph, is_changed, bytes_of_inputs(graph, shapes or ()))


def _named(path: str | os.PathLike[str], error: InvalidArgument) -> ModelError:
    return ModelError(f"{os.fspath(path)}: {error}")
