"""Buffers on their own, their contents, and claims on them."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnasync._core.engine_device.buffers import Buffers, Claim, ManagedBuffer
from nnasync.hal import Operand, OperandType, Shape
from nnasync.memory import Pool

FLOATS = OperandType.TENSOR_FLOAT32


class Model:
    """Something that has roles."""


def made(dimensions: Shape = (2, 3), type: int = FLOATS, **options: Any) -> ManagedBuffer:
    return Buffers(**options).allocate(Operand(type, dimensions), [(Model(), "input", 0)])


def filled(buffer: ManagedBuffer, fill: int, dimensions: Shape = ()) -> None:
    shape = dimensions or buffer.creation_dimensions
    with Pool.allocate(max(4 * int(np.prod(shape)), 1)) as pool:
        pool.view[:] = bytes([fill]) * pool.size
        buffer.copy_from(pool, dimensions)


def contents(buffer: ManagedBuffer) -> bytes:
    with Pool.allocate(max(4 * int(np.prod(buffer.dimensions)), 1)) as pool:
        buffer.copy_to(pool)
        return bytes(pool.view)


def reading(buffer: ManagedBuffer, shape: Shape = (2, 3)) -> Claim:
    return Claim([(buffer, shape)])


def writing(*buffers: ManagedBuffer, shape: Shape | None = (2, 3)) -> Claim:
    return Claim((), [(buffer, shape) for buffer in buffers])
