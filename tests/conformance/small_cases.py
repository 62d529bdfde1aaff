"""Small conformance cases, made as the lines of a case file."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from nnasync._core.validation import operand_value
from nnasync.conformance.cases import Case, parse_case
from nnasync.hal import Array

Line = dict[str, Any]


def encoded(values: Any, dtype: Any) -> str:
    return base64.b64encode(np.asarray(values, dtype).tobytes()).decode()


def tensor(
    name: str, values: Any, lifetime: str, *, type: str = "TENSOR_FLOAT32", **more: Any
) -> dict[str, Any]:
    """An operand with a value, whose shape it has."""
    dtypes = {
        "TENSOR_FLOAT32": np.float32,
        "TENSOR_QUANT8_ASYMM": np.uint8,
        "TENSOR_INT32": np.int32,
        "TENSOR_BOOL8": np.uint8,
    }
    array = np.asarray(values, dtypes[type])
    return {
        "name": name,
        "type": type,
        "dims": list(array.shape),
        "lifetime": lifetime,
        "data": encoded(array, array.dtype),
        **more,
    }


def int32(value: int) -> dict[str, Any]:
    """A constant scalar."""
    data = encoded(value, np.int32)
    return {"name": "n", "type": "INT32", "dims": [], "lifetime": "CONSTANT_COPY", "data": data}


def line(
    name: str,
    operands: list[dict[str, Any]],
    operations: list[tuple[str, list[int], list[int]]],
    **more: Any,
) -> Line:
    """A case; inputs and outputs are the operands of these lifetimes."""
    return {
        "name": name,
        "spec": name.split("_")[0],
        "version": "V1_0",
        "relaxed": False,
        "main": subgraph(operands, operations),
        **more,
    }


def subgraph(
    operands: list[dict[str, Any]], operations: list[tuple[str, list[int], list[int]]]
) -> dict[str, Any]:
    def of(lifetime: str) -> list[int]:
        return [i for i, operand in enumerate(operands) if operand["lifetime"] == lifetime]

    return {
        "operands": operands,
        "operations": [{"op": op, "in": read, "out": write} for op, read, write in operations],
        "inputs": of("SUBGRAPH_INPUT"),
        "outputs": of("SUBGRAPH_OUTPUT"),
    }


def addition(name: str = "add_float", *, wrong: float = 0.0, **more: Any) -> Line:
    """x + [10, 20] for x = [[1, 2], [3, 4]]; `wrong` is added to the expected last element."""
    operands = [
        tensor("x", [[1, 2], [3, 4]], "SUBGRAPH_INPUT"),
        tensor("b", [10, 20], "CONSTANT_REFERENCE"),
        int32(0),
        tensor("y", [[11, 22], [13, 24 + wrong]], "SUBGRAPH_OUTPUT"),
    ]
    return line(name, operands, [("ADD", [0, 1, 2], [3])], **more)


def rectified(name: str = "relu_quant8", **more: Any) -> Line:
    """RELU of unsigned bytes with zero point 100."""
    quant: Line = {"type": "TENSOR_QUANT8_ASYMM", "scale": 0.5, "zero_point": 100}
    operands = [
        tensor("x", [[0, 99, 100, 255]], "SUBGRAPH_INPUT", **quant),
        tensor("y", [[100, 100, 100, 255]], "SUBGRAPH_OUTPUT", **quant),
    ]
    return line(name, operands, [("RELU", [0], [1])], **more)


def average_of_a_half(name: str = "avg_pool_quant8", **more: Any) -> Line:
    """The average of two unsigned bytes, a half below 128, where signed ones are below zero."""
    quant: Line = {"type": "TENSOR_QUANT8_ASYMM", "scale": 0.5, "zero_point": 100}
    operands = [
        tensor("x", [[[[116], [117]]]], "SUBGRAPH_INPUT", **quant),
        *(int32(value) for value in (2, 1, 1, 2, 1, 0)),
        tensor("y", [[[[117]]]], "SUBGRAPH_OUTPUT", **quant),
    ]
    return line(name, operands, [("AVERAGE_POOL_2D", list(range(7)), [7])], **more)


def quantized_sum(name: str = "add_quant8", **more: Any) -> Line:
    """Unsigned bytes plus a constant in operand values, and one in a pool."""
    quant: Line = {"type": "TENSOR_QUANT8_ASYMM", "scale": 1.0, "zero_point": 10}
    lifetime = more.pop("lifetime", "CONSTANT_COPY")
    operands = [
        tensor("x", [10, 20, 30], "SUBGRAPH_INPUT", **quant),
        tensor("b", [11, 9, 10], lifetime, **quant),
        int32(0),
        tensor("y", [11, 19, 30], "SUBGRAPH_OUTPUT", **quant),
    ]
    return line(name, operands, [("ADD", [0, 1, 2], [3])], **more)


def impossible(name: str = "add_impossible") -> Line:
    """Shapes that do not go together, known before the execution."""
    operands = [
        tensor("x", [1, 2], "SUBGRAPH_INPUT"),
        tensor("b", [1, 2, 3], "CONSTANT_COPY"),
        int32(0),
        tensor("y", [1, 2], "SUBGRAPH_OUTPUT"),
    ]
    return line(name, operands, [("ADD", [0, 1, 2], [3])], expect_failure=True)


def endless(name: str = "while_endless") -> Line:
    """A loop whose condition is always true."""
    main = [
        {"name": "c", "type": "SUBGRAPH", "dims": [], "lifetime": "SUBGRAPH", "data": 0},
        {"name": "b", "type": "SUBGRAPH", "dims": [], "lifetime": "SUBGRAPH", "data": 1},
        tensor("x", [1], "SUBGRAPH_INPUT"),
        tensor("y", [1], "SUBGRAPH_OUTPUT"),
    ]

    def inner(name: str, lifetime: str, type: str = "TENSOR_FLOAT32") -> dict[str, Any]:
        return {"name": name, "type": type, "dims": [1], "lifetime": lifetime}

    condition = [
        inner("x", "SUBGRAPH_INPUT"),
        inner("go_on", "SUBGRAPH_OUTPUT", "TENSOR_BOOL8"),
    ]
    body = [
        inner("x", "SUBGRAPH_INPUT"),
        tensor("one", [1], "CONSTANT_COPY"),
        int32(0),
        inner("y", "SUBGRAPH_OUTPUT"),
    ]
    return line(
        name,
        main,
        [("WHILE", [0, 1, 2], [3])],
        expect_failure=True,
        referenced=[
            subgraph(condition, [("GREATER_EQUAL", [0, 0], [1])]),
            subgraph(body, [("ADD", [0, 1, 2], [3])]),
        ],
    )


def constant(read: Case, index: int) -> Array:
    """The value of a constant of the main subgraph."""
    value = operand_value(read.model, read.model.main.operands[index])
    assert value is not None
    return value


def case(made: Line) -> Case:
    """The case of a line."""
    return parse_case(json.dumps(made).encode(), "small.jsonl")


def write(path: Path, lines: list[Line]) -> Path:
    """A case file of these lines, compressed if its name says so."""
    text = "".join(json.dumps(each) + "\n" for each in lines).encode()
    path.write_bytes(gzip.compress(text) if path.name.endswith(".gz") else text)
    return path
