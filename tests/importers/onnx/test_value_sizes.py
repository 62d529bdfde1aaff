"""Files that make ONNX Runtime compute values of gigabytes are refused before it sees them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from nnasync._core import importers
from nnasync._core.importers.onnx import translate, wrap
from nnasync.errors import ModelError
from tests.importers.onnx.files import BOOL, FLOAT, message, node, onnx, written

MANY = 1 << 16
SIZES = np.array([MANY, MANY], np.int64)
X, Y = [("x", FLOAT, (1, 1))], [("y", FLOAT, (1, 1))]
LARGEST = node("ReduceMax", ["large"], ["y"], keepdims=1)
COLUMN, ROW = np.ones((MANY, 1), np.float32), np.ones((1, MANY), np.float32)


def of(large: Any, constants: dict[str, Any], *before: Any) -> Any:
    return message([*before, large, LARGEST], X, Y, constants)


LARGE = {
    "Expand": of(node("Expand", ["x", "s"], ["large"]), {"s": SIZES}),
    "Tile": of(node("Tile", ["x", "s"], ["large"]), {"s": SIZES}),
    "Pad": of(node("Pad", ["x", "s"], ["large"]), {"s": np.array([0, 0, MANY, MANY], np.int64)}),
    "Resize": of(
        node("Resize", ["x", "", "s"], ["large"]), {"s": np.array([MANY, MANY], np.float32)}
    ),
    "ConstantOfShape": of(
        node("Add", ["zeros", "x"], ["large"]),
        {"s": SIZES},
        node("ConstantOfShape", ["s"], ["zeros"]),
    ),
    "Add": of(
        node("Add", ["tall", "row"], ["large"]),
        {"column": COLUMN, "row": ROW},
        node("Mul", ["x", "column"], ["tall"]),
    ),
    "computed size": of(
        node("Expand", ["x", "size"], ["large"]),
        {"s": SIZES},
        node("Shape", ["x"], ["shape"]),
        node("Mul", ["shape", "s"], ["size"]),
    ),
}


def branching() -> Any:
    """The same inside of both branches of an IF."""
    helper = onnx.helper
    sizes = onnx.numpy_helper.from_array(SIZES)
    branches = [
        helper.make_graph(
            [
                node("Constant", [], [f"s{n}"], value=sizes),
                node("Expand", ["x", f"s{n}"], [f"large{n}"]),
                node("ReduceMax", [f"large{n}"], [f"y{n}"]),
            ],
            f"branch{n}",
            [],
            [helper.make_tensor_value_info(f"y{n}", FLOAT, (1, 1))],
        )
        for n in range(2)
    ]
    choice = node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    return message([choice], [*X, ("c", BOOL, ())], Y)


@pytest.mark.parametrize("name", LARGE)
def test_a_value_that_is_too_large(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, LARGE[name])
    for read in (wrap, translate, importers.load_whole, importers.load):
        with pytest.raises(ModelError):
            read(path)
    with pytest.raises(ModelError, match=r"of shape \[6553., 6553.\] takes 171"):
        wrap(path)


def test_inside_of_a_branch(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r'"large.*" of shape \[65536, 65536\]'):
        wrap(written(tmp_path, branching()))


@pytest.mark.parametrize("form", ["translated", "whole"])
def test_a_picture_whose_size_a_caller_gives_is_no_fault_of_the_file(
    form: Literal["translated", "whole"], tmp_path: Path
) -> None:
    ends = [("x", FLOAT, ("n", "m"))], [("y", FLOAT, ("n", "m"))]
    path = written(tmp_path, message([node("Relu", ["x"], ["y"])], *ends))
    importers.load(path, shapes={"x": (1 << 14, 1 << 14)}, form=form)
    stated = [("x", FLOAT, (1 << 14, 1 << 14))], [("y", FLOAT, (1 << 14, 1 << 14))]
    path = written(tmp_path, message([node("Relu", ["x"], ["y"])], *stated))
    with pytest.raises(ModelError, match=rf"^{re.escape(str(path))}: .* takes 1073741824 bytes"):
        importers.load(path, form=form)


@pytest.mark.parametrize(("size", "is_legal"), [(1 << 10, True), (1 << 15, False)])
def test_inside_of_a_part_that_stays_onnx(size: int, is_legal: bool, tmp_path: Path) -> None:
    ends = [("x", FLOAT, (256, 256))], [("y", FLOAT, (256, 256))]
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("RandomUniform", [], ["large"], shape=[1, size, size], dtype=FLOAT),
        node("Det", ["large"], ["d"]),
        node("Add", ["h", "d"], ["y"]),
    ]
    graph = message(nodes, *ends, {"w": np.ones((256, 256), np.float32)})
    path = written(tmp_path, graph)
    if is_legal:
        assert len(importers.load(path).main.operations) == 3
    else:
        with pytest.raises(ModelError, match=r'"large" of shape \[1, 32768, 32768\] takes'):
            importers.load(path)
