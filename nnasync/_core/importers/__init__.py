"""Foreign model files to models: `load` by the file's suffix."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from nnasync._core.deferred import deferred
from nnasync._core.formats.value_sizes import check_limit, check_model
from nnasync.errors import InvalidArgument, ModelError
from nnasync.hal import Model
from nnasync.tracing import vlog

if TYPE_CHECKING:
    from nnasync._core.formats import states
    from nnasync._core.formats.states import States
    from nnasync._core.importers import description
else:
    states = deferred("nnasync._core.formats.states")
    description = deferred("nnasync._core.importers.description")

__all__ = ["LOADERS", "check_suffix", "describe", "load"]

LOADERS: Mapping[str, str] = {
    ".nnm": "nnasync._core.model:load_nnm",
    ".tflite": "nnasync._core.importers.tflite:load",
    ".onnx": "nnasync._core.importers.onnx:load",
}
"""What loads the files of each suffix, as "module:function"; imported when it is wanted."""

_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "signature": (".tflite",),
    "shapes": (".tflite", ".onnx"),
    "form": (".tflite", ".onnx"),
}
"""The suffixes of the files that an option is for."""

_FORMS: Mapping[str, str] = {"translated": "translate", "whole": "wrap"}
"""What an importer calls the function for each form."""


def load(
    path: str | os.PathLike[str],
    *,
    signature: str | None = None,
    shapes: Mapping[str, Sequence[int | None]] | None = None,
    state: States | None = None,
    form: Literal["translated", "whole"] | None = None,
    value_limit_bytes: int | None = None,
) -> Model:
    """The model in a file: `.tflite`, `.onnx` or `.nnm`.

    Of a `.tflite` file, `signature` names the one whose subgraph and names are taken. `shapes`
    gives shapes of inputs by name where a `.tflite` or `.onnx` file leaves dimensions open; None
    leaves one open. Of an `.onnx` file it may give those of outputs, too.

    It blocks while the file is read and converted, up to seconds for a large one: a coroutine gives
    the path to `Runtime.compile` instead, which loads it in a thread.

    `state` names outputs that are the next values of inputs, as `{"next": "state"}`: both become a
    state, which bursts carry, and calls neither take nor give it. `state="guess"` takes the outputs
    that are named like states, such as `stateN` for `state`; `describe` tells which these are.

    A file with operators that are not translated is kept whole, for ONNX Runtime or LiteRT. `form`
    says which of both it has to be, instead: "translated" raises ModelError where it cannot be.

    No value that follows from the file may take more than `value_limit_bytes`: by default 512 MiB
    and four times the file, which damaged and hostile files ask for most of all.

    Raises ModelError where it is broken, its values are too large, or nothing runs it,
    InvalidArgument for another suffix, a missing package, or a signature, input or shape that the
    file does not have, OSError where the file cannot be opened.
    """
    check_limit(value_limit_bytes)
    module, _, name = LOADERS[check_suffix(path)].partition(":")
    options = {"signature": signature, "shapes": shapes, "form": form}
    given: dict[str, object] = {name: value for name, value in options.items() if value is not None}
    for option in given:
        if check_suffix(path) not in _OPTIONS[option]:
            kinds = " and ".join(_OPTIONS[option])
            raise InvalidArgument(f"{os.fspath(path)}: {option}= is for {kinds} files")
    if form is not None:
        del given["form"]
        name = _loader_of(form)
    if has_whole_form(path):
        given["value_limit_bytes"] = value_limit_bytes
    loader: Callable[..., Model] = getattr(importlib.import_module(module), name)
    model = loader(path, **given)
    _check_sizes(model, path, value_limit_bytes, shapes or ())
    if state:
        model = states.with_states(model, state)
    main = model.main
    vlog.model(
        "loaded %s: %d operations, %d operands, %d referenced subgraphs",
        os.fspath(path),
        len(main.operations),
        len(main.operands),
        len(model.referenced),
    )
    return model


def load_whole(
    path: str | os.PathLike[str],
    content: bytes | None = None,
    *,
    value_limit_bytes: int | None = None,
) -> Model:
    """The model in a file that is kept whole, to run until the translated one takes its place.

    `content` is that of the file, where it was read before. Raises ModelError where the two may
    differ in what callers see, or in what their states mean.
    """
    module = importlib.import_module(LOADERS[check_suffix(path)].partition(":")[0])
    model: Model = module.wrap_replaceable(path, content, value_limit_bytes=value_limit_bytes)
    _check_sizes(model, path, value_limit_bytes)
    return model


def _check_sizes(
    model: Model,
    path: str | os.PathLike[str],
    value_limit_bytes: int | None,
    asked: Collection[str] = (),
) -> None:
    try:
        check_model(model, os.stat(path).st_size, asked, value_limit_bytes)
    except ModelError as error:
        raise ModelError(f"{os.fspath(path)}: {error}") from error


def has_whole_form(path: str | os.PathLike[str]) -> bool:
    """Returns whether a file can be kept whole, for the engine that it was made for."""
    return check_suffix(path) != ".nnm"


def _loader_of(form: str) -> str:
    """The function of an importer that makes a model of this form."""
    if form not in _FORMS:
        raise InvalidArgument(f"form must be {' or '.join(map(repr, _FORMS))}, got {form!r}")
    return _FORMS[form]


def describe(
    path: str | os.PathLike[str], *, value_limit_bytes: int | None = None
) -> description.Description:
    """Returns the contents of a model file: ports, signatures, labels, and how it runs.

    `print` shows it. It blocks, limits how large values may be, and raises as `load` does.
    """
    model = load(path, value_limit_bytes=value_limit_bytes)
    suffix = check_suffix(path)
    if suffix not in _OPTIONS["form"]:
        return description.described(path, model)
    importer = importlib.import_module(LOADERS[suffix].partition(":")[0])
    signatures = importer.signatures(path) if suffix in _OPTIONS["signature"] else ()
    return description.described(path, model, signatures, importer.metadata(path))


def check_suffix(path: str | os.PathLike[str]) -> str:
    """The suffix of a file that can be loaded; raises InvalidArgument for another."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in LOADERS:
        known = ", ".join(LOADERS)
        what = f"{suffix!r} files" if suffix else "files without a suffix"
        if os.path.isdir(path):
            what = "folders"
        raise InvalidArgument(f"{os.fspath(path)}: no importer for {what}, only for {known}")
    return suffix
