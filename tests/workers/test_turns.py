"""Turns of a loop: room for inline work, and an order among those who wait for it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from nnasync._core.clock import now_ns
from nnasync._core.workers.admission import CALL_NS
from nnasync._core.workers.turns import Turns
from nnasync.errors import MissedDeadlinePersistent
from nnasync.hal import Priority
from tests.workers.steering import Held

HIGH, MEDIUM, LOW = Priority.HIGH, Priority.MEDIUM, Priority.LOW
BUDGET_NS = 100 * CALL_NS


def test_first_run_of_a_turn_always_has_room() -> None:
    turns = Turns(BUDGET_NS)
    assert turns.here.has_room(10 * BUDGET_NS)
    turns.here.spend(10 * BUDGET_NS)
    assert not turns.here.has_room(0)
    turns.here.turned(turns.here.number)
    assert turns.here.has_room(10 * BUDGET_NS)


def test_runs_count_with_the_call_around_them() -> None:
    turns = Turns(BUDGET_NS)
    for _ in range(50):
        turns.here.spend(0)
    assert not turns.here.is_half_spent()
    turns.here.spend(0)
    assert turns.here.is_half_spent()
    assert turns.here.has_room(BUDGET_NS - 51 * CALL_NS)
    assert not turns.here.has_room(BUDGET_NS - 51 * CALL_NS + 1)


def test_only_the_first_of_those_who_waited_begins_the_turn() -> None:
    turns = Turns(BUDGET_NS)
    number = turns.here.number
    turns.here.turned(number)
    turns.here.spend(BUDGET_NS)
    turns.here.turned(number)
    assert not turns.here.has_room(1)


pytestmark = pytest.mark.anyio


async def test_floods_of_low_priority_do_not_starve_a_high_call() -> None:
    """The loop resumes the flood first in every turn, and each of them would spend it whole."""
    turns = Turns(BUDGET_NS)
    order: list[Priority] = []

    async def call(priority: Priority) -> None:
        if turns.here.must_wait(priority, BUDGET_NS):
            await turns.wait(priority, BUDGET_NS)
        turns.here.spend(BUDGET_NS)
        order.append(priority)

    async def flood() -> None:
        while len(order) < 100 and HIGH not in order:
            await call(LOW)

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(flood)
        while len(order) < 10:
            await anyio.lowlevel.checkpoint()
        before = len(order)
        await call(HIGH)
        assert order.index(HIGH) <= before + 4


async def test_the_loop_itself_ends_a_turn(anyio_backend_name: str) -> None:
    """An application that yields by itself, and never to us, has new turns, except on trio."""
    turns = Turns(BUDGET_NS)
    turns.here.spend(BUDGET_NS)
    turns.here.spend(BUDGET_NS)
    assert not turns.here.has_room(0)
    before = turns.here.number
    for _ in range(10):
        await anyio.lowlevel.checkpoint()
    is_told = anyio_backend_name != "trio"
    assert turns.here.number == before + is_told
    assert turns.here.has_room(BUDGET_NS) == is_told


async def test_a_turn_that_a_waiter_began_is_not_ended_by_the_loop_s_late_word() -> None:
    turns = Turns(BUDGET_NS)
    turns.here.spend(BUDGET_NS)
    turns.here.turned(turns.here.number)
    turns.here.spend(BUDGET_NS)
    number = turns.here.number
    turns.here.turned(number - 1)
    assert not turns.here.has_room(0)


async def test_equal_priorities_go_in_turn() -> None:
    turns = Turns(BUDGET_NS)
    done = [0] * 4

    async def client(number: int) -> None:
        while sum(done) < 400:
            if turns.here.must_wait(MEDIUM, BUDGET_NS):
                await turns.wait(MEDIUM, BUDGET_NS)
            turns.here.spend(BUDGET_NS)
            done[number] += 1

    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(client, number)
    assert max(done) - min(done) <= 2


async def test_newcomer_waits_behind_who_waits_already() -> None:
    turns = Held(BUDGET_NS)
    async with anyio.create_task_group() as group:
        group.start_soon(turns.wait, MEDIUM, 0)
        await turns.asked.wait()
        assert turns.here.has_room(0)
        assert turns.here.must_wait(LOW, 0)
        assert turns.here.must_wait(MEDIUM, 0)
        assert not turns.here.must_wait(HIGH, 0)
        turns.told.set()
    assert not turns.here.must_wait(LOW, 0)


async def test_cancelled_waiter_leaves_the_queue() -> None:
    turns = Turns(BUDGET_NS)
    turns.here.spend(BUDGET_NS)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await turns.wait(HIGH, 0)
    turns.here.turned(turns.here.number)
    assert not turns.here.must_wait(LOW, 0)


async def test_who_waits_for_a_turn_is_told_when_the_deadline_passes() -> None:
    """In the next turn of the loop, although others still have theirs."""
    turns = Turns(BUDGET_NS)
    turns.here.spend(BUDGET_NS)
    turns.next = turns_that_spend(turns)  # type: ignore[method-assign]
    deadline_ns = now_ns() + 1_000_000
    with pytest.raises(MissedDeadlinePersistent, match="turns of the loop"):
        await turns.wait(MEDIUM, 1, deadline_ns)
    assert now_ns() >= deadline_ns
    assert not turns.here.waiting


def turns_that_spend(turns: Turns) -> Callable[[], Coroutine[Any, Any, None]]:
    """Turns of a loop in which others are always faster."""

    async def next_turn() -> None:
        await anyio.lowlevel.checkpoint()
        turns.here.turned(turns.here.number)
        turns.here.spend(BUDGET_NS)

    return next_turn


class Counting(Turns):
    """Turns that count how often somebody looks whether it is their turn."""

    looks = 0

    async def next(self) -> None:
        Counting.looks += 1
        await super().next()


async def test_of_many_that_wait_only_the_first_looks_in_each_turn() -> None:
    turns, count = Counting(BUDGET_NS), 40
    Counting.looks = 0
    turns.here.spend(BUDGET_NS)
    order: list[int] = []

    async def call(number: int) -> None:
        await turns.wait(MEDIUM, BUDGET_NS)
        turns.here.spend(BUDGET_NS)
        order.append(number)

    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(call, number)
    assert sorted(order) == list(range(count))
    assert Counting.looks <= 4 * count


async def test_who_waits_behind_one_that_leaves_goes_on() -> None:
    turns = Turns(BUDGET_NS)
    turns.here.spend(BUDGET_NS)
    count = 20
    scopes = [anyio.CancelScope() for _ in range(count)]
    done: list[int] = []

    async def call(number: int) -> None:
        with scopes[number]:
            await turns.wait(MEDIUM, BUDGET_NS)
            turns.here.spend(BUDGET_NS)
            done.append(number)

    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(call, number)
        while not done:
            await anyio.lowlevel.checkpoint()
        left = [number for number in range(count) if number not in done]
        assert len(left) > 2
        for number in left[:-1]:
            scopes[number].cancel()
    assert left[-1] in done
    assert not turns.here.waiting


async def test_an_urgent_newcomer_goes_before_one_that_was_called_already() -> None:
    turns = Turns(BUDGET_NS)
    order: list[Priority] = []

    async def call(priority: Priority) -> None:
        await turns.wait(priority, BUDGET_NS)
        turns.here.spend(BUDGET_NS)
        order.append(priority)
        if len(order) == 1:
            group.start_soon(call, HIGH)

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(call, LOW)
    assert order.index(HIGH) <= 2
    assert len(order) == 5
