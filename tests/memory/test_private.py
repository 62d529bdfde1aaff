"""Memory of this process alone, and pieces of shared memory for one other."""

from __future__ import annotations

import gc
import mmap
import os
import sys
import weakref

import numpy as np
import pytest

from nnasync import memory
from nnasync._core.wire.model_transfer import handle_of
from nnasync.errors import BadState, GeneralFailure, InvalidArgument, ResourceExhaustedTransient
from nnasync.memory import ALIGNMENT, Pool, SharedArena, mapped
from tests.conftest import open_descriptors, opened_since


@pytest.mark.usefixtures("collected")
def test_private_memory_takes_no_descriptor() -> None:
    before, statistics = open_descriptors(), memory.statistics()
    pools = [Pool.private(100) for _ in range(50)]
    assert opened_since(before) == {}
    assert memory.statistics().pools == statistics.pools + 50
    assert memory.statistics().allocated_bytes == statistics.allocated_bytes + 50 * mmap.PAGESIZE
    assert all(bytes(pool.view) == bytes(100) for pool in pools)
    pools[0].array(np.float32, (25,))[...] = 3
    assert pools[0].array(np.float32, (25,)).sum() == 75
    del pools
    assert memory.statistics() == statistics


def test_private_memory_is_for_no_other_process() -> None:
    with Pool.private(16) as pool:
        assert (pool.name, pool.size, pool.is_private, pool.closed) == ("ashmem", 16, True, False)
        pool.check()
        assert mapped(pool, "it", writable=True).nbytes == 16
        with pytest.raises(InvalidArgument, match=r"private to this process.*Pool\.allocate"):
            pool.fd  # noqa: B018 - it raises
        with pytest.raises(GeneralFailure, match="handed to a service.*private"):
            handle_of(pool)


def test_private_memory_that_is_closed() -> None:
    pool = Pool.private(16)
    array = pool.array(np.uint8, (16,))
    pool.close()
    pool.close()
    assert (pool.closed, pool.is_private) == (True, False)
    with pytest.raises(BadState, match="closed"):
        pool.view  # noqa: B018 - it raises
    with pytest.raises(BadState, match="closed"):
        pool.fd  # noqa: B018 - it raises
    array[...] = 1
    assert array.sum() == 16


def test_sizes_of_private_memory() -> None:
    with pytest.raises(InvalidArgument, match="at least 1"):
        Pool.private(0)
    for size in (1 << 60, 1 << 70):
        with pytest.raises(ResourceExhaustedTransient, match="no memory of"):
            Pool.private(size)


def test_what_a_child_writes_to_private_memory_is_its_own() -> None:
    pool = Pool.private(1)
    child = os.fork()
    if not child:
        pool.view[0] = 7
        os._exit(0)
    os.waitpid(child, 0)
    assert pool.view[0] == 0


@pytest.mark.skipif(sys.version_info < (3, 13), reason="a mapping keeps a descriptor of its own")
def test_shared_memory_takes_one_descriptor() -> None:
    before = open_descriptors()
    with Pool.allocate(16):
        assert len(opened_since(before)) == 1


# -- pieces


def test_pieces_lie_apart_in_few_pools() -> None:
    arena = SharedArena()
    pieces = [arena.take(100) for _ in range(500)]
    pools = {id(pool): pool for pool, _ in pieces}
    assert len(pools) <= 10
    for number, (pool, begin) in enumerate(pieces):
        assert begin % ALIGNMENT == 0
        pool.view[begin : begin + 100] = bytes([number % 251]) * 100
    for number, (pool, begin) in enumerate(pieces):
        assert bytes(pool.view[begin : begin + 100]) == bytes([number % 251]) * 100


def test_a_pool_goes_with_its_last_piece_and_counts_no_more() -> None:
    arena = SharedArena()
    first = weakref.ref(arena.take(64)[0])
    gc.collect()
    assert first() is None
    for _ in range(20):
        pool, begin = arena.take(64)
        assert (pool.size, begin) == (64, 0)
        del pool
        gc.collect()


def test_large_pieces_have_pools_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nnasync.memory.shared_arena.LARGEST_POOL_BYTES", 1024)
    arena = SharedArena()
    small = [arena.take(64)[0] for _ in range(100)]
    assert max(pool.size for pool in small) <= 1024
    assert [arena.take(4096)[0].size for _ in range(2)] == [4096, 4096]


def test_a_mapping_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "no memory")

    before = open_descriptors()
    monkeypatch.setattr(mmap, "mmap", refuse)
    for make in (Pool.private, Pool.allocate, SharedArena().take):
        with pytest.raises(ResourceExhaustedTransient):
            make(16)
    assert opened_since(before) == {}
