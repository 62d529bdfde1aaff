"""Small buffers side by side."""

from __future__ import annotations

import weakref

from nnasync._core.engine_device.buffers import Buffers, ManagedBuffer
from nnasync.hal import Operand
from tests.engine_device.buffers.given import FLOATS, Model


def test_small_buffers_lie_side_by_side_in_the_order_of_their_roles() -> None:
    buffers, model = Buffers(), Model()

    def held(owner: object, index: int, floats: int = 16) -> ManagedBuffer:
        return buffers.allocate(Operand(FLOATS, (floats,)), [(owner, "input", index)])

    pairs = [(held(model, n), held(model, n)) for n in range(4)]
    stranger, large = held(Model(), 4), held(model, 4, 4096)
    starts = [[each.memory.ctypes.data for each in side] for side in zip(*pairs, strict=True)]
    for first, *others in starts:
        assert others == [first + 64 * n for n in range(1, 4)]
        for other in (stranger, large):
            assert not first <= other.memory.ctypes.data < first + 8192
    assert starts[0][0] != starts[1][0]
    for n, pair in enumerate(pairs):
        for m, each in enumerate(pair):
            each.memory[:] = 2 * n + m
    assert [set(each.memory.tolist()) for pair in pairs for each in pair] == [{n} for n in range(8)]


def test_memory_of_a_row_ends_with_its_last_buffer() -> None:
    buffers, model = Buffers(), Model()
    row = [
        buffers.allocate(Operand(FLOATS, (3,)), [(model, "output", index)]) for index in range(3)
    ]
    whole = weakref.ref(row[0].memory.base)
    assert [each.memory.ctypes.data % 64 for each in row] == [0, 0, 0]
    assert buffers.statistics().bytes == 36
    for each in row:
        assert whole() is not None
        buffers.free(each.token)
    assert whole() is None
    assert buffers.statistics().bytes == 0
    again = buffers.allocate(Operand(FLOATS, (3,)), [(model, "output", 3)])
    assert again.memory.tobytes() == bytes(12)


def test_a_row_is_full() -> None:
    buffers, model = Buffers(), Model()
    row = [
        buffers.allocate(Operand(FLOATS, (500,)), [(model, "input", index)]) for index in range(9)
    ]
    starts = [each.memory.ctypes.data for each in row]
    assert len({id(each.memory.base) for each in row}) == 3
    assert all(start % 64 == 0 for start in starts)
    for n, each in enumerate(row):
        each.memory[:] = n
    assert [set(each.memory.tolist()) for each in row] == [{n} for n in range(9)]
