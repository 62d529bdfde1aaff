"""Files of which some operators are translated, and the others stay ONNX beside them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync._core.importers.onnx import load
from nnasync.extensions import ONNX, GraphOperation, extension_of
from nnasync.hal import Model, OperandType, OperationType
from tests.importers.onnx.files import FLOAT, INT64, Port, message, node, onnx, written

RNG = np.random.default_rng(4)
VENDOR = "com.microsoft"
IMAGE: list[Port] = [("x", FLOAT, (1, 3, 64, 64))]
FIRST = [node("Conv", ["x", "w"], ["a"], pads=[2, 2, 2, 2]), node("Relu", ["a"], ["b"])]
LAST = [node("Conv", ["d", "v"], ["e"], pads=[1, 1, 1, 1]), node("Sigmoid", ["e"], ["y"])]
WEIGHTS = {
    "w": RNG.standard_normal((24, 3, 5, 5)).astype(np.float32) / 9,
    "v": RNG.standard_normal((24, 24, 3, 3)).astype(np.float32) / 9,
}
OUTPUT: list[Port] = [("y", FLOAT, (1, 24, 64, 64))]


def foreign(source: str, target: str) -> Any:
    """An operator of a vendor, which is not translated."""
    return node("QuickGelu", [source], [target], domain=VENDOR)


def network(nodes: Sequence[Any], outputs: Sequence[Port], **constants: Any) -> Any:
    graph = message(nodes, IMAGE, outputs, constants or WEIGHTS, opset=18)
    graph.opset_import.append(onnx.helper.make_opsetid(VENDOR, 1))
    return graph


def kinds(model: Model) -> list[str]:
    found = []
    for operation in model.main.operations:
        known = extension_of(model.extension_name_to_prefix, operation.type)
        is_part = known == (ONNX.name, GraphOperation.GRAPH)
        found.append("part" if is_part else OperationType(operation.type).name)
    return found


def labels(model: Model) -> list[str]:
    return [o.name for o in model.main.operands if o.type == OperandType.TENSOR_OEM_BYTE]


async def agrees(path: Path, model: Model, *, seed: int = 0) -> None:
    """What a runtime makes of the model is what ONNX Runtime makes of the file."""
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    rng = np.random.default_rng(seed)
    feeds = {
        port.name: rng.standard_normal([1 if isinstance(n, str) else n for n in port.shape])
        for port in session.get_inputs()
    }
    feeds = {name: value.astype(np.float32) for name, value in feeds.items()}
    wanted = session.run(None, feeds)
    async with nn.open_runtime() as runtime:
        net = await runtime.compile(model)
        assert [port.name for port in net.outputs] == [port.name for port in session.get_outputs()]
        got = await net(*feeds.values())
        results: Sequence[Any] = got if isinstance(got, tuple) else (got,)
        for one, other in zip(results, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        await net.close()


@pytest.mark.anyio
@pytest.mark.one_loop("what is compiled and run does not depend on the loop")
async def test_a_part_in_the_middle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nnasync.importers.onnx")
    graph = network([*FIRST, foreign("b", "d"), *LAST], OUTPUT)
    path = written(tmp_path, graph)
    model = load(path)
    assert kinds(model) == ["CONV_2D", "part", "CONV_2D", "LOGISTIC"]
    assert "translated in parts to 4 operations" in caplog.text
    (label,) = labels(model)
    assert label.startswith("net.onnx, part 1 of 1, as it is: ")
    assert "QuickGelu" in label
    await agrees(path, model)


@pytest.mark.anyio
@pytest.mark.one_loop("what is compiled and run does not depend on the loop")
async def test_parts_before_and_behind_and_beside(tmp_path: Path) -> None:
    """The first part needs nothing, the second one two values and a constant of its own."""
    nodes = [
        foreign("x", "h"),
        node("Conv", ["h", "w"], ["a"], pads=[2, 2, 2, 2]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "v"], ["e"], pads=[1, 1, 1, 1]),
        foreign("e", "i"),
        node("Mul", ["i", "two"], ["j"]),
        foreign("b", "k"),
        node("NonZero", ["k"], ["z"]),
    ]
    outputs: list[Port] = [("z", INT64, (4, "n")), ("j", FLOAT, (1, 24, 64, 64))]
    constants = {**WEIGHTS, "two": np.float32(2)}
    path = written(tmp_path, network(nodes, outputs, **constants))
    model = load(path)
    assert kinds(model) == ["part", "CONV_2D", "CONV_2D", "part", "MUL"]
    await agrees(path, model)


@pytest.mark.anyio
@pytest.mark.one_loop("what is compiled and run does not depend on the loop")
async def test_values_of_high_ranks_and_of_none_cross_the_border(tmp_path: Path) -> None:
    """Five axes go in and come out, and a number without any."""
    nodes = [
        *FIRST,
        node("Reshape", ["b", "five"], ["u"]),
        node("ReduceMax", ["b"], ["n"], keepdims=0),
        foreign("u", "f"),
        foreign("n", "g"),
        node("Reshape", ["f", "four"], ["h"]),
        node("Add", ["h", "g"], ["d"]),
        *LAST,
    ]
    constants = {
        **WEIGHTS,
        "five": np.array([1, 2, 12, 64, 64], np.int64),
        "four": np.array([1, 24, 64, 64], np.int64),
    }
    path = written(tmp_path, network(nodes, OUTPUT, **constants))
    model = load(path)
    assert kinds(model).count("part") == 1
    await agrees(path, model)


def test_what_nobody_uses_is_no_part(tmp_path: Path) -> None:
    nodes = [*FIRST, foreign("b", "unused"), node("Identity", ["b"], ["d"]), *LAST]
    assert "part" not in kinds(load(written(tmp_path, network(nodes, OUTPUT))))


def test_a_split_that_does_not_pay(tmp_path: Path) -> None:
    """Many parts, layers that stay ONNX, or little work: the file is kept whole."""
    chain: list[Any] = list(FIRST)
    name = "b"
    for number in range(4):
        chain += [foreign(name, f"h{number}"), node("Relu", [f"h{number}"], [f"r{number}"])]
        name = f"r{number}"
    many = network([*chain, node("Identity", [name], ["d"]), *LAST], OUTPUT)
    result: list[Port] = [("y", FLOAT, (1, 3, 64, 64))]
    light = network([foreign("x", "a"), node("Relu", ["a"], ["y"])], result)
    dots = {"w": np.ones((3, 3, 1, 1), np.float32)}
    little = network([foreign("x", "a"), node("Conv", ["a", "w"], ["y"])], result, **dots)
    for graph, reason in (
        (many, "would have 4 parts that stay ONNX, 3 at most pay"),
        (light, "0 of its 0 layers would stay ONNX, which does not pay"),
        (little, "36864 multiply-adds beside 1 parts that stay ONNX do not pay"),
    ):
        model = load(written(tmp_path, graph))
        assert kinds(model) == ["part"]
        (label,) = labels(model)
        assert reason in label


def test_a_reason_is_told_once(tmp_path: Path) -> None:
    graph = message([node("Relu", ["x"], ["y"])], [("x", FLOAT, ("n",))], [("y", FLOAT, ("n",))])
    assert nn.describe(written(tmp_path, graph)).kept_whole == 'input "x" has open dimensions'


def test_a_split_file_is_described(tmp_path: Path) -> None:
    graph = network([*FIRST, foreign("b", "d"), *LAST], OUTPUT)
    found = nn.describe(written(tmp_path, graph))
    assert found.kept_whole == ""
    (reason,) = found.parts
    assert "QuickGelu" in reason
    text = str(found)
    assert "translated, but for 1 part that is kept whole, 4 operations" in text
    assert f"  part 1 of 1: {reason}" in text
