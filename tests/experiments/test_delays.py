"""Delays: measured ones of real runs, the middle of several, and draws."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from nnasync.errors import ExperimentError
from nnasync.experiments import Delays, Overheads, RequestRow, RunResult, Span
from nnasync.experiments.delays import draws, middle_of
from nnasync.experiments.delays_of_runs import delays_by_company, delays_of
from nnasync.experiments.record import Outcome
from nnasync.experiments.simulation_delays import SimulatedDelays
from tests.experiments.rigs import real_run

US = 1_000


def record(*requests: tuple[int, int, int, int, int], cores: int = 1) -> RunResult:
    """Requests as arrived, queued, began, ended and heard, in microseconds."""
    rows, spans = [], []
    for number, (arrived, queued, began, ended, heard) in enumerate(requests):
        rows.append(
            RequestRow(0, number, arrived * US, heard * US, Outcome.MET, queued_ns=queued * US)
        )
        spans.append(Span(0, 0, number, began * US, ended * US))
    return real_run(rows, spans, cores=cores)


def test_each_delay_is_measured_where_it_passes() -> None:
    # The second one comes while the first one runs, and so waits for it.
    found = delays_of(
        record((0, 300, 370, 1380, 1440), (500, 800, 1400, 2410, 2480)), 1_000 * US, 20 * US
    )
    assert set(found.comes_ns) == {290 * US}
    assert set(found.begins_ns) == {70 * US}
    assert set(found.follows_ns) == {20 * US}
    assert set(found.device_ns) == {10 * US}
    assert set(found.heard_ns) == {50 * US, 60 * US}


def test_who_finds_a_core_free_waits_for_nobody() -> None:
    requests = (0, 10, 20, 1020, 1030), (5, 15, 30, 1030, 1040)
    assert set(delays_of(record(*requests, cores=2), 1_000 * US, 0).begins_ns) == {10_000, 15_000}
    assert len(set(delays_of(record(*requests), 1_000 * US, 0).begins_ns)) == 1


def test_delays_are_told_apart_by_how_many_workers_are_at_work() -> None:
    alone = [(at, at + 100, at + 110, at + 550, at + 570) for at in range(0, 30_000, 1_000)]
    beside = [(at + 150, at + 450, at + 500, at + 600, at + 630) for at, *_ in alone]
    run = record(*alone, *beside, cores=2)
    none, one, *more = delays_by_company([run], 20 * US)
    assert set(none.comes_ns) == {90 * US}
    assert set(one.comes_ns) == {290 * US}
    assert (set(none.begins_ns), set(one.begins_ns)) == ({10 * US}, {50 * US})
    # The first of each two ends while the other one runs.
    assert (set(none.heard_ns), set(one.heard_ns)) == ({20 * US}, {10 * US})
    assert [each.comes_ns for each in more] == [one.comes_ns]
    assert delays_by_company([run, run], 20 * US)[0].heard_ns == none.heard_ns


def test_delays_of_company_that_was_never_seen_are_those_of_nobody() -> None:
    assert delays_by_company([record()], 0) == (Delays(),) * 2


def test_who_wakes_the_loop_and_goes_on_keeps_its_core_busy() -> None:
    every = range(0, 60_000, 2_000)
    first = [(at, at + 100, at + 110, at + 300, at + 390) for at in every]
    waits = [(at + 150, at + 250, at + 320, at + 900, at + 910) for at in every]
    none, one = delays_by_company([record(*first, *waits, cores=1)], 0)
    assert (set(none.heard_ns), set(one.heard_ns)) == ({10 * US}, {90 * US})


def test_a_loop_that_is_late_for_several_is_late_once() -> None:
    every = range(2_000, 60_000, 2_000)
    first = [(at, at + 500, at + 600, at + 900, at + 960) for at in every]
    # It comes, and a third one is answered, while the loop is on its way for the first.
    second = [(at + 300, at + 510, at + 600, at + 900, at + 970) for at in every]
    third = [(at - 700, at - 600, at - 500, at + 200, at + 490) for at in every]
    run = record(*first, *second, *third, cores=4)
    none, one, *_ = delays_by_company([run], 0)
    assert (set(none.comes_ns), set(one.comes_ns)) == ({100 * US}, {500 * US})
    # Of the two that end at once the first is heard of, and the third with what came.
    assert set(none.heard_ns) == set(one.heard_ns) == {60 * US}
    # Each of the others waited until the loop was done with one before.
    assert set(none.calls_ns) == set(one.calls_ns) == {10 * US}
    assert set(none.answers_ns) == {10 * US}


def test_the_thread_that_waits_for_arrivals_is_late_itself() -> None:
    run = record(*((at, at + 500, at + 600, at + 900, at + 960) for at in range(0, 60_000, 2_000)))
    rows = [replace(row, told_ns=row.arrived_ns + 200 * US) for row in run.requests]
    found = delays_by_company([replace(run, requests=tuple(rows))], 20 * US)[0]
    assert (set(found.told_ns), set(found.comes_ns)) == ({200 * US}, {290 * US})
    # Of a stream that stands for costs the two are one delay.
    whole = delays_of(replace(run, requests=tuple(rows)), 300 * US, 20 * US)
    assert (set(whole.told_ns), set(whole.comes_ns)) == ({0}, {490 * US})


def test_a_run_of_nothing_has_no_delays() -> None:
    assert delays_of(record(), 1_000, 0) == Delays()
    assert middle_of([Delays()]) == Delays()


def test_no_delay_is_negative() -> None:
    found = delays_of(record((100, 90, 80, 85, 80)), 1_000 * US, 0)
    assert found == delays_of(record((100, 100, 100, 1100, 1100)), 1_000 * US, 0)


def test_one_disturbed_measurement_of_three_leaves_nothing() -> None:
    calm = delays_of(record((0, 300, 370, 1380, 1440)), 1_000 * US, 0)
    late = delays_of(record((0, 9_300, 9_370, 19_380, 99_440)), 1_000 * US, 0)
    assert middle_of([calm, late, calm]) == calm


def test_draws_are_the_same_for_the_same_seeds() -> None:
    values = tuple(range(10))
    first, again, other = (
        list(itertools.islice(draws(values, *seeds), 3_000)) for seeds in ((1, 2), (1, 2), (1, 3))
    )
    assert first == again != other
    assert set(first) == set(values)


def test_delays_that_cannot_be_are_refused() -> None:
    with pytest.raises(ExperimentError, match=r"begins_ns\[1\] is -1"):
        Delays(begins_ns=(1, -1))
    with pytest.raises(ExperimentError, match="comes_ns"):
        Delays(comes_ns=())


def test_how_late_a_loop_is_is_told_by_how_long_it_rested() -> None:
    """Calls come 1 and 10 ms after the last answer; those that come later are later, too."""
    moments, at_us = [], 0
    for late_us in (100, 900) * 10:
        at_us += 1_000 if late_us == 100 else 10_000
        moments.append(
            (at_us, at_us + late_us, at_us + late_us + 50, at_us + late_us + 1_050, at_us + 2_000)
        )
        at_us += 2_000
    found = delays_of(record(*moments), 1_000 * US, 0)
    after = {each.from_ns: set(each.values_ns) for each in found.comes_after}
    assert after == {500_000: {100 * US}, 6_000_000: {900 * US}}
    assert [each.from_ns for each in found.heard_after] == [500_000]
    drawn = SimulatedDelays(Overheads(0, 0, 0), found, 0)
    assert {drawn.comes_ns(1_000_000) for _ in range(9)} == {100 * US}
    assert {drawn.comes_ns(60_000_000) for _ in range(9)} == {900 * US}
    nothing = delays_of(record(), 0, 0)
    assert middle_of([found, found, nothing]).comes_after == found.comes_after
    assert middle_of([found, nothing]).comes_after == ()
