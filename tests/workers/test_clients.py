"""Clients of one set of workers: turns between them, priorities inside each."""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable

import pytest

from nnasync._core.clock import now_ns
from nnasync._core.workers import Call, Given, StopFlag, Task
from nnasync._core.workers.admission import RUN, WORKER, Admission
from nnasync._core.workers.inline import InlineLane
from nnasync._core.workers.running import Load, Running
from nnasync.errors import DeviceUnavailable, Refused, ResourceExhaustedTransient
from nnasync.fences import Fence
from nnasync.hal import Priority
from nnasync.machine.decisions import decide
from nnasync.scheduler import NEVER_NS, Estimate, Job, Scheduler
from nnasync.tracing import Tracer
from tests.workers.steering import (
    HIGH,
    LOW,
    MEDIUM,
    MS,
    PATIENCE_S,
    Rig,
    Steps,
    released,
    until,
    wait,
)

pytestmark = pytest.mark.usefixtures("no_leaks")

MINUTE_NS = 60 * 10**9


def submit(rig: Rig, client: int, call: Call, priority: Priority = MEDIUM) -> Task:
    task = rig.task(call, priority)
    task.client = client
    rig.workers.submit(task)
    return task


def clients(rig: Rig, count: int = 2) -> list[int]:
    return [rig.workers.open_client(queue_limit=10_000) for _ in range(count)]


@pytest.mark.parametrize("cores", [1, 2])
def test_low_of_one_client_gets_its_turn_beside_high_of_another(
    rigs: Callable[..., Rig], cores: int
) -> None:
    """Aging is not what brings it: that takes seconds, and nothing here takes any time."""
    rig = rigs(cores)
    busy, patient = clients(rig)
    flood = [Steps() for _ in range(5 * cores)]
    urgent = [submit(rig, busy, call, HIGH) for call in flood]
    for call in flood[:cores]:
        call.reached()
    modest = Steps()
    low = submit(rig, patient, modest, LOW)
    assert modest.runs == 0
    flood[0].permit()
    wait(urgent[0])
    modest.reached()
    assert sum(call.runs for call in flood) == cores
    modest.permit()
    wait(low)
    for call in flood:
        call.permit()
    for task in urgent:
        wait(task)


def test_low_within_its_share_is_not_preempted_by_high_of_another(
    rigs: Callable[..., Rig],
) -> None:
    rig = rigs(1)
    ahead, behind = clients(rig)
    before = Steps()
    first = submit(rig, ahead, before, HIGH)
    before.reached()
    rig.workers.spent(ahead, MINUTE_NS)
    steady = Steps(2)
    low = submit(rig, behind, steady, LOW)
    before.permit()
    wait(first)
    steady.reached(0)
    urgent = Steps(permits=1)
    high = submit(rig, ahead, urgent, HIGH)
    assert not low.stop.raised
    steady.permit(2)
    wait(low)
    wait(high)
    assert steady.runs == 1


