"""Networks of one operator that becomes an operation of org.nnasync.common."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.importers.tflite.elementwise_cases import tensor, unary
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


CASES: dict[str, Make] = {
    **{
        f"BATCH_MATMUL {type} {one} {two}": product(type, one, two)
        for type in ("FLOAT32", "INT8")
        for one in (False, True)
        for two in (False, True)
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
