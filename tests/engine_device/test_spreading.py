"""Calls that come together are spread over the cores, and one that comes alone is not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from nnasync._core.clock import now_ns
from nnasync._core.drivers.null import NullEngine
from nnasync._core.plans.guarded import Health
from nnasync._core.wakeup import Wakeup
from nnasync._core.workers.admission import Company
from nnasync.errors import GeneralFailure
from nnasync.hal import Array, ExecutionConfig, ExecutionResult
from nnasync.scheduler import NEVER_NS
from tests.engine_device.rig import Rig, Row, doubled, null, reached
from tests.rigs import set_free

pytestmark = pytest.mark.anyio

Rigs = Callable[..., Rig]
SHORT_NS = 100.0
LONG_NS = 400_000.0
"""Of a run that is spread over the cores if others come, and yet may run on the loop's thread."""
TOO_LONG_NS = 1e12


def pin(prepared: Any, run_ns: float = LONG_NS) -> None:
    """Have its runs taken for that long, whatever they took."""
    estimate = prepared.estimate
    estimate.samples, estimate.alone_ns = 100, 0.0
    estimate.ns = estimate.best_ns = estimate.floor_ns = estimate.high_ns = run_ns


def have_company(rig: Rig) -> None:
    """From now on others usually come while a call of this loop runs."""
    for _ in range(100):
        rig.workers.turns.here.company.note(has_others=True)


async def pinned(
    rigs: Rigs, compute: Callable[[Any], list[Array]] = doubled
) -> tuple[Rig, Any, Row]:
    """Two cores, a prepared model whose runs are long, and memory for one of them."""
    rig = rigs(NullEngine(compute=compute), cores=2)
    prepared = await rig.prepare()
    pin(prepared)
    return rig, prepared, Row()


@pytest.mark.parametrize("path", ["alone", "company"])
async def test_the_first_of_several_goes_to_another_core(rigs: Rigs, path: str) -> None:
    """Where others usually come while one runs, it leaves the thread of the loop to them."""
    threads: list[str] = []

    def noted(inputs: Any) -> list[Array]:
        threads.append(threading.current_thread().name)
        return doubled(inputs)

    rig, prepared, row = await pinned(rigs, noted)
    if path == "company":
        have_company(rig)
    await rig.workers.turns.next()
    await prepared.execute_synchronously(row.request)
    assert row.is_right
    here = threading.current_thread().name
    assert [name == here for name in threads] == [path == "alone"]


@pytest.mark.one_loop("On trio all calls go the longer way.")
async def test_a_long_plain_call_is_quick_as_long_as_it_is_alone(rigs: Rigs) -> None:
    rig, prepared, row = await pinned(rigs)
    run = prepared.quick_run(row.request)
    assert run is not None
    here = rig.workers.turns.here
    await rig.workers.turns.next()
    assert run.run(None, NEVER_NS)
    assert row.is_right
    pin(prepared)
    assert run.run(None, NEVER_NS), "the same task calls again"
    await rig.workers.turns.next()
    here.spent_ns, here.first = 1.0, id(here)
    pin(prepared)
    assert not run.run(None, NEVER_NS), "another task has run in this turn: it is to be weighed"
    await rig.workers.turns.next()
    have_company(rig)
    assert not run.run(None, NEVER_NS), "others usually come"
    here.company = Company()
    pin(prepared)
    prepared.estimate.high_ns = TOO_LONG_NS
    assert not run.run(None, NEVER_NS), "it held the loop up too often"
    pin(prepared)
    await rig.workers.turns.next()
    assert run.run(None, NEVER_NS)
    await prepared.close()
    assert not run.run(None, NEVER_NS)


