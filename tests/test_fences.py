"""Sync fences: signaling, awaiting, merging; crossing processes has a file of its own."""

from __future__ import annotations

import itertools
import logging
import threading
import traceback
import weakref

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync import errors, fences, hal
from nnasync._core import clock
from nnasync._core.wakeup import Wakeup
from nnasync.fences import Fence, FenceStatus, merge, signaled

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_leaks")]


class Boom(Exception):
    """An error that cannot be built without its second argument."""

    def __init__(self, message: str, detail: int) -> None:
        super().__init__(message)
        self.detail = detail


async def test_a_fence_is_final_once() -> None:
    fence = Fence()
    assert status_of(fence) is FenceStatus.PENDING
    assert fence.signaled_at_ns == 0
    before = clock.now_ns()
    assert fence.signal()
    assert before <= fence.signaled_at_ns <= clock.now_ns()
    settled_at = fence.signaled_at_ns
    assert not fence.signal()
    assert not fence.fail(ValueError("late"))
    assert fence.status is FenceStatus.SIGNALED
    assert fence.error is None
    assert fence.signaled_at_ns == settled_at
    await fence


async def test_a_failed_fence_keeps_its_first_error() -> None:
    fence, error = Fence(), errors.DeviceDied("gone")
    assert fence.fail(error)
    assert not fence.fail(ValueError("late"))
    assert not fence.signal()
    assert fence.status is FenceStatus.ERROR
    assert fence.error is error
    assert fence.signaled_at_ns > 0


def test_a_fence_fails_with_exceptions_only() -> None:
    for wrong in (KeyboardInterrupt(), ValueError, "no", None):
        with pytest.raises(errors.InvalidArgument):
            Fence().fail(wrong)  # type: ignore[arg-type]


