"""Pictures of things as data: a folder of them, and what they show, as a network takes it.

What a picture shows is told by a file of labels, or by the sub-folder that it is in. `labels` names
the classes of a network, one a line; the name of a picture's label must be one of them.

Preprocessing "inception" is that of Android's benchmark: the central square whose side is 87.5 % of
the shorter side, scaled bilinearly (two by two pixels, without antialiasing), then x * 2/255 - 1. A
quantized network gets trunc(y / scale + zero point), held within the range of its type: the
original lets white wrap around to black. "network" is what `nnasync.vision.prepare` makes of what
the file says: the mean and deviation of its metadata, else what the input says of itself, and 0 to
1 for floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from nnasync._core.execution.ports import Port, Ports
from nnasync._core.importers import describe
from nnasync.errors import InvalidArgument
from nnasync.hal import Array
from nnasync.suites.benchmark.data import DataSequence, DataSet
from nnasync.suites.benchmark.media import decoded_picture
from nnasync.vision import Normalization, PictureInput, prepare

Preprocessing = Literal["inception", "network"]

_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff"})
_EIGHTHS = 7


class LabeledPicture(msgspec.Struct, frozen=True):
    """A file, and the name of what it shows."""

    file: Path
    label: str


def labeled_pictures(folder: Path, truth: Path | None = None) -> list[LabeledPicture]:
    """The pictures of a folder, as a file of labels or their sub-folders name them.

    The file is JSON, a list of objects with `file` and `label`, or text with `file,label` a line;
    names are those below the folder, or beside the file of labels. Raises InvalidArgument for
    pictures without labels, labels without pictures and folders without either, OSError.
    """
    if not folder.is_dir():
        raise InvalidArgument(f"{folder} is no folder of pictures")
    found = sorted(each for each in folder.rglob("*") if each.suffix.lower() in _SUFFIXES)
    if not found:
        raise InvalidArgument(f"{folder} has no pictures ({', '.join(sorted(_SUFFIXES))})")
    truth = truth or _truth_in(folder)
    if truth is not None:
        return _labeled(folder, truth)
    loose = [each.name for each in found if each.parent == folder]
    if loose:
        raise InvalidArgument(
            f"{folder}: {len(loose)} pictures, such as {loose[0]}, have no label; put them into "
            "sub-folders named by label, or add ground_truth.json"
        )
    return [LabeledPicture(each, each.relative_to(folder).parts[0]) for each in found]


def picture_data(
    pictures: Sequence[LabeledPicture],
    classes: Sequence[str],
    ports: Ports,
    preprocessing: Preprocessing = "inception",
    normalization: Normalization | None = None,
) -> DataSet:
    """Pictures as steps for a network; those that do not decode are noted and left out.

    `normalization` is that of the network's metadata, for the preprocessing "network". Raises
    InvalidArgument for labels that are no class, a network that takes no pictures, and where no
    picture can be decoded.
    """
    numbers = {name: number for number, name in reversed(list(enumerate(classes)))}
    unknown = sorted({each.label for each in pictures} - set(numbers))
    if unknown:
        raise InvalidArgument(
            f"{len(unknown)} labels are no class of the network, such as {unknown[0]!r}; there are "
            f"{len(classes)} classes"
        )
    sequences, broken = [], []
    for each in pictures:
        try:
            pixels = decoded_picture(each.file)
        except InvalidArgument:
            broken.append(f"{each.file.parent.name}/{each.file.name}")
            continue
        step = prepared(pixels, ports.inputs[0], preprocessing, normalization)
        truth = np.array([numbers[each.label]])
        sequences.append(DataSequence((step[None],), truth=truth))
    if not sequences:
        raise InvalidArgument(f"none of {len(pictures)} pictures can be decoded: {broken[0]}")
    notes = (_undecoded(broken),) if broken else ()
    return DataSet(tuple(sequences), notes)


def _undecoded(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"1 picture does not decode: {names[0]}"
    return f"{len(names)} pictures do not decode, such as {names[0]}"


def stated_normalization(model: Path) -> Normalization | None:
    """Returns how a file's metadata normalize its first input; None without any.

    Raises what `describe` raises.
    """
    first = next(iter(describe(model).inputs), None)
    if first is None or not first.mean:
        return None
    return Normalization(first.mean, first.std)


def prepared(
    pixels: Array,
    port: Port,
    preprocessing: Preprocessing,
    normalization: Normalization | None = None,
) -> Array:
    """A picture as an input takes it, in the input's shape."""
    if preprocessing == "network":
        return prepare(pixels, port, fit="crop", normalization=normalization).input
    target = PictureInput.of(port)
    square = scaled_bilinearly(central_square(pixels), (target.height, target.width))
    if target.channels == 1:
        square = (square @ np.array([[0.299], [0.587], [0.114]])).astype(np.float32)
    real = square * np.float32(2 / 255) - np.float32(1)
    array = real.transpose(2, 0, 1)[None] if target.channels_first else real[None]
    if not port.scale:
        return array.astype(port.dtype)
    limits = np.iinfo(port.dtype)
    steps = np.trunc(array.astype(np.float64) / port.scale + port.zero_point)
    clamped: Array = np.clip(steps, limits.min, limits.max).astype(port.dtype)
    return clamped


