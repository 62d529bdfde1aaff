"""Other processes that are busy, by two looks at a folder of processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.machine import busy
from nnasync.machine.busy import BusyProcess, busy_processes
from tests.machine.rig import machine_in

S = 1_000_000_000


def look(at_s: float, **ticks: int) -> busy._Look:
    """One with processes such as `_7=100`, all started at the same time."""
    found = {(int(name[1:]), "1"): (f"p{name}", used) for name, used in ticks.items()}
    return busy._Look(round(at_s * S), found)


def between(before: busy._Look, after: busy._Look) -> list[BusyProcess]:
    return busy._between(before, after, 100, 1)


def test_the_busiest_come_first() -> None:
    assert between(look(0, _2=0, _3=0, _4=0), look(2, _2=100, _3=300, _4=3)) == [
        BusyProcess(3, "p_3", 1.5),
        BusyProcess(2, "p_2", 0.5),
    ]


def test_our_own_process_is_no_other() -> None:
    assert between(look(0, _1=0), look(1, _1=100)) == []


def test_one_that_began_meanwhile_is_not_judged() -> None:
    assert between(look(0), look(1, _2=100)) == []


def test_a_number_that_is_used_anew_is_another_process() -> None:
    anew = busy._Look(S, {(2, "77"): ("new", 100)})
    assert between(look(0, _2=0), anew) == []


def test_no_time_passed() -> None:
    assert between(look(1, _2=0), look(1, _2=100)) == []


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 100))
def test_time_is_counted_in_cores(before: int, more: int, seconds: int) -> None:
    found = between(look(0, _2=before), look(seconds, _2=before + more))
    cores = more / (100 * seconds)
    assert [each.cores for each in found] == ([pytest.approx(cores)] if cores >= 0.05 else [])


def test_damaged_processes_are_passed_over(tmp_path: Path) -> None:
    root = machine_in(
        tmp_path,
        {
            "proc/2/stat": "2 (short) R 1",
            "proc/3/stat": "",
            "proc/4/stat": "4 (words) R 1 1 1 0 -1 0 0 0 0 0 many more 0 0 20 0 1 0 99 0",
            "proc/self/stat": "5 (self) R",
        },
    )
    assert busy_processes(lambda: None, root) == []
    assert busy_processes(lambda: None, str(tmp_path / "nothing")) == []


def test_this_process_is_found_by_a_look_of_another() -> None:
    found = busy._look("/")
    if found.ticks:
        assert os.getpid() in {pid for pid, _ in found.ticks}
