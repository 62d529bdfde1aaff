"""Experiments run: the same over threads and processes, in order, cancellable, told of."""

from __future__ import annotations

import signal

import anyio
import anyio.to_process
import msgspec
import pytest
from msgspec.structs import replace

from nnasync.errors import ExperimentError, GeneralFailure
from nnasync.experiments import Experiment, Results, Run, run, running
from nnasync.experiments.overheads import Calibration
from nnasync.experiments.running import TIMELINE_REQUESTS
from nnasync.scheduler import Job
from nnasync.scheduler.policies import BUILT_IN, FirstComeFirstServed
from tests.experiments.rigs import WORKLOAD, served

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop("threads and processes do the work; loops only wait for them"),
]

EXPERIMENT = Experiment(
    streams=WORKLOAD.streams,
    cores=2,
    duration_s=1.0,
    repeats=2,
    overheads="none",
    sweep={"policy": ["fifo", "default"]},
)


def untimed(results: Results) -> list[bytes]:
    return [msgspec.json.encode(replace(each, took_s=0.0)) for each in results.runs]


async def test_runs_come_in_the_order_of_points_and_repeats() -> None:
    told: list[tuple[int, int, Run]] = []
    results = await run(EXPERIMENT, on_run=lambda *progress: told.append(progress))
    assert [(each.point, each.repeat) for each in results.runs] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [each.result.policy for each in results.runs[1:3]] == ["fifo", "default"]
    assert [each.result.seed for each in results.runs] == [0, 1, 0, 1]
    assert [(done, count) for done, count, _ in told] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert [last for _, _, last in told] == list(results.runs)
    assert results.machine.cores >= 1


async def test_the_same_seed_gives_the_same_requests_to_every_policy() -> None:
    results = await run(EXPERIMENT)
    submitted = [[s.submitted for s in each.result.streams] for each in results.runs]
    assert submitted[0] == submitted[2]
    assert submitted[0] != submitted[1]


async def test_an_excerpt_is_kept_of_the_first_repeat() -> None:
    results = await run(replace(EXPERIMENT, duration_s=4.0, sweep={}))
    first, second = results.runs
    assert len(first.result.requests) == TIMELINE_REQUESTS
    assert first.result.spans
    assert first.result.queue
    assert (second.result.requests, second.result.queue) == ((), ())


async def test_processes_give_the_same_as_this_one() -> None:
    results = await run(EXPERIMENT, jobs=2)
    assert untimed(results) == untimed(await run(EXPERIMENT))


async def test_what_is_wrong_with_a_point_is_told_from_processes_too() -> None:
    experiment = replace(EXPERIMENT, sweep={"cores": [1, 0]})
    with pytest.raises(ExperimentError, match="where cores = 0"):
        await run(experiment, jobs=2)


class Forgetful(FirstComeFirstServed):
    """A policy that fails when it is asked who is next."""

    name = "forgetful"

    def next(self, now_ns: int) -> Job | None:
        raise KeyError("who was it")


async def test_a_policy_that_fails_is_told_with_its_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILT_IN, "forgetful", Forgetful)
    experiment = replace(EXPERIMENT, sweep={"policy": ["fifo", "forgetful"]})
    with pytest.raises(ExperimentError, match=r"who was it.*where policy = forgetful"):
        await run(experiment)


async def test_a_process_that_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*args: object, **options: object) -> None:
        raise anyio.BrokenWorkerProcess

    monkeypatch.setattr(anyio.to_process, "run_sync", broken)
    with pytest.raises(GeneralFailure, match="a process that simulated ended"):
        await run(EXPERIMENT, jobs=2)


def simulate_and_be_told_to_end(task: bytes) -> bytes:
    answer = running._simulate_encoded(task)
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
    return answer


async def test_signals_to_the_whole_group_leave_the_processes_to_this_one() -> None:
    task = msgspec.json.encode(running.Task(EXPERIMENT.points()[0], 0))
    assert await anyio.to_process.run_sync(simulate_and_be_told_to_end, task)


async def test_cancelling_ends_the_processes() -> None:
    long = replace(EXPERIMENT, duration_s=100_000.0, repeats=1)
    with anyio.move_on_after(1.0) as scope:
        await run(long, jobs=2)
    assert scope.cancelled_caught


async def test_what_had_ended_is_kept_where_it_is_cancelled() -> None:
    kept: list[Results] = []
    with anyio.CancelScope() as scope:

        def cancel(done: int, count: int, last: Run) -> None:
            if done == 3:
                scope.cancel()

        await run(EXPERIMENT, on_run=cancel, on_partial=kept.append)
    (results,) = kept
    assert [(each.point, each.repeat) for each in results.runs] == [(0, 0), (0, 1), (1, 0)]
    assert results.is_partial
    assert results.remarks()[0].startswith("The experiment ended early: these are the 3 runs")


async def test_nothing_is_kept_where_no_run_had_ended() -> None:
    kept: list[Results] = []
    with pytest.raises(ExperimentError):
        await run(replace(EXPERIMENT, sweep={"cores": [0, 1]}), on_partial=kept.append)
    assert kept == []


