"""Labels of classes in files of models, in the forms that exporters write them.

TFLite files have them in an archive behind the model: a text of a line for each class, or the JSON
of Ultralytics. ONNX files have them in their properties: a JSON or Python mapping of numbers to
names (`names`, `id2label`), a list, or names between commas or in lines. Everything is bounded, and
what is broken counts as not stated.

A literal of Python is rewritten as JSON and not parsed as Python: the parser of Python takes half a
kilobyte for each character, and warns of what it reads.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nnasync._core.formats.flatbuffer import BROKEN

_MOST_BYTES = 1 << 20
"""A list of labels is shorter, and so are all of an archive together."""
_MOST_FILES = 64
_MOST_LABELS = 1 << 16
_KEYS = ("names", "labels", "classes", "class_names", "id2label", "label_names", "class_labels")
"""Properties that hold labels, in any case."""
_JSON_FILE = "metadata.json"
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Those that exporters use; others may ask for any memory."""

_TOKENS = re.compile(
    r"""
    '(?P<single>(?:[^'\\]++|\\.)*+)'
    | "(?P<double>(?:[^"\\]++|\\.)*+)"
    | (?P<number>-?[0-9]++) (?P<colon>\s*+:)?
    | (?P<comma>,) (?=\s*+[]})])
    | (?P<bracket>[()])
    | (?P<broken>['"])
    """,
    re.DOTALL | re.VERBOSE,
)
"""What literals of Python write differently from JSON; every part is read twice at most."""
_ESCAPES = re.compile(
    r"""
    \\x(?P<code>[0-9a-fA-F]{2})
    | \\U(?P<far>[0-9a-fA-F]{8})
    | \\(?P<single>')
    | \\.
    | (?P<double>")
    """,
    re.DOTALL | re.VERBOSE,
)
"""Escapes as `repr` writes them."""


def packed_labels(path: str | os.PathLike[str]) -> dict[str, tuple[str, ...]]:
    """The labels in the files of the archive behind a TFLite file, by the names of these files."""
    found: dict[str, tuple[str, ...]] = {}
    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                for name, text in _texts(archive):
                    labels = property_labels(_mapping(text)) if _is_json(name) else _lines(text)
                    if labels:
                        found[name] = labels
        except (*BROKEN, zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError):
            pass  # The archive is broken, or has a password: what follows in it counts as missing.
    return found


def labels_among(
    files: Mapping[str, tuple[str, ...]], stated: Iterable[str] = ()
) -> tuple[str, ...]:
    """The labels of the first stated file, else of the first that is named so, else none."""
    names = [*stated, *(name for name in files if "label" in name.lower())]
    names += filter(_is_json, files)
    return next((files[name] for name in names if name in files), ())


def property_labels(properties: Mapping[str, Any]) -> tuple[str, ...]:
    """The labels in the properties of a file, by key; none where no property has some."""
    by_key = {key.lower(): value for key, value in properties.items()}
    values = (by_key[key] for key in _KEYS if key in by_key)
    return next(filter(None, map(_labels, values)), ())


def _is_json(name: str) -> bool:
    return os.path.basename(name) == _JSON_FILE


def _texts(archive: zipfile.ZipFile) -> Iterator[tuple[str, str]]:
    """Names and texts of the first files that can have labels; one of JSON at most."""
    left, has_json = _MOST_BYTES, False
    for entry in archive.infolist()[:_MOST_FILES]:
        name, is_json = entry.filename, _is_json(entry.filename)
        is_wanted = not has_json if is_json else name.lower().endswith(".txt")
        is_small = entry.file_size <= left and entry.compress_size <= _MOST_BYTES
        if is_wanted and is_small and entry.compress_type in _COMPRESSIONS:
            left -= entry.file_size
            has_json = has_json or is_json
            with archive.open(entry) as file:
                yield name, file.read(_MOST_BYTES).decode("utf-8", "replace")


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
    """Returns the value of a JSON text or a Python literal; None where it is neither."""
    if len(text) > _MOST_BYTES:
        return None
    for rewrite in (str, _as_json):
        try:
            return json.loads(rewrite(text), object_pairs_hook=_unique)
        except (ValueError, RecursionError, MemoryError):
            continue
    return None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is stated twice")
    return found


def _as_json(literal: str) -> str:
    """A literal of Python, as `repr` writes it, in JSON; ValueError where a text has no end."""
    return _TOKENS.sub(_token_as_json, literal)


def _token_as_json(token: re.Match[str]) -> str:
    kind, text = token.lastgroup, token[0]
    if kind in ("single", "double"):
        return f'"{_ESCAPES.sub(_escape_as_json, token[kind])}"'
    if kind == "broken":
        raise ValueError("a text does not end")
    if kind == "colon":
        return f'"{token["number"]}":'
    if kind == "comma":
        return ""
    return text.translate(_BRACKETS)


_BRACKETS = str.maketrans("()", "[]")


def _escape_as_json(escape: re.Match[str]) -> str:
    kind, text = escape.lastgroup, escape[0]
    if kind in ("code", "far"):
        return json.dumps(chr(int(escape[kind], 16)))[1:-1]
    return {"single": "'", "double": '\\"'}.get(kind or "", text)


def _mapping(text: str) -> Mapping[str, Any]:
    found = _parsed(text)
    return found if isinstance(found, dict) else {}


def _lines(text: str) -> tuple[str, ...]:
    """Names in lines, or between commas where there is one line."""
    if len(text) > _MOST_BYTES:
        return ()
    lines = text.strip().splitlines()
    names = lines[0].split(",") if len(lines) == 1 and "," in lines[0] else lines
    return tuple(filter(None, map(str.strip, names)))[:_MOST_LABELS]
