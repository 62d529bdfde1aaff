"""Which models lie in a folder, or were named: files, with settings in TOML beside them.

Only names that were found here are ever opened: what requests name is looked up among them, and
never becomes a path.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from nnasync.errors import InvalidArgument, NNError
from nnasync.hal import Struct
from nnasync.serving.model_settings import (
    ModelSettings,
    check_name,
    is_version,
    settings_from,
)

SUFFIXES = (".tflite", ".onnx", ".nnm")
_ENDINGS = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
_MOST_SETTINGS_BYTES = 1 << 20
_MOST_FILES = 10_000

Stamp = tuple[tuple[int, int, int], ...]
"""Inode, size and time of change of a model's file and of its settings."""


class ModelFile(Struct, frozen=True):
    """A file of a model, and how it is to be served; `problem` says why it cannot be."""

    path: Path
    name: str
    version: str
    stamp: Stamp
    settings: ModelSettings
    problem: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Returns the model's name and version, by which it is found."""
        return self.name, self.version


def found_in(folder: Path | None, files: Sequence[Path]) -> list[ModelFile]:
    """Returns the models in a folder, and those in `files`; reads their settings only.

    Of two with the same name and version, the second has a problem, as has a named file that is not
    there. Raises OSError where the folder cannot be looked at.
    """
    paths = [path for path in sorted(folder.iterdir()) if _is_model(path)] if folder else []
    if len(paths) > _MOST_FILES:
        raise InvalidArgument(f"{folder}: there are more than {_MOST_FILES} models")
    for path in files:
        if path.suffix not in SUFFIXES:
            raise InvalidArgument(f"{path}: a model ends in {_ENDINGS}")
    return _told_apart(_described(path) for path in (*paths, *files))


def oddities_of(folder: Path) -> tuple[str, ...]:
    """Returns what a folder of models has that nobody will read, in sentences for its owner.

    That is settings beside which no model lies, models whose names end in capital letters, and a
    folder without any model. Raises OSError.
    """
    paths = sorted(folder.iterdir())
    models = {path.stem for path in paths if _is_model(path)}
    odd = [
        f"{path}: nobody reads these settings, for no model {path.stem} ({_ENDINGS}) is beside them"
        for path in paths
        if path.suffix == ".toml" and path.stem not in models
    ]
    odd += [
        f"{path} is not served: its name ends in {path.suffix}, not in {path.suffix.lower()}"
        for path in paths
        if path.suffix not in SUFFIXES and path.suffix.lower() in SUFFIXES
    ]
    if not models:
        odd.append(f"{folder} has no models, which are files that end in {_ENDINGS}")
    return tuple(odd)


def _is_model(path: Path) -> bool:
    """Returns whether a file is a model; one whose name is not Unicode cannot be asked for."""
    try:
        path.name.encode()
    except UnicodeEncodeError:
        return False
    return path.suffix in SUFFIXES


def _described(path: Path) -> ModelFile:
    stem, _, version = path.stem.partition("@")
    settings_path = path.with_suffix(".toml")
    try:
        settings = ModelSettings()
        stamp: Stamp = (_stamp(path),)
        if settings_path.exists():
            stamp = (*stamp, _stamp(settings_path))
            settings = _read(settings_path)
        name = settings.name or check_name(stem)
        if version:
            settings = msgspec.structs.replace(settings, version=_version_of(path, version))
    except (NNError, OSError) as error:
        return ModelFile(path, stem, version or "1", (), ModelSettings(), str(error))
    return ModelFile(path, name, settings.version, stamp, settings)


def _version_of(path: Path, text: str) -> str:
    if not is_version(text):
        raise InvalidArgument(f"{path}: the version of a model, behind the @, is a whole number")
    return text


def _stamp(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read(path: Path) -> ModelSettings:
    with path.open("rb") as file:
        content = file.read(_MOST_SETTINGS_BYTES + 1)
    if len(content) > _MOST_SETTINGS_BYTES:
        raise InvalidArgument(f"{path}: settings have at most {_MOST_SETTINGS_BYTES} bytes")
    try:
        settings = settings_from(content.decode(), str(path))
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path}: {error}") from error
    if not any(isinstance(labels, str) for labels in settings.labels.values()):
        return settings
    try:
        labels = {port: _labels(path.parent, given) for port, given in settings.labels.items()}
    except (InvalidArgument, OSError) as error:
        raise InvalidArgument(f"{path}: labels: {error}") from error
    return msgspec.structs.replace(settings, labels=labels)


def _labels(folder: Path, given: str | tuple[str, ...]) -> tuple[str, ...]:
    """Returns the given labels, or the lines of the file with labels beside the settings."""
    if not isinstance(given, str):
        return given
    if os.path.basename(given) != given or given in ("", ".", ".."):
        raise InvalidArgument(f"a file of labels lies beside the model, and is no path: {given!r}")
    with (folder / given).open("rb") as file:
        text = file.read(_MOST_SETTINGS_BYTES).decode(errors="replace")
    return tuple(line.strip() for line in text.splitlines())


def _told_apart(files: Iterable[ModelFile]) -> list[ModelFile]:
    known: dict[tuple[str, str], Path] = {}
    found = []
    for file in files:
        first = known.setdefault(file.key, file.path)
        if first != file.path and not file.problem:
            text = f"{first.name} is version {file.version} of {file.name!r} already"
            file = msgspec.structs.replace(
                file, name=file.path.stem.partition("@")[0], problem=f"{file.path.name}: {text}"
            )
        found.append(file)
    return found
