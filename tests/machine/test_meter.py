"""How busy the cores are: shares add up, without /proc/stat too."""

from __future__ import annotations

import builtins
import io
import time

import pytest

from nnasync.machine import Busy, CpuMeter


def test_work_of_this_process_is_told() -> None:
    meter = CpuMeter()
    began = time.process_time()
    while time.process_time() - began < 0.05:
        pass
    busy = meter.read()
    assert busy.cores >= 1
    assert 0 < busy.process <= 1
    assert 0 <= busy.others <= busy.machine <= 1


def test_a_machine_that_tells_nothing_is_as_busy_as_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*args: object, **options: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(builtins, "open", refused)
    busy = CpuMeter().read()
    assert (busy.machine, busy.others) == (busy.process, 0.0)


def test_what_the_hypervisor_took_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 ticks of a core 30 were stolen and 50 idle."""
    told = iter(["cpu0 100 0 0 100 0 0 0 7 0 0", "cpu0 120 0 0 150 0 0 0 37 0 0"])
    monkeypatch.setattr(builtins, "open", lambda *_, **__: io.StringIO(next(told)))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    busy = CpuMeter().read()
    assert (busy.machine, busy.stolen) == (0.5, 0.3)


def test_others_have_what_is_left() -> None:
    assert Busy(machine=0.75, process=0.5, cores=2).others == 0.25
    assert Busy(machine=0.5, process=0.75, cores=2).others == 0.0
