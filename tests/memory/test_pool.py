"""Pools, regions and layouts: no copies, no dangling arrays, nothing out of bounds."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync import memory
from nnasync.errors import BadState, GeneralFailure, InvalidArgument
from nnasync.memory import Pool, Unusable, layout, mapped


def test_allocated_memory_is_zeroed_and_shared_through_its_descriptor() -> None:
    with Pool.allocate(100) as pool, Pool.from_fd(pool.fd, 100) as other:
        assert (pool.name, other.name) == ("ashmem", "mmap_fd")
        assert bytes(pool.view) == bytes(100)
        pool.array(np.float32, (5,), 8)[:] = [1, 2, 3, 4, 5]
        assert other.array(np.float32, (5,), 8).tolist() == [1, 2, 3, 4, 5]


def test_descriptor_stays_the_callers() -> None:
    pool = Pool.allocate(10)
    other = Pool.from_fd(pool.fd, 10)
    pool.view[0] = 7
    pool.close()
    assert other.view[0] == 7
    other.close()


@pytest.mark.usefixtures("collected")
def test_arrays_outlive_their_pool() -> None:
    before = memory.statistics()
    pool = Pool.allocate(4096)
    array, region, view = pool.array(np.int32, (4, 4)), pool.region(64, 16), pool.view[:4]
    pool.close()
    pool.close()
    array[:] = 3
    region.array[:] = 1
    assert array.sum() == 48
    assert bytes(view) == b"\3\0\0\0"
    assert memory.statistics().pools == before.pools + 1
    del array, region, view
    assert memory.statistics() == before


def test_closed_pool_says_so() -> None:
    pool = Pool.allocate(16)
    pool.close()
    assert pool.closed
    for use in (lambda: pool.view, lambda: pool.fd, lambda: pool.array(np.uint8, (1,))):
        with pytest.raises(BadState, match="closed"):
            use()


def test_file_is_mapped_for_reading_at_any_offset(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(bytes(range(256)) * 64)
    with Pool.from_file(path, offset=5000, size=10) as pool:
        assert pool.array(np.uint8, (3,)).tolist() == [136, 137, 138]
        with pytest.raises(ValueError, match="read-only"):
            pool.array(np.uint8, (3,))[0] = 1
    with Pool.from_file(path, offset=16000) as pool:
        assert pool.size == 384


@pytest.mark.parametrize(("offset", "size"), [(0, 11), (10, 1), (5, 6), (-1, 2), (0, 0), (0, -1)])
def test_file_that_is_too_short_is_refused(tmp_path: Path, offset: int, size: int) -> None:
    path = tmp_path / "short"
    path.write_bytes(b"0123456789")
    with pytest.raises(InvalidArgument):
        Pool.from_file(path, offset=offset, size=size)


def test_descriptors_that_cannot_be_mapped_are_refused() -> None:
    read, write = os.pipe()
    try:
        for fd in (read, -1):
            with pytest.raises(InvalidArgument):
                Pool.from_fd(fd, 1)
    finally:
        os.close(read)
        os.close(write)


def test_file_open_for_reading_is_not_mapped_for_writing(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    with open(path, "rb") as file, pytest.raises(InvalidArgument, match="cannot map"):
        Pool.from_fd(file.fileno(), 10, writable=True)


@pytest.mark.skipif(sys.platform != "linux", reason="seals are Linux's")
def test_seal_is_asked_for() -> None:
    with Pool.allocate(10) as pool:
        Pool.from_fd(pool.fd, 10, require_sealed=True).close()
        with pytest.raises(PermissionError):
            os.ftruncate(pool.fd, 0)
    with tempfile.TemporaryFile() as file:
        file.truncate(10)
        with pytest.raises(InvalidArgument, match="sealed"):
            Pool.from_fd(file.fileno(), 10, require_sealed=True)


def test_arrays_stay_inside() -> None:
    with Pool.allocate(64) as pool:
        assert pool.array(np.float32, (4, 4)).flags.c_contiguous
        assert pool.array(np.float32, ()).shape == ()
        assert pool.array(np.float32, (0, 3), 64).size == 0
        for shape, offset in (((17,), 0), ((1,), 61), ((1,), -4), ((-1,), 0), ((2**62, 8), 0)):
            with pytest.raises(InvalidArgument):
                pool.array(np.float32, shape, offset)
        with pytest.raises(InvalidArgument):
            pool.array(np.float32, (1,) * 100)


def test_region_is_a_numpy_view() -> None:
    with Pool.allocate(64) as pool:
        region = pool.region(16, dtype=np.float32, shape=(2, 3))
        assert (region.offset, region.length, region.shape) == (16, 24, (2, 3))
        np.asarray(region)[1, 2] = 5
        assert pool.array(np.float32, (1,), 36)[0] == 5
        assert np.shares_memory(np.asarray(region), region.array)
        assert not np.shares_memory(np.array(region, copy=True), region.array)
        assert np.asarray(region, dtype=np.int64).tolist() == [[0, 0, 0], [0, 0, 5]]
        assert pool.region(60).length == 4
        with pytest.raises(InvalidArgument, match="24"):
            pool.region(0, 20, dtype=np.float32, shape=(2, 3))


def test_statistics_count_whole_pages() -> None:
    before = memory.statistics()
    with Pool.allocate(1) as pool, Pool.from_fd(pool.fd, 1):
        now = memory.statistics()
        assert now.pools == before.pools + 2
        assert now.allocated_bytes - before.allocated_bytes == mmap.PAGESIZE
        assert now.mapped_bytes - before.mapped_bytes == 2 * mmap.PAGESIZE
    assert memory.statistics() == before


@pytest.mark.parametrize("size", [0, -1])
def test_empty_pools_are_refused(size: int) -> None:
    with pytest.raises(InvalidArgument):
        Pool.allocate(size)


@given(st.lists(st.integers(0, 10_000)), st.sampled_from([1, 4, 64, 4096]))
def test_layout_is_aligned_and_disjoint(sizes: list[int], alignment: int) -> None:
    offsets, total = layout(sizes, alignment)
    ends = [*offsets[1:], total]
    assert all(offset % alignment == 0 for offset in [*offsets, total])
    assert all(o + n <= end for o, n, end in zip(offsets, sizes, ends, strict=False))
    assert total <= sum(sizes) + alignment * len(sizes)


def test_layout_refuses_nonsense() -> None:
    with pytest.raises(InvalidArgument):
        layout([1], 3)
    with pytest.raises(InvalidArgument):
        layout([-1])


def test_a_pool_may_outlive_the_modules_at_the_end_of_the_interpreter() -> None:
    program = "import builtins, nnasync.memory as m; builtins.kept = m.Pool.allocate(64)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert ended.stderr == b""


def test_a_blob_is_a_pool_of_its_width() -> None:
    before = memory.statistics()
    with Pool.blob(100) as pool, Pool.from_fd(pool.fd, 100, kind=pool.name) as same:
        assert (pool.name, same.name) == ("hardware_buffer_blob", "hardware_buffer_blob")
        assert (pool.size, pool.prot) == (100, mmap.PROT_READ | mmap.PROT_WRITE)
        pool.view[99] = 5
        assert same.view[99] == 5
        now = memory.statistics()
        assert now.allocated_bytes - before.allocated_bytes == mmap.PAGESIZE
    with pytest.raises(InvalidArgument):
        Pool.blob(0)


@pytest.mark.usefixtures("collected")
def test_a_handle_is_mapped_when_somebody_looks() -> None:
    with Pool.allocate(64) as pool:
        before = memory.statistics().pools
        handle = Pool.from_handle(pool.fd, 64)
        assert memory.statistics().pools == before
        pool.view[3] = 7
        assert handle.view[3] == 7
        assert memory.statistics().pools == before + 1
        assert handle.view is handle.view
        handle.close()
        with pytest.raises(BadState):
            handle.view  # noqa: B018 - it raises
        with pytest.raises(InvalidArgument):
            Pool.from_handle(2**31 - 1, 64)
        with Pool.from_handle(pool.fd, 64, prot=mmap.PROT_READ) as reading:
            assert (reading.readable, reading.writable) == (True, False)
            with pytest.raises(TypeError, match="read-only"):
                reading.view[0] = 1
        writing = Pool.from_handle(pool.fd, 64, prot=mmap.PROT_WRITE)
        with writing, pytest.raises(InvalidArgument, match="not for reading"):
            writing.view  # noqa: B018 - it raises


def test_a_file_that_has_become_shorter_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(b"0123456789")
    with Pool.from_file(path) as pool:
        pool.check()
        assert bytes(mapped(pool, "it")) == b"0123456789"
        os.truncate(path, 5)
        with pytest.raises(InvalidArgument, match="the file holds 5"):
            pool.check()
        with pytest.raises(GeneralFailure, match="it cannot be used: .* the file holds 5"):
            mapped(pool, "it")
        os.truncate(path, 10)
        pool.check()


def test_memory_that_cannot_be_used() -> None:
    with pytest.raises(GeneralFailure, match="x cannot be used: because"):
        mapped(Unusable("ashmem", 5, "because"), "x")
    with Pool.allocate(5) as pool:
        assert mapped(pool, "x", writable=True) == pool.view
        reading = Pool.from_handle(pool.fd, 5, prot=mmap.PROT_READ)
        with reading, pytest.raises(GeneralFailure, match="for reading only"):
            mapped(reading, "x", writable=True)
