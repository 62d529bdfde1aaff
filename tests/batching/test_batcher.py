"""Calls that are joined: their own answers, deadlines and errors, whatever the others do."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

import nnasync as nn
from nnasync._core.execution.ports import Port
from nnasync.batching import Batcher, BatchingReport
from nnasync.batching.members import Member
from nnasync.errors import BadState, GeneralFailure, InvalidArgument
from nnasync.hal import Array
from nnasync.tracing import metrics
from tests.rigs import GUARD_S, attempt, floats, missed_under_way, until

pytestmark = pytest.mark.anyio

FLOAT = np.dtype(np.float32)


def port(name: str, *shape: int) -> Port:
    return Port(name, shape, FLOAT, 0.0, 0, 0, is_settled=False)


class Net:
    """Doubles rows, when it is let; a row with a NaN is more than it can bear."""

    def __init__(self) -> None:
        self.inputs = (port("x", 0, 4),)
        self.outputs = (port("y", 0, 4),)
        self.priority = nn.Priority.MEDIUM
        self.calls: list[tuple[int, dict[str, Any]]] = []
        self.cancelled = 0
        self.may_go = anyio.Event()
        self.error: Exception | None = None

    async def __call__(self, *arrays: Any, **options: Any) -> Any:
        self.calls.append((len(arrays[0]), options))
        try:
            await self.may_go.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        if np.isnan(arrays[0]).any():
            raise GeneralFailure("NaN")
        return self.answer(arrays[0])

    def answer(self, rows: Array) -> Any:
        return rows * 2

    @property
    def rows(self) -> list[int]:
        return [rows for rows, _ in self.calls]


@asynccontextmanager
async def rig(net: Net, **options: Any) -> AsyncIterator[tuple[Batcher, Any]]:
    """A batcher that joins up to four rows, one run at a time, and a task group for calls."""
    options = {"max_rows": 4, "concurrency": 1, "when": "always", "name": "n", **options}
    with anyio.fail_after(GUARD_S):
        async with Batcher(net, **options) as batcher, anyio.create_task_group() as group:
            yield batcher, group


def row(value: float) -> Array:
    return floats(value, value, value, value)


def asking(batcher: Batcher, value: float, **options: Any) -> Callable[[], Any]:
    return lambda: batcher(row(value), **options)


async def test_a_call_goes_at_once_and_those_that_wait_go_together() -> None:
    net = Net()
    async with rig(net) as (batcher, group):
        calls = [await attempt(group, asking(batcher, value)) for value in range(6)]
        assert net.rows == [1]
        net.may_go.set()
        for each in calls:
            await each.done.wait()
    assert [float(each.result[0, 0]) for each in calls] == [0, 2, 4, 6, 8, 10]
    assert all(each.result.shape == (1, 4) and each.result.base is None for each in calls)
    assert net.rows == [1, 4, 1]


async def test_calls_of_another_priority_are_not_joined() -> None:
    net = Net()
    async with rig(net) as (batcher, group):
        high = {"priority": nn.Priority.HIGH}
        for value in range(2):
            await attempt(group, asking(batcher, value))
            await attempt(group, asking(batcher, value, **high))
            await attempt(group, asking(batcher, value, **high))
        net.may_go.set()
    usual = [rows for rows, options in net.calls if options["priority"] is None]
    urgent = [rows for rows, options in net.calls if options["priority"] is nn.Priority.HIGH]
    assert (usual, urgent) == ([1, 1], [1, 3])


async def test_the_usual_priority_is_the_same_said_or_unsaid() -> None:
    net = Net()
    async with rig(net) as (batcher, group):
        await attempt(group, asking(batcher, 0))
        await attempt(group, asking(batcher, 1))
        await attempt(group, asking(batcher, 2, priority=nn.Priority.MEDIUM))
        net.may_go.set()
    assert net.rows == [1, 2]


async def test_a_window_is_waited_for_unless_the_batch_is_full() -> None:
    net = Net()
    net.may_go.set()
    async with rig(net, window_us=3e8) as (batcher, group):
        calls = [await attempt(group, asking(batcher, value)) for value in range(3)]
        assert net.rows == []
        calls.append(await attempt(group, asking(batcher, 3)))
        for each in calls:
            await each.done.wait()
        assert net.rows == [4]


async def test_a_window_ends() -> None:
    net = Net()
    net.may_go.set()
    async with rig(net, window_us=1000) as (batcher, _):
        assert float((await batcher(row(1)))[0, 0]) == 2
    assert net.rows == [1]


async def test_a_run_has_the_latest_deadline_of_its_calls() -> None:
    net = Net()
    async with rig(net) as (batcher, group):
        await attempt(group, asking(batcher, 0))
        soon, late = nn.within(s=100), nn.within(s=200)
        await attempt(group, asking(batcher, 1, deadline=late))
        await attempt(group, asking(batcher, 2, deadline=soon))
        net.may_go.set()
    assert net.calls[1] == (2, {"deadline": late, "priority": None})


async def test_a_late_call_has_its_own_answer_while_the_others_go_on() -> None:
    net = Net()
    async with rig(net) as (batcher, group):
        first = await attempt(group, asking(batcher, 0))
        other = await attempt(group, asking(batcher, 2))
        error = await missed_under_way(
            lambda deadline: batcher(row(1), deadline=deadline),
            ms=30,
            is_under_way=lambda error: error.reason == "queue",
        )
        assert isinstance(error, nn.MissedDeadlinePersistent)
        net.may_go.set()
        await other.done.wait()
        await first.done.wait()
        assert float(other.result[0, 0]) == 4
    assert net.rows == [1, 1]


async def test_a_call_that_is_late_while_it_runs_with_others() -> None:
    async def run_with_another(deadline: nn.Deadline) -> None:
        net = Net()
        async with rig(net, window_us=3e8, max_rows=2) as (batcher, group):
            batcher._costs.observe(1, 1e6)
            other = await attempt(group, asking(batcher, 2))
            late = await attempt(group, asking(batcher, 1, deadline=deadline))
            error = await late.failure()
            if not net.rows:
                group.cancel_scope.cancel()  # It came too late to be joined.
            else:
                assert net.rows == [2]
                net.may_go.set()
                await other.done.wait()
                assert float(other.result[0, 0]) == 4
        assert net.cancelled == 0
        assert error is not None
        raise error

    error = await missed_under_way(run_with_another, ms=30)
    assert error.reason == "running"


async def test_a_run_that_nobody_waits_for_is_cancelled() -> None:
    net = Net()
    async with rig(net, window_us=3e8, max_rows=2) as (batcher, group):
        calls = [await attempt(group, asking(batcher, value)) for value in range(2)]
        calls[0].scope.cancel()
        await anyio.wait_all_tasks_blocked()
        assert net.cancelled == 0
        calls[1].scope.cancel()
        await anyio.wait_all_tasks_blocked()
        assert net.cancelled == 1
        net.may_go.set()
        assert (await batcher(np.concatenate([row(3), row(4)])))[:, 0].tolist() == [6, 8]


async def test_who_is_cancelled_while_waiting_is_not_run() -> None:
    net = Net()
    async with rig(net) as (batcher, group):
        await attempt(group, asking(batcher, 0))
        calls = [await attempt(group, asking(batcher, value)) for value in range(3)]
        calls[1].scope.cancel()
        await anyio.wait_all_tasks_blocked()
        net.may_go.set()
    assert net.rows == [1, 2]


async def test_an_error_belongs_to_who_caused_it() -> None:
    net = Net()
    async with rig(net) as (batcher, group):
        await attempt(group, asking(batcher, 0))
        good = await attempt(group, asking(batcher, 1))
        bad = await attempt(group, asking(batcher, math.nan))
        fine = await attempt(group, asking(batcher, 3))
        net.may_go.set()
        assert isinstance(await bad.failure(), GeneralFailure)
        await good.done.wait()
        await fine.done.wait()
        assert [float(each.result[0, 0]) for each in (good, fine)] == [2, 6]
    assert net.rows == [1, 3, 1, 1, 1]


@pytest.mark.parametrize("kind", [nn.DeviceDied, nn.ResourceExhaustedTransient])
async def test_what_is_nobodys_fault_is_not_repeated(kind: type[nn.NNError]) -> None:
    net = Net()
    async with rig(net) as (batcher, group):
        calls = [await attempt(group, asking(batcher, value)) for value in range(3)]
        net.error = kind("gone")
        net.may_go.set()
        errors = [await each.failure() for each in calls]
    assert [type(error) for error in errors] == [kind] * 3
    assert errors[1] is not errors[2]
    assert net.rows == [1, 2]


async def test_a_wrong_call_fails_before_anybody_is_joined_to_it() -> None:
    net = Net()
    async with rig(net, window_us=1e6) as (batcher, _):
        for wrong in (floats(1, 2), np.zeros((0, 4), np.float32), np.zeros((1, 4), np.float64)):
            with pytest.raises(InvalidArgument):
                await batcher(wrong)
        with pytest.raises(InvalidArgument):
            await batcher(row(1), row(2))
    assert net.calls == []


async def test_too_many_that_wait_are_refused() -> None:
    net = Net()
    async with rig(net, max_waiting=2) as (batcher, group):
        for value in range(3):
            await attempt(group, asking(batcher, value))
        with pytest.raises(nn.ResourceExhaustedTransient) as caught:
            await batcher(row(3))
        assert caught.value.reason == "queue_full"
        net.may_go.set()


async def test_what_cannot_be_through_in_time_is_refused_on_arrival() -> None:
    net = Net()
    async with rig(net) as (batcher, group):
        batcher._costs.observe(1, 50e9)
        batcher._costs.observe(4, 100e9)
        for value in range(9):
            await attempt(group, asking(batcher, value, deadline=nn.within(s=1000)))
        with pytest.raises(nn.MissedDeadlinePersistent) as caught:
            await batcher(row(3), deadline=nn.within(s=40))
        assert caught.value.reason == "admission"
        net.may_go.set()
    assert sum(net.rows) == 9


async def test_an_answer_without_a_row_for_each_ends_the_joining() -> None:
    class Sum(Net):
        def answer(self, rows: Array) -> Any:
            return rows.sum()

    net = Sum()
    async with rig(net) as (batcher, group):
        calls = [await attempt(group, asking(batcher, value)) for value in range(3)]
        net.may_go.set()
        for each in calls:
            await each.done.wait()
        assert [float(each.result) for each in calls] == [0, 4, 8]
        assert batcher.report.most_rows == 1


async def test_several_outputs_are_taken_apart() -> None:
    class Two(Net):
        def answer(self, rows: Array) -> Any:
            return rows, rows[:, :1]

    net = Two()
    async with rig(net) as (batcher, group):
        calls = [await attempt(group, asking(batcher, value)) for value in range(3)]
        net.may_go.set()
        await calls[2].done.wait()
    assert [each.shape for each in calls[2].result] == [(1, 4), (1, 1)]


async def test_closing_answers_everybody_once() -> None:
    net = Net()
    with anyio.fail_after(GUARD_S):
        async with anyio.create_task_group() as group:
            options: dict[str, Any] = {"window_us": 3e8, "max_rows": 2, "concurrency": 1}
            async with Batcher(net, when="always", **options) as batcher:
                calls = [await attempt(group, asking(batcher, value)) for value in range(2)]
                assert net.rows == [2]
                calls += [await attempt(group, asking(batcher, value)) for value in range(2)]
            errors = [await each.failure() for each in calls]
    assert [type(error) for error in errors] == [nn.DeviceUnavailable] * 4
    with pytest.raises(nn.DeviceUnavailable):
        await batcher(row(1))
    with pytest.raises(BadState):
        async with batcher:
            pass


async def test_accounts_add_up() -> None:
    net = Net()
    async with rig(net) as (batcher, group):
        calls = [await attempt(group, asking(batcher, value)) for value in range(4)]
        calls.append(await attempt(group, asking(batcher, math.nan)))
        calls[1].scope.cancel()
        with pytest.raises(InvalidArgument):
            await batcher(floats(1))
        net.may_go.set()
        for each in calls:
            await each.done.wait()
        text = metrics.render(None, batcher)
    labels = 'network="n",device="",priority="medium"'
    assert f"nnasync_batched_calls_total{{{labels}}} 6" in text
    assert f"nnasync_batched_calls_in_flight{{{labels}}} 0" in text
    for outcome, count in (("completed", 3), ("cancelled", 1), ("failed", 2)):
        found = [
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith("nnasync_batched_call_outcomes_total") and f'"{outcome}"' in line
        ]
        assert sum(found) == count
    assert 'nnasync_batched_rows_total{network="n"} 3' in text


@pytest.mark.parametrize("seed", range(4))
async def test_accounts_add_up_whatever_callers_do(seed: int) -> None:
    class Slow(Net):
        async def __call__(self, *arrays: Any, **options: Any) -> Any:
            for _ in range(chance.randrange(8)):
                await anyio.lowlevel.checkpoint()
            return await super().__call__(*arrays, **options)

    chance, net = random.Random(seed), Slow()
    net.may_go.set()
    right = 0

    async def ask(batcher: Batcher, value: float) -> None:
        nonlocal right
        priority = chance.choice([None, nn.Priority.HIGH, nn.Priority.LOW])
        deadline = chance.choice([None, nn.within(us=200), nn.within(s=100)])
        with anyio.CancelScope() as scope:
            if chance.random() < 0.2:
                group.start_soon(cancel, scope)
            for _ in range(chance.randrange(12)):
                await anyio.lowlevel.checkpoint()
            try:
                answer = await batcher(row(value), deadline=deadline, priority=priority)
            except nn.NNError:
                return
            assert answer.tolist() == (row(value) * 2).tolist()
            right += 1

    async def cancel(scope: anyio.CancelScope) -> None:
        for _ in range(chance.randrange(20)):
            await anyio.lowlevel.checkpoint()
        scope.cancel()

    async with rig(net, concurrency=2, window_us=chance.choice([0, 100]), max_waiting=8) as (
        batcher,
        group,
    ):
        async with anyio.create_task_group() as group:
            for value in range(60):
                group.start_soon(ask, batcher, math.nan if value % 17 == 16 else value)
        tallies = [batcher._tally(priority) for priority in nn.Priority]
        assert all(each.calls == sum(each.outcomes().values()) for each in tallies)
        assert sum(each.completed for each in tallies) >= right > 0
        # Runs that nobody waits for any more take a turn to end.
        await until(lambda: not any(q.members or q.running for q in batcher._queues.values()))


async def test_it_is_to_be_opened() -> None:
    with pytest.raises(BadState, match="async with"):
        await Batcher(Net())(row(1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_rows": 0},
        {"window_us": -1},
        {"window_us": math.nan},
        {"concurrency": 0},
        {"max_waiting": 0},
        {"when": "never"},
    ],
)
def test_numbers_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Batcher(Net(), **wrong)


def test_networks_without_an_open_first_dimension_are_refused() -> None:
    net = Net()
    net.inputs = (port("x", 1, 4),)
    with pytest.raises(InvalidArgument, match="first dimension"):
        Batcher(net)


async def test_errors_are_copied_whole() -> None:
    member = Member([row(1)], 1, 0, None)
    error = nn.MissedDeadlineTransient("late")
    error.reason = "running"
    member.fail(error)
    with pytest.raises(nn.MissedDeadlineTransient, match="late") as caught:
        await member.answer()
    assert caught.value is not error
    assert caught.value.reason == "running"


async def test_a_real_network_answers_as_it_does_alone() -> None:
    with anyio.fail_after(GUARD_S):
        async with nn.open_runtime(devices=["nnasync-reference"]) as rt:
            net = await rt.compile(dense(), options=nn.CompileOptions(wait="best"))
            rows = np.random.default_rng(1).random((12, 8), np.float32)
            async with Batcher(net, when="always", concurrency=1, window_us=500) as batcher:
                answers: list[Any] = [None] * 12

                async def ask(number: int) -> None:
                    answers[number] = await batcher(rows[number : number + 1])

                async with anyio.create_task_group() as group:
                    for number in range(12):
                        group.start_soon(ask, number)
                for number in range(12):
                    alone = await net(rows[number : number + 1])
                    np.testing.assert_allclose(answers[number], alone, rtol=1e-5)
            tally = rt.calls.of(net.model.name, nn.Priority.MEDIUM, "nnasync-reference")
            assert tally.calls < 24


def dense() -> nn.Model:
    """One dense layer, with any number of rows."""
    random = np.random.default_rng(0)
    builder = nn.ModelBuilder("dense")
    x = builder.input("x", (0, 8))
    weights = builder.constant(random.random((8, 8), np.float32))
    bias = builder.constant(np.zeros(8, np.float32))
    builder.output("y", builder.fully_connected(x, weights, bias))
    return builder.build()


def test_reports_are_for_people() -> None:
    assert str(BatchingReport(1, "why not")) == "joins up to 1 rows: why not"


class OpenNet(Net):
    """Takes rows of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = (port("x", 0, 0),)
        self.outputs = (port("y", 0, 0),)
        self.may_go.set()


