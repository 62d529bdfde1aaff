"""Networks of one operator that computes each number alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.importers.tflite.judge import Make, Network
from tests.importers.tflite_files import Op, T

SCALES = {"UINT8": ((0.05,), (120,)), "INT8": ((0.05,), (-7,))}


def tensor(type: str, shape: Any, scale: float = 0.05, zero: int | None = None) -> T:
    """A tensor without a value, quantized where its type is."""
    shape = tuple(int(n) for n in shape)
    if type in SCALES:
        known = SCALES[type][1][0] if zero is None else zero
        return T(type, shape, None, (scale,), (known,))
    return T(type, shape)


def shape_of(random: np.random.Generator, low: int = 1, high: int = 4) -> tuple[int, ...]:
    """A shape of any rank from `low` to `high`."""
    rank = random.integers(low, high + 1)
    return tuple(int(n) for n in random.integers(1, 6, rank))


def unary(
    name: str, type: str, result: Any = None, table: str = "", low: float = -4, **options: Any
) -> Make:
    def make(random: np.random.Generator) -> Network:
        shape = shape_of(random)
        scale, zero = result or (0.05, None)
        tensors = [tensor(type, shape), tensor(type, shape, scale, zero)]
        op = Op(name, (0,), (1,), table, options)
        return Network(tensors, [op], low=low)

    return make


def binary(
    name: str, type: str, output: str = "", table: str = "", low: float = -4, **options: Any
) -> Make:
    def make(random: np.random.Generator) -> Network:
        shape = shape_of(random)
        other = [n if random.random() < 0.6 else 1 for n in shape]
        scale = 0.05 if name in ("MAXIMUM", "MINIMUM") else 0.11
        tensors = [
            tensor(type, shape),
            tensor(type, other, 0.05 if scale == 0.05 else 0.07),
            tensor(output or type, shape, scale),
        ]
        if random.random() < 0.5 and table != "x":
            tensors[0], tensors[1] = tensors[1], tensors[0]
        return Network(tensors, [Op(name, (0, 1), (2,), table, options)], low=low)

    return make


def select(name: str, type: str) -> Make:
    def make(random: np.random.Generator) -> Network:
        shape = shape_of(random, 2)
        condition = shape if random.random() < 0.5 else shape[:1]
        if name == "SELECT_V2":
            condition = tuple(n if random.random() < 0.5 else 1 for n in shape)
        tensors = [tensor("BOOL", condition), *[tensor(type, shape)] * 3]
        return Network(tensors, [Op(name, (0, 1, 2), (3,))])

    return make


def cast(source: str, target: str) -> Make:
    def make(random: np.random.Generator) -> Network:
        shape = shape_of(random)
        return Network(
            [T(source, shape, None, *((1.0,), (0,)) if "INT8" in source else ()), T(target, shape)],
            [Op("CAST", (0,), (1,))],
        )

    return make


def prelu(type: str) -> Make:
    def make(random: np.random.Generator) -> Network:
        shape = shape_of(random, 4)
        alpha = np.asarray(random.uniform(-1, 1, (1, 1, shape[3])), np.float32)
        weights = T("FLOAT32", alpha.shape, alpha)
        if type != "FLOAT32":
            data = random.integers(0, 100, alpha.shape).astype(type.lower())
            weights = T(type, alpha.shape, data, (0.02,), (50,))
        tensors = [tensor(type, shape), weights, tensor(type, shape, 0.06)]
        return Network(tensors, [Op("PRELU", (0, 1), (2,))])

    return make


def many(type: str) -> Make:
    def make(random: np.random.Generator) -> Network:
        shape = shape_of(random)
        count = int(random.integers(2, 6))
        return Network(
            [tensor(type, shape)] * (count + 1), [Op("ADD_N", tuple(range(count)), (count,))]
        )

    return make


_256 = (1 / 256, 0), (1 / 256, -128)
CASES: dict[str, Make] = {
    **{
        f"{name} FLOAT32": unary(name, "FLOAT32", low=low)
        for name, low in [
            ("ABS", -4),
            ("NEG", -4),
            ("EXP", -4),
            ("LOG", 0.01),
            ("SQRT", 0),
            ("RSQRT", 0.01),
            ("SIN", -4),
            ("COS", -4),
            ("FLOOR", -4),
            ("CEIL", -4),
            ("SIGN", -4),
            ("SQUARE", -4),
            ("LOGISTIC", -4),
            ("TANH", -4),
            ("HARD_SWISH", -4),
            ("RELU", -4),
            ("RELU_N1_TO_1", -4),
            ("RELU6", -4),
            ("RELU_0_TO_1", -4),
            ("ELU", -4),
        ]
    },
    "LEAKY_RELU FLOAT32": unary("LEAKY_RELU", "FLOAT32", None, "LeakyReluOptions", Alpha=0.3),
    **{f"{name} INT32": unary(name, "INT32") for name in ("ABS", "NEG")},
    **{
        f"{name} {type}": unary(name, type, result)
        for type in ("UINT8", "INT8")
        for name, result in [
            ("RELU", None),
            ("RELU6", (0.03, None)),
            ("RELU_N1_TO_1", None),
            ("LOGISTIC", _256[type == "INT8"]),
            ("TANH", (1 / 128, 128 * (type == "UINT8"))),
            ("HARD_SWISH", (0.04, 3)),
        ]
    },
    **{f"{name} INT8": unary(name, "INT8", (0.2, -10)) for name in ("EXP", "ELU")},
    **{
        f"{name} {type}": binary(name, type, "", f"{name.title()}Options")
        for name in ("ADD", "SUB", "MUL")
        for type in ("FLOAT32", "INT32", "UINT8", "INT8")
    },
    "DIV FLOAT32": binary("DIV", "FLOAT32", "", "DivOptions", low=0.5),
    "FLOOR_DIV FLOAT32": binary("FLOOR_DIV", "FLOAT32", low=0.5),
    "FLOOR_DIV INT32": binary("FLOOR_DIV", "INT32", low=1),
    "FLOOR_MOD INT32": binary("FLOOR_MOD", "INT32", low=1),
    "POW FLOAT32": binary("POW", "FLOAT32", low=0.1),
    **{
        f"SQUARED_DIFFERENCE {type}": binary("SQUARED_DIFFERENCE", type)
        for type in ("FLOAT32", "INT32")
    },
    **{
        f"{name} {type}": binary(name, type)
        for name in ("MAXIMUM", "MINIMUM")
        for type in ("FLOAT32", "INT32", "UINT8", "INT8")
    },
    **{
        f"{name} {type}": binary(name, type, "BOOL")
        for name in ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
        for type in ("FLOAT32", "INT32", "INT64", "UINT8", "INT8")
    },
    **{f"{name} BOOL": binary(name, "BOOL") for name in ("LOGICAL_AND", "LOGICAL_OR", "EQUAL")},
    "LOGICAL_NOT BOOL": unary("LOGICAL_NOT", "BOOL"),
    **{
        f"{name} {type}": select(name, type)
        for name in ("SELECT", "SELECT_V2")
        for type in ("FLOAT32", "INT32", "UINT8", "INT8")
    },
    **{
        f"CAST {source} {target}": cast(source, target)
        for source in ("FLOAT32", "INT32", "INT64", "BOOL", "UINT8")
        for target in ("FLOAT32", "INT32", "INT64", "BOOL")
    },
    **{f"PRELU {type}": prelu(type) for type in ("FLOAT32", "UINT8", "INT8")},
    **{f"ADD_N {type}": many(type) for type in ("FLOAT32", "INT32")},
}
