"""A stage: its policies, deadlines, order, and that every item ends in exactly one bucket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync._core.clock import Deadline
from nnasync.errors import (
    BadState,
    Cancelled,
    GeneralFailure,
    InvalidArgument,
    MissedDeadlineTransient,
)
from nnasync.streaming import Account, Item, Outcome, Policy, Result, Stage

pytestmark = pytest.mark.anyio


class Gate:
    """A network that answers item by item, as the test says."""

    def __init__(self) -> None:
        self.started: list[Any] = []
        self.deadlines: list[Deadline | None] = []
        self._answers: dict[Any, anyio.Event] = {}
        self._errors: dict[Any, Exception] = {}

    def _event(self, data: Any) -> anyio.Event:
        return self._answers.setdefault(data, anyio.Event())

    def open(self, data: Any, error: Exception | None = None) -> None:
        if error is not None:
            self._errors[data] = error
        self._event(data).set()

    async def __call__(self, data: Any, *, deadline: Deadline | None = None) -> Any:
        self.started.append(data)
        self.deadlines.append(deadline)
        await self._event(data).wait()
        if data in self._errors:
            raise self._errors[data]
        return data * 10


class Now:
    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


async def double(data: Any, *, deadline: Deadline | None = None) -> Any:
    await anyio.lowlevel.checkpoint()
    return data * 2


def item(index: int, captured_ns: int = 0) -> Item:
    return Item(index, captured_ns, index)


async def numbers(count: int) -> AsyncIterator[Item]:
    for index in range(count):
        await anyio.lowlevel.checkpoint()
        yield item(index)


def balanced(account: Account) -> bool:
    parts = (account.completed, account.missed, account.dropped, account.cancelled, account.failed)
    return account.submitted == sum(parts) + account.pending


async def test_blocking_stage_answers_everything_in_order() -> None:
    async with Stage(double, policy=Policy.BLOCK, capacity=2, concurrency=3) as stage:
        stage.feed(numbers(50))
        values = [result.value async for result in stage]
    assert values == [2 * index for index in range(50)]
    assert stage.account == Account(submitted=50, completed=50)


async def test_newest_drops_the_oldest_queued() -> None:
    gate = Gate()
    settled: list[tuple[int, Outcome]] = []

    def note(result: Result) -> None:
        settled.append((result.item.index, result.outcome))

    async with Stage(gate, policy=Policy.NEWEST, on_settled=note) as stage:
        await stage.put(item(0))
        await anyio.wait_all_tasks_blocked()
        for index in (1, 2, 3):
            await stage.put(item(index))
        assert stage.account == Account(submitted=4, dropped=2, pending=2)
        stage.end()
        gate.open(0)
        gate.open(3)
        results = [result.value async for result in stage]
    assert results == [0, 30]
    assert gate.started == [0, 3]
    assert settled == [
        (1, Outcome.DROPPED),
        (2, Outcome.DROPPED),
        (0, Outcome.COMPLETED),
        (3, Outcome.COMPLETED),
    ]


async def test_oldest_drops_the_newcomer() -> None:
    gate = Gate()
    async with Stage(gate, policy=Policy.OLDEST, capacity=2) as stage:
        await stage.put(item(0))
        await anyio.wait_all_tasks_blocked()
        for index in (1, 2, 3, 4):
            await stage.put(item(index))
        stage.end()
        for index in range(3):
            gate.open(index)
        results = [result.item.index async for result in stage]
    assert results == [0, 1, 2]
    assert stage.account == Account(submitted=5, completed=3, dropped=2)


async def test_block_makes_put_wait() -> None:
    gate = Gate()
    async with anyio.create_task_group() as tasks, Stage(gate, policy=Policy.BLOCK) as stage:
        await stage.put(item(0))
        await anyio.wait_all_tasks_blocked()
        await stage.put(item(1))
        tasks.start_soon(stage.put, item(2))
        await anyio.wait_all_tasks_blocked()
        assert stage.account == Account(submitted=3, pending=3)
        stage.end()
        for index in range(3):
            gate.open(index)
        assert [result.value async for result in stage] == [0, 10, 20]


async def test_cancelled_put_is_accounted_for() -> None:
    gate = Gate()
    async with Stage(gate, policy=Policy.BLOCK) as stage:
        await stage.put(item(0))
        await anyio.wait_all_tasks_blocked()
        await stage.put(item(1))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stage.put, item(2))
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        assert stage.account == Account(submitted=3, cancelled=1, pending=2)
    assert stage.account == Account(submitted=3, cancelled=3)


async def test_closing_ends_a_waiting_put() -> None:
    gate = Gate()
    refused: list[BadState] = []

    async def put(stage: Stage, entry: Item) -> None:
        try:
            await stage.put(entry)
        except BadState as error:
            refused.append(error)

    async with anyio.create_task_group() as tasks, Stage(gate, policy=Policy.BLOCK) as stage:
        await stage.put(item(0))
        await anyio.wait_all_tasks_blocked()
        await stage.put(item(1))
        tasks.start_soon(put, stage, item(2))
        await anyio.wait_all_tasks_blocked()
    assert len(refused) == 1
    assert stage.account == Account(submitted=3, cancelled=3)


async def test_deadline_is_capture_plus_budget() -> None:
    gate = Gate()
    gate.open(0)
    now = Now()
    async with Stage(gate, budget_ns=10, now=now) as stage:
        await stage.put(item(0, captured_ns=100))
        assert (await anext(stage)).outcome is Outcome.COMPLETED
    assert gate.deadlines == [Deadline(110)]
    assert (stage.statistics().deadlines, stage.statistics().hits) == (1, 1)


async def test_item_that_expires_in_the_queue_is_missed_without_a_call() -> None:
    gate, now = Gate(), Now()
    async with Stage(gate, capacity=2, budget_ns=10, now=now) as stage:
        now.ns = 50
        await stage.put(item(0, captured_ns=40))
        result = await anext(stage)
    assert result.outcome is Outcome.MISSED
    assert gate.started == []
    assert stage.account == Account(submitted=1, missed=1)


async def test_late_answer_is_missed_and_discarded() -> None:
    gate, now = Gate(), Now()
    async with Stage(gate, budget_ns=10, now=now) as stage:
        await stage.put(item(0))
        await anyio.wait_all_tasks_blocked()
        now.ns = 2_011
        gate.open(0)
        result = await anext(stage)
    assert (result.outcome, result.value) == (Outcome.MISSED, None)
    assert "2 us too late" in str(result.error)
    assert stage.statistics().hit_rate == 0.0


async def test_errors_go_into_their_buckets_and_the_stream_goes_on() -> None:
    gate = Gate()
    gate.open(0, MissedDeadlineTransient("late"))
    gate.open(1, GeneralFailure("broken"))
    gate.open(2, Cancelled("by hand"))
    gate.open(3)
    async with Stage(gate, policy=Policy.BLOCK, capacity=8) as stage:
        for index in range(4):
            await stage.put(item(index))
        stage.end()
        results = [result async for result in stage]
    assert [r.outcome.name for r in results] == ["MISSED", "FAILED", "CANCELLED", "COMPLETED"]
    assert [str(r.error) for r in results[:3]] == ["late", "broken", "by hand"]
    assert stage.account == Account(submitted=4, completed=1, missed=1, failed=1, cancelled=1)


async def test_item_that_cannot_be_prepared_has_failed() -> None:
    def prepare(data: int) -> float:
        return 1 / data

    stage = Stage(double, policy=Policy.BLOCK, capacity=4, prepare=prepare)
    async with stage:
        stage.feed(numbers(3))
        results = [result async for result in stage]
    assert isinstance(results[0].error, ZeroDivisionError)
    assert [r.value for r in results[1:]] == [2.0, 1.0]


async def test_close_cancels_what_is_running_and_queued() -> None:
    gate = Gate()
    async with Stage(gate, capacity=3, policy=Policy.OLDEST) as stage:
        for index in range(3):
            await stage.put(item(index))
        await anyio.wait_all_tasks_blocked()
    assert stage.account == Account(submitted=3, cancelled=3)
    with pytest.raises(BadState):
        await stage.put(item(9))
    assert [result.outcome async for result in stage] == [Outcome.CANCELLED]


async def test_cancellation_from_outside_accounts_for_everything() -> None:
    gate = Gate()
    with anyio.CancelScope() as scope:
        async with Stage(gate) as stage:
            stage.feed(numbers(4))
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
            await anyio.sleep_forever()
    assert stage.account.pending == 0
    assert balanced(stage.account)


async def test_error_in_the_block_comes_out_bare() -> None:
    stage = Stage(Gate())

    async def use() -> None:
        async with stage:
            await stage.put(item(0))
            await anyio.wait_all_tasks_blocked()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await use()
    assert stage.account == Account(submitted=1, cancelled=1)


async def failing_source() -> AsyncIterator[Item]:
    yield item(0)
    raise GeneralFailure("the camera fell down")


async def test_error_of_a_source_comes_behind_its_results() -> None:
    async with Stage(double, policy=Policy.BLOCK) as stage:
        stage.feed(failing_source())
        assert (await anext(stage)).value == 0
        with pytest.raises(GeneralFailure, match="fell down"):
            await anext(stage)
    assert stage.account == Account(submitted=1, completed=1)


async def test_error_of_a_source_is_raised_when_nobody_iterates() -> None:
    stage = Stage(double, policy=Policy.BLOCK, backlog=0)

    async def use() -> None:
        async with stage:
            stage.feed(failing_source())
            await anyio.wait_all_tasks_blocked()

    with pytest.raises(GeneralFailure, match="fell down"):
        await use()
    assert stage.account.pending == 0


async def test_drain_waits_for_the_sources() -> None:
    seen: list[int] = []

    def note(result: Result) -> None:
        seen.append(result.item.index)

    async with Stage(double, policy=Policy.BLOCK, backlog=0, on_settled=note) as stage:
        stage.feed(numbers(7))
        stage.feed(numbers(5))
        await stage.drain()
        assert stage.account == Account(submitted=12, completed=12)
    assert sorted(seen) == sorted([*range(7), *range(5)])


async def test_an_observer_that_raises_is_logged_and_disturbs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def note(result: Result) -> None:
        raise RuntimeError("observer")

    async with Stage(double, policy=Policy.BLOCK, on_settled=note) as stage:
        stage.feed(numbers(3))
        await stage.drain()
    assert stage.account == Account(submitted=3, completed=3)
    assert caplog.text.count("RuntimeError: observer") == 3


async def test_results_that_nobody_takes_hold_the_workers_up() -> None:
    async with Stage(double, policy=Policy.NEWEST, backlog=2) as stage:
        stage.feed(numbers(10))
        await anyio.wait_all_tasks_blocked()
        assert stage.account.completed == 2
        assert stage.account.dropped == 7
        rest = [result.item.index async for result in stage]
    assert len(rest) == 3
    assert rest[-1] == 9
    assert stage.account == Account(submitted=10, completed=3, dropped=7)


async def test_a_stage_is_no_source_of_another_and_says_what_to_do() -> None:
    async with Stage(double) as first, Stage(double) as second:
        first.feed(numbers(2))
        with pytest.raises(InvalidArgument, match=r"async for result in stage.*next_stage\.put"):
            second.feed(first)  # type: ignore[arg-type]  # The mistake of the test.
        async for result in first:
            taken = result.item
            await second.put(
                Item(taken.index, taken.captured_ns, result.value, taken.media_ns),
            )
        second.end()
        assert [result.value async for result in second] == [0, 4]
    assert first.account.completed == second.account.completed == 2


async def test_what_is_no_item_is_refused() -> None:
    async def things() -> AsyncIterator[Any]:
        yield "a frame"

    async with Stage(double, backlog=0) as stage:
        with pytest.raises(InvalidArgument, match=r"not Result"):
            await stage.put(Result(item(1), Outcome.COMPLETED))  # type: ignore[arg-type]
        stage.feed(things())
        with pytest.raises(InvalidArgument, match=r"Item\(index, captured_ns, data\), not str"):
            await stage.drain()
    assert stage.account == Account()


async def test_source_is_closed() -> None:
    class Source:
        closed = False

        def __aiter__(self) -> Source:
            return self

        async def __anext__(self) -> Item:
            await anyio.sleep_forever()
            raise StopAsyncIteration

        async def aclose(self) -> None:
            await anyio.lowlevel.checkpoint()
            self.closed = True

    source = Source()
    async with Stage(double) as stage:
        stage.feed(source)
        await anyio.wait_all_tasks_blocked()
    assert source.closed


async def test_taking_that_is_cancelled_loses_no_result() -> None:
    async with Stage(double, policy=Policy.BLOCK) as stage:
        stage.feed(numbers(3))
        await anyio.wait_all_tasks_blocked()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anext(stage)
        assert [result.value async for result in stage] == [0, 2, 4]


async def test_an_error_of_closing_a_source_is_raised_bare() -> None:
    class Source:
        def __aiter__(self) -> Source:
            return self

        async def __anext__(self) -> Item:
            raise StopAsyncIteration

        async def aclose(self) -> None:
            raise OSError("the cable was pulled")

    async with Stage(double) as stage:
        stage.feed(Source())
        with pytest.raises(OSError, match="cable"):
            await stage.drain()


async def test_stage_outside_of_its_block() -> None:
    stage = Stage(double)
    with pytest.raises(BadState, match="async with"):
        await stage.put(item(0))
    async with stage:
        stage.end()
        with pytest.raises(BadState, match="ended"):
            await stage.put(item(0))
    with pytest.raises(BadState, match="once"):
        await stage.__aenter__()


@pytest.mark.parametrize("wrong", [{"capacity": 0}, {"concurrency": 0}, {"backlog": -1}])
async def test_numbers_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        Stage(double, **wrong)


EVENTS = st.lists(st.sampled_from(["put", "finish", "miss", "fail", "settle"]), max_size=40)


@given(
    events=EVENTS,
    policy=st.sampled_from([Policy.NEWEST, Policy.OLDEST]),
    capacity=st.integers(1, 3),
    concurrency=st.integers(1, 3),
)
async def test_account_balances_whatever_happens(
    events: list[str], policy: Policy, capacity: int, concurrency: int
) -> None:
    gate = Gate()
    answered = 0
    errors = {"miss": MissedDeadlineTransient("late"), "fail": GeneralFailure("broken")}
    stage = Stage(gate, policy=policy, capacity=capacity, concurrency=concurrency, backlog=0)
    async with stage:
        for index, event in enumerate(events):
            if event == "put":
                await stage.put(item(index))
            elif event in ("finish", "miss", "fail") and answered < len(gate.started):
                gate.open(gate.started[answered], errors.get(event))
                answered += 1
            elif event == "settle":
                await anyio.wait_all_tasks_blocked()
            assert balanced(stage.account)
    account = stage.account
    assert balanced(account)
    assert account.pending == 0
    assert account.submitted == events.count("put")