async def test_real_runs_have_the_requests_of_simulated_ones() -> None:
    experiment = replace(EXPERIMENT, duration_s=0.3, repeats=2, real_repeats=1)
    results = await run(experiment, "both")
    kinds = [(each.result.kind, each.point, each.repeat) for each in results.runs]
    assert kinds == [
        *(("simulated", point, repeat) for point in (0, 1) for repeat in (0, 1)),
        *(("real", point, 0) for point in (0, 1)),
    ]
    simulated, real = results.runs[0], results.runs[4]
    planned = [
        {(row.stream, row.arrived_ns) for row in each.result.requests} for each in (simulated, real)
    ]
    assert planned[1] <= planned[0]
    assert planned[1]
    assert real.result.policy == "fifo"
    assert 0 <= real.others <= 1
    assert {error.point for error in results.fidelity()} == {0, 1}


async def test_calls_cost_something_where_that_is_measured() -> None:
    ideal = await run(replace(EXPERIMENT, sweep={}, repeats=1))
    measured = await run(replace(EXPERIMENT, sweep={}, repeats=1, overheads="measured"))
    latencies = [each.runs[0].result.streams[0].latency for each in (ideal, measured)]
    assert latencies[0].least_ns < latencies[1].least_ns


async def test_real_runs_alone() -> None:
    results = await run(replace(EXPERIMENT, duration_s=0.2, sweep={}), "real")
    assert [each.result.kind for each in results.runs] == ["real"]
    assert results.fidelity() == ()


async def test_disturbed_runs_are_run_again_and_the_calmest_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second repeat of the first point is disturbed twice, all of the second one once."""
    others = {(0, 1): [0.3, 0.2, 0.0], (1, 0): [0.4, 0.0], (1, 1): [0.5, 0.01]}
    order: list[tuple[int, int]] = []

    async def run_once(task: running.Task) -> Run:
        place = task.point.index, task.repeat
        order.append(place)
        left = others.get(place, [0.0])
        result = served("real", seed=task.repeat)
        return Run(task.point.index, task.point.values, task.repeat, 0.1, result, left.pop(0))

    monkeypatch.setattr(running, "run_task", run_once)
    told: list[tuple[int, int]] = []
    experiment = replace(EXPERIMENT, real_repeats=2)
    results = await run(experiment, "real", on_run=lambda done, of, _: told.append((done, of)))
    assert order == [(0, 0), (1, 0), (0, 1), (1, 1), (1, 0), (0, 1), (1, 1)]
    assert told[-1] == (7, 7)
    assert [(each.others, each.attempts) for each in results.runs] == [
        (0.0, 1),
        (0.2, 2),
        (0.0, 2),
        (0.01, 2),
    ]
    assert "3 of 4 real runs were repeated" in results.disturbance()
    assert "1 that others disturbed are left out." in results.disturbance()
    assert {each.repeats for each in results.figures()} == {1, 2}


async def test_points_that_are_not_decided_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real runs of the first point are as simulated, of the second now quicker, now slower."""

    async def run_once(task: running.Task) -> Run:
        slower = 1.0 if task.point.index == 0 else (0.7, 1.4)[task.repeat % 2]
        result = served("real", seed=task.repeat, slower=slower)
        return Run(task.point.index, task.point.values, task.repeat, 0.1, result)

    def simulated_once(task: running.Task) -> Run:
        result = served(seed=task.repeat)
        return Run(task.point.index, task.point.values, task.repeat, 0.1, result)

    monkeypatch.setattr(running, "run_task", run_once)
    monkeypatch.setattr(running, "simulate_task", simulated_once)
    told: list[tuple[int, int]] = []
    experiment = replace(
        EXPERIMENT, streams=WORKLOAD.streams, repeats=3, real_repeats=2, real_most=6
    )
    results = await run(experiment, "both", on_run=lambda done, of, _: told.append((done, of)))
    repeats = {kind: [0, 0] for kind in ("real", "simulated")}
    for each in results.runs:
        repeats[each.result.kind][each.point] += 1
    assert repeats == {"real": [2, 6], "simulated": [3, 6]}
    assert told[-1][0] == told[-1][1]
    assert {each.point: each.pairs for each in results.fidelity()} == {0: 2, 1: 6}


async def test_overheads_are_measured_between_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    async def run_once(task: running.Task) -> Run:
        told.append(f"{task.point.index}.{task.repeat}")
        return Run(task.point.index, task.point.values, task.repeat, 0.1, served("real"))

    async def measured(self: Calibration) -> None:
        told.append("measured")
        self._called_ns.append(50_000)

    monkeypatch.setattr(running, "run_task", run_once)
    monkeypatch.setattr(Calibration, "measure", measured)
    experiment = replace(EXPERIMENT, overheads="measured", repeats=1, real_repeats=2)
    results = await run(experiment, "both", on_run=lambda *_: None)
    often = ["measured"] * 2
    assert told == [*often, "0.0", "1.0", *often, "0.1", "1.1", *often]
    kinds = [(each.result.kind, each.point, each.repeat) for each in results.runs]
    assert kinds[:3] == [("simulated", 0, 0), ("simulated", 1, 0), ("real", 0, 0)]
