"""Runs experiments: simulated points in turn or over processes, real ones one at a time.

Simulated points do not disturb each other, so each core may have one of its own: they are sent to
processes as JSON, and come back so. A real run has the machine for itself, as far as others let it:
real runs come in rounds, one repeat of every point in each, so that what changes with time changes
all points alike, and in the end those that others disturbed are run again. What is to be compared
with them is simulated after them, with overheads and costs of networks that were measured between
the rounds as well: nothing is compared that was seen at different times. Points that this does not
decide may have more rounds (`deciding`), after which they are simulated anew.
"""

from __future__ import annotations

import datetime
import itertools
import math
import platform
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import metadata
from typing import Literal

import anyio
import anyio.to_process
import anyio.to_thread
import msgspec
from msgspec.structs import replace

from nnasync._core.arguments import (
    check_choice,
    check_function,
    check_kind,
    check_whole,
    or_none,
)
from nnasync._core.child_process import leave_signals_to_parent
from nnasync.errors import GeneralFailure, NNError
from nnasync.experiments.deciding import confidence_of, looks, undecided
from nnasync.experiments.delays import Delays
from nnasync.experiments.delays_of_runs import delays_by_company
from nnasync.experiments.experiment import Experiment, Point, at_point
from nnasync.experiments.networks import MeasuredNetworks
from nnasync.experiments.overheads import (
    SAMPLES,
    Overheads,
    calibration_of_this_loop,
    overheads_of_this_loop,
)
from nnasync.experiments.real import run_real
from nnasync.experiments.record import Recording, RunResult
from nnasync.experiments.results import Machine, Results
from nnasync.experiments.run_of_point import Run
from nnasync.experiments.simulation import simulate
from nnasync.machine import CpuMeter, read_facts

How = Literal["simulate", "real", "both"]
Told = Callable[[int, int, Run], None]
"""Is told how many runs are done, of how many, and the last one."""
Kept = Callable[[Results], None]
"""Is given what there is of an experiment that ends early."""

TIMELINE_REQUESTS = 400
"""So many requests of the first repeat of a point are kept one by one."""


class Task(msgspec.Struct, frozen=True):
    """A run that is to be made: its point and repeat, and the costs of calls if it is simulated."""

    point: Point
    repeat: int
    overheads: Overheads | None = None


async def run(
    experiment: Experiment,
    how: How = "simulate",
    *,
    jobs: int = 1,
    on_run: Told | None = None,
    on_partial: Kept | None = None,
) -> Results:
    """Runs all points of an experiment, and returns the results.

    `jobs` is how many processes simulate; with 1 a thread of this process does. A program that
    asks for more is imported by those, so it must not run experiments when it is imported. Real
    runs follow, one at a time, on a runtime of this process; disturbed ones are run again, and the
    one that was disturbed least is kept. When this is cancelled, a run under way in a thread ends
    first. Where this is cancelled or fails and runs have ended before, `on_partial` is given these.

    Raises:
        ExperimentError: A point of the experiment is not legal, or cannot be run.
        InvalidArgument: It is no experiment, there is no such way to run it, or not one job.
        GeneralFailure: A process that simulates ended.
    """
    check_kind("experiment", experiment, Experiment, "an Experiment, as read_experiment gives it")
    check_choice("how", how, ("simulate", "real", "both"))
    check_whole("jobs", jobs, 1)
    or_none(check_function, "on_run", on_run, "a function of two numbers and a Run")
    or_none(check_function, "on_partial", on_partial, "a function of Results")
    began_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    began_s = time.perf_counter()
    done = _Done(on_run)

    def results(*, is_partial: bool) -> Results:
        return Results(
            experiment=experiment,
            machine=machine_here(),
            began_at=began_at,
            took_s=time.perf_counter() - began_s,
            runs=done.in_order(),
            is_partial=is_partial,
        )

    try:
        await _run_all(experiment, how, jobs, done)
    except BaseException:
        if on_partial is not None and done.in_order():
            on_partial(results(is_partial=True))
        raise
    return results(is_partial=False)


