"""If, Loop and Scan give what ONNX Runtime makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.importers.onnx import translate
from nnasync.errors import ModelError
from nnasync.hal import Array, Model, OperationType
from tests.importers.onnx.files import (
    BOOL,
    FLOAT,
    INT64,
    Port,
    message,
    node,
    run,
    run_whole,
    written,
)

ROW: list[Port] = [("x", FLOAT, (2, 3))]
ONE = np.float32(1)
RNG = np.random.default_rng(5)


def part(
    nodes: Sequence[Any],
    outputs: Sequence[Port],
    inputs: Sequence[Port] = (),
    constants: Mapping[str, Any] | None = None,
) -> Any:
    """A subgraph."""
    return message(nodes, inputs, outputs, constants).graph


def operations(model: Model) -> list[str]:
    return [OperationType(operation.type).name for operation in model.main.operations]


def agree(path: Path, *samples: Sequence[Array]) -> Model:
    """The translated model; it gives what ONNX Runtime gives for the file."""
    translated = translate(path)
    for inputs in samples:
        results = run(ReferenceEngine(), translated, inputs)
        for got, wanted in zip(results, run_whole(path, inputs), strict=True):
            assert got.shape == wanted.shape
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    return translated


def numbers(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def test_an_if_sees_values_and_constants_around_it(tmp_path: Path) -> None:
    """The sum is read by a branch only, so no activation may join it."""
    then = part([node("Mul", ["s", "two"], ["p"])], [("p", FLOAT, (2, 3))])
    other = part(
        [node("Sub", ["x", "three"], ["p"])], [("p", FLOAT, (2, 3))], constants={"three": 3 * ONE}
    )
    nodes = [
        node("Add", ["x", "two"], ["s"]),
        node("Relu", ["s"], ["r"]),
        node("If", ["c"], ["v"], then_branch=then, else_branch=other),
        node("Add", ["v", "r"], ["y"]),
    ]
    graph = message(nodes, [*ROW, ("c", BOOL, (1,))], [("y", FLOAT, (2, 3))], {"two": 2 * ONE})
    x = numbers(2, 3)
    model = agree(written(tmp_path, graph), [x, np.array([True])], [x, np.array([False])])
    assert operations(model) == ["ADD", "RELU", "IF", "ADD"]


def test_a_branch_that_is_known_is_taken_in_place(tmp_path: Path) -> None:
    then = part([node("Relu", ["x"], ["v"])], [("v", FLOAT, (2, 3))])
    other = part([node("Celu", ["x"], ["v"])], [("v", FLOAT, (2, 3))])
    inner = part(
        [node("If", ["t"], ["w"], then_branch=then, else_branch=other)], [("w", FLOAT, (2, 3))]
    )
    nodes = [
        node("If", ["t"], ["a"], then_branch=inner, else_branch=other),
        node("If", ["t"], ["b"], then_branch=then, else_branch=other),
        node("Add", ["a", "b"], ["y"]),
    ]
    graph = message(nodes, ROW, [("y", FLOAT, (2, 3))], {"t": np.array(True)})
    model = agree(written(tmp_path, graph), [numbers(2, 3)])
    assert operations(model) == ["RELU", "RELU", "ADD"]


def test_branches_of_different_shapes_are_not_translated(tmp_path: Path) -> None:
    then = part([node("Relu", ["x"], ["v"])], [("v", FLOAT, (2, 3))])
    other = part([node("Concat", ["x", "x"], ["v"], axis=0)], [("v", FLOAT, (4, 3))])
    nodes = [node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    graph = message(nodes, [*ROW, ("c", BOOL, (1,))], [("y", FLOAT, ("n", 3))])
    with pytest.raises(ModelError, match=r"node 0 .If.: its branches give shapes"):
        translate(written(tmp_path, graph))


BODY: list[Port] = [("i", INT64, ()), ("c", BOOL, ()), ("s", FLOAT, (2, 3))]


def loop(
    nodes: Sequence[Any],
    inputs: Sequence[str],
    outputs: Sequence[Port],
    results: Sequence[Port],
    constants: Mapping[str, Any],
) -> Any:
    body = part(nodes, outputs, BODY, {"one": ONE})
    names = [name for name, *_ in results]
    return message([node("Loop", list(inputs), names, body=body)], [*ROW], results, constants)


STATE: Port = ("s2", FLOAT, (2, 3))
RESULT: Port = ("y", FLOAT, (2, 3))
KEEP = node("Identity", ["c"], ["c2"])


def test_a_loop_that_is_counted_collects_rows(tmp_path: Path) -> None:
    nodes = [
        KEEP,
        node("Add", ["s", "x"], ["s2"]),
        node("ReduceSum", ["s2", "axes"], ["row"], keepdims=0),
    ]
    graph = loop(
        nodes,
        ["m", "", "x"],
        [("c2", BOOL, ()), STATE, ("row", FLOAT, (3,))],
        [RESULT, ("rows", FLOAT, (4, 3))],
        {"m": np.array(4, np.int64), "axes": np.array([0], np.int64)},
    )
    model = agree(written(tmp_path, graph), [numbers(2, 3)])
    assert operations(model) == ["WHILE"]


def test_a_loop_of_one_turn_and_one_of_none(tmp_path: Path) -> None:
    nodes = [KEEP, node("Add", ["s", "x"], ["s2"]), node("Neg", ["s"], ["row"])]
    outputs: list[Port] = [("c2", BOOL, ()), STATE, ("row", FLOAT, (2, 3))]
    results: list[Port] = [RESULT, ("rows", FLOAT, (1, 2, 3))]
    graph = loop(nodes, ["m", "", "x"], outputs, results, {"m": np.array(1, np.int64)})
    agree(written(tmp_path, graph), [numbers(2, 3)])
    none = loop(nodes[:2], ["m", "", "x"], outputs[:2], results[:1], {"m": np.array(0, np.int64)})
    agree(written(tmp_path, none), [numbers(2, 3)])


def test_a_loop_that_a_condition_ends(tmp_path: Path) -> None:
    nodes = [
        node("Mul", ["s", "factor"], ["v"]),
        node("Add", ["v", "factor"], ["s2"]),
        node("ReduceMax", ["s2"], ["most"], keepdims=0),
        node("Less", ["most", "limit"], ["c2"]),
    ]
    constants = {"factor": np.float32(1.5), "limit": np.float32(40), "t": np.array(True)}
    outputs: list[Port] = [("c2", BOOL, ()), STATE]
    graph = loop(nodes, ["", "t", "x"], outputs, [RESULT], constants)
    agree(written(tmp_path, graph), [abs(numbers(2, 3)) + ONE])
    bounded = loop(
        nodes, ["m", "t", "x"], outputs, [RESULT], {**constants, "m": np.array(2, np.int64)}
    )
    agree(written(tmp_path, bounded), [abs(numbers(2, 3)) + ONE])
    rows = [*nodes, node("Neg", ["s"], ["row"])]
    collecting = loop(
        rows,
        ["m", "t", "x"],
        [*outputs, ("row", FLOAT, (2, 3))],
        [RESULT, ("rows", FLOAT, ("n", 2, 3))],
        {**constants, "m": np.array(2, np.int64)},
    )
    with pytest.raises(ModelError, match="may end at any time"):
        translate(written(tmp_path, collecting))


def test_a_number_of_turns_that_is_computed(tmp_path: Path) -> None:
    nodes = [KEEP, node("Cast", ["i"], ["n"], to=FLOAT), node("Add", ["s", "n"], ["s2"])]
    body = part(nodes, [("c2", BOOL, ()), STATE], BODY)
    graph = message(
        [node("Loop", ["m", "", "x"], ["y"], body=body)],
        [*ROW, ("m", INT64, (1,))],
        [RESULT],
    )
    x = numbers(2, 3)
    agree(written(tmp_path, graph), *([x, np.array([n], np.int32)] for n in (0, 1, 5)))


@pytest.mark.parametrize("backwards", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_scan_takes_slices_and_collects_rows(backwards: int, axis: int, tmp_path: Path) -> None:
    body = part(
        [
            node("Mul", ["h", "decay"], ["d"]),
            node("Add", ["d", "e"], ["h2"]),
            node("Tanh", ["h2"], ["row"]),
        ],
        [("h2", FLOAT, (3,)), ("row", FLOAT, (3,))],
        [("h", FLOAT, (3,)), ("e", FLOAT, (3,))],
        {"decay": np.float32(0.5)},
    )
    scan = node(
        "Scan",
        ["h0", "x"],
        ["y", "rows"],
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_input_directions=[backwards],
        scan_output_axes=[1 - axis],
        scan_output_directions=[1 - backwards],
    )
    shape = (5, 3) if axis == 0 else (3, 5)
    graph = message(
        [scan],
        [("x", FLOAT, shape)],
        [("y", FLOAT, (3,)), ("rows", FLOAT, (3, 5) if axis == 0 else (5, 3))],
        {"h0": numbers(3)},
    )
    agree(written(tmp_path, graph), [numbers(*shape)])


def test_numbers_without_axes_are_states_rows_and_results(tmp_path: Path) -> None:
    nodes = [
        KEEP,
        node("ReduceSum", ["s"], ["n"], keepdims=0),
        node("Mul", ["n", "half"], ["row"]),
        node("Sub", ["s", "row"], ["s2"]),
    ]
    graph = loop(
        nodes,
        ["m", "", "x"],
        [("c2", BOOL, ()), STATE, ("row", FLOAT, ())],
        [RESULT, ("rows", FLOAT, (3,))],
        {"m": np.array(3, np.int64), "half": np.float32(0.5)},
    )
    agree(written(tmp_path, graph), [numbers(2, 3)])


def test_a_subgraph_that_is_not_translated_says_where(tmp_path: Path) -> None:
    nodes = [KEEP, node("Add", ["s", "x"], ["v"]), node("Det", ["v"], ["s2"])]
    graph = loop(
        nodes, ["m", "", "x"], [("c2", BOOL, ()), STATE], [RESULT], {"m": np.array(4, np.int64)}
    )
    with pytest.raises(ModelError, match=r"node 0 .Loop.: node 2 .Det."):
        translate(written(tmp_path, graph))


def test_a_body_that_reads_what_nobody_writes_is_an_error(tmp_path: Path) -> None:
    nodes = [KEEP, node("Add", ["s", "x"], ["s2"])]
    graph = loop(
        nodes, ["m", "", "x"], [("c2", BOOL, ()), STATE], [RESULT], {"m": np.array(4, np.int64)}
    )
    del graph.graph.node[0].input[2]
    with pytest.raises(ModelError):
        translate(written(tmp_path, graph))