async def test_a_call_that_a_lagging_loop_would_hear_of_too_late_runs_on_its_thread(
    rigs: Rigs,
) -> None:
    rig, prepared, row = await pinned(rigs)
    hour_ns = 3600 * 10**9

    def asked() -> ExecutionResult | None:
        pin(prepared)
        config = ExecutionConfig(deadline_ns=now_ns() + hour_ns)
        found: ExecutionResult | None = prepared.run_now(row.request, config)
        return found

    have_company(rig)
    assert asked() is None, "a worker is sooner"
    lag = Wakeup.current().lag
    for _ in range(3):
        lag.observe(2 * hour_ns, now_ns())
    assert asked() is not None
    assert row.is_right
    await prepared.close()


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_on_trio_workers_take_all_that_goes_beside(rigs: Rigs) -> None:
    """No thread of its loop takes a share, so no core is left to that."""
    engine = null(gated=True)
    rig = rigs(engine, cores=2)
    prepared, rows = await rig.prepare(), [Row(), Row()]

    async def beside(row: Row) -> None:
        await prepared.execute_beside(row.request)

    async with anyio.create_task_group() as tasks:
        for row in rows:
            tasks.start_soon(beside, row)
        await reached(engine, lambda counters: counters.waiting == 2)
        set_free(engine)
    assert all(row.is_right for row in rows)
    await prepared.close()


@pytest.mark.parametrize("suspects", [None, False, True])
@pytest.mark.one_loop("On trio no thread of a loop takes any.")
async def test_what_failed_beside_others_is_repeated_where_something_stands_by(
    rigs: Rigs, suspects: bool | None
) -> None:
    runs = list[str]()

    def fails_once(inputs: Any) -> list[Array]:
        runs.append(threading.current_thread().name)
        if len(runs) == 1:
            raise GeneralFailure("out of order")
        return doubled(inputs)

    rig = rigs(NullEngine(compute=fails_once), cores=2)
    prepared, row = await rig.prepare(), Row()
    if suspects is not None:
        prepared._health = Health()
        if suspects:
            prepared._health.doubted(GeneralFailure("out of order"))
    if suspects:
        await prepared.execute_beside(row.request)
        assert row.is_right
        assert len(runs) == 2
        assert runs[1] != threading.current_thread().name
    else:
        with pytest.raises(GeneralFailure, match="out of order"):
            await prepared.execute_beside(row.request)
        assert len(runs) == 1
    await prepared.close()


async def test_a_task_is_let_go_after_its_last_call(rigs: Rigs) -> None:
    rig, prepared, row = await pinned(rigs)
    here = rig.workers.turns.here

    class Caller:
        async def call(self) -> None:
            pin(prepared)
            await prepared.execute_synchronously(row.request)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Caller().call)
    assert row.is_right
    held = [getattr(here, name) for name in here.__slots__]
    assert not any(isinstance(each, asyncio.Task) for each in held)
    await prepared.close()


@pytest.mark.one_loop("On trio all calls go the longer way.")
async def test_plain_calls_in_company_take_their_places_in_the_queue(rigs: Rigs) -> None:
    rig, prepared, _ = await pinned(rigs)
    rows, lane = [Row(n, n, n, n) for n in range(6)], rig.workers.inline
    run = prepared.quick_run(rows[0].request)
    assert run is not None
    assert not run.goes_beside(), "nothing is beside it"
    lane.beside = 1
    assert not run.goes_beside(), "nothing usually is"
    have_company(rig)
    assert run.goes_beside()
    pin(prepared, SHORT_NS)
    assert not run.goes_beside(), "it is shorter than a hop"
    pin(prepared)
    assert run.goes_beside()
    lane.beside = 0

    async def beside(row: Row) -> None:
        await run.run_beside(row.request)

    async with anyio.create_task_group() as group:
        for row in rows:
            group.start_soon(beside, row)
    assert all(row.is_right for row in rows)
    assert lane.beside == 0
    counts = rig.workers.statistics()
    assert counts.inline_runs + counts.worker_runs == len(rows)


@pytest.mark.one_loop("On trio all calls go the longer way.")
async def test_a_plain_call_that_must_not_hold_up_the_loop_is_for_workers_alone(
    rigs: Rigs,
) -> None:
    threads = list[str]()

    def noted(inputs: Any) -> list[Array]:
        threads.append(threading.current_thread().name)
        return doubled(inputs)

    rig, prepared, _ = await pinned(rigs, noted)
    rows, lane = [Row(n, n, n, n) for n in range(6)], rig.workers.inline
    run = prepared.quick_run(rows[0].request)
    assert run is not None
    pin(prepared, TOO_LONG_NS)
    here, beside = threading.current_thread().name, list[int]()

    async def elsewhere(row: Row) -> None:
        assert run.goes_beside()
        await run.run_beside(row.request)
        beside.append(lane.beside)

    for company in (False, True):
        if company:
            have_company(rig)
        async with anyio.create_task_group() as group:
            for row in rows:
                group.start_soon(elsewhere, row)
        pin(prepared, TOO_LONG_NS)
    assert all(row.is_right for row in rows)
    assert len(threads) == len(beside) == 2 * len(rows)
    assert here not in threads
    assert not any(beside), "none of them might as well run on the thread of the loop"
    await prepared.close()
    assert not run.goes_beside()


