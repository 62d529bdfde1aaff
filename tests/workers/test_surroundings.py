"""Threads for LOW work change with what others do on the cores."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from nnasync._core.workers import Worker, surroundings
from nnasync._core.workers.demotion import LowOsPriority
from nnasync._core.workers.running import LOW as LOW_ONLY
from nnasync.machine import Busy
from tests.workers.steering import HIGH, LOW, Rig, Steps, until

pytestmark = [
    pytest.mark.usefixtures("no_leaks"),
    pytest.mark.skipif(sys.platform != "linux", reason="nobody tells elsewhere how busy cores are"),
]


class Above:
    """Stands for a prepared model of higher priority."""


class Meter:
    """In place of the machine's: `others` is the share that they take."""

    others = 0.0
    looks = 0

    def lap(self) -> Busy:
        type(self).looks += 1
        return Busy(self.others, 0.0, 1)


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> type[Meter]:
    class Here(Meter):
        pass

    monkeypatch.setattr(surroundings, "CpuMeter", Here)
    monkeypatch.setattr(surroundings, "_PERIOD_NS", 1_000_000)
    return Here


def lowered(rig: Rig) -> list[bool]:
    return [worker.demoted for worker in rig.workers._crew.workers if LOW in worker.priorities]


class Thread:
    """In place of one of the system's."""

    def __init__(self, native_id: int) -> None:
        self.native_id = native_id


def test_a_thread_that_has_ended_is_not_taken_for_others(
    rigs: Callable[..., Rig], meter: type[Meter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had used is missing in the sum, as if others had used that."""
    looking, workers = rigs(1).workers._surroundings, list[Any]()
    looking._workers = workers
    ran_ns: dict[int, int | None] = {1: 10**12, 2: 0}
    monkeypatch.setattr(surroundings, "ran_ns", ran_ns.get)
    meter.others = 0.25
    old, new = Worker(LOW_ONLY), Worker(LOW_ONLY)
    old.thread, new.thread = Thread(1), Thread(2)  # type: ignore[assignment]  # Numbers do.
    workers.append(old)
    assert [looking._others(), looking._others()] == [None, 0.25]
    workers[:] = [old, new]
    assert looking._others() == 0.25
    ran_ns[1] = None
    assert looking._others() is None, "it has ended, and is still in the list"
    workers[:] = [new]
    assert looking._others() == 0.25


def answered(rig: Rig) -> bool:
    call = Steps(permits=1)
    rig.submit(call, LOW).fence.wait_blocking(60)
    return True


@pytest.mark.parametrize("mode", ["quiet", "auto"])
def test_low_goes_to_lowered_threads_and_leaves_one_that_gets_no_core(
    rigs: Callable[..., Rig],
    meter: type[Meter],
    mode: LowOsPriority,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On a busy machine much time may pass between two lines of this test.
    monkeypatch.setattr(surroundings, "_IDLE_LOOKS", 10**9)
    rig, above = rigs(1, low_os_priority=mode), Above()
    rig.workers.expect(HIGH, above)
    until(lambda: answered(rig) and lowered(rig) == [True])
    stuck = Steps()
    rig.submit(stuck, LOW)
    stuck.reached()
    meter.others = 1.0
    until(lambda: not rig.workers._running.busy)
    assert answered(rig)
    assert sorted(lowered(rig)) == [False, True]
    stuck.permit()
    until(lambda: lowered(rig) == [False])


def test_nobody_looks_without_low_work_or_models_above_it(
    rigs: Callable[..., Rig], meter: type[Meter]
) -> None:
    rig, above = rigs(1, low_os_priority="quiet"), Above()
    assert answered(rig)
    assert not rig.workers._surroundings._alarm.is_armed
    rig.workers.expect(HIGH, above)
    assert answered(rig)
    until(lambda: not rig.workers._surroundings._alarm.is_armed)
    assert not any(lowered(rig))


def test_closing_while_somebody_looks(rigs: Callable[..., Rig], meter: type[Meter]) -> None:
    rig, above = rigs(2, low_os_priority="quiet"), Above()
    rig.workers.expect(HIGH, above)
    call = Steps()
    rig.submit(call, LOW)
    call.reached()
    until(lambda: meter.looks > 0)
    call.permit()
    rig.workers.close()
    assert not rig.workers._surroundings._alarm.is_armed


def test_what_was_believed_ends_with_the_looks(
    rigs: Callable[..., Rig], meter: type[Meter]
) -> None:
    """LOW work that comes once in a while is not looked at: nobody knows that it is quiet then."""
    rig, above = rigs(1, low_os_priority="quiet"), Above()
    rig.workers.expect(HIGH, above)
    until(lambda: answered(rig) and lowered(rig) == [True])
    until(lambda: not rig.workers._demotion.demotes_threads)
    meter.others = 1.0
    assert answered(rig)
    until(lambda: lowered(rig) == [False])
