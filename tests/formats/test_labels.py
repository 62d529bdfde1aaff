"""Labels of classes in the forms in which exporters write them."""

from __future__ import annotations

import io
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


@pytest.mark.parametrize(
    "value",
    ["", "{", "[1, 2", "{'a': 'b'}", "__import__('os')", "[" * 10_000, "{0: 'a', '0': 'b'}", "{}"],
)
def test_what_is_broken_counts_as_not_stated(value: str) -> None:
    assert property_labels({"names": value, "labels": "cat,dog"}) in (PETS, (value,))


@given(st.text(max_size=40))
def test_no_text_raises(value: str) -> None:
    assert isinstance(property_labels({"names": value}), tuple)


def archive(files: Mapping[str, str]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as packed:
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
