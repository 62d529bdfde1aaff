"""Runs of a record: when a worker had them, beside what, and what joined them."""

from __future__ import annotations

from msgspec.structs import replace

from nnasync.experiments import Outcome, RequestRow, RunResult, Span
from nnasync.experiments.observed_runs import runs_of
from tests.experiments.rigs import real_run

US = 1_000


def record(*requests: tuple[int, int, int, int], cores: int = 2) -> RunResult:
    """Requests of streams as stream, queued, began and ended, in microseconds."""
    rows, spans = [], []
    for number, (stream, queued, began, ended) in enumerate(requests):
        at_ns = queued * US
        rows.append(RequestRow(stream, number, at_ns, ended * US, Outcome.MET, queued_ns=at_ns))
        spans.append(Span(0, stream, number, began * US, ended * US))
    return real_run(rows, spans, cores=cores)


def test_workers_are_woken_or_go_on() -> None:
    # The third one finds both cores taken, and goes on where the first one ends.
    first, second, third, fourth = runs_of(
        record((0, 0, 50, 1000), (1, 300, 900, 2000), (0, 500, 1010, 1500), (0, 5000, 5020, 5100))
    )
    assert [each.is_woken for each in (first, second, third, fourth)] == [True, True, False, True]
    assert [each.late_ns for each in (first, second, third, fourth)] == [
        50 * US,
        600 * US,
        0,
        20 * US,
    ]
    assert [each.others for each in (first, second, third, fourth)] == [(), (0,), (1,), ()]
    # Whoever goes on joins nobody.
    assert [each.joined_by for each in (first, second, third, fourth)] == [1, None, None, None]


def test_the_first_that_joins_counts_and_it_may_begin_when_the_other_has_ended() -> None:
    runs = record((0, 0, 50, 1000), (1, 300, 310, 400), (1, 600, 1010, 1100))
    assert [each.joined_by for each in runs_of(runs)] == [1, None, None]
    assert [each.others for each in runs_of(runs)] == [(), (0,), (0,)]


def test_the_pieces_of_a_run_that_was_interrupted_are_one_run() -> None:
    whole = record((0, 0, 10, 1000))
    pieces = Span(0, 0, 0, 10 * US, 400 * US), Span(0, 0, 0, 700 * US, 1000 * US)
    (found,) = runs_of(replace(whole, spans=pieces))
    assert (found.pieces, found.length_ns, found.ended_ns) == (2, 690 * US, 1000 * US)
    # It was queued once more in between, and had begun before that.
    row = replace(whole.requests[0], queued_ns=500 * US)
    (found,) = runs_of(replace(whole, spans=pieces, requests=(row,)))
    assert (found.handed_ns, found.late_ns) == (10 * US, 0)


def test_what_has_not_come_to_its_end_does_not_count() -> None:
    runs = record((0, 0, 10, 1000), (0, 2000, 2010, 2500))
    cut = replace(runs.requests[1], outcome=Outcome.PENDING)
    assert len(runs_of(replace(runs, requests=(runs.requests[0], cut)))) == 1
