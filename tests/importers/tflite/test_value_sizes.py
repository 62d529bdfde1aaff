"""Files that make LiteRT compute values of gigabytes: refused, whatever shapes they state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnasync._core import importers
from nnasync._core.importers.tflite import wrap
from nnasync.errors import ModelError
from tests.importers.tflite_files import Op, T, floats, integers, tflite_file

MANY = 1 << 14
ONE = T("FLOAT32", (1,), np.ones(1, np.float32))
CONV = {"StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1}
X = floats(1, 1, 1, 1)


def table(*rows: tuple[int, ...]) -> T:
    return T("INT32", np.shape(rows), np.array(rows, np.int32))


def ones(*shape: int) -> T:
    return T("FLOAT32", shape, np.ones(shape, np.float32))


LARGE: dict[str, tuple[list[T], tuple[int, ...], str, dict[str, Any]]] = {
    "RESIZE_BILINEAR": ([X, integers(MANY, MANY)], (0, 1), "ResizeBilinearOptions", {}),
    "PAD": ([X, table((0, 0), (0, MANY), (MANY, 0), (0, 0))], (0, 1), "PadOptions", {}),
    "TILE": ([X, integers(1, MANY, MANY, 1)], (0, 1), "TileOptions", {}),
    "BROADCAST_TO": ([X, integers(1, MANY, MANY, 1)], (0, 1), "", {}),
    "FILL": ([X, integers(MANY, MANY), ONE], (1, 2), "FillOptions", {}),
    "SPACE_TO_BATCH_ND": (
        [X, integers(1, 1), table((0, MANY), (MANY, 0))],
        (0, 1, 2),
        "SpaceToBatchNDOptions",
        {},
    ),
    "ADD": ([X, ones(MANY, 1), ones(1, MANY)], (1, 2), "AddOptions", {}),
    "BATCH_MATMUL": ([X, ones(MANY, 1), ones(1, MANY)], (1, 2), "BatchMatMulOptions", {}),
    "FULLY_CONNECTED": (
        [X, ones(MANY, 1), ones(MANY, 1)],
        (1, 2),
        "FullyConnectedOptions",
        {},
    ),
    "CONV_2D": (
        [X, ones(1, 256, 256, 1), ones(MANY, 1, 1, 1)],
        (1, 2),
        "Conv2DOptions",
        CONV,
    ),
    "GATHER": ([X, ones(1, MANY), table(*[(0,)] * MANY)], (1, 2), "GatherOptions", {}),
}


def saved(folder: Path, name: str, stated: tuple[int, ...]) -> Path:
    """A file of one operator with a result that is stated to have this shape."""
    tensors, inputs, options_type, options = LARGE[name]
    path = folder / "net.tflite"
    result = len(tensors)
    ops = [Op(name, inputs, (result,), options_type, options)]
    path.write_bytes(tflite_file([*tensors, floats(*stated)], ops, [0], [result]))
    return path


@pytest.mark.parametrize("stated", [(1, 1, 1, 1), (1, MANY, MANY, 1)])
@pytest.mark.parametrize("name", LARGE)
def test_a_result_that_is_too_large(name: str, stated: tuple[int, ...], tmp_path: Path) -> None:
    path = saved(tmp_path, name, stated)
    for read in (wrap, importers.load_whole, importers.load):
        with pytest.raises(ModelError):
            read(path)
    with pytest.raises(ModelError, match=rf"operator 0 \({name}\): a (result|table) of shape"):
        wrap(path)


def test_what_is_computed_of_a_result_is_as_large(tmp_path: Path) -> None:
    tensors = [
        X,
        integers(1, 1 << 12, 1 << 12, 1),
        *[floats(1, 1, 1, 1)] * 2,
        integers(1, 64, 1, 1),
    ]
    tensors.append(floats(1, 1, 1, 1))
    ops = [
        Op("TILE", (0, 1), (2,), "TileOptions"),
        Op("RELU", (2,), (3,)),
        Op("TILE", (3, 4), (5,), "TileOptions"),
    ]
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite_file(tensors, ops, [0], [5]))
    with pytest.raises(ModelError, match=r"operator 2 \(TILE\): a result of shape"):
        wrap(path)


def test_the_table_of_a_picture_that_is_enlarged(tmp_path: Path) -> None:
    """The result alone would take 4 bytes for each pixel."""
    tensors = [X, integers(1 << 12, 1 << 12), floats(1, 1, 1, 1)]
    path = tmp_path / "net.tflite"
    for name, options in (
        ("RESIZE_BILINEAR", "ResizeBilinearOptions"),
        ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions"),
    ):
        path.write_bytes(tflite_file(tensors, [Op(name, (0, 1), (2,), options)], [0], [2]))
        if name == "RESIZE_BILINEAR":
            with pytest.raises(ModelError, match=r"\(RESIZE_BILINEAR\): a table of shape"):
                wrap(path)
        else:
            wrap(path)


def test_stated_shapes_that_converters_do_not_know_are_no_fault(tmp_path: Path) -> None:
    tensors = [X, integers(1, 8, 8, 1), floats(1, 1, 1, 1), floats(1, 1, 1, 1)]
    ops = [Op("TILE", (0, 1), (2,), "TileOptions"), Op("RELU", (2,), (3,))]
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite_file(tensors, ops, [0], [3]))
    wrap(path)
