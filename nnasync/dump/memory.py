"""The memory of an execution as text."""

from __future__ import annotations

import numpy as np

from nnasync._core.drivers.cpu.plan import memory_plan
from nnasync._core.plans.arena import MemoryPlan, PlannedBlock
from nnasync.dump.words import columns
from nnasync.hal import Model

_BAR_COLUMNS = 64


def memory_text(model: Model) -> str:
    """Returns a text on the memory of one execution: bytes, sharing, and lifetimes of blocks.

    Raises ModelError where the memory is known only when the model runs.
    """
    return memory_plan_text(memory_plan(model))


def memory_plan_text(plan: MemoryPlan) -> str:
    """The bytes of a plan with and without sharing, and a bar of each block's lifetime."""
    ratio = plan.total / plan.lower_bound if plan.lower_bound else 1.0
    saved = 1 - plan.total / plan.unshared if plan.unshared else 0.0
    steps = len(plan.operations)
    heads = ("block", "bytes", "offset", "steps", f"lifetime over {steps} steps")
    rows = [
        (
            block.name,
            str(block.nbytes),
            str(block.offset),
            f"{_step(block.first, steps)}..{_step(block.last, steps)}",
            _bar(block, steps),
        )
        for block in sorted(plan.blocks, key=lambda b: (b.first, b.last, -b.nbytes))
    ]
    return (
        "memory of one execution\n"
        f"  shared       {plan.total} bytes\n"
        f"  unshared     {plan.unshared} bytes; sharing saves {saved:.1%}\n"
        f"  lower bound  {plan.lower_bound} bytes alive at once; shared is {ratio:.2f} times that\n"
        "\n" + "\n".join(columns(heads, rows, right=(1, 2))) + "\n"
    )


def _step(number: int, steps: int) -> str:
    """A step by its number; what is written before the first one is read from the start on."""
    if number < 0:
        return "start"
    return "end" if number >= steps else str(number)


def _bar(block: PlannedBlock, steps: int) -> str:
    """Columns of time: the first is before the first step, the last after the last one."""
    count = steps + 2
    columns = min(count, _BAR_COLUMNS)
    edges = np.linspace(0, count, columns + 1)
    first, last = block.first + 1, block.last + 2
    return "".join("#" if edges[i] < last and first < edges[i + 1] else "." for i in range(columns))
