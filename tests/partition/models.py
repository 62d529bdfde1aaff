"""Small models to be split, and how to run a model and its parts on the reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import nnasync as nn
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync._core.partition import CompositeEngine, PartitionedModel
from nnasync.engine import Engine, Plan, StopFlag
from nnasync.hal import Array, ExecutionPreference, Model, dtype_of

SHAPE = (1, 4)
FAST = ExecutionPreference.FAST_SINGLE_ANSWER


def summed(pairs: Sequence[tuple[int, int]], shown: Sequence[int] = ()) -> Model:
    """Value 0 is the input; pair k makes value k + 1 of two earlier ones, every other by MUL.

    Values that `shown` names are outputs, beside the last one.
    """
    builder = nn.ModelBuilder("summed")
    values = [builder.input("x", SHAPE)]
    for number, (a, b) in enumerate(pairs):
        operation = builder.mul if number % 2 else builder.add
        values.append(operation(values[a], values[b]))
    for index in sorted({*shown, len(pairs)}):
        builder.output(f"y{index}", values[index])
    return builder.build()


def chain(length: int) -> Model:
    """Each operation reads what the one before wrote."""
    return summed([(index, 0) for index in range(length)])


def diamond() -> Model:
    """Two branches of two operations each, and one that joins them."""
    return summed([(0, 0), (1, 1), (0, 0), (3, 3), (2, 4)])


def zeros(model: Model, indexes: Sequence[int]) -> list[Array]:
    operands = [model.main.operands[index] for index in indexes]
    return [np.zeros(operand.dimensions, dtype_of(operand.type)) for operand in operands]


def run(plan: Plan, model: Model, inputs: Sequence[Array | None]) -> list[Array]:
    """The outputs of one run, whose shapes the model states."""
    outputs = zeros(model, model.main.output_indexes)
    assert plan.bind(inputs, outputs).run(StopFlag())
    return outputs


def on_reference(model: Model, inputs: Sequence[Array | None]) -> list[Array]:
    return run(ReferenceEngine().compile(model, FAST), model, inputs)


def in_parts(
    partitioned: PartitionedModel,
    inputs: Sequence[Array | None],
    engines: Sequence[Engine] | None = None,
) -> list[Array]:
    """The same in steps, on as many reference engines as it takes if none are given."""
    count = 1 + max(step.device for step in partitioned.steps)
    engine = CompositeEngine(partitioned, engines or [ReferenceEngine()] * count)
    return run(engine.compile(partitioned.model, FAST), partitioned.model, inputs)


def row(*values: float) -> Array:
    return np.array([values or (1, 2, 3, 4)], np.float32)
