"""Metadata of TFLite files: read where it is sound, and nothing where it is broken."""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.formats.metadata import Metadata
from nnasync._core.importers.tflite.metadata import read_metadata
from nnasync.errors import InvalidArgument
from tests.importers.tflite_files import G, Op, T, graphs_file

Fields = Mapping[int, Any]
"""Fields of a table by number: a text, a small number, numbers, a table or tables."""


def table(b: Any, fields: Fields) -> int:
    """Write a table, what it refers to first."""
    parts: dict[int, int] = {}
    for number, value in fields.items():
        if isinstance(value, str):
            parts[number] = b.CreateString(value)
        elif isinstance(value, np.ndarray):
            parts[number] = b.CreateNumpyVector(value)
        elif isinstance(value, dict):
            parts[number] = table(b, value)
        elif isinstance(value, list):
            made = [table(b, each) for each in value]
            b.StartVector(4, len(made), 4)
            for each in reversed(made):
                b.PrependUOffsetTRelative(each)
            parts[number] = b.EndVector()
    b.StartObject(max(fields) + 1)
    for number, value in fields.items():
        if number in parts:
            b.PrependUOffsetTRelativeSlot(number, parts[number], 0)
        else:
            b.PrependInt8Slot(number, value, 0)
    return int(b.EndObject())


def written(fields: Fields) -> bytes:
    b = flatbuffers.Builder(256)
    b.Finish(table(b, fields), b"M001")
    return bytes(b.Output())


def floats(*values: float) -> Any:
    return np.array(values, np.float32)


def normalization(mean: Any, std: Any) -> Fields:
    return {4: [{0: 1, 1: {0: mean, 1: std}}]}


IMAGE = {
    0: "image",
    1: "Input image to be\n classified.",
    5: {0: floats(1), 1: floats(-1)},
    **normalization(floats(127.5), floats(127.5)),
}
SCORES = {0: "probability", 6: [{0: "labels.txt", 2: 2}, {0: "readme.txt", 2: 1}]}
WHOLE = {0: "classifier", 3: [{2: [IMAGE], 3: [SCORES]}]}


def packed() -> bytes:
    """An archive of two files, as it stands behind a TFLite file."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("readme.txt", "made by hand")
        files.writestr("labels.txt", "cat\ndog\n")
    return archive.getvalue()


def file_of(path: Path, metadata: bytes, kind: str = "UINT8") -> Path:
    """A file of one operator on an image, with metadata and two packed files."""
    quantized = ((1 / 128,), (128,)) if kind == "UINT8" else ((), ())
    image = T(kind, (1, 2, 2, 3), None, *quantized)
    graph = G([image, image], [Op("RELU", (0,), (1,))], [0], [1])
    path.write_bytes(graphs_file([graph], (), {"TFLITE_METADATA": metadata}) + packed())
    return path


def test_what_is_said_of_inputs_and_outputs(tmp_path: Path) -> None:
    found = nn.describe(file_of(tmp_path / "cats.tflite", written(WHOLE)))
    (image,), (scores,) = found.inputs, found.outputs
    assert (image.mean, image.std, image.least, image.most) == ((127.5,), (127.5,), (-1,), (1,))
    assert image.description == "Input image to be classified."
    assert scores.labels == found.labels == ("cat", "dog")
    assert "input t0: uint8 [1, 2, 2, 3], scale 0.0078125, zero point 128, mean 127.5" in str(found)


def test_pixels_are_prepared_as_the_file_says(tmp_path: Path) -> None:
    pixels = np.array([0, 64, 127, 128, 200, 255] * 2, np.uint8).reshape(2, 2, 3)
    (image,) = nn.describe(file_of(tmp_path / "a.tflite", written(WHOLE))).inputs
    got = image.prepare(pixels)
    assert got.dtype == np.uint8
    assert got.shape == (1, 2, 2, 3)
    wanted = np.rint((pixels / 127.5 - 1) * 128) + 128
    np.testing.assert_array_equal(got[0], wanted.clip(0, 255))
    (image,) = nn.describe(file_of(tmp_path / "b.tflite", written(WHOLE), "FLOAT32")).inputs
    np.testing.assert_allclose(image.prepare(pixels)[0], pixels / 127.5 - 1, atol=1e-6)
    other = image.prepare(pixels, mean=(1, 2, 3), std=(2,))
    np.testing.assert_allclose(other[0], (pixels - np.array([1.0, 2, 3])) / 2, atol=1e-6)


def test_without_metadata_nothing_is_guessed(tmp_path: Path) -> None:
    pixels = np.zeros((1, 2, 2, 3), np.uint8)
    (image,) = nn.describe(file_of(tmp_path / "a.tflite", b"")).inputs
    assert image.prepare(pixels) is not None
    (image,) = nn.describe(file_of(tmp_path / "b.tflite", b"", "FLOAT32")).inputs
    with pytest.raises(InvalidArgument, match="does not say how uint8 is normalized: state mean="):
        image.prepare(pixels)
    assert image.prepare(pixels.astype(np.float64)).dtype == np.float32
    assert image.prepare(pixels, std=(255,)).dtype == np.float32


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    (image,) = nn.describe(file_of(tmp_path / "a.tflite", written(WHOLE))).inputs
    with pytest.raises(InvalidArgument, match=r"takes shape \[1, 2, 2, 3\], not \[1, 2, 3\]"):
        image.prepare(np.zeros((1, 2, 3), np.uint8))
    with pytest.raises(InvalidArgument, match="has 3 channels; mean and std have one"):
        image.prepare(np.zeros((2, 2, 3), np.uint8), mean=(1, 2))


@pytest.mark.parametrize(
    ("mean", "std"),
    [
        (floats(1), floats(0)),
        (floats(1), floats(-1)),
        (floats(float("nan")), floats(1)),
        (floats(), floats(1)),
        (floats(1), floats(float("inf"))),
    ],
)
def test_a_normalization_without_sense_is_none(mean: Any, std: Any) -> None:
    data = written({3: [{2: [normalization(mean, std)]}]})
    (found,) = read_metadata(memoryview(data)).inputs
    assert (found.mean, found.std) == ((), ())


@pytest.mark.parametrize("data", [b"", b"M001", bytes(4) + b"M001", b"\xff" * 4 + b"M001" * 8])
def test_what_is_no_metadata_says_nothing(data: bytes) -> None:
    assert read_metadata(memoryview(data)) == Metadata()


@pytest.mark.parametrize(("length", "says"), [(1 << 10, True), (1 + (1 << 10), False)])
def test_the_names_of_files_are_bounded(length: int, says: bool) -> None:
    port = {6: [{0: "x" * length, 2: 2}]}
    found = read_metadata(memoryview(written({3: [{3: [port]}]})))
    assert bool(found.outputs) is says


def test_changed_bytes_say_something_else_or_nothing() -> None:
    data, choose = written(WHOLE), random.Random(3)
    for _ in range(3000):
        broken = bytearray(data)
        for _ in range(choose.choice((1, 2, 6))):
            broken[choose.randrange(len(broken))] = choose.choice((0, 1, 2, 127, 128, 255))
        found = read_metadata(memoryview(broken)[: choose.randrange(len(broken) + 1)])
        assert isinstance(found, Metadata)
