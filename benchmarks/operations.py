"""Window operations of MobileNet sizes as ratios to the plainest work of the same size.

A convolution and a dense layer stand against one float32 matrix product with the same multiply-adds,
a depthwise 3x3 against nine in-place multiplications of a float32 array of its input's shape, and an
operation with a fused activation against the same one without. All contestants of a table run in
turn on one thread; a ratio is that of the medians, and beside it that of the best times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import threadpoolctl

from benchmarks._report import arguments, interleave, median, publish, table
from benchmarks.kernels import timed
from nnasync.hal import ChannelQuant, FusedActivationFunc, OperandType, OperationType, dtype_of
from nnasync.kernels import OPERATIONS, Tensor, is_quantized

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

SIZES: Sequence[tuple[OperationType, int, int, int, int, int]] = (
    (CONV, 224, 3, 32, 3, 2),
    (CONV, 128, 3, 8, 3, 2),
    (CONV, 56, 64, 64, 3, 1),
    (CONV, 28, 128, 128, 3, 1),
    (CONV, 14, 256, 256, 3, 1),
    (CONV, 112, 32, 64, 1, 1),
    (CONV, 56, 128, 128, 1, 1),
    (CONV, 28, 256, 256, 1, 1),
    (CONV, 14, 512, 512, 1, 1),
    (CONV, 7, 1024, 1024, 1, 1),
    (CONV, 64, 8, 16, 1, 1),
    (CONV, 112, 16, 96, 1, 1),
    (CONV, 56, 144, 24, 1, 1),
    (DENSE, 1, 1024, 1001, 1, 1),
    (DENSE, 1, 1280, 1001, 1, 1),
    (DEPTHWISE, 112, 32, 32, 3, 1),
    (DEPTHWISE, 112, 64, 64, 3, 2),
    (DEPTHWISE, 56, 128, 128, 3, 1),
    (DEPTHWISE, 28, 256, 256, 3, 1),
    (DEPTHWISE, 14, 512, 512, 3, 1),
    (DEPTHWISE, 7, 1024, 1024, 3, 1),
    (DEPTHWISE, 64, 8, 8, 3, 1),
)
"""Operation, height and width, input and output channels, filter height and width, stride."""


def limit(operation: OperationType, kind: str) -> float | None:
    """The ratio that the reference device has to keep; none for a quantised depthwise one."""
    if operation == DEPTHWISE:
        return 3.3 if kind == "float32" else None
    return 2.5 if kind == "float32" else 6.0


def scalar(value: int) -> Tensor:
    return Tensor(type=OperandType.INT32, value=np.asarray(value, np.int32))


def operands(size: tuple[Any, ...], kind: str, fused: int) -> tuple[list[Tensor], Tensor]:
    """Inputs and output of an operation."""
    operation, image, channels, outputs, filter, stride = size
    data, weights = KINDS[kind]
    rng = np.random.default_rng(1)
    if operation == DENSE:
        shapes = [(image, channels), (outputs, channels), (outputs,)]
        scalars = [fused]
        result: tuple[int, ...] = (image, outputs)
    else:
        front = 1 if operation == DEPTHWISE else outputs
        back = outputs if operation == DEPTHWISE else channels
        shapes = [(1, image, image, channels), (front, filter, filter, back), (outputs,)]
        multiplier = [1] if operation == DEPTHWISE else []
        scalars = [1, stride, stride, *multiplier, fused]
        result = (1, -(-image // stride), -(-image // stride), outputs)
    scale = 0.02 if is_quantized(data) else 0.0
    inputs = [Tensor(type=data, shape=shapes[0], scale=scale, zero_point=int(scale > 0))]
    if data == FLOAT:
        values = [rng.normal(size=shape).astype(np.float32) for shape in shapes[1:]]
        inputs += [Tensor(type=FLOAT, shape=value.shape, value=value) for value in values]
        return inputs + [scalar(value) for value in scalars], Tensor(type=data, shape=result)
    info = np.iinfo(dtype_of(weights))
    value = np.rint(rng.normal(size=shapes[1]) * 30 + (info.max + info.min) / 2)
    value = value.clip(info.min, info.max).astype(info.dtype)
    bias = rng.integers(-1000, 1000, shapes[2]).astype(np.int32)
    quant = None
    if weights == PER_CHANNEL:
        dim = 3 if operation == DEPTHWISE else 0
        quant = ChannelQuant(tuple(float(s) for s in rng.uniform(0.005, 0.02, outputs)), dim)
    per = quant is not None
    inputs += [
        Tensor(
            type=weights,
            shape=value.shape,
            scale=0.0 if per else 0.01,
            zero_point=0 if per else 128,
            channel_quant=quant,
            value=value,
        ),
        Tensor(
            type=OperandType.TENSOR_INT32,
            shape=bias.shape,
            scale=0.0 if per else float(np.float32(0.02) * np.float32(0.01)),
            value=bias,
        ),
    ]
    return inputs + [scalar(value) for value in scalars], Tensor(
        type=data, shape=result, scale=0.05, zero_point=3
    )


def operation_run(size: tuple[Any, ...], kind: str, fused: int) -> Run:
    """The bound step of an operation."""
    inputs, output = operands(size, kind, fused)
    kernel = OPERATIONS[size[0]].prepare(inputs, [output])
    rng = np.random.default_rng(2)
    first = inputs[0]
    if is_quantized(first.type):
        info = np.iinfo(first.dtype)
        image = rng.integers(info.min, info.max + 1, first.shape).astype(first.dtype)
    else:
        image = rng.normal(size=first.shape).astype(np.float32)
    arrays = [image, *(tensor.value for tensor in inputs[1:])]
    scratch = [np.zeros(spec.shape, spec.dtype) for spec in kernel.scratch]
    return kernel.bind(arrays, [np.zeros(output.shape, output.dtype)], scratch)


def plain_run(size: tuple[Any, ...]) -> Run:
    """What the operation is measured against."""
    operation, image, channels, outputs, filter, stride = size
    if operation == DEPTHWISE:
        data, factor = np.ones((1, image, image, channels), np.float32), np.float32(1)

        def multiply() -> None:
            for _ in range(9):
                np.multiply(data, factor, data)

        return multiply
    rows = image if operation == DENSE else (-(-image // stride)) ** 2
    terms = channels * filter * filter
    rng = np.random.default_rng(3)
    a, b = (rng.normal(size=s).astype(np.float32) for s in ((rows, terms), (terms, outputs)))
    c = np.zeros((rows, outputs), np.float32)
    return lambda: a.dot(b, c)


def label(size: tuple[Any, ...]) -> str:
    operation, image, channels, outputs, filter, stride = size
    if operation == DENSE:
        return f"FULLY_CONNECTED {channels} to {outputs}"
    return f"{operation.name} {filter}x{filter}/{stride} {image}x{image}x{channels} to {outputs}"


def measure(size: Size, rounds: int) -> dict[str, list[float]]:
    """Microseconds of all contestants of a size, in turn."""
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
        repeats = max(1, int(1e-3 / (time.perf_counter() - started)))
        contestants[name] = timed(run, repeats)
    return asyncio.run(interleave(contestants, rounds))


def ratios(times: Mapping[str, list[float]], kind: str) -> tuple[float, float, float]:
    """Ratio of medians, of best times, and what the activation adds (of best times)."""
    plain, own, fused = times["plain"], times[kind], times[f"{kind} fused"]
    return (
        median(own) / median(plain),
        min(own) / min(plain),
        min(fused) / min(own) - 1,
    )


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--only", default="", help="sizes whose name contains this")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    rows = []
    with threadpoolctl.threadpool_limits(1):
        for size in SIZES:
            name = label(size)
            if options.only not in name:
                continue
            times = measure(size, options.rounds)
            figures[name] = times
            for kind in KINDS:
                if kind not in times:
                    continue
                ratio, best, added = ratios(times, kind)
                allowed = limit(size[0], kind)
                rows.append(
                    [
                        f"{name}, {kind}",
                        f"{median(times['plain']):.0f}",
                        f"{median(times[kind]):.0f}",
                        f"{ratio:.2f}",
                        f"{best:.2f}",
                        "" if allowed is None else f"{allowed:.1f}",
                        f"{100 * added:+.0f} %",
                    ]
                )
    headings = ["operation", "plain us", "own us", "ratio", "best", "limit", "activation"]
    publish("Operations", table(headings, rows), figures, options.json)


if __name__ == "__main__":
    main()
