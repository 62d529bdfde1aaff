"""Networks of one operator that becomes an operation of org.nnasync.common."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from tests.importers.tflite.elementwise_cases import binary, shape_of, tensor, unary
from tests.importers.tflite.judge import Make, Network
from tests.importers.tflite_files import Op, T


def product(type: str, one: bool, two: bool, *, constant: str = "") -> Make:
    """A product of matrices in a batch, the second computed or a constant of some type."""

    def make(random: np.random.Generator) -> Network:
        rows, terms, columns = (int(n) for n in random.integers(1, 6, 3))
        batch = tuple(int(n) for n in random.integers(1, 4, random.integers(0, 3)))
        other = tuple(n if random.random() < 0.5 else 1 for n in batch)
        a = (terms, rows) if one else (rows, terms)
        b = (columns, terms) if two else (terms, columns)
        tensors = [
            tensor(type, (*batch, *a), 0.05),
            _second(random, type, (*other, *b), constant),
            tensor(type, (*batch, rows, columns), 0.4),
        ]
        options = {"AdjX": one, "AdjY": two}
        return Network(tensors, [Op("BATCH_MATMUL", (0, 1), (2,), "BatchMatMulOptions", options)])

    return make


def _second(random: np.random.Generator, type: str, shape: tuple[int, ...], constant: str) -> T:
    if not constant:
        return tensor(type, shape, 0.07, 3)
    if constant == "FLOAT32":
        return T(constant, shape, random.normal(size=shape).astype(np.float32))
    data: Any = random.integers(-127, 128, shape).astype(np.int8)
    return T("INT8", shape, data, (0.02,), (0,))


def running(type: str, exclusive: bool, reverse: bool) -> Make:
    """Running sums along an axis."""

    def make(random: np.random.Generator) -> Network:
        shape = shape_of(random)
        axis = np.asarray(random.integers(-len(shape), len(shape)), np.int32)
        tensors = [tensor(type, shape), T("INT32", (), axis), tensor(type, shape)]
        options = {"Exclusive": exclusive, "Reverse": reverse}
        return Network(tensors, [Op("CUMSUM", (0, 1), (2,), "CumsumOptions", options)])

    return make


def summed(type: str) -> Make:
    """Sums of bytes along some axes."""

    def make(random: np.random.Generator) -> Network:
        shape = shape_of(random, 2)
        keep, axis = bool(random.integers(0, 2)), int(random.integers(0, len(shape)))
        left = tuple(1 if n == axis else size for n, size in enumerate(shape) if keep or n != axis)
        axes = T("INT32", (1,), np.asarray([axis], np.int32))
        tensors = [tensor(type, shape), axes, tensor(type, left, 0.2)]
        options = {"KeepDims": keep}
        return Network(tensors, [Op("SUM", (0, 1), (2,), "ReducerOptions", options)], step=1)

    return make


def near(make: Make) -> Make:
    """The same network, of which integers may differ by one step."""
    return lambda random: msgspec.structs.replace(make(random), step=1)


CASES: dict[str, Make] = {
    **{
        f"BATCH_MATMUL {type} {one} {two}": product(type, one, two)
        for type in ("FLOAT32", "INT8")
        for one in (False, True)
        for two in (False, True)
    },
    **{
        f"CUMSUM {type} {exclusive} {reverse}": running(type, exclusive, reverse)
        for type in ("FLOAT32", "INT32")
        for exclusive in (False, True)
        for reverse in (False, True)
    },
    "ROUND FLOAT32": unary("ROUND", "FLOAT32"),
    "ABS INT8": near(unary("ABS", "INT8", (0.06, -20))),
    "LOG_SOFTMAX INT8": near(unary("LOG_SOFTMAX", "INT8", (16 / 256, 127), "LogSoftmaxOptions")),
    "LOG_SOFTMAX UINT8": near(unary("LOG_SOFTMAX", "UINT8", (16 / 256, 255), "LogSoftmaxOptions")),
    "SQUARED_DIFFERENCE INT8": near(binary("SQUARED_DIFFERENCE", "INT8")),
    **{f"SUM {type}": summed(type) for type in ("UINT8", "INT8")},
    **{
        f"LEAKY_RELU {type} {slope}": near(
            unary("LEAKY_RELU", type, (0.06, None), "LeakyReluOptions", Alpha=slope)
        )
        for type in ("UINT8", "INT8")
        for slope in (0.1, -0.5, 0.0, 2.0)
    },
    "BATCH_MATMUL FLOAT32 constant": product("FLOAT32", False, False, constant="FLOAT32"),
    "BATCH_MATMUL INT8 constant": product("INT8", False, True, constant="INT8"),
    **{
        f"GELU {type} {approximate}": unary(
            "GELU",
            type,
            None if type == "FLOAT32" else (0.03, -10 if type == "INT8" else 30),
            "GeluOptions",
            Approximate=approximate,
        )
        for type in ("FLOAT32", "INT8")
        for approximate in (False, True)
    },
}
