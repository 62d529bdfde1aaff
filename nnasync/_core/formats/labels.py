"""Labels of classes in files of models, in the forms that exporters write them.

TFLite files have them in an archive behind the model: a text of a line for each class, or the JSON
of Ultralytics. ONNX files have them in their properties: a JSON or Python mapping of numbers to
names (`names`, `id2label`), a list, or names between commas or in lines. Everything is bounded, and
what is broken counts as not stated.
"""

from __future__ import annotations

import ast
import json
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_MOST_BYTES = 1 << 20
"""A list of labels is shorter."""
_MOST_FILES = 64
_MOST_LABELS = 1 << 16
_KEYS = ("names", "labels", "classes", "class_names", "id2label", "label_names", "class_labels")
"""Properties that hold labels, in any case."""
_JSON_FILES = ("metadata.json",)


def packed_labels(path: str | os.PathLike[str]) -> dict[str, tuple[str, ...]]:
    """The labels in the files of the archive behind a TFLite file, by the names of these files."""
    found: dict[str, tuple[str, ...]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name, text in _texts(archive):
                is_json = os.path.basename(name) in _JSON_FILES
                labels = property_labels(_mapping(text)) if is_json else _lines(text)
                if labels:
                    found[name] = labels
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError):
        pass  # A hostile archive raises any of them, also for other compression; it has no labels.
    return found


def labels_among(
    files: Mapping[str, tuple[str, ...]], stated: Iterable[str] = ()
) -> tuple[str, ...]:
    """The labels of the first stated file, else of the first that is named so, else none."""
    names = [*stated, *(name for name in files if "label" in name.lower())]
    names += [name for name in files if os.path.basename(name) in _JSON_FILES]
    return next((files[name] for name in names if name in files), ())


def property_labels(properties: Mapping[str, Any]) -> tuple[str, ...]:
    """The labels in the properties of a file, by key; none where no property has some."""
    by_key = {key.lower(): value for key, value in properties.items()}
    values = (by_key[key] for key in _KEYS if key in by_key)
    return next(filter(None, map(_labels, values)), ())


def _texts(archive: zipfile.ZipFile) -> Iterator[tuple[str, str]]:
    for entry in archive.infolist()[:_MOST_FILES]:
        is_text = entry.filename.lower().endswith((".txt", *_JSON_FILES))
        if is_text and entry.file_size <= _MOST_BYTES:
            with archive.open(entry) as file:
                yield entry.filename, file.read(_MOST_BYTES).decode("utf-8", "replace")


def _labels(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return _labels(_parsed(value)) if value[:1] in "[{(" else _lines(value)
    if isinstance(value, Mapping):
        return _numbered(value)
    if isinstance(value, (list, tuple)) and 0 < len(value) <= _MOST_LABELS:
        return tuple(map(str, value))
    return ()


def _numbered(names: Mapping[Any, Any]) -> tuple[str, ...]:
    """The values of keys 0 to n - 1, in their order; none where keys are others."""
    try:
        by_number = {int(key): str(name) for key, name in names.items()}
    except (TypeError, ValueError):
        return ()
    count = len(names)
    if not 0 < count <= _MOST_LABELS or sorted(by_number) != list(range(count)):
        return ()
    return tuple(by_number[number] for number in range(count))


def _parsed(text: str) -> Any:
    """What JSON or a literal of Python says; None where it is neither."""
    if len(text) > _MOST_BYTES:
        return None
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
    return None


def _mapping(text: str) -> Mapping[str, Any]:
    found = _parsed(text)
    return found if isinstance(found, dict) and all(isinstance(key, str) for key in found) else {}


def _lines(text: str) -> tuple[str, ...]:
    """Names in lines, or between commas where there is one line."""
    if len(text) > _MOST_BYTES:
        return ()
    lines = text.strip().splitlines()
    names = lines[0].split(",") if len(lines) == 1 and "," in lines[0] else lines
    return tuple(filter(None, map(str.strip, names)))[:_MOST_LABELS]