def test_one_of_many_racing_signals_wins() -> None:
    for _ in range(20):
        fence = Fence()
        calls: list[Fence] = []
        fence.add_callback(calls.append)
        start = threading.Barrier(8)
        wins: list[bool] = []

        def race(
            i: int,
            fence: Fence = fence,
            start: threading.Barrier = start,
            wins: list[bool] = wins,
        ) -> None:
            start.wait()
            wins.append(fence.signal() if i % 2 else fence.fail(ValueError(i)))

        threads = [threading.Thread(target=race, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wins.count(True) == 1
        assert calls == [fence]


async def test_an_await_ends_when_another_thread_signals() -> None:
    fence = Fence()
    async with anyio.create_task_group() as group:
        group.start_soon(awaited, fence)
        await anyio.wait_all_tasks_blocked()
        thread = threading.Thread(target=fence.signal)
        thread.start()
    thread.join()


def status_of(fence: Fence) -> FenceStatus:
    """The status, hidden from a type checker that believes it cannot change."""
    return fence.status


async def awaited(fence: Fence) -> None:
    await fence


async def test_awaiting_a_signaled_fence_does_not_suspend() -> None:
    ran: list[str] = []

    async def other() -> None:
        ran.append("other")

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        for _ in range(100):
            await signaled()
        assert ran == []


async def test_each_awaiter_gets_its_own_exception() -> None:
    fence = Fence()
    caught: list[errors.OutputInsufficientSize] = []

    async def wait() -> None:
        try:
            await fence
        except errors.OutputInsufficientSize as error:
            caught.append(error)

    original = errors.OutputInsufficientSize("too small", (hal.OutputShape((2, 3)),))
    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        fence.fail(original)
    await wait()
    assert len({id(error) for error in [*caught, original]}) == 12
    assert all(error.__cause__ is original for error in caught)
    assert all(error.output_shapes == original.output_shapes for error in caught)
    assert all(str(error) == "too small" for error in caught)
    assert original.__traceback__ is None
    lengths = {len(traceback.extract_tb(error.__traceback__)) for error in caught[:10]}
    assert len(lengths) == 1


async def test_an_error_that_cannot_be_copied_becomes_a_general_failure() -> None:
    fence, error = Fence(), Boom("boom", 3)
    fence.fail(error)
    with pytest.raises(errors.GeneralFailure, match="Boom: boom") as caught:
        await fence
    assert caught.value.__cause__ is error


def test_fresh_copies_attributes_and_no_traceback() -> None:
    try:
        raise OSError(2, "gone", "file")
    except OSError as error:
        error.add_note("a note")
        twin = fences.fresh(error)
    assert isinstance(twin, FileNotFoundError)
    assert (twin.errno, twin.filename, twin.__notes__) == (2, "file", ["a note"])
    assert twin.__traceback__ is None
    assert twin.__cause__ is None


async def test_cancelling_an_await_leaves_the_fence_alone() -> None:
    fence = Fence()
    async with anyio.create_task_group() as keep:
        keep.start_soon(awaited, fence)
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(awaited, fence)
            await anyio.wait_all_tasks_blocked()
            assert fence._callbacks is not None
            assert len(fence._callbacks) == 6
            group.cancel_scope.cancel()
        assert fence.status is FenceStatus.PENDING
        assert fence._callbacks is not None
        assert len(fence._callbacks) == 1
        assert fence.signal()


async def test_a_signal_that_crosses_a_cancellation_is_harmless() -> None:
    for _ in range(50):
        fence = Fence()
        async with anyio.create_task_group() as group:
            group.start_soon(awaited, fence)
            await anyio.wait_all_tasks_blocked()
            thread = threading.Thread(target=fence.signal)
            thread.start()
            group.cancel_scope.cancel()
        thread.join()
        await fence


async def test_many_awaiters_cost_one_wake_up() -> None:
    fence = Fence()
    async with anyio.create_task_group() as group:
        for _ in range(100):
            group.start_soon(awaited, fence)
        await anyio.wait_all_tasks_blocked()
        before = Wakeup.current().wakeups
        thread = threading.Thread(target=fence.signal)
        thread.start()
        thread.join()
    assert Wakeup.current().wakeups == before + 1


async def test_a_chain_of_fences_wakes_the_loop_once() -> None:
    chain = [Fence() for _ in range(8)]
    for first, second in itertools.pairwise(chain):
        first.add_callback(lambda _, second=second: second.signal())  # type: ignore[misc]
    before = Wakeup.current().wakeups
    thread = threading.Thread(target=chain[0].signal)
    async with anyio.create_task_group() as group:
        group.start_soon(awaited, chain[-1])
        await anyio.wait_all_tasks_blocked()
        thread.start()
    thread.join()
    assert Wakeup.current().wakeups == before + 1
    assert [fence.status for fence in chain] == [FenceStatus.SIGNALED] * 8


def test_callbacks_run_on_the_signaling_thread() -> None:
    fence = Fence()
    where: list[str] = []
    fence.add_callback(lambda _: where.append(threading.current_thread().name))
    thread = threading.Thread(target=fence.signal, name="signaler")
    thread.start()
    thread.join()
    fence.add_callback(lambda _: where.append(threading.current_thread().name))
    assert where == ["signaler", threading.current_thread().name]


def test_a_callback_sees_the_final_fence_and_may_use_it() -> None:
    fence = Fence()
    seen: list[tuple[FenceStatus, bool, bool]] = []

    def look(same: Fence) -> None:
        assert same is fence
        seen.append((same.status, same.signal(), same.remove_callback(look)))
        same.add_callback(lambda _: None)

    fence.add_callback(look)
    fence.signal()
    assert seen == [(FenceStatus.SIGNALED, False, False)]


def test_a_removed_callback_is_not_called() -> None:
    fence = Fence()
    calls: list[Fence] = []
    fence.add_callback(calls.append)
    fence.add_callback(calls.append)
    assert fence.remove_callback(calls.append)
    fence.signal()
    assert calls == [fence]
    assert not fence.remove_callback(calls.append)


def test_a_raising_callback_is_logged_and_the_next_one_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fence = Fence()
    calls: list[Fence] = []

    def broken(_: Fence) -> None:
        raise ValueError("broken callback")

    fence.add_callback(broken)
    fence.add_callback(calls.append)
    with caplog.at_level(logging.ERROR, logger="nnasync.fences"):
        assert fence.signal()
        fence.add_callback(broken)
    assert calls == [fence]
    assert caplog.text.count("ValueError: broken callback") == 2


def test_a_thread_waits_for_a_fence() -> None:
    fence = Fence()
    thread = threading.Thread(target=fence.signal)
    thread.start()
    fence.wait_blocking()
    fence.wait_blocking(timeout_s=0)
    thread.join()
    failed = Fence()
    failed.fail(errors.DeviceDied("gone"))
    with pytest.raises(errors.DeviceDied) as caught:
        failed.wait_blocking(30)
    assert caught.value.__cause__ is failed.error


@pytest.mark.parametrize("timeout_s", [-1, float("nan")])
def test_a_thread_waits_for_a_time_that_makes_sense(timeout_s: float) -> None:
    with pytest.raises(errors.InvalidArgument):
        Fence().wait_blocking(timeout_s)


def test_a_thread_that_waits_in_vain_leaves_nothing_behind() -> None:
    fence = Fence()
    with pytest.raises(errors.MissedDeadlineTransient):
        fence.wait_blocking(0.001)
    assert fence._callbacks == []
    assert fence.signal()


def test_a_fence_can_be_referenced_weakly() -> None:
    fence = Fence()
    reference = weakref.ref(fence)
    assert reference() is fence
    del fence
    assert reference() is None


@given(st.permutations(range(5)), st.sets(st.integers(0, 4)))
def test_a_merge_follows_its_inputs(order: list[int], failing: set[int]) -> None:
    inputs = [Fence() for _ in range(5)]
    merged = merge(inputs)
    failed: list[int] = []
    for done, i in enumerate(order, 1):
        if i in failing:
            inputs[i].fail(ValueError(i))
            failed.append(i)
        else:
            inputs[i].signal()
        if failed:
            assert merged.error is inputs[failed[0]].error
        else:
            assert (merged.status is FenceStatus.SIGNALED) == (done == 5)


async def test_a_merge_of_final_fences_is_final() -> None:
    await merge([])
    await merge([signaled(), signaled()])
    await merge(iter([signaled()]))
    fence = Fence()
    assert merge([fence, fence]).status is FenceStatus.PENDING
    failed = Fence()
    failed.fail(ValueError("first"))
    merged = merge([fence, failed])
    with pytest.raises(ValueError, match="first"):
        await merged


def test_failing_a_merge_leaves_its_inputs_alone() -> None:
    first, second = Fence(), Fence()
    merged = merge([first, second])
    assert merged.fail(errors.DeviceUnavailable("closing"))
    assert first.status is second.status is FenceStatus.PENDING
    first.signal()
    second.signal()
    assert merged.status is FenceStatus.ERROR
