"""Look-ahead: order, errors behind good items, and that thread and iterator are given back."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from functools import partial

import anyio
import anyio.to_thread
import pytest

from nnasync.errors import ResourceExhaustedTransient
from nnasync.streaming.lookahead import LookAhead

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks", "stall_guard")]


def ones(closed: threading.Event) -> Iterator[int]:
    try:
        while True:
            yield 1
    finally:
        closed.set()


async def test_all_items_come_in_order_from_another_thread() -> None:
    threads = set()

    def numbers() -> Iterator[int]:
        for number in range(100):
            threads.add(threading.current_thread())
            yield number

    ahead = LookAhead(numbers, batch=7)
    assert [number async for number in ahead] == list(range(100))
    assert [number async for number in ahead] == []
    assert len(threads) == 1
    assert threading.current_thread() not in threads


async def test_error_comes_behind_the_items_before_it() -> None:
    def numbers() -> Iterator[int]:
        yield from range(5)
        raise KeyError("sixth")

    ahead = LookAhead(numbers, batch=3)
    assert [await anext(ahead) for _ in range(5)] == list(range(5))
    with pytest.raises(KeyError, match="sixth"):
        await anext(ahead)
    await ahead.aclose()


async def test_closing_closes_the_iterator() -> None:
    closed = threading.Event()
    ahead = LookAhead(partial(ones, closed))
    assert await anext(ahead) == 1
    await ahead.aclose()
    await ahead.aclose()
    assert closed.is_set()
    with pytest.raises(StopAsyncIteration):
        await anext(ahead)


async def test_cancelled_wait_loses_nothing() -> None:
    gate = threading.Event()

    def numbers() -> Iterator[int]:
        gate.wait()
        yield from range(3)

    ahead = LookAhead(numbers)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anext, ahead)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    gate.set()
    assert [number async for number in ahead] == [0, 1, 2]


async def test_closing_leaves_a_blocked_thread_to_itself() -> None:
    """And what it was blocked in is closed when it gets back from there."""
    gate, closed = threading.Event(), threading.Event()

    def numbers() -> Iterator[int]:
        try:
            yield 0
            gate.wait()
            yield 1
        finally:
            closed.set()

    ahead = LookAhead(numbers, batch=1)
    assert await anext(ahead) == 0
    with anyio.move_on_after(0.01) as scope:
        await anext(ahead)
    assert scope.cancelled_caught
    await ahead.aclose()
    assert [number async for number in ahead] == []
    assert not closed.is_set()
    gate.set()
    assert await anyio.to_thread.run_sync(closed.wait, 60)


async def test_closing_ends_the_wait_of_another_task() -> None:
    gate, ended = threading.Event(), []

    def numbers() -> Iterator[int]:
        gate.wait()
        yield 1

    async def consume() -> None:
        ended.extend([number async for number in ahead])
        ended.append(-1)

    ahead = LookAhead(numbers)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(consume)
        await anyio.wait_all_tasks_blocked()
        await ahead.aclose()
    assert ended == [-1]
    gate.set()


async def test_one_that_is_dropped_ends_its_thread() -> None:
    closed = threading.Event()
    ahead = LookAhead(partial(ones, closed))
    assert await anext(ahead) == 1
    del ahead
    gc.collect()
    assert await anyio.to_thread.run_sync(closed.wait, 60)


async def test_what_fails_to_close_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Numbers:
        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            return 1

        def close(self) -> None:
            raise OSError("the disk is gone")

    ahead = LookAhead(Numbers)
    assert await anext(ahead) == 1
    await ahead.aclose()
    assert "closing" in caplog.text
    assert "the disk is gone" in caplog.text


async def test_no_thread_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ahead = LookAhead(lambda: iter([1]))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(ResourceExhaustedTransient, match="can't start new thread"):
            await anext(ahead)
    assert [number async for number in ahead] == [1]
