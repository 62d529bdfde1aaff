"""Which other files belong to the file of a model: weights of an ONNX file may lie beside it.

Who tells networks apart by what is in their files needs to know that, also where nothing is loaded
since the network is in a cache. Most files name no other one. So one is first searched for the word
that such a name goes with, in far less time than it takes to digest it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence

_NAMES_OTHERS = {".onnx": (b"location", "nnasync._core.importers.onnx.onnx_file")}
"""By suffix: what stands in a file that names another one, and the module that finds the name."""
_PIECE_BYTES = 1 << 19


def files_beside(path: str | os.PathLike[str], content: bytes | None = None) -> Sequence[str]:
    """The files that belong to a file and are there, in the order of their names; raises OSError.

    `content` is that of the file, where it was read before. What is wrong with it, or is missing,
    is told when the file is loaded: it counts for nothing here.
    """
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in _NAMES_OTHERS:
        return ()
    word, module = _NAMES_OTHERS[suffix]
    if not (_file_contains(path, word) if content is None else _contains(content, word)):
        return ()
    folder = os.path.dirname(os.path.realpath(path))
    places = importlib.import_module(module).places_beside(path, content)
    return [each for each in (os.path.join(folder, p) for p in places) if os.path.isfile(each)]


def _contains(content: bytes, word: bytes) -> bool:
    """Returns whether a word is in these bytes; searches in pieces, so that threads go on."""
    reach = _PIECE_BYTES + len(word) - 1
    starts = range(0, len(content), _PIECE_BYTES)
    return any(content.find(word, start, start + reach) >= 0 for start in starts)


def _file_contains(path: str | os.PathLike[str], word: bytes) -> bool:
    """Returns whether a word is in a file, which is not read at once: that would take memory."""
    before = len(word) - 1
    buffer = bytearray(before + _PIECE_BYTES)
    piece = memoryview(buffer)[before:]
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(piece):
            if buffer.find(word, 0, before + count) >= 0:
                return True
            buffer[:before] = buffer[count : count + before]
    return False
