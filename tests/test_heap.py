"""Memory that was freed is given back: when, and that it is."""

from __future__ import annotations

import ctypes

import pytest

from nnasync._core.heap import HEAP, Heap
from nnasync.suites.process_use import process_use

PIECE = 64 << 10
PIECES = 1024


def test_nothing_is_given_back_where_nothing_was_freed() -> None:
    calls: list[int] = []
    heap = Heap(calls.append)
    assert not heap.is_due
    heap.give_back()
    assert calls == []


def test_what_was_freed_is_looked_at_twice() -> None:
    calls: list[int] = []
    heap = Heap(calls.append, clock=lambda: 0)
    heap.freed()
    while heap.is_due:
        heap.give_back()
    assert calls == [0, 0]
    heap.freed()
    assert heap.is_due


def test_what_takes_long_is_done_seldom() -> None:
    times = iter([0, 0, 5_000_000, 5_000_000, 1_004_999_999, 1_005_000_000])
    heap = Heap(lambda pad: None, clock=lambda: next(times))
    heap.freed()
    assert heap.is_due
    heap.give_back()  # For 5 ms.
    assert [heap.is_due for _ in range(3)] == [False, False, True]


def test_a_c_library_that_cannot_is_not_asked() -> None:
    heap = Heap(None)
    heap.freed()
    assert not heap.is_due
    heap.give_back()


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc"
)
def test_pages_between_those_in_use_go_back_to_the_system() -> None:
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes, library.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
    pieces = [library.malloc(PIECE) for _ in range(PIECES)]
    for piece in pieces:
        ctypes.memset(piece, 1, PIECE)
    for piece in pieces[:-1]:
        library.free(piece)  # The last one keeps all of it in the process.
    before = process_use()
    HEAP.freed()
    HEAP.give_back()
    after = process_use()
    library.free(pieces[-1])
    assert before is not None
    assert after is not None
    assert before.memory_bytes - after.memory_bytes > PIECE * PIECES // 2