@pytest.mark.one_loop("On trio all calls go the longer way.")
async def test_what_nobody_has_measured_is_not_taken_for_long(rigs: Rigs) -> None:
    rig = rigs(NullEngine(compute=doubled), cores=2)
    prepared = await rig.prepare()
    run = prepared.quick_run(Row().request)
    assert run is not None
    prepared.estimate.samples = 0
    assert run.goes_beside(), "a worker is first"
    assert prepared.estimate.holds_loop
    await prepared.close()


@pytest.mark.one_loop("On trio all calls go the longer way.")
async def test_a_call_between_two_others_goes_their_way_until_none_come(rigs: Rigs) -> None:
    rig, prepared, row = await pinned(rigs)
    run = prepared.quick_run(row.request)
    assert run is not None
    have_company(rig)
    asked = [run.goes_beside() for _ in range(100)]
    assert asked[0], "others usually come"
    assert not asked[-1], "nobody has come for long"


@pytest.mark.one_loop("On trio all calls go the longer way.")
async def test_nothing_is_queued_beside_others_where_one_after_the_other_is_better(
    rigs: Rigs,
) -> None:
    rig, prepared, row = await pinned(rigs)
    run, estimate = prepared.quick_run(row.request), prepared.estimate
    assert run is not None
    have_company(rig)
    rig.workers.inline.beside = 1
    estimate.alone_ns, estimate.beside_ns, estimate.worker_ns = 4e5, 1e6, 1e6
    assert not run.goes_beside()
    estimate.beside_ns = estimate.worker_ns = 4e5
    assert not run.goes_beside(), "that is not weighed each time"
    estimate.samples += 8
    assert run.goes_beside()


@pytest.mark.one_loop("On trio all calls go the longer way.")
async def test_calls_in_company_that_are_better_one_after_the_other_run_at_once(
    rigs: Rigs,
) -> None:
    rig, prepared, row = await pinned(rigs)
    run, estimate = prepared.quick_run(row.request), prepared.estimate
    here = rig.workers.turns.here
    assert run is not None
    have_company(rig)
    assert not run.run(None, NEVER_NS), "side by side is better, as far as anybody knows"
    estimate.alone_ns, estimate.beside_ns, estimate.worker_ns = 4e5, 1e6, 1e6
    estimate.samples += 8
    assert not run.run(None, NEVER_NS), "that is weighed where calls go beside others"
    assert not run.goes_beside()
    assert run.run(None, NEVER_NS)
    assert row.is_right
    assert (here.is_shared, estimate.is_beside) == (False, False)
    here.turned(here.number)
    pin(prepared)
    estimate.alone_ns, estimate.samples = 4e6, estimate.weighed_at + 8
    assert not run.run(None, NEVER_NS), "it is weighed again"
    assert here.is_shared


@pytest.mark.one_loop("It counts the tasks of a turn of asyncio.")
async def test_those_that_ran_in_a_turn_count_as_others(rigs: Rigs) -> None:
    rig, _, _ = await pinned(rigs)
    here, counted = rig.workers.turns.here, list[float]()

    async def one() -> None:
        here.company = Company()
        here.arrive(id(asyncio.current_task()), others_run=False)
        here.spend(1.0)
        counted.append(here.company.others)

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(one())
    assert counted == [0, 1, 2]


@pytest.mark.one_loop("It counts the tasks of a turn of asyncio.")
async def test_a_task_that_ran_several_times_in_a_turn_is_one_of_the_others(rigs: Rigs) -> None:
    rig, _, _ = await pinned(rigs)
    here, counted = rig.workers.turns.here, list[float]()

    async def calls(number: int) -> None:
        for _ in range(number):
            here.company = Company()
            here.arrive(id(asyncio.current_task()), others_run=False)
            here.spend(1.0)
            counted.append(here.company.others)

    async with asyncio.TaskGroup() as group:
        for number in (1, 3, 1):
            group.create_task(calls(number))
    assert counted == [0, 1, 1, 1, 2]
