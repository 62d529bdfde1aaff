"""Workers are nicer than the loop, but not beside programs that keep the cores busy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from nnasync._core.workers import neighbors
from nnasync._core.workers.neighbors import Niceness
from nnasync.hal import Priority
from nnasync.machine import Busy
from tests.workers.steering import HIGH, LOW, MEDIUM, Rig, Steps, until

pytestmark = pytest.mark.usefixtures("no_leaks")

ALONE = Busy(machine=1.0, process=1.0, cores=2)
CROWDED = Busy(machine=1.0, process=0.5, cores=2)
each_priority = pytest.mark.parametrize("priority", [HIGH, MEDIUM, LOW])


class Rule:
    """The rule, told the same several times."""

    def __init__(self) -> None:
        self.niceness = Niceness(is_wanted=True)

    def after(self, busy: Busy, looks: int) -> bool:
        for _ in range(looks):
            self.niceness.note(busy)
        return self.niceness.is_greater


def test_it_takes_two_crowded_looks_and_ten_calm_ones() -> None:
    rule = Rule()
    assert rule.niceness.is_greater
    assert rule.after(CROWDED, 1)
    assert rule.after(ALONE, 1)
    assert not rule.after(CROWDED, 2)
    assert not rule.after(ALONE, 9)
    assert not rule.after(CROWDED, 1)
    assert not rule.after(ALONE, 9)
    assert rule.after(ALONE, 1)
    assert not rule.after(CROWDED, 2), "it is seen as soon each time"


@pytest.mark.parametrize(
    "busy",
    [
        Busy(machine=0.8, process=0.1, cores=2),
        Busy(machine=1.0, process=0.9, cores=2),
        Busy(machine=1.0, process=0.5, cores=2, stolen=0.5),
    ],
    ids=["there is room", "they take little", "it is the hypervisor"],
)
def test_what_is_no_crowd(busy: Busy) -> None:
    assert Rule().after(busy, 10)


def test_other_processes_of_the_application_are_no_crowd() -> None:
    rule = Rule().niceness
    for _ in range(10):
        rule.note(CROWDED, kin_cores=0.9)
    assert rule.is_greater
    for _ in range(2):
        rule.note(CROWDED, kin_cores=0.7)
    assert not rule.is_greater


def test_where_it_is_not_wanted_nobody_is_nicer() -> None:
    assert not Niceness(is_wanted=False).is_greater


@dataclass
class Meter:
    """In place of the machine's."""

    busy: Busy = ALONE
    looks: int = 0

    def lap(self) -> Busy:
        self.looks += 1
        return self.busy


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Meter]:
    here = Meter()
    monkeypatch.setattr(neighbors, "CpuMeter", lambda: here)
    monkeypatch.setattr(neighbors, "_PERIOD_NS", 1_000_000)
    yield here
    here.busy = ALONE


def answered(rig: Rig, priority: Priority) -> bool:
    rig.submit(Steps(permits=1), priority).fence.wait_blocking(60)
    return True


def nicer(rig: Rig) -> list[bool]:
    return [worker.nicer for worker in rig.workers._crew.workers]


@each_priority
def test_others_take_over_from_nicer_threads_and_give_their_places_back(
    rigs: Callable[..., Rig], meter: Meter, priority: Priority
) -> None:
    rig = rigs(1, nicer=True)
    assert answered(rig, priority)
    assert nicer(rig) == [True]
    meter.busy = CROWDED
    until(lambda: answered(rig, priority) and nicer(rig) == [False])
    meter.busy = ALONE
    until(lambda: answered(rig, priority) and nicer(rig) == [True])


@each_priority
def test_what_runs_goes_on_beside_a_crowd_and_its_thread_leaves_after_it(
    rigs: Callable[..., Rig], meter: Meter, priority: Priority
) -> None:
    rig = rigs(1, nicer=True)
    call = Steps()
    running = rig.submit(call, priority)
    call.reached()
    meter.busy = CROWDED
    until(lambda: not rig.workers._neighbors.niceness.is_greater)
    waiting = rig.submit(Steps(permits=1), priority)
    assert nicer(rig) == [True]
    call.permit()
    running.fence.wait_blocking(60)
    waiting.fence.wait_blocking(60)
    until(lambda: nicer(rig) == [False])


def test_nobody_looks_while_nothing_runs(rigs: Callable[..., Rig], meter: Meter) -> None:
    rig = rigs(1, nicer=True)
    assert answered(rig, MEDIUM)
    until(lambda: not rig.workers._neighbors._alarm.is_armed)
    seen = meter.looks
    assert answered(rig, MEDIUM)
    until(lambda: not rig.workers._neighbors._alarm.is_armed)
    assert meter.looks <= seen + 1, "what was before is not looked at"


def test_nobody_looks_where_nobody_is_to_be_nicer(rigs: Callable[..., Rig], meter: Meter) -> None:
    rig = rigs(1)
    assert answered(rig, MEDIUM)
    assert not rig.workers._neighbors._alarm.is_armed
    assert nicer(rig) == [False]


def test_closing_while_somebody_looks(rigs: Callable[..., Rig], meter: Meter) -> None:
    rig = rigs(1, nicer=True)
    call = Steps()
    rig.submit(call)
    call.reached()
    until(lambda: meter.looks > 0)
    call.permit()
    rig.workers.close()
    assert not rig.workers._neighbors._alarm.is_armed
