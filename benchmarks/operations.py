"""Operations of MobileNet sizes as ratios to the plainest work of the same size.

A convolution and a dense layer stand against one float32 matrix product with as many multiply-adds,
a depthwise 3x3 against nine in-place multiplications by a number of a float32 array of its input's
shape, and each operation with RELU6 against itself without. All contestants of a size run in turn
on one thread. "ratio" is that of the medians, "best" that of the best times, and "RELU6" what the
activation adds to the best time. Where numpy happens to place the array that is multiplied makes a
difference of a quarter, so that runs differ in the depthwise ratios.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import threadpoolctl

from benchmarks._report import arguments, interleave, median, publish, table
from benchmarks.kernels import timed
from nnasync.hal import (
    Array,
    ChannelQuant,
    FusedActivationFunc,
    OperandType,
    OperationType,
    PaddingScheme,
    dtype_of,
    is_quantized,
)
from nnasync.kernels import OPERATIONS, Tensor

Run = Callable[[], object]

CONV, DEPTHWISE = OperationType.CONV_2D, OperationType.DEPTHWISE_CONV_2D
DENSE = OperationType.FULLY_CONNECTED
FLOAT, UINT8 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_QUANT8_ASYMM
INT8 = OperandType.TENSOR_QUANT8_ASYMM_SIGNED
PER_CHANNEL = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL

KINDS: Mapping[str, tuple[OperandType, OperandType]] = {
    "float32": (FLOAT, FLOAT),
    "uint8": (UINT8, UINT8),
    "int8 per channel": (INT8, PER_CHANNEL),
}
"""Types of data and filter."""


class Size(NamedTuple):
    """An operation; a dense layer is one of 1x1 filters on an image of one pixel."""

    operation: OperationType
    image: int
    channels: int
    outputs: int
    filter: int = 1
    stride: int = 1

    @property
    def label(self) -> str:
        if self.operation == DENSE:
            return f"FULLY_CONNECTED {self.channels} to {self.outputs}"
        window = f"{self.filter}x{self.filter}/{self.stride}"
        image = f"{self.image}x{self.image}x{self.channels}"
        return f"{self.operation.name} {window} {image} to {self.outputs}"

    @property
    def result(self) -> int:
        """Returns height and width of the output."""
        return -(-self.image // self.stride)


SIZES: Sequence[Size] = (
    Size(CONV, 224, 3, 32, 3, 2),
    Size(CONV, 128, 3, 8, 3, 2),
    Size(CONV, 56, 64, 64, 3),
    Size(CONV, 28, 128, 128, 3),
    Size(CONV, 14, 256, 256, 3),
    Size(CONV, 112, 32, 64),
    Size(CONV, 56, 128, 128),
    Size(CONV, 28, 256, 256),
    Size(CONV, 14, 512, 512),
    Size(CONV, 7, 1024, 1024),
    Size(CONV, 112, 16, 96),
    Size(CONV, 56, 144, 24),
    Size(CONV, 64, 8, 16),
    Size(DENSE, 1, 1024, 1001),
    Size(DENSE, 1, 1280, 1001),
    Size(DEPTHWISE, 112, 32, 32, 3),
    Size(DEPTHWISE, 112, 64, 64, 3, 2),
    Size(DEPTHWISE, 56, 128, 128, 3),
    Size(DEPTHWISE, 28, 256, 256, 3),
    Size(DEPTHWISE, 14, 512, 512, 3),
    Size(DEPTHWISE, 7, 1024, 1024, 3),
    Size(DEPTHWISE, 64, 8, 8, 3),
)


def limit(size: Size, kind: str) -> float | None:
    """Returns the ratio that the reference device has to keep; None if it has no limit."""
    if size.operation == DEPTHWISE:
        return 3.3 if kind == "float32" else None
    return 2.5 if kind == "float32" else 6.0


def tensors(size: Size, kind: str) -> list[Tensor]:
    """Returns input, filter and bias; the input has no value."""
    data, weights = KINDS[kind]
    shapes: list[tuple[int, ...]]
    if size.operation == DENSE:
        shapes = [(1, size.channels), (size.outputs, size.channels)]
    else:
        depthwise = size.operation == DEPTHWISE
        front, back = (1, size.outputs) if depthwise else (size.outputs, size.channels)
        image = (1, size.image, size.image, size.channels)
        shapes = [image, (front, size.filter, size.filter, back)]
    rng = np.random.default_rng(1)
    if data == FLOAT:
        filter, bias = (rng.normal(size=s).astype(np.float32) for s in (shapes[1], size.outputs))
        return [
            Tensor(type=FLOAT, shape=shapes[0]),
            Tensor(type=FLOAT, shape=filter.shape, value=filter),
            Tensor(type=FLOAT, shape=bias.shape, value=bias),
        ]
    filter = quantized(rng, shapes[1], dtype_of(weights))
    bias = rng.integers(-1000, 1000, size.outputs).astype(np.int32)
    source = Tensor(type=data, shape=shapes[0], scale=0.02, zero_point=1)
    if weights == PER_CHANNEL:
        scales = tuple(float(scale) for scale in rng.uniform(0.005, 0.02, size.outputs))
        quant = ChannelQuant(scales, 3 if size.operation == DEPTHWISE else 0)
        constant = Tensor(type=weights, shape=filter.shape, channel_quant=quant, value=filter)
    else:
        constant = Tensor(
            type=weights, shape=filter.shape, scale=0.01, zero_point=128, value=filter
        )
    product = float(np.float32(source.scale) * np.float32(constant.scale))
    zeros = Tensor(type=OperandType.TENSOR_INT32, shape=bias.shape, scale=product, value=bias)
    return [source, constant, zeros]


def quantized(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Returns random values around the middle of a type, as trained weights are."""
    info = np.iinfo(dtype)
    values = rng.normal(size=shape) * 30 + (info.max + info.min) / 2
    return np.rint(values).clip(info.min, info.max).astype(dtype)


