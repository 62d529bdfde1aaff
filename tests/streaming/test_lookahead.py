"""Look-ahead: order, errors behind good items, and that thread and iterator are given back."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import anyio
import pytest

from nnasync.streaming.lookahead import LookAhead

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks", "stall_guard")]


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

    def numbers() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    ahead = LookAhead(numbers)
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
