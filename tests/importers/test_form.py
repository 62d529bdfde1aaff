"""In which form a file is loaded, where a program says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import nnasync as nn
from nnasync.extensions import LITERT
from tests.importers.tflite_files import Op, floats, tflite_file


def written(folder: Path, operator: str) -> Path:
    """A file of one operator, which is translated or not."""
    path = folder / "network.tflite"
    tensors = [floats(1, 3), floats(1, 3)]
    path.write_bytes(tflite_file(tensors, [Op(operator, (0,), (1,))], [0], [1]))
    return path


def is_whole(model: nn.Model) -> bool:
    return [entry.name for entry in model.extension_name_to_prefix] == [LITERT.name]


def test_a_file_that_can_be_translated_may_be_kept_whole(tmp_path: Path) -> None:
    path = written(tmp_path, "TANH")
    assert not is_whole(nn.load(path))
    assert nn.load(path, form="translated") == nn.load(path)
    assert is_whole(nn.load(path, form="whole"))


def test_a_file_that_cannot_be_translated_says_why(tmp_path: Path) -> None:
    path = written(tmp_path, "STABLEHLO_TANH")
    assert is_whole(nn.load(path))
    with pytest.raises(nn.ModelError, match="STABLEHLO_TANH"):
        nn.load(path, form="translated")


def test_a_form_that_makes_no_sense(tmp_path: Path) -> None:
    wrong: Any = "half"
    with pytest.raises(nn.InvalidArgument, match="'translated' or 'whole', got 'half'"):
        nn.load(written(tmp_path, "TANH"), form=wrong)
    with pytest.raises(nn.InvalidArgument, match=r"form= is for \.tflite and \.onnx files"):
        nn.load(tmp_path / "network.nnm", form="whole")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("notes.md", r"notes\.md: no importer for '\.md' files, only for .*\.tflite"),
        ("network", "network: no importer for files without a suffix, only for"),
        ("models", "models: no importer for folders, only for"),
    ],
)
def test_what_no_importer_is_for_is_told(name: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with pytest.raises(nn.errors.InvalidArgument, match=told):
        nn.load(tmp_path / name)
