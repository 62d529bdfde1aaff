"""A file that is kept whole is read without what translates files, which takes long to import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.importers.onnx import files
from tests.importers.tflite_files import Op, floats, tflite_file

PROGRAM = """
import sys
from nnasync._core import importers
importers.load(sys.argv[1], form="whole")
print(*sys.modules)
"""
TRANSLATES = (
    "nnasync._core.importers.onnx.conversion",
    "nnasync._core.importers.onnx.splitting",
    "nnasync._core.importers.tflite.conversion",
    "nnasync._core.importers.tflite.tensor_values",
    "nnasync._core.model.graph",
    "nnasync.kernels.registry",
)
OF_OTHERS = ("flatbuffers", "ml_dtypes", "tflite", "zipfile")


def loaded_for(path: Path) -> set[str]:
    """The modules of a new process that has loaded a file."""
    command = [sys.executable, "-c", PROGRAM, str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return set(ran.stdout.split())


def test_of_tflite(tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite_file([floats(1, 8)] * 2, [Op("TANH", (0,), (1,))], [0], [1]))
    assert not loaded_for(path) & {*TRANSLATES, *OF_OTHERS}


def test_of_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    ends = ("x", files.FLOAT, (1, 8)), ("y", files.FLOAT, (1, 8))
    message = files.message([files.node("Tanh", ["x"], ["y"])], ends[:1], ends[1:])
    assert not loaded_for(files.written(tmp_path, message)) & {*TRANSLATES}