def test_who_is_behind_preempts_low_of_who_is_ahead(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    ahead, behind = clients(rig)
    rig.workers.spent(ahead, MS)
    long = Steps(2, permits=0)
    low = submit(rig, ahead, long, LOW)
    long.reached(0)
    short = Steps(permits=1)
    medium = submit(rig, behind, short, MEDIUM)
    wait(medium)
    assert not low.fence.done
    long.permit(2)
    wait(low)
    assert long.runs == 2


def test_a_client_beyond_its_share_waits_in_the_queue(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    ahead, behind = clients(rig)
    known = Estimate()
    known.observe(1)
    lane = rig.workers.inline
    rig.workers.spent(ahead, MS)
    assert lane.admission(MEDIUM, known, NEVER_NS, ahead) is RUN
    running = Steps()
    first = submit(rig, behind, running)
    running.reached()
    assert lane.admission(MEDIUM, known, NEVER_NS, ahead) is WORKER
    assert lane.admission(MEDIUM, known, NEVER_NS, behind) is WORKER
    running.permit()
    wait(first)
    until(lambda: not rig.workers.statistics().running)
    assert lane.admission(MEDIUM, known, NEVER_NS, ahead) is RUN


def test_who_had_more_than_another_that_waits_does_not_pass_the_queue() -> None:
    scheduler = Scheduler(servers=1, queue_limit=1)
    lane = InlineLane(
        scheduler,
        threading.Lock(),
        Tracer(),
        decide(None, MS),
        inline_budget_ns=MS,
        stall_budget_ns=MS,
        servers=1,
        on_workers=Running(),
        load=lambda priority: Load(0, [], 0.0, is_company=False),
    )
    mine, other = (scheduler.open_client(queue_limit=1) for _ in range(2))
    known = Estimate()
    known.observe(1)
    scheduler.spent(mine, MS)
    scheduler.submit(Job(LOW, Estimate(), client=other), 0)
    found = [lane.admission(HIGH, known, NEVER_NS, client) for client in (mine, other, 0)]
    assert found == [WORKER, RUN, RUN]


def test_inline_runs_count_to_the_share_and_to_the_cores(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    mine, other = clients(rig)
    known = Estimate()
    known.observe(1)
    inside: list[Admission] = []

    class Looks:
        def run(self, stop: StopFlag, given: Given = None) -> bool:
            inside.append(rig.workers.inline.admission(MEDIUM, known, NEVER_NS, other))
            return True

        def rewind(self) -> None:
            raise AssertionError

    rig.workers.inline.run_for(mine, Looks(), Estimate(), NEVER_NS, "it")
    assert inside == [WORKER]
    assert rig.workers.inline.admission(MEDIUM, known, NEVER_NS, other) is RUN
    gate = Steps()
    holds = submit(rig, 0, gate)
    gate.reached()
    calls = [Steps(permits=1) for _ in range(2)]
    order: list[int] = []
    tasks = [submit(rig, client, call) for client, call in zip((mine, other), calls, strict=True)]
    for client, task in zip((mine, other), tasks, strict=True):
        task.fence.add_callback(functools.partial(_note, order, client))
    gate.permit()
    for task in (holds, *tasks):
        wait(task)
    assert order == [other, mine]


def test_a_clients_queue_is_limited_and_ends_with_it(rigs: Callable[..., Rig]) -> None:
    rig = rigs(1)
    small = rig.workers.open_client(queue_limit=1)
    gate = Steps()
    holds = submit(rig, 0, gate)
    gate.reached()
    first = submit(rig, small, Steps(permits=1))
    with pytest.raises(ResourceExhaustedTransient):
        submit(rig, small, Steps())
    rig.workers.close_client(small)
    with pytest.raises(DeviceUnavailable):
        submit(rig, small, Steps())
    gate.permit()
    wait(holds)
    wait(first)


def _note(order: list[int], client: int, _: Fence) -> None:
    order.append(client)


class Counts:
    """A call of many short steps, which nothing holds up."""

    def __init__(self, steps: int) -> None:
        self.left = self.steps = steps

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        while self.left:
            if stop.raised:
                return False
            self.left -= 1
        self.left = self.steps
        return True

    def rewind(self) -> None:
        self.left = self.steps


@pytest.mark.parametrize(("cores", "seed"), [(1, 0), (2, 1), (2, 2), (3, 3)])
def test_nothing_is_forgotten(rigs: Callable[..., Rig], cores: int, seed: int) -> None:
    """Whatever several threads submit and cancel for several clients, all of it is answered."""
    rig = rigs(cores)
    numbers = [0, *clients(rig, 3)]
    tasks: list[Task] = []
    estimates = [Estimate() for _ in range(6)]

    def load(seed: int) -> None:
        random_ = random.Random(seed)
        for _ in range(300):
            task = Task(
                Counts(random_.randrange(1, 2000)),
                random_.choice([LOW, MEDIUM, HIGH]),
                random_.choice(estimates),
                now_ns() + random_.randrange(1, 50 * MS) if random_.random() < 0.1 else NEVER_NS,
                "it",
            )
            task.client = random_.choice(numbers)
            tasks.append(task)
            try:
                rig.workers.submit(task)
            except Refused as error:  # its deadline cannot be met, or the queue is full
                task.fence.fail(error)
                task.release()
            if random_.random() < 0.1:
                rig.workers.abandon(random_.choice(tasks))
            if random_.random() < 0.05:
                released(task).wait_blocking(PATIENCE_S)

    threads = [threading.Thread(target=load, args=(10 * seed + each,)) for each in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    for task in tasks:
        released(task).wait_blocking(PATIENCE_S)
        assert task.fence.done
    until(lambda: not rig.workers.statistics().running)
    assert rig.workers.statistics().scheduler.queued == (0, 0, 0)
