"""Whose death it was, who is to die, and what counts as given back."""

from __future__ import annotations

import signal

import pytest

from nnasync.suites import Standing
from nnasync.suites.crash.children import ChildEnd
from nnasync.suites.crash.modes import MODES
from nnasync.suites.crash.telling import call_times
from nnasync.suites.crash.verdicts import ClientEnd, is_released, served_verdict, victims
from nnasync.suites.process_use import ProcessUse, process_use

GOOD = ChildEnd(Standing.SUCCESS, "")
KILLED = ChildEnd(Standing.CRASH, "the process died: SIGKILL", code=-signal.SIGKILL)
SEGV = ChildEnd(Standing.CRASH, "the process died: SIGSEGV", code=-signal.SIGSEGV)


def test_a_victim_that_was_killed_is_a_success() -> None:
    ends = [ClientEnd(KILLED, is_victim=True), ClientEnd(GOOD)]
    assert served_verdict(GOOD, GOOD, ends) == (Standing.SUCCESS, "")


def test_a_victim_that_died_otherwise_or_not_at_all_is_none() -> None:
    standing, text = served_verdict(GOOD, GOOD, [ClientEnd(SEGV, is_victim=True)])
    assert (standing, text) == (
        Standing.CRASH,
        "a client: the process died: SIGSEGV; the driver's process lived",
    )
    standing, text = served_verdict(GOOD, GOOD, [ClientEnd(GOOD, is_victim=True)])
    assert standing is Standing.FAILURE
    assert text == "a client: a client that was to be killed came to its end"


def test_a_client_that_is_killed_though_it_was_not_to_be_crashes() -> None:
    assert served_verdict(GOOD, GOOD, [ClientEnd(KILLED)])[0] is Standing.CRASH


def test_the_drivers_death_is_told_from_its_clients() -> None:
    standing, text = served_verdict(SEGV, GOOD, [ClientEnd(GOOD)])
    assert (standing, text) == (
        Standing.CRASH,
        "the driver's process: the process died: SIGSEGV; its clients lived",
    )
    _, text = served_verdict(SEGV, GOOD, [ClientEnd(SEGV), ClientEnd(GOOD)])
    assert text.endswith("1 of 2 clients died with it")


def test_what_happens_to_the_innocent_client_counts() -> None:
    failed = ChildEnd(Standing.FAILURE, "small: DeviceDied")
    standing, text = served_verdict(GOOD, failed, [ClientEnd(GOOD)])
    assert standing is Standing.FAILURE
    assert text == "the innocent client beside: small: DeviceDied"


def test_each_process_draws_its_own_death() -> None:
    all_die = victims("0/x", 6, 100, 10)
    assert len(set(all_die)) == 6
    assert all(each is not None and 1 <= each <= 9 for each in all_die)
    assert victims("0/x", 6, 0, 10) == [None] * 6
    shares = [sum(each is not None for each in victims(str(n), 6, 80, 1)) for n in range(200)]
    assert 4.6 < sum(shares) / 200 < 5
    assert victims("0/x", 6, 80, 10) == victims("0/x", 6, 80, 10)


def test_workers_may_stay_and_clients_may_not() -> None:
    before = ProcessUse(1, 20, 5)
    assert is_released(before, ProcessUse(1, 32, 17), workers=12)
    assert not is_released(before, ProcessUse(1, 40, 17), workers=12)
    assert not is_released(before, ProcessUse(1, 20, 40), workers=12)


def test_a_process_that_is_gone_holds_nothing() -> None:
    here = process_use()
    assert here is not None
    assert here.memory_bytes > 1 << 20
    assert process_use(1 << 30) is None


def test_times_are_counted_in_buckets_from_the_least_to_the_most() -> None:
    times = call_times([1.0, 2.0, 32.0])
    assert (times.p50_ms, times.worst_ms, times.start_ms, times.step_ms) == (2, 32, 1, 1)
    assert (times.buckets[0], times.buckets[1], times.buckets[31]) == (1, 1, 1)
    assert call_times([3.0]).buckets[0] == 1


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_short_runs_have_the_hardest_parameters(mode: object) -> None:
    assert isinstance(mode, type(MODES[0]))
    assert mode.sets_at(0.01) == mode.sets[-1:]
    assert mode.sets_at(1) == mode.sets
