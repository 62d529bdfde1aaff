"""Reference kernels: a whole inference as ratio to the matrix products of the same network.

The products of the convolutions and dense layers of a network are made with bare numpy, float32,
in the same shapes, on the same thread; depthwise convolutions have none. Contestants run in turn,
medians, one BLAS thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import threadpoolctl

import nnasync as nn
from benchmarks._report import arguments, interleave, median, models_folder, publish, spread, table
from nnasync._core.drivers.cpu.plan import ReferencePlan
from nnasync.engine import StopFlag
from nnasync.hal import Array, Model, OperationType, dtype_of

MODELS = (
    "mobilenet_v1_0.25_128",
    "mobilenet_v1_0.25_128_quant",
    "mobilenet_v1_0.5_160_quant",
    "mobilenet_v2_1.0_224_quant",
    "mobilenet_v3-small_224_1.0_uint8",
    "person_detect",
    "tts_float",
    "mnist_lstm",
    "micro_speech_quantized",
    "hello_world_float",
    "hello_world_int8",
)
WITH_PRODUCTS = (OperationType.CONV_2D, OperationType.FULLY_CONNECTED)


def products(model: Model) -> list[tuple[Array, Array, Array]]:
    """Returns operands and result of the matrix product of each operation that is one."""
    found = []
    for operation in model.main.operations:
        if operation.type not in WITH_PRODUCTS:
            continue
        filter = model.main.operands[operation.inputs[1]].dimensions
        output = model.main.operands[operation.outputs[0]].dimensions
        rows, columns, terms = int(np.prod(output[:-1])), filter[0], int(np.prod(filter[1:]))
        sizes = ((rows, terms), (terms, columns), (rows, columns))
        a, b, c = (np.ones(size, np.float32) for size in sizes)
        found.append((a, b, c))
    return found


def plan_runner(model: Model) -> Callable[[], object]:
    """Returns a function that runs the bare plan once, on arrays of its own."""
    graph = model.main

    def arrays(indexes: tuple[int, ...]) -> list[Array]:
        operands = [graph.operands[index] for index in indexes]
        return [np.zeros(operand.dimensions, dtype_of(operand.type)) for operand in operands]

    call = ReferencePlan(model).bind(arrays(graph.input_indexes), arrays(graph.output_indexes))
    stop = StopFlag()
    return lambda: call.run(stop)


def product_runner(model: Model) -> Callable[[], object]:
    """Returns a function that makes all matrix products of the network once."""
    made = products(model)

    def run() -> None:
        for a, b, c in made:
            a.dot(b, c)

    return run


def timed(run: Callable[[], object], repeats: int) -> Callable[[], Awaitable[float]]:
    """Returns a contestant that gives the mean microseconds of `repeats` runs."""

    async def contestant() -> float:
        started = time.perf_counter()
        for _ in range(repeats):
            run()
        return (time.perf_counter() - started) * 1e6 / repeats

    return contestant


def measure(path: Path, rounds: int) -> dict[str, list[float]]:
    """Returns the times of plan and products of one network, in turns."""
    model = nn.load(path)
    runners = {"plan": plan_runner(model), "products": product_runner(model)}
    for run in runners.values():
        run()
    contestants = {}
    for name, run in runners.items():
        started = time.perf_counter()
        run()
        repeats = max(1, int(2e-3 / (time.perf_counter() - started)))
        contestants[name] = timed(run, repeats)
    return asyncio.run(interleave(contestants, rounds))


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=50)
    parser.add_argument("--models", type=Path, help="folder of the networks (../shared/models)")
    parser.add_argument("--only", help="networks whose name contains this")
    options = parser.parse_args()
    folder = models_folder(options.models)
    figures = {}
    rows = []
    with threadpoolctl.threadpool_limits(1):
        for name in MODELS:
            path = folder / f"{name}.tflite"
            if not path.is_file() or (options.only and options.only not in name):
                continue
            times = measure(path, options.rounds)
            plan = median(times["plan"])
            base = median(times["products"])
            ratio = plan / base if base > 0 and times["products"] else 0.0
            figures[name] = {"ratio": ratio, **times}
            rows.append([name, spread(times["plan"]), spread(times["products"]), f"{ratio:.1f}"])
    text = table(["network", "plan us", "products us", "ratio"], rows)
    publish("Reference kernels", text, figures, options)


if __name__ == "__main__":
    main()
