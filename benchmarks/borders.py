"""Borders: what it costs to run a model in steps instead of as a whole.

First steps that do nothing, one after the other in a composite plan: what is left is the border
itself. Then real networks on the reference, whole and cut into segments of equal expected time;
what a border costs there includes that the engine is entered and left, which copies what
crosses. One BLAS thread.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import threadpoolctl

import nnasync as nn
from benchmarks._report import (
    arguments,
    interleave,
    median,
    models_folder,
    publish,
    spread,
    table,
)
from nnasync._core.partition import CompositeEngine, cut, operation_weights_ns, segments
from nnasync._core.plans.composite import Boundary, CompositePlan, CompositeStep, Wire, WireEnd
from nnasync.devices import ReferenceEngine
from nnasync.engine import BoundCall, Given, Plan, StopFlag, Target
from nnasync.hal import Array, ExecutionPreference, Model, OperandType, dtype_of

NETWORKS = ("dtln_noise_suppression", "mobilenet_v1_0.25_128")
PARTS = (2, 8)
FEW, MANY = 2, 102
NOTHING, EMPTY = "a call that does nothing", "{} empty steps"
FAST = ExecutionPreference.FAST_SINGLE_ANSWER

Contestant = Callable[[], Awaitable[float]]


class Nothing(BoundCall, Plan):
    """A plan, and a call of it, that does nothing."""

    def bind(self, inputs: Sequence[Array | None], outputs: Sequence[Target]) -> BoundCall:
        return self

    def trim(self) -> None:
        pass

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        return True

    def rewind(self) -> None:
        pass


def empty(steps: int) -> BoundCall:
    """Returns a call of so many steps, each of which hands on to the next."""
    between = [Wire(WireEnd.BOUNDARY, index) for index in range(steps - 1)]
    ends = [Wire(WireEnd.INPUT, 0), *between, Wire(WireEnd.OUTPUT, 0)]
    wired = pairwise(ends)
    plan = CompositePlan(
        [CompositeStep(Nothing(), (before,), (after,)) for before, after in wired],
        [Boundary(index, OperandType.TENSOR_FLOAT32, (16,)) for index in range(steps - 1)],
        inputs=1,
        outputs=1,
    )
    return plan.bind([np.zeros(16, np.float32)], [np.zeros(16, np.float32)])


def bound(plan: Plan, model: Model) -> BoundCall:
    """Returns a call of a plan, bound to arrays of zeros."""
    inputs, outputs = (
        [
            np.zeros(operand.dimensions, dtype_of(operand.type))
            for operand in map(model.main.operands.__getitem__, indexes)
        ]
        for indexes in (model.main.input_indexes, model.main.output_indexes)
    )
    return plan.bind(inputs, outputs)


def whole(model: Model) -> BoundCall:
    return bound(ReferenceEngine().compile(model, FAST), model)


def in_segments(model: Model, parts: int) -> tuple[BoundCall, int]:
    """Returns a call in about so many segments, and how many borders they have."""
    weights = operation_weights_ns(model)
    partitioned = cut(model, segments(model, weights, sum(weights) / parts))
    engine = CompositeEngine(partitioned, [ReferenceEngine()])
    return bound(engine.compile(model, FAST), model), len(partitioned.steps) - 1


def timed(call: BoundCall, calls: int) -> Contestant:
    """Returns a contestant that gives the mean microseconds of so many calls."""
    stop = StopFlag()

    async def run() -> float:
        started = time.perf_counter_ns()
        for _ in range(calls):
            call.run(stop)
        return (time.perf_counter_ns() - started) / calls / 1e3

    return run


async def measure(options: object) -> None:
    rounds, calls = getattr(options, "rounds", 1), getattr(options, "calls", 1)
    folder = models_folder(getattr(options, "models", None))
    contestants = {
        NOTHING: timed(Nothing(), 100 * calls),
        **{EMPTY.format(steps): timed(empty(steps), 100 * calls) for steps in (FEW, MANY)},
    }
    borders: dict[str, tuple[str, int]] = {EMPTY.format(MANY): (EMPTY.format(FEW), MANY - FEW)}
    for name in NETWORKS:
        model = nn.load(folder / f"{name}.tflite")
        contestants[f"{name}, whole"] = timed(whole(model), calls)
        for parts in PARTS:
            call, count = in_segments(model, parts)
            key = f"{name}, {count + 1} segments"
            contestants[key] = timed(call, calls)
            borders[key] = f"{name}, whole", count
    for contestant in contestants.values():
        await contestant()
    results = await interleave(contestants, rounds)
    report(results, borders, options)


def report(
    results: dict[str, list[float]], borders: dict[str, tuple[str, int]], options: Any
) -> None:
    """Prints the table of best rounds: what exceeds the plan without borders is their cost."""
    best = {name: min(values) for name, values in results.items()}
    rows, ratios, each_ns = [], {}, {}
    for name, values in results.items():
        told = ["", ""]
        if name in borders:
            other, count = borders[name]
            each_ns[name] = 1e3 * (best[name] - best[other]) / max(1, count)
            ratios[name] = median(values) / median(results[other])
            told = [f"{ratios[name]:.3f}", f"{each_ns[name]:.0f}"]
        rows.append([name, spread(values), f"{best[name]:.2f}", *told])
    heads = ["microseconds", "median (quartiles)", "best", "ratio", "ns a border"]
    text = table(heads, rows)
    figures = {"ratios": ratios, "border_ns": each_ns, "microseconds": results}
    publish("Borders between steps of a model", text, figures, options)


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__, rounds=30)
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="the reference models")
    parser.add_argument("--calls", type=int, default=10, help="calls a round (%(default)s)")
    with threadpoolctl.threadpool_limits(1):
        nn.run(measure, parser.parse_args())


if __name__ == "__main__":
    main()