def central_square(pixels: Array) -> Array:
    """The central square of 87.5 % of the shorter side."""
    height, width = pixels.shape[:2]
    side = max(1, min(height, width) * _EIGHTHS // 8)
    top, left = height // 2 - side // 2, width // 2 - side // 2
    return pixels[top : top + side, left : left + side]


def scaled_bilinearly(pixels: Array, size: tuple[int, int]) -> Array:
    """Float32 pixels in another size: each of the four nearest pixels that surround its center."""
    height, width = size
    rows, down = _taps(pixels.shape[0], height)
    columns, right = _taps(pixels.shape[1], width)
    values = pixels.astype(np.float32)
    upper, lower = values[rows], values[np.minimum(rows + 1, pixels.shape[0] - 1)]
    mixed = upper + (lower - upper) * down[:, None, None]
    left, other = mixed[:, columns], mixed[:, np.minimum(columns + 1, pixels.shape[1] - 1)]
    result: Array = left + (other - left) * right[None, :, None]
    return result


def _taps(before: int, after: int) -> tuple[Array, Array]:
    centers = np.clip((np.arange(after) + 0.5) * before / after - 0.5, 0, before - 1)
    first = centers.astype(np.int64)
    return first, (centers - first).astype(np.float32)


def _truth_in(folder: Path) -> Path | None:
    for place in (folder, folder.parent):
        for name in ("ground_truth.json", "ground_truth.txt"):
            if (place / name).is_file() and place == folder:
                return place / name
    return None


def _labeled(folder: Path, truth: Path) -> list[LabeledPicture]:
    text = truth.read_text(encoding="utf-8", errors="replace")
    try:
        rows = _rows(text) if truth.suffix == ".json" else _lines(text)
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidArgument(f"{truth} is no file of labels: {error}") from error
    result, missing = [], []
    for name, label in rows:
        places = (folder / name, truth.parent / name, truth.parent.parent / name)
        file = next((each for each in places if each.is_file()), None)
        if file is None:
            missing.append(name)
        else:
            result.append(LabeledPicture(file, label))
    if missing:
        raise InvalidArgument(
            f"{truth} has labels of {len(missing)} pictures that are not there, such as "
            f"{missing[0]}"
        )
    if not result:
        raise InvalidArgument(f"{truth} has no labels")
    return result


class _Row(msgspec.Struct, frozen=True):
    file: str
    label: str


def _rows(text: str) -> list[tuple[str, str]]:
    rows: list[Any] = msgspec.json.decode(text, type=list[_Row])
    return [(row.file, row.label) for row in rows]


def _lines(text: str) -> list[tuple[str, str]]:
    rows = [line.split(",", 1) for line in text.splitlines() if line.strip()]
    if any(len(row) != 2 for row in rows):
        raise ValueError("a line is not file,label")
    return [(name.strip(), label.strip()) for name, label in rows]
