"""Seeds are clean, say the same twice, and find faults that were once there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from nnasync import fences
from nnasync._core.clock import Watchdog
from nnasync._core.runtime import reviving, tasks
from nnasync._core.workers.crew import Crew
from nnasync._core.workers.worker_thread import Worker
from nnasync.hal import Priority
from tests.simulation import calls, deaths, play
from tests.simulation.threads import Condition, Lock, Thread, inside
from tests.simulation.world import Faults, Stuck, World

SHORT = 40
MANY = 1000
KEPT = [24, 513, 646, 999, 1561]
"""A watchdog that was preempted before its sleep slept for too long (`clock`), and the last one: a
call that was held back behind spread LOW work never began (`workers.running`)."""


def test_a_few_seeds_are_clean() -> None:
    endings: set[str] = set()
    for seed in range(SHORT):
        verdict = calls.simulate(seed)
        assert verdict.finding is None, f"seed {seed}: {verdict.finding}"
        assert (found := deaths.simulate(seed)) is None, f"seed {seed}: {found}"
        endings |= set(verdict.endings)
    assert endings >= {"completed", "cancelled", "MissedDeadlineTransient", "GeneralFailure"}


@pytest.mark.parametrize("seed", KEPT)
def test_past_findings_do_not_come_back(seed: int) -> None:
    assert play.found_by(seed) is None


def test_a_seed_says_the_same_twice() -> None:
    first, second = calls.simulate(7), calls.simulate(7)
    assert (first.trace, first.endings) == (second.trace, second.endings)
    assert first.trace != calls.simulate(8).trace


# -- the world itself


def _watched(seed: int) -> int:
    """How late an alarm goes off while threads are held up, without the time for which they are."""
    world = World(seed)
    rang: list[int] = []
    with inside(world) as loop:
        watchdog = Watchdog()

        async def wait() -> None:
            at_ns = world.now_ns + 10_000_000
            watchdog.arm(at_ns, lambda: rang.append(world.free_ns(at_ns)))
            await asyncio.sleep(0.5)

        world.faults = Faults(stalls=0.3, longest_stall_ns=9_000_000)
        loop.run_until_complete(wait())
        world.faults = Faults()
        watchdog.close()
    (late_ns,) = rang
    return late_ns


def test_a_watchdog_oversleeps_by_no_time_for_which_it_was_held_up() -> None:
    assert max(map(_watched, range(100))) < 100_000


def test_who_waits_for_what_never_comes_is_found() -> None:
    world = World(0)
    with inside(world), pytest.raises(Stuck, match="loop wait"):
        lock = Lock(world)
        lock.acquire()
        lock.acquire()


def test_a_world_ends_the_threads_that_are_left() -> None:
    world = World(0)
    with inside(world):
        lock = Lock(world)
        lock.acquire()
        thread = Thread(world, target=lock.acquire, daemon=True)
        thread.start()
    assert thread.really_join()


def test_a_world_ends_threads_that_wait_for_a_condition() -> None:
    world = World(0)
    with inside(world):
        changed = Condition(world)

        def wait() -> None:
            with changed:
                changed.wait()

        thread = Thread(world, target=wait, daemon=True)
        thread.start()
        world.wait(lambda: bool(changed._waiting))
    assert thread.really_join()


def test_a_world_ends_the_tasks_that_are_left() -> None:
    """Else the collector names them later, in whichever test it runs."""
    left: list[asyncio.Task[None]] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)

    async def broken_off() -> None:
        left.append(asyncio.create_task(wait()))
        await asyncio.sleep(0)
        left.append(asyncio.create_task(wait()))
        raise calls.Wrong("before the second one has begun")

    with inside(World(0)) as loop, pytest.raises(calls.Wrong):
        loop.run_until_complete(broken_off())
    assert [task.cancelled() for task in left] == [True, True]


def test_free_time_counts_no_time_twice() -> None:
    world = World(0)
    start_ns = world.now_ns
    world._held_up += [(start_ns + 5, start_ns + 20), (start_ns + 10, start_ns + 15)]
    world.now_ns += 30
    assert world.free_ns(start_ns) == 15
    assert world.free_ns(start_ns + 12) == 10


# -- faults that were once there, brought back: they are found within a thousand seeds


def _first(simulate: Callable[[int], str | None], promise: str) -> int:
    """The first seed that finds something, which breaks this promise."""
    for seed in range(MANY):
        if found := simulate(seed):
            assert promise in found
            return seed
    raise AssertionError(f"{MANY} seeds find nothing")


def _calls(seed: int) -> str | None:
    return calls.simulate(seed).finding


def test_a_second_death_that_ends_the_application_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def unguarded(network: Any, later: Callable[[], Awaitable[Any]]) -> None:
        better = await later()
        network()._improved(better.report, better.model)

    async def uncontained(work: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> None:
        await work(*args)

    monkeypatch.setattr(reviving, "bring_in", unguarded)
    monkeypatch.setattr(tasks, "_contained", uncontained)
    _first(deaths.simulate, "the application ends")


def test_a_thread_that_cannot_start_and_is_waited_for_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Crew.start

    def counted_first(self: Crew, priorities: tuple[Priority, ...]) -> None:
        """As a supervisor once did: what was to be started counts as under way."""
        under_way = Worker(priorities)
        self.workers.append(under_way)
        real(self, priorities)
        self.workers.remove(under_way)

    monkeypatch.setattr(Crew, "start", counted_first)
    _first(_calls, "tasks do not end")


def test_an_error_that_escapes_where_no_thread_starts_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bare(self: Crew, priorities: tuple[Priority, ...]) -> None:
        worker = Worker(priorities)
        worker.begin("worker", self._work, None)
        self.workers.append(worker)

    monkeypatch.setattr(Crew, "start", bare)
    _first(_calls, "can't start new thread")


def test_an_error_object_that_two_get_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fences, "fresh", lambda error: error)
    _first(_calls, "shared by two")
