"""Memory of constants that cannot be read: which operations lack it, whatever the model says."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnasync as nn
from nnasync._core.validation import check_constants, supportable, validate_model
from nnasync._core.validation.pools import unusable_pools
from nnasync.errors import GeneralFailure
from nnasync.hal import (
    DataLocation,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    Subgraph,
)
from nnasync.memory import Pool, Unusable

WEIGHTS = np.ones((16, 4), np.float32)
BIAS = np.zeros(16, np.float32)


def branching() -> Model:
    """RELU, an IF of which one branch has weights in a pool, and another without."""
    builder = nn.ModelBuilder("branching")
    x = builder.input("x", (1, 4))
    flag = builder.input("flag", (1,), type=OperandType.TENSOR_BOOL8)
    heavy = builder.cond(
        flag,
        lambda inner, y: inner.fully_connected(y, WEIGHTS, BIAS),
        lambda inner, y: inner.concatenation([y, y, y, y], 1),
        x,
    )
    builder.output("y", builder.relu(heavy))
    return builder.build()


def test_all_memory_can_be_read() -> None:
    model = branching()
    assert unusable_pools(model) == {}
    check_constants(model)
    assert supportable(model) == (model, (True,) * len(model.main.operations))


def test_a_branch_that_lacks_its_weights() -> None:
    model = branching()
    broken = msgspec.structs.replace(model, pools=(Unusable("ashmem", model.pools[0].size, "so"),))
    with pytest.raises(GeneralFailure, match="pool 0 of the model cannot be used: so"):
        check_constants(broken)
    readable, have_memory = supportable(broken)
    assert have_memory == (False, True)
    assert bytes(readable.pools[0].view) == bytes(model.pools[0].size)
    validate_model(readable)


@pytest.mark.parametrize("size", [-1, 0, 2**62, 2**80])
def test_a_size_that_no_memory_has(size: int) -> None:
    model = branching()
    broken = msgspec.structs.replace(model, pools=(Unusable("ashmem", size, "so"),))
    assert supportable(broken) == (broken, (False, False))


def test_other_pools_are_left_alone() -> None:
    model = branching()
    with Pool.allocate(8) as spare:
        lacking = Unusable("mmap_fd", 8, "not there")
        more = msgspec.structs.replace(model, pools=(*model.pools, spare, lacking))
        readable, have_memory = supportable(more)
        assert have_memory == (True, True)
        assert readable.pools[:2] == more.pools[:2]
        with pytest.raises(GeneralFailure, match="pool 2"):
            check_constants(more)


def test_kinds_that_are_not_legal_are_told_as_such() -> None:
    for kind in ("disk", "hardware_buffer"):
        assert unusable_pools(Model(Subgraph((), (), (), ()), pools=(Unusable(kind, 1, ""),))) == {}


indexes = st.integers(-2, 4)
operands = st.builds(
    lambda lifetime, pool, offset: Operand(
        OperandType.TENSOR_FLOAT32, (), lifetime=lifetime, location=DataLocation(pool, offset, 0)
    ),
    st.sampled_from(OperandLifeTime),
    indexes,
    indexes,
)
subgraphs = st.builds(
    lambda operands, inputs: Subgraph(
        tuple(operands), tuple(Operation(0, tuple(each), ()) for each in inputs), (), ()
    ),
    st.lists(operands, max_size=4),
    st.lists(st.lists(indexes, max_size=3), max_size=3),
)


@given(subgraphs, st.lists(subgraphs, max_size=4))
def test_whatever_a_model_says(main: Subgraph, referenced: list[Subgraph]) -> None:
    """An answer for each operation, also where subgraphs refer to themselves or to nothing."""
    model = Model(main, tuple(referenced), pools=(Unusable("ashmem", 4, "so"),))
    _, found = supportable(model)

    def lacks(subgraph: Subgraph, index: int, seen: frozenset[int]) -> bool:
        if not 0 <= index < len(subgraph.operands):
            return False
        operand = subgraph.operands[index]
        inner = operand.location.offset
        if operand.lifetime == OperandLifeTime.CONSTANT_REFERENCE:
            return operand.location.pool_index == 0
        if operand.lifetime != OperandLifeTime.SUBGRAPH or inner in seen:
            return False
        if not 0 <= inner < len(referenced):
            return False
        return any(
            lacks(referenced[inner], n, seen | {inner})
            for n in range(len(referenced[inner].operands))
        )

    expected = [
        not any(lacks(main, index, frozenset()) for index in operation.inputs)
        for operation in main.operations
    ]
    assert list(found) == expected