async def _run_all(experiment: Experiment, how: How, jobs: int, done: _Done) -> None:
    unmeasured = await anyio.to_thread.run_sync(experiment.points)
    networks = await MeasuredNetworks.of(unmeasured)
    points = await networks.points()
    rounds = experiment.real_repeats if how != "simulate" else 0
    done.expect(rounds * len(points))
    if how != "real":
        done.expect(sum(point.experiment.repeats for point in points))
    is_measured = any(point.experiment.overheads == "measured" for point in points)
    calibration = await calibration_of_this_loop() if how == "both" and is_measured else None

    async def between(rounds: int) -> None:
        if how == "both":
            await networks.measure_more()
        if calibration is not None:
            for _ in range(math.ceil(SAMPLES / (rounds + 1))):
                await calibration.measure()

    real = _Real(done, experiment.real_again, between)
    await real.run(points, range(rounds))

    async def simulate_them(which: Sequence[Point], least: int = 0) -> None:
        overheads = calibration.keep() if calibration is not None else None
        if overheads is None and is_measured:
            overheads = await overheads_of_this_loop()
        chosen = {point.index for point in which}
        known = [point for point in await networks.points() if point.index in chosen]
        runs = networks.runs()
        tasks = await anyio.to_thread.run_sync(_simulated, known, runs, overheads, least)
        await _simulate_all(tasks, jobs, done)

    if how != "real":
        await simulate_them(points)
    for before, after in itertools.pairwise(looks(experiment)) if how == "both" else ():
        open_still = undecided(
            points, done.in_order(), experiment.networks, confidence_of(experiment)
        )
        if not open_still:
            break
        done.expect(len(open_still) * (after - before))
        await real.run(open_still, range(before, after))
        # All of them anew, as what calls cost is known better now.
        done.expect(sum(max(point.experiment.repeats, after) for point in open_still))
        await simulate_them(open_still, after)


def _simulated(
    points: Sequence[Point],
    shared: Mapping[int, tuple[RunResult, ...]],
    measured: Overheads | None,
    least: int,
) -> list[Task]:
    """Returns the runs to simulate: at least so many repeats of each point.

    Points whose networks share cores get the delays that were seen while they did.
    """
    known: dict[int, tuple[Delays, ...]] = {}

    def overheads(point: Point) -> Overheads | None:
        if measured is None or point.experiment.overheads == "none":
            return None
        runs = shared.get(point.index)
        if runs is None:
            return measured
        if id(runs) not in known:
            known[id(runs)] = delays_by_company(runs, measured.call_ns)
        return replace(measured, beside=known[id(runs)])

    return [
        Task(point, repeat, overheads(point))
        for point in points
        for repeat in range(max(point.experiment.repeats, least))
    ]


class _Real:
    """Runs points for real, in rounds; disturbed ones are run `again` so many times.

    `between` is awaited before each round and after the last one, and told how many there are.
    """

    def __init__(self, done: _Done, again: int, between: Callable[[int], Awaitable[None]]) -> None:
        self._done = done
        self._again = again
        self._between = between

    async def run(self, points: Sequence[Point], repeats: range) -> None:
        """Runs these repeats of all these points."""
        if not points:
            return
        done = self._done
        tasks = [Task(point, repeat) for repeat in repeats for point in points]
        for task in tasks:
            if task.point is points[0]:
                await self._between(len(repeats))
            done.take(await run_task(task))
        await self._between(len(repeats))
        for attempt in range(self._again):
            disturbed = [task for task in tasks if done.run_of(task, "real").is_disturbed]
            done.expect(len(disturbed))
            for task in disturbed:
                done.take_calmer(await run_task(task), attempt + 2)


async def _simulate_all(tasks: list[Task], jobs: int, done: _Done) -> None:
    if jobs > 1 and len(tasks) > 1:
        try:
            await _simulate_in_processes(tasks, min(jobs, len(tasks)), done)
        except BaseExceptionGroup as group:
            raise _first(group) from None
        return
    for task in tasks:
        done.take(await anyio.to_thread.run_sync(simulate_task, task))


