"""Functions are replaced by what they consist of, groups of operators by one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.importers.onnx import translate, wrap
from nnasync.errors import ModelError
from nnasync.extensions import operation_label
from nnasync.hal import Model
from tests.importers.onnx.files import (
    FLOAT,
    INT64,
    message,
    node,
    onnx,
    run,
    run_whole,
    samples,
    written,
)

X, Y = [("x", FLOAT, (2, 3))], [("y", FLOAT, (2, 3))]


def labels(model: Model) -> list[str]:
    return [
        operation_label(model.extension_name_to_prefix, operation.type).rpartition(".")[2]
        for operation in model.main.operations
    ]


def test_functions_of_a_file_are_expanded(tmp_path: Path) -> None:
    opset = onnx.helper.make_opsetid("", 17)
    body = [node("Exp", ["a"], ["e"]), node("Add", ["e", "a"], ["b"])]
    function = onnx.helper.make_function("mine", "Both", ["a"], ["b"], body, [opset])
    file = message([node("Both", ["x"], ["y"], domain="mine")], X, Y)
    file.functions.append(function)
    file.opset_import.append(onnx.helper.make_opsetid("mine", 1))
    model = translate(written(tmp_path, file))
    assert labels(model) == ["EXP", "ADD"]
    x = np.zeros((2, 3), np.float32)
    (result,) = run(ReferenceEngine(), model, [x])
    assert (result == 1).all()


def test_operators_that_are_defined_by_others_are_expanded(tmp_path: Path) -> None:
    ports = [(name, FLOAT, (1, 2, 3, 4)) for name in "qkv"]
    file = message(
        [node("Attention", ["q", "k", "v"], ["y"], is_causal=1)],
        ports,
        [("y", FLOAT, (1, 2, 3, 4))],
        opset=23,
    )
    path = written(tmp_path, file)
    model = translate(path)
    assert labels(model).count("BATCH_MATMUL") == 2
    inputs = samples(model)
    (got,), (wanted,) = run(ReferenceEngine(), model, inputs), run_whole(path, inputs)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def gelu(kind: str) -> list[Any]:
    """GELU as several exporters write it."""
    scaled = {
        "div": node("Div", ["x", "root"], ["s"]),
        "mul": node("Mul", ["inverse", "x"], ["s"]),
    }["mul" if kind == "half first" else "div"]
    share = [scaled, node("Erf", ["s"], ["e"]), node("Add", ["one", "e"], ["p"])]
    return {
        "half last": [*share, node("Mul", ["x", "p"], ["m"]), node("Mul", ["m", "half"], ["y"])],
        "half between": [*share, node("Mul", ["half", "p"], ["m"]), node("Mul", ["m", "x"], ["y"])],
        "half first": [
            node("Mul", ["x", "half"], ["h"]),
            *share,
            node("Mul", ["h", "p"], ["y"]),
        ],
    }[kind]


CONSTANTS = {
    "root": np.float32(math.sqrt(2)),
    "inverse": np.float32(math.sqrt(0.5)),
    "one": np.float32(1),
    "half": np.float32(0.5),
}


@pytest.mark.parametrize("kind", ["half last", "half between", "half first"])
def test_gelu_is_one_operation(kind: str, tmp_path: Path) -> None:
    path = written(tmp_path, message(gelu(kind), X, Y, CONSTANTS))
    model = translate(path)
    assert labels(model) == ["GELU"]
    inputs = samples(model)
    (got,), (wanted,) = run(ReferenceEngine(), model, inputs), run_whole(path, inputs)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_a_product_with_a_bias_and_an_activation_is_one_operation(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Add", ["b", "m"], ["a"]),
        node("Relu", ["a"], ["y"]),
    ]
    constants = {
        "w": np.arange(9, dtype=np.float32).reshape(3, 3) - 4,
        "b": np.arange(3, dtype=np.float32),
    }
    path = written(tmp_path, message(nodes, X, Y, constants))
    model = translate(path)
    assert labels(model) == ["FULLY_CONNECTED"]
    inputs = samples(model)
    (got,) = run(ReferenceEngine(), model, inputs)
    (wanted,) = run_whole(path, inputs)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_what_only_resembles_gelu_is_not(tmp_path: Path) -> None:
    for name, number in (("half", 0.6), ("one", 2), ("root", 1)):
        constants = {**CONSTANTS, name: np.float32(number)}
        with pytest.raises(ModelError, match="1 x Erf"):
            translate(written(tmp_path, message(gelu("half last"), X, Y, constants)))
    seen = [*gelu("half last"), node("Neg", ["p"], ["z"])]
    with pytest.raises(ModelError, match="1 x Erf"):
        translate(written(tmp_path, message(seen, X, [*Y, ("z", FLOAT, (2, 3))], CONSTANTS)))


HUGE = np.array([2**40], np.int64)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("ConstantOfShape", ["huge"], ["c"]), node("Add", ["x", "c"], ["y"])],
        [node("Expand", ["one", "huge"], ["c"]), node("Add", ["x", "c"], ["y"])],
        [node("Tile", ["two", "huge"], ["c"]), node("Add", ["x", "c"], ["y"])],
        [node("Range", ["zero", "many", "tiny"], ["c"]), node("Add", ["x", "c"], ["y"])],
        [node("Range", ["zero", "many", "zero"], ["c"]), node("Add", ["x", "c"], ["y"])],
        [node("OneHot", ["x", "huge", "pair"], ["y"])],
        [node("Resize", ["x", "", "", "sizes"], ["y"], mode="cubic")],
        [node("Pad", ["x", "pads"], ["y"], mode="edge")],
    ],
    ids=lambda nodes: nodes[0].op_type,
)
def test_files_that_ask_for_much_are_refused(nodes: list[Any], tmp_path: Path) -> None:
    constants = {
        "huge": HUGE,
        "one": np.float32(1),
        "two": np.ones(2, np.float32),
        "zero": np.float32(0),
        "many": np.float32(1e9),
        "tiny": np.float32(1e-9),
        "pair": np.array([0, 1], np.float32),
        "sizes": np.array([2, 2**19], np.int64),
        "pads": np.array([0, 2**40, 0, 2**40], np.int64),
    }
    file = message(nodes, X, [("y", FLOAT, ("a", "b"))], constants, opset=18)
    with pytest.raises(ModelError, match=r"net\.onnx"):
        translate(written(tmp_path, file))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("opset", [9, 12])
@pytest.mark.parametrize("is_stated", [True, False], ids=["stated", "computed"])
def test_old_files_whose_shapes_have_endless_entries_are_refused(
    is_stated: bool, opset: int, tmp_path: Path
) -> None:
    """The package onnx writes down each entry, and would not come to the end."""
    ports = [*X, ("shape", INT64, (2**62,))] if is_stated else X
    nodes = [node("Expand", ["x", "shape"], ["y"])]
    if not is_stated:
        nodes.insert(0, node("ConstantOfShape", ["huge"], ["shape"]))
    file = message(nodes, ports, [("y", FLOAT, ("a", "b"))], {"huge": HUGE}, opset=opset)
    with pytest.raises(ModelError, match=r"net\.onnx"):
        translate(written(tmp_path, file))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("size", [2**40, 2**63 - 1])
def test_endless_axes_are_not_reversed(size: int, tmp_path: Path) -> None:
    """The number of each entry would be written down."""
    constants = {"first": np.array([-1]), "last": np.array([-(2**62)]), "axis": np.array([1])}
    constants |= {"step": np.array([-1])}
    nodes = [node("Slice", ["x", "first", "last", "axis", "step"], ["y"])]
    file = message(nodes, [("x", FLOAT, (2, size))], [("y", FLOAT, (2, size))], constants)
    with pytest.raises(ModelError, match="one by one"):
        translate(written(tmp_path, file))


def test_a_layer_of_constants_is_computed_while_the_file_is_read(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["a", "w"], ["m"]),
        node("Add", ["m", "b"], ["c"]),
        node("Add", ["x", "c"], ["y"]),
    ]
    constants: dict[str, Any] = {
        "a": np.ones((2, 3), np.float32),
        "w": np.eye(3, dtype=np.float32),
        "b": np.full(3, 2, np.float32),
    }
    model = translate(written(tmp_path, message(nodes, X, Y, constants)))
    assert labels(model) == ["ADD"]
    (result,) = run(ReferenceEngine(), model, [np.zeros((2, 3), np.float32)])
    assert (result == 3).all()


@pytest.mark.parametrize("opset", [9, 11, 12])
def test_older_files_whose_axes_are_attributes_are_translated(tmp_path: Path, opset: int) -> None:
    file = message(
        [node("Unsqueeze", ["x"], ["u"], axes=[0]), node("Squeeze", ["u"], ["y"], axes=[0])],
        X,
        Y,
        opset=opset,
    )
    model = translate(written(tmp_path, file))
    (x,) = samples(model)
    (result,) = run(ReferenceEngine(), model, [x])
    assert (result == x).all()


def long_list(squeezed: Any, constants: dict[str, Any], opset: int) -> Any:
    inputs = [("a", FLOAT, (1, 1, 5)), ("w", FLOAT, (100_000,))]
    outputs = [("y", FLOAT, ("n", "m")), ("z", FLOAT, (100_000,))]
    relu = node("Relu", ["w"], ["z"])
    return message([squeezed, relu], inputs, outputs, constants, opset=opset)


def test_a_long_list_keeps_no_file_from_being_translated(tmp_path: Path) -> None:
    squeezed = node("Reshape", ["a", "shape"], ["y"])
    file = long_list(squeezed, {"shape": np.array([1, 5], np.int64)}, 17)
    model = translate(written(tmp_path, file))
    assert sorted(labels(model)) == ["RELU", "RESHAPE"]
    assert model.main.operands[model.main.output_indexes[0]].dimensions == (1, 5)


def test_what_an_older_operator_gives_is_not_told_as_that_of_a_newer_one(tmp_path: Path) -> None:
    """Squeeze as of opset 13 knows no attribute, and would remove both dimensions of 1."""
    file = long_list(node("Squeeze", ["a"], ["y"], axes=[0]), {}, 11)
    model = wrap(written(tmp_path, file))
    assert len(model.main.operands[model.main.output_indexes[0]].dimensions) == 2