def operation_run(size: Size, kind: str, fused: FusedActivationFunc) -> Run:
    """Returns a function that runs the bound step of an operation."""
    inputs = tensors(size, kind)
    numbers: list[int] = [PaddingScheme.SAME, size.stride, size.stride, 1, fused]
    if size.operation == CONV:
        del numbers[3]
    if size.operation == DENSE:
        del numbers[:4]
    scalars = [np.asarray(number, np.int32) for number in numbers]
    inputs += [Tensor(type=OperandType.INT32, value=scalar) for scalar in scalars]
    source = inputs[0]
    shape: tuple[int, ...] = (1, size.outputs)
    if size.operation != DENSE:
        shape = (1, size.result, size.result, size.outputs)
    scale = 0.05 if is_quantized(source.type) else 0.0
    output = Tensor(type=source.type, shape=shape, scale=scale, zero_point=3 if scale else 0)
    kernel = OPERATIONS[size.operation].prepare(inputs, [output])
    rng = np.random.default_rng(2)
    if is_quantized(source.type):
        image = quantized(rng, source.shape, source.dtype)
    else:
        image = rng.normal(size=source.shape).astype(np.float32)
    arrays = [image, *(tensor.value for tensor in inputs[1:])]
    scratch = [np.zeros(spec.shape, spec.dtype) for spec in kernel.scratch]
    return kernel.bind(arrays, [np.zeros(output.shape, output.dtype)], scratch)


def plain_run(size: Size) -> Run:
    """Returns a function that runs what the operation is compared with."""
    if size.operation == DEPTHWISE:
        data = np.ones((1, size.image, size.image, size.channels), np.float32)
        one = np.float32(1)

        def multiply() -> None:
            for _ in range(9):
                np.multiply(data, one, data)

        return multiply
    rows, terms = size.result**2, size.channels * size.filter**2
    rng = np.random.default_rng(3)
    a = rng.normal(size=(rows, terms)).astype(np.float32)
    b = rng.normal(size=(terms, size.outputs)).astype(np.float32)
    c = np.zeros((rows, size.outputs), np.float32)
    return lambda: a.dot(b, c)


def measure(size: Size, rounds: int) -> dict[str, list[float]]:
    """Returns the microseconds of all contestants of a size, in turns."""
    runs: dict[str, Run] = {"plain": plain_run(size)}
    for kind in KINDS:
        if size.operation == DENSE and kind == "int8 per channel":
            continue
        runs[kind] = operation_run(size, kind, FusedActivationFunc.NONE)
        runs[f"{kind} fused"] = operation_run(size, kind, FusedActivationFunc.RELU6)
    contestants = {}
    for name, run in runs.items():
        run()
        started = time.perf_counter()
        run()
        repeats = max(1, int(6e-3 / (time.perf_counter() - started)))
        contestants[name] = timed(run, repeats)
    return asyncio.run(interleave(contestants, rounds))


def row(size: Size, kind: str, times: Mapping[str, Sequence[float]]) -> list[str]:
    """Returns the table row of a size and a kind."""
    plain, own, fused = times["plain"], times[kind], times[f"{kind} fused"]
    allowed = limit(size, kind)
    return [
        f"{size.label}, {kind}",
        f"{median(plain):.0f}",
        f"{median(own):.0f}",
        f"{median(own) / median(plain):.2f}",
        f"{min(own) / min(plain):.2f}",
        "" if allowed is None else f"{allowed:.1f}",
        f"{100 * (min(fused) / min(own) - 1):+.0f} %",
    ]


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=25)
    parser.add_argument("--only", default="", help="sizes whose name contains this")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    rows = []
    with threadpoolctl.threadpool_limits(1):
        for size in SIZES:
            if options.only not in size.label:
                continue
            times = measure(size, options.rounds)
            figures[size.label] = times
            rows += [row(size, kind, times) for kind in KINDS if kind in times]
    headings = ["operation", "plain us", "own us", "ratio", "best", "limit", "RELU6"]
    publish("Operations", table(headings, rows), figures, options)


if __name__ == "__main__":
    main()