async def test_calls_of_other_shapes_are_joined_among_themselves() -> None:
    net = OpenNet()
    lengths = (3, 5, 3, 7, 5)
    answers: list[tuple[int, ...]] = []
    with anyio.fail_after(GUARD_S):
        async with Batcher(net, when="always", window_us=20_000, max_rows=8) as batcher:

            async def call(length: int) -> None:
                answers.append((await batcher(np.ones((1, length), np.float32))).shape)

            async with anyio.create_task_group() as tasks:
                for length in lengths:
                    tasks.start_soon(call, length)
    assert sorted(answers) == sorted((1, length) for length in lengths)
    assert sorted(rows for rows, _ in net.calls) == [1, 2, 2]


async def test_what_cannot_be_joined_is_an_error_of_its_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(calls: Any) -> Any:
        raise MemoryError("no memory for so many rows")

    monkeypatch.setattr("nnasync.batching.batcher.joined", fails)
    net = OpenNet()
    errors: list[BaseException] = []
    with anyio.fail_after(GUARD_S):
        async with Batcher(net, when="always", window_us=20_000, max_rows=8) as batcher:

            async def call() -> None:
                try:
                    await batcher(np.ones((1, 3), np.float32))
                except MemoryError as error:
                    errors.append(error)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
            monkeypatch.undo()
            assert (await batcher(np.ones((1, 3), np.float32))).shape == (1, 3)
    assert len(errors) == 1
