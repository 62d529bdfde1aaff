"""The planner of arenas: live blocks never overlap, memory is shared, pages can be given back."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.plans.arena import ALIGNMENT, Arena, Block, lay_out
from nnasync.errors import ResourceExhaustedTransient


@st.composite
def some_blocks(draw: st.DrawFn) -> list[Block]:
    blocks = []
    for _ in range(draw(st.integers(0, 30))):
        first = draw(st.integers(-1, 20))
        last = draw(st.integers(first, 21))
        blocks.append(Block(draw(st.integers(0, 5000)), first, last))
    return blocks


@given(some_blocks())
def test_blocks_alive_together_never_overlap(blocks: list[Block]) -> None:
    layout = lay_out(blocks)
    spans = [
        (offset, offset + block.nbytes, block)
        for offset, block in zip(layout.offsets, blocks, strict=True)
    ]
    for start, end, _ in spans:
        assert start % ALIGNMENT == 0
        assert end <= layout.total
    for (s1, e1, b1), (s2, e2, b2) in combinations(spans, 2):
        together = b1.first <= b2.last and b2.first <= b1.last
        if together and b1.nbytes and b2.nbytes:
            assert e1 <= s2 or e2 <= s1


@given(some_blocks())
def test_never_more_than_without_sharing_nor_less_than_what_lives_at_once(
    blocks: list[Block],
) -> None:
    total = lay_out(blocks).total
    aligned = [-(-block.nbytes // ALIGNMENT) * ALIGNMENT for block in blocks]
    assert total <= sum(aligned)
    for step in range(-1, 22):
        alive = [
            size
            for size, block in zip(aligned, blocks, strict=True)
            if block.first <= step <= block.last
        ]
        assert total >= sum(alive)


def test_a_chain_needs_two_buffers() -> None:
    chain = [Block(1024, step, step + 1) for step in range(10)]
    assert lay_out(chain).total == 2048


def test_more_memory_than_there_can_be() -> None:
    for nbytes in (1 << 60, 1 << 70):
        with pytest.raises(ResourceExhaustedTransient, match=f"needs {nbytes} bytes"):
            Arena(nbytes)


def test_arena_gives_memory_back_and_stays_usable() -> None:
    arena = Arena(1 << 20)
    array = arena.array(4096, (3, 4), np.dtype(np.float32))
    array[...] = 7
    arena.trim()
    array[...] = 5
    assert arena.array(4096, (12,), np.dtype(np.float32)).tolist() == [5] * 12
    assert array.ctypes.data % ALIGNMENT == 0
