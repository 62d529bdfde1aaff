"""An LSTM cell in float64 as the definition writes it, and random operands for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from nnasync.hal import Array
from nnasync.kernels import Tensor
from tests.kernels.running import scalar, tensor


class Features(NamedTuple):
    cifg: bool
    peephole: bool
    projection: bool
    projection_bias: bool
    norm: bool
    kind: int
    cell_clip: float
    projection_clip: float


PLAIN = Features(False, False, False, False, False, 4, 0.0, 0.0)
FEATURES = st.builds(
    Features,
    *[st.booleans()] * 5,
    st.sampled_from([0, 1, 3, 4, 6]),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([0.0, 0.2]),
)


ACTIVATIONS: dict[int, Callable[[Array], Array]] = {
    0: lambda x: x,
    1: lambda x: np.maximum(x, 0),
    2: lambda x: x.clip(-1, 1),
    3: lambda x: x.clip(0, 6),
    4: np.tanh,
    6: lambda x: 1 / (1 + np.exp(-x)),
}


def act(kind: int, x: Array) -> Array:
    return ACTIVATIONS[kind](x)


class Sizes(NamedTuple):
    batches: int
    inputs: int
    units: int
    outputs: int


def sizes_of(features: Features, batches: int, inputs: int = 5) -> Sizes:
    return Sizes(batches, inputs, 4, 3 if features.projection else 4)


def make(features: Features, sizes: Sizes, seed: int) -> list[Array | None]:
    """Arrays of inputs 1 to 19 and of the layer norm weights behind them."""
    batches, inputs, units, outputs = sizes
    rng = np.random.default_rng(seed)

    def some(present: bool, *shape: int) -> Array | None:
        return rng.normal(size=shape).astype(np.float32) * 0.7 if present else None

    full = not features.cifg
    arrays = [some(full, units, inputs), *(some(True, units, inputs) for _ in range(3))]
    arrays += [some(full, units, outputs), *(some(True, units, outputs) for _ in range(3))]
    arrays += [some(features.peephole and full, units)]
    arrays += [some(features.peephole, units) for _ in range(2)]
    arrays += [some(full, units), *(some(True, units) for _ in range(3))]
    arrays.append(some(features.projection, outputs, units))
    arrays.append(some(features.projection and features.projection_bias, outputs))
    arrays += [some(True, batches, outputs), some(True, batches, units)]
    arrays += [some(features.norm and full, units)]
    arrays += [some(features.norm, units) for _ in range(3)]
    return arrays


def wide(arrays: Sequence[Array | None]) -> list[Any]:
    """The arrays in float64, each at the number that it has among the operands of LSTM."""
    return [None, *(None if array is None else array.astype(np.float64) for array in arrays)]


def step(
    x: Array, w: list[Any], h: Array, c: Array, f: Features, aux: Sequence[Array] = ()
) -> tuple[Array, Array]:
    """One time step; w[i] is operand i, `aux` what an auxiliary input adds to each gate."""

    def gate(number: int, cell: Array, peephole: int | None) -> Array:
        z: Array = x @ w[number].T + h @ w[number + 4].T
        if aux:
            z = z + aux[number - 1]
        if peephole is not None and w[peephole] is not None:
            z = z + w[peephole] * cell
        bias = w[number + 11]
        if f.norm:
            z = (z - z.mean(-1, keepdims=True)) / np.sqrt(z.var(-1, keepdims=True) + 1e-8)
            z = z * w[19 + number]
        biased: Array = z + bias
        return biased

    forget = act(6, gate(2, c, 10))
    update = 1 - forget if f.cifg else act(6, gate(1, c, 9))
    new = forget * c + update * act(f.kind, gate(3, c, None))
    if f.cell_clip:
        new = new.clip(-f.cell_clip, f.cell_clip)
    out = act(6, gate(4, new, 11)) * act(f.kind, new)
    if f.projection:
        out = out @ w[16].T + (0 if w[17] is None else w[17])
        if f.projection_clip:
            out = out.clip(-f.projection_clip, f.projection_clip)
    return out, new


def operands(arrays: Sequence[Array | None]) -> list[Tensor | None]:
    return [None if array is None else tensor(array) for array in arrays]


def scalars(features: Features) -> list[Tensor]:
    clips = scalar(features.cell_clip), scalar(features.projection_clip)
    return [scalar(features.kind), *clips]


def some_input(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def halved(operand: Tensor | None) -> Tensor | None:
    """The float16 twin of a float32 operand; others as they are."""
    if operand is None or operand.value is None or operand.dtype != np.float32:
        return operand
    value = operand.value.astype(np.float16)
    return tensor(value) if value.ndim else Tensor(type=10, value=value)


def without_sizes(given: Tensor | None) -> Tensor:
    """An omitted operand as an empty tensor."""
    return tensor(np.zeros((0,), np.float32)) if given is None else given
