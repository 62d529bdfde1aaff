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


@pytest.mark.parametrize("name", ["PAD", "MIRROR_PAD"])
def test_pictures_of_open_size_that_are_padded_again_and_again(name: str, tmp_path: Path) -> None:
    """Each time by a row on each side, which is much for the 1 that is stated, for all of them."""
    picture = T("FLOAT32", (1, 1, 1, 8), open=(1, -1, -1, 8))
    tensors = [picture, table((0, 0), (1, 1), (1, 1), (0, 0)), ones(8, 3, 3, 8), integers(1, 2)]
    ops, last = list[Op](), 0

    def add(name: str, *inputs: int, options: str = "", **more: Any) -> int:
        tensors.append(picture)
        ops.append(Op(name, inputs, (len(tensors) - 1,), options, more))
        return len(tensors) - 1

    for _ in range(20):
        padded = add(name, last, 1)
        convolved = add("CONV_2D", padded, 2, options="Conv2DOptions", Padding=1, **CONV)
        mean = add("MEAN", convolved, 3, options="ReducerOptions", KeepDims=True)
        last = add("RELU", add("SUB", convolved, mean, options="SubOptions"))
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite_file(tensors, ops, [0], [last]))
    wrap(path)


def test_pictures_that_become_smaller_by_what_is_done_to_them(tmp_path: Path) -> None:
    small = {"FilterHeight": 2, "FilterWidth": 2, "StrideH": 2, "StrideW": 2, "Padding": 1}
    tensors = [
        floats(1, 1 << 13, 1 << 13, 1),
        floats(1, 1 << 12, 1 << 12, 1),
        ones(16, 1, 1, 1),
        floats(1, 1 << 12, 1 << 12, 16),
    ]
    ops = [
        Op("MAX_POOL_2D", (0,), (1,), "Pool2DOptions", small),
        Op("CONV_2D", (1, 2), (3,), "Conv2DOptions", CONV),
    ]
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite_file(tensors, ops, [0], [3]))
    with pytest.raises(ModelError, match=r"operator 1 .* takes 1073741824 bytes"):
        wrap(path)
    path.write_bytes(tflite_file([*tensors[:2]], ops[:1], [0], [1]))
    wrap(path)


@pytest.mark.parametrize("name", ["TRANSPOSE", "RESHAPE", "TILE"])
def test_a_column_that_is_stated_where_a_row_is_computed(name: str, tmp_path: Path) -> None:
    column = floats(1, MANY, 1, 1)
    how = {
        "TRANSPOSE": (0, integers(0, 2, 1, 3)),
        "RESHAPE": (0, integers(1, 1, -1, 1)),
        "TILE": (3, integers(1, 1, MANY, 1)),
    }
    source, numbers = how[name]
    tensors = [column, numbers, column, X, column]
    ops = [
        Op(name, (source, 1), (2,), f"{name.capitalize()}Options"),
        Op("MUL", (0, 2), (4,), "MulOptions"),
    ]
    path = tmp_path / "net.tflite"
    path.write_bytes(tflite_file(tensors, ops, [0, 3], [4]))
    with pytest.raises(ModelError, match=r"operator 1 \(MUL\): a result"):
        wrap(path)
