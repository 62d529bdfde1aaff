"""Labels of classes in the forms in which exporters write them."""

from __future__ import annotations

import io
import random
import tracemalloc
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnasync as nn
from nnasync._core.formats.labels import labels_among, packed_labels, property_labels
from tests.importers.tflite_files import Op, floats, tflite_file

PETS = ("cat", "dog")
CONTENT = tflite_file([floats(1, 3)] * 2, [Op("TANH", (0,), (1,))], [0], [1])


@pytest.mark.parametrize(
    "properties",
    [
        {"names": "{0: 'cat', 1: 'dog'}"},
        {"names": '["cat", "dog"]'},
        {"Labels": "cat,dog"},
        {"classes": "cat\ndog\n"},
        {"id2label": '{"0": "cat", "1": "dog"}'},
        {"names": {"1": "dog", "0": "cat"}},
        {"names": "{0: 'cat', 2: 'dog'}", "labels": "cat, dog"},
        {"author": "{0: 'me'}", "class_names": "('cat', 'dog')"},
    ],
)
def test_properties(properties: Mapping[str, Any]) -> None:
    assert property_labels(properties) == PETS


@given(st.lists(st.text(max_size=8), min_size=1, max_size=5))
def test_names_as_python_writes_them(names: list[str]) -> None:
    kept = tuple(name.encode("utf-8", "replace").decode() for name in names)
    numbered = dict(enumerate(kept))
    assert property_labels({"names": repr(numbered)}) == kept
    assert property_labels({"names": repr(list(kept))}) == kept
    assert property_labels({"names": repr(kept)}) == kept


@pytest.mark.parametrize(
    "value",
    [
        "",
        "{",
        "[1, 2",
        "{'a': 'b'}",
        "__import__('os')",
        "[" * 10_000,
        "{0: 'a', '0': 'b'}",
        "{}",
        "['\\d']",
    ],
)
def test_what_is_broken_counts_as_not_stated(value: str) -> None:
    assert property_labels({"names": value, "labels": "cat,dog"}) in (PETS, (value,))


@given(st.text(max_size=40))
def test_no_text_raises(value: str) -> None:
    assert isinstance(property_labels({"names": value}), tuple)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("start", ["[1,", "(", "['", '["', "['\\'", "[''", "{0:", "[1", "[, "])
def test_long_texts_take_little(start: str) -> None:
    text = start + start[-1] * 500 + "1," * 5000 + "]"
    tracemalloc.start()
    property_labels({"names": text})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 40 * len(text), "a parser of Python takes 500 bytes for each character"


def archive(files: Mapping[str, str], compression: int = zipfile.ZIP_STORED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as packed:
        for name, text in files.items():
            packed.writestr(name, text)
    return content.getvalue()


@pytest.mark.parametrize(
    "files",
    [
        {"labels.txt": "cat\ndog\n"},
        {"notes.txt": "never\nmind", "my_labels.txt": "cat\n\n dog "},
        {"metadata.json": '{"stride": 32, "names": {"0": "cat", "1": "dog"}}'},
        {"temp_meta.txt": "{'names': 1}", "labels.txt": "cat\ndog"},
    ],
)
def test_archives_behind_tflite_files(tmp_path: Path, files: Mapping[str, str]) -> None:
    path = tmp_path / "pets.tflite"
    path.write_bytes(CONTENT + archive(files))
    for form in (None, "translated", "whole"):
        assert nn.load(path, form=form).labels == PETS
    assert nn.describe(path).labels == PETS


@pytest.mark.parametrize(
    "compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA]
)
def test_damaged_archives_have_no_labels(tmp_path: Path, compression: int) -> None:
    path, dice = tmp_path / "pets.tflite", random.Random(1)
    whole = archive({"labels.txt": "\n".join(map(str, range(300)))}, compression)
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
        path.write_bytes(damaged)
        assert isinstance(packed_labels(path), dict)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        packed_labels(path)


def test_a_file_behind_one_that_is_compressed_otherwise_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pets.tflite"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("notes.txt", "never", zipfile.ZIP_LZMA)
        packed.writestr("labels.txt", "cat\ndog", zipfile.ZIP_DEFLATED)
    assert packed_labels(path) == {"labels.txt": PETS}


def test_an_archive_is_read_up_to_a_sum_and_has_one_file_of_json(tmp_path: Path) -> None:
    path, long = tmp_path / "pets.tflite", "\n".join(["x" * 1000] * 600)
    text = '{"names": ["cat", "dog"]}'
    files = {"a/metadata.json": text, "b/metadata.json": text, "1.txt": long, "2.txt": long}
    path.write_bytes(archive({**files, "3.txt": "cat"}, zipfile.ZIP_DEFLATED))
    assert list(packed_labels(path)) == ["a/metadata.json", "1.txt", "3.txt"]


def test_what_is_stated_comes_first() -> None:
    files = {"labels.txt": ("a",), "other.txt": PETS}
    assert labels_among(files, ["missing.txt", "other.txt"]) == PETS
    assert labels_among(files) == ("a",)
    assert labels_among({"notes.txt": ("a",)}) == ()


def test_other_files_have_none(tmp_path: Path) -> None:
    path = tmp_path / "plain.tflite"
    path.write_bytes(CONTENT)
    assert packed_labels(path) == {}
    assert nn.load(path).labels == ()


def test_they_are_saved_and_change_nothing_where_there_are_none(tmp_path: Path) -> None:
    path, saved = tmp_path / "pets.tflite", tmp_path / "pets.nnm"
    path.write_bytes(CONTENT)
    nn.save(nn.load(path), saved)
    assert b"labels" not in saved.read_bytes()
    path.write_bytes(CONTENT + archive({"labels.txt": "cat\ndog"}))
    nn.save(nn.load(path), saved)
    assert nn.load(saved).labels == PETS
    assert nn.describe(saved).labels == PETS
    content = saved.read_bytes()
    assert content[8:12] == b"\2\0\0\0"
    saved.write_bytes(content[:8] + b"\1\0\0\0" + content[12:])
    with pytest.raises(nn.ModelError, match="version 1 of the format; only 2 has labels"):
        nn.load(saved)


@pytest.mark.anyio
@pytest.mark.one_loop("Labels are the same on every loop.")
async def test_a_network_has_them_out_of_the_cache_too(tmp_path: Path) -> None:
    path = tmp_path / "pets.tflite"
    path.write_bytes(CONTENT + archive({"labels.txt": "cat\ndog"}))
    hits = []
    for _ in range(2):
        runtime = nn.open_runtime(devices=["nnasync-reference"])
        async with runtime, runtime.compile(path, cache_dir=tmp_path / "cache") as net:
            assert net.labels == PETS
            hits.append(net.report().cache_hit)
    assert hits == [False, True]
