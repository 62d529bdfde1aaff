"""Engines that share each random graph: by lot, always alike, and exactly where it matters."""

from __future__ import annotations

import numpy as np
import pytest

import nnasync as nn
from nnasync import hal
from nnasync._core.drivers.cpu import ReferenceEngine
from nnasync.conformance.random_graphs import (
    TEAM,
    GraphVerdict,
    Size,
    TeamEngine,
    examine,
    generate,
)
from nnasync.errors import GeneralFailure
from nnasync.hal import ExecutionPreference, OperationType

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop("The loop does not matter.")]


class Only(ReferenceEngine):
    """The reference, restricted to some operations."""

    def __init__(self, *types: OperationType) -> None:
        super().__init__()
        self.types = types

    def supported_operations(self, model: hal.Model) -> list[bool]:
        return [operation.type in self.types for operation in model.main.operations]


def chain(*operations: str) -> hal.Model:
    builder = nn.ModelBuilder("chain")
    value = builder.input("x", (1, 4))
    for name in operations:
        value = getattr(builder, name)(value)
    builder.output("y", value)
    return builder.build()


def test_owners_are_drawn_from_the_model_and_take_what_they_can() -> None:
    team = TeamEngine([Only(OperationType.RELU), ReferenceEngine()])
    model = chain(*["relu", "tanh"] * 20)
    owners = team.owners(model)
    assert owners == team.owners(model)
    assert set(owners[1::2]) == {1}
    assert set(owners[::2]) == {0, 1}
    assert all(team.supported_operations(model))


def test_an_operation_that_nobody_takes_is_named() -> None:
    team = TeamEngine([Only(OperationType.RELU), Only(OperationType.RELU)])
    assert team.supported_operations(chain("relu", "tanh")) == [True, False]
    with pytest.raises(GeneralFailure, match=r"operation 1 \(TANH\)"):
        team.compile(chain("relu", "tanh"), ExecutionPreference.FAST_SINGLE_ANSWER)


def test_what_a_hash_depends_on_stays_with_the_reference() -> None:
    builder = nn.ModelBuilder("hash")
    x = builder.input("x", (2, 3))
    kept = builder.relu(x)
    functions = np.ones((2, 2), np.float32)
    hashed = builder.operation(OperationType.LSH_PROJECTION, functions, kept, None, np.int32(1))
    builder.output("h", hashed)
    builder.output("y", builder.relu(builder.relu(kept)))
    model = builder.build()
    team = TeamEngine([Only(OperationType.RELU), ReferenceEngine()])
    owners = team.owners(model)
    assert owners[0] == owners[1] == 1


async def test_graphs_shared_among_references_agree() -> None:
    team = TeamEngine(
        [Only(*list(OperationType)[::2]), Only(*list(OperationType)[::3]), ReferenceEngine()]
    )
    async with nn.open_runtime(devices=[team], options=nn.Options(cores=1)) as rt:
        device = rt.device(TEAM)
        for seed in range(6):
            found = await examine(generate(Size.LARGE, seed), device)
            assert found.verdict in (GraphVerdict.COMPARED, GraphVerdict.UNSUPPORTED), found
