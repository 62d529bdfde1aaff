"""Inputs for a network, its answers on files, and whether an answer is right.

Inputs are drawn by a seed. Two engines never agree to the last bit, so an answer may differ from
the expected one by 1 % of the range of that output: of its largest magnitude where it is floating
point, of the range of the type where it is quantized (2.55 steps of 8 bits). A device that is 3 %
off is beyond that by the element of largest magnitude alone. What a network computes on bytes may
be off by 5 % between two engines: they round differently, and it adds up.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nnasync._core.execution import Net, Port
from nnasync.errors import GeneralFailure
from nnasync.hal import Array, Model, OperandType

TOLERANCE = 0.01
QUANTIZED_TOLERANCE = 0.05
_BYTES = (
    OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
    OperandType.TENSOR_QUANT8_SYMM,
)
_TINY = 1e-6


def drawn_inputs(ports: Sequence[Port], seed: int) -> list[Array]:
    """Inputs for these ports; dimensions that are not known are 1."""
    random = np.random.default_rng(seed)
    return [_drawn(port, random) for port in ports]


def _drawn(port: Port, random: np.random.Generator) -> Array:
    shape = [size or 1 for size in port.shape]
    dtype = port.dtype
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu" and dtype.itemsize == 1:
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max + 1, shape).astype(dtype)
    if dtype.kind in "iu":
        return np.zeros(shape, dtype)
    return random.random(shape).astype(dtype)


async def answers(net: Net[Any], inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Returns copies of a network's outputs for these inputs."""
    result = await net(*inputs)
    given = result if isinstance(result, tuple) else (result,)
    return tuple(np.array(each) for each in given)


def is_quantized(model: Model) -> bool:
    """Returns whether a network computes on bytes somewhere inside."""
    return any(operand.scale and operand.type in _BYTES for operand in model.main.operands)


def difference(
    given: Sequence[Array], expected: Sequence[Array], tolerance: float = TOLERANCE
) -> str:
    """Returns what is wrong with answers, in words; empty where nothing is."""
    if len(given) != len(expected):
        return f"{len(given)} outputs, {len(expected)} were expected"
    for place, (each, right) in enumerate(zip(given, expected, strict=True)):
        if each.shape != right.shape or each.dtype != right.dtype:
            return (
                f"output {place} is {each.dtype}{list(each.shape)}, "
                f"expected {right.dtype}{list(right.shape)}"
            )
        off = _off(each, right)
        if not off <= tolerance:
            return f"output {place} is off by {100 * off:.3g} % of its range"
    return ""


def _off(given: Array, right: Array) -> float:
    """The largest deviation as a share of the range; NaN where one is not finite alone."""
    if not right.size:
        return 0.0
    a, b = given.astype(np.float64), right.astype(np.float64)
    if right.dtype.kind in "iu" and right.dtype.itemsize <= 2:
        limits = np.iinfo(right.dtype)
        extent = float(limits.max - limits.min)
    else:
        extent = float(max(np.max(np.abs(b)), _TINY))
    return float(np.max(np.abs(a - b))) / extent


def save_answers(path: Path, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Keep inputs and answers in a file."""
    named = {f"i{place}": each for place, each in enumerate(inputs)}
    named |= {f"o{place}": each for place, each in enumerate(outputs)}
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **named)


def load_answers(path: str) -> tuple[list[Array], list[Array]]:
    """The inputs and answers of a file; raises GeneralFailure where it is none."""
    try:
        with np.load(path, allow_pickle=False) as file:
            inputs = [file[name] for name in file.files if name.startswith("i")]
            outputs = [file[name] for name in file.files if name.startswith("o")]
    except (OSError, ValueError) as error:
        raise GeneralFailure(f"{path} cannot be read: {error}") from error
    return inputs, outputs
