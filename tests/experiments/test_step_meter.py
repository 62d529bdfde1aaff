"""Steps of prepared plans: as many as the plan has places where it can stop."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import nnasync as nn
from nnasync.experiments.step_meter import StepMeter
from nnasync.hal import Model

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop("workers run the plans; the loop only waits for them"),
]


def chain(operations: int) -> Model:
    """Operations that take long enough for their borders to be told apart."""
    builder = nn.ModelBuilder("chain")
    x = builder.input("x", (512, 512))
    for _ in range(operations):
        x = builder.tanh(x)
    builder.output("y", x)
    return builder.build()


async def borders(model: Model) -> list[float]:
    meter = StepMeter()
    settings = nn.Options(inline_budget_us=0, competition_budget_ms=0)
    async with (
        nn.open_runtime(
            devices=["nnasync-reference"], options=settings, instruments=[meter]
        ) as runtime,
        runtime.compile(model) as net,
    ):
        for _ in range(9):
            await net(np.ones((512, 512), np.float32))
    return meter.borders()


async def test_a_plan_can_stop_between_its_operations() -> None:
    """And in them, as far as the engine looks at the flag there too."""
    found = await borders(chain(4))
    assert len(found) >= 4
    assert all(one < two for one, two in itertools.pairwise(found))
    assert found[-1] == 1.0


def test_without_a_run_nothing_is_known_of_steps() -> None:
    assert StepMeter().borders() == [1.0]