def simulate_task(task: Task) -> Run:
    """Simulates one run; blocks.

    Raises:
        ExperimentError: It cannot be run, or its policy failed; the message says at which point.
    """
    experiment = task.point.experiment
    began_s = time.perf_counter()
    try:
        result = simulate(
            experiment.workload(),
            cores=experiment.cores,
            policy=experiment.make_policy(),
            seed=experiment.seed + task.repeat,
            duration_ns=round(experiment.duration_s * 1e9),
            queue_limit=experiment.queue_limit,
            aging_ns=round(experiment.aging_ms * 1e6),
            overheads=task.overheads,
            record=_recording(task),
        )
    except NNError as error:
        raise at_point(error, task.point.values) from error
    return _run_of(task, result, time.perf_counter() - began_s)


async def run_task(task: Task) -> Run:
    """Makes one real run."""
    experiment = task.point.experiment
    began_s = time.perf_counter()
    meter = CpuMeter()
    result = await run_real(
        experiment.workload(),
        cores=experiment.cores,
        policy=experiment.make_policy(),
        seed=experiment.seed + task.repeat,
        duration_ns=round(experiment.duration_s * 1e9),
        queue_limit=experiment.queue_limit,
        aging_ns=round(experiment.aging_ms * 1e6),
        device=experiment.device,
        record=_recording(task),
    )
    made = _run_of(task, result, time.perf_counter() - began_s)
    busy = meter.read()
    return replace(made, others=busy.others, stolen=busy.stolen)


def machine_here() -> Machine:
    """Returns the description of this machine for the results."""
    facts = read_facts()
    version = metadata.version("nnasync")
    system = f"{facts.system} ({platform.machine()})"
    return Machine(system, facts.python, facts.processor, facts.cores, version)


def _recording(task: Task) -> Recording:
    """Returns what to record: of the first repeat, an excerpt for the timeline, too."""
    return Recording(timeline_requests=TIMELINE_REQUESTS if task.repeat == 0 else 0)


def _run_of(task: Task, result: RunResult, took_s: float) -> Run:
    if task.repeat:
        result = replace(result, queue=())
    return Run(task.point.index, task.point.values, task.repeat, took_s, result)


class _Done:
    """Runs by kind, point and repeat, as they end, in any order."""

    def __init__(self, on_run: Told | None) -> None:
        self._ended = self._count = 0
        self._on_run = on_run
        self._runs: dict[tuple[str, int, int], Run] = {}

    def expect(self, more: int) -> None:
        """Notes that so many more runs are to come."""
        self._count += more

    def run_of(self, task: Task, kind: str) -> Run:
        """Returns the run of a task that has ended."""
        return self._runs[kind, task.point.index, task.repeat]

    def take(self, run: Run) -> None:
        """Keeps a run that has ended, and reports it."""
        self._runs[_place(run)] = run
        self._ended += 1
        if self._on_run is not None:
            self._on_run(self._ended, self._count, run)

    def take_calmer(self, run: Run, attempts: int) -> None:
        """Keeps the less disturbed one of a run and its repetition."""
        calmer = min(self._runs[_place(run)], run, key=lambda each: each.disturbance)
        self.take(replace(calmer, attempts=attempts))

    def in_order(self) -> tuple[Run, ...]:
        """Returns all runs by point, then by repeat, with the simulated ones first."""
        places = sorted(self._runs, key=lambda place: (place[0] == "real", *place[1:]))
        return tuple(self._runs[place] for place in places)


def _place(run: Run) -> tuple[str, int, int]:
    return run.result.kind, run.point, run.repeat


async def _simulate_in_processes(tasks: list[Task], jobs: int, done: _Done) -> None:
    """Simulates all tasks, `jobs` at once; ends its processes when cancelled."""
    limiter = anyio.CapacityLimiter(jobs)
    waiting = iter(tasks)

    async def work() -> None:
        for task in waiting:
            encoded = msgspec.json.encode(task)
            answer = await anyio.to_process.run_sync(
                _simulate_encoded, encoded, cancellable=True, limiter=limiter
            )
            done.take(msgspec.json.decode(answer, type=Run))

    async with anyio.create_task_group() as group:
        for _ in range(jobs):
            group.start_soon(work)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Returns the error of the first task that failed; one of ours if its process ended."""
    error = group.exceptions[0]
    if isinstance(error, anyio.BrokenWorkerProcess):
        return GeneralFailure("a process that simulated ended before its answer")
    return error


def _simulate_encoded(task: bytes) -> bytes:
    leave_signals_to_parent()
    return msgspec.json.encode(simulate_task(msgspec.json.decode(task, type=Task)))
