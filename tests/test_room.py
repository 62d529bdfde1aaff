"""Room in the heap: what a thread allocates next is mapped already, and nothing is mapped twice."""

from __future__ import annotations

import ctypes
import resource
import threading
from collections.abc import Callable

import pytest

from nnasync._core import room
from nnasync._core.room import make_room

SIZE = 8 << 20
PIECE = 64 << 10

on_glibc = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc"
)


def in_new_thread(work: Callable[[], int]) -> int:
    """The answer of some work in a thread, whose arena may have grown for others before."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


def faults_of_use(size: int) -> int:
    """How many pages the system maps while this thread fills nearly as much in pieces."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    pieces = [room._malloc(PIECE) for _ in range(size // PIECE - 8)]
    for piece in pieces:
        ctypes.memset(piece, 1, PIECE)
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
    for piece in pieces:
        room._free(piece)
    return faults


@on_glibc
@pytest.mark.parametrize(("wanted", "size"), [(SIZE, SIZE), (1 << 40, 31 << 20)])
def test_what_is_allocated_next_is_mapped_already(wanted: int, size: int) -> None:
    def use() -> int:
        make_room(wanted)
        return faults_of_use(size)

    if not in_new_thread(is_populated):
        pytest.skip("this system maps nothing ahead")
    assert in_new_thread(use) < size // resource.getpagesize() // 10


def is_populated() -> int:
    """Whether this system maps pages ahead."""
    page = resource.getpagesize()
    block = room._malloc(2 * page)
    begin = -(-block // page) * page
    failed = room._advise(ctypes.c_void_p(begin), ctypes.c_size_t(page), room._POPULATE_WRITE)
    room._free(block)
    return not failed


@on_glibc
def test_where_there_is_room_nothing_is_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    advise = room._advise

    def noted(place: ctypes.c_void_p, size: ctypes.c_size_t, advice: int) -> int:
        asked.append(size.value)
        failed: int = advise(place, size, advice)
        return failed

    monkeypatch.setattr(room, "_advise", noted)

    def use() -> int:
        block = room._malloc(SIZE + (1 << 20))
        ctypes.memset(block, 1, SIZE + (1 << 20))
        room._free(block)  # From now on glibc keeps blocks of this size in the heap.
        block = room._malloc(SIZE)
        ctypes.memset(block, 1, SIZE)
        room._free(block)
        make_room(SIZE // 2)
        return len(asked)

    assert in_new_thread(use) == 0


def test_little_is_not_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_malloc", lambda size: pytest.fail("allocates"))
    make_room(0)
    make_room((1 << 20) - 1)


def test_without_memory_nothing_is_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_malloc", lambda size: None)
    monkeypatch.setattr(room, "_advise", lambda *_: pytest.fail("maps something"))
    make_room(SIZE)
