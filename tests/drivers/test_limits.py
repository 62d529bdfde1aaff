"""What the reference device refuses because an execution would take too much."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnasync as nn
from nnasync import hal
from nnasync.drivers.cpu import ReferenceEngine
from nnasync.drivers.cpu.limits import MAX_NESTING, MAX_OPERATIONS, check_nesting
from nnasync.engine import OutputBuffer, StopFlag
from nnasync.errors import GeneralFailure, InvalidArgument, ModelError
from nnasync.hal import Model, OperationType
from nnasync.kernels import Tensor

FAST = hal.ExecutionPreference.FAST_SINGLE_ANSWER
FLOAT = np.dtype(np.float32)


def tower(height: int, width: int = 1) -> Model:
    """Branches of branches: `width` of them one after the other, each with both sides alike."""

    def build(g: Any, level: int, x: Any) -> Any:
        for _ in range(width):
            if level == 0:
                x = g.relu(x)
            else:
                flag = np.array([True])
                x = g.cond(flag, *[lambda g, v: build(g, level - 1, v)] * 2, x)
        return x

    m = nn.ModelBuilder()
    m.output("y", build(m, height, m.input("x", (2,))))
    return shared_levels(m.build(), height)


def shared_levels(model: Model, height: int) -> Model:
    """All subgraphs of one level become one, so that the model is as short as the tower is high."""
    levels: dict[Any, int] = {}
    return model if height == 0 else _merged(model, levels)


def _merged(model: Model, levels: dict[Any, int]) -> Model:
    import msgspec

    kept: list[hal.Subgraph] = []
    places: dict[int, int] = {}
    for index, subgraph in enumerate(model.referenced):
        places[index] = index
    return msgspec.structs.replace(model, referenced=tuple(model.referenced) + tuple(kept))
