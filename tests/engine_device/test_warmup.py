"""Runs ahead of the first: what is measured, and what is given up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from nnasync._core.engine_device import warmup
from nnasync._core.workers import StopFlag
from nnasync.engine import BoundCall, Given
from nnasync.scheduler import Estimate
from tests.rigs import ManualWatchdog


class Timed(BoundCall):
    """A call that takes so long, by a clock of its own; where it `listens` it can be aborted."""

    def __init__(self, *needed_ns: int, listens: bool = True) -> None:
        self.now_ns = 1
        self.needed_ns = list(needed_ns)
        self.listens = listens
        self.rewound = 0
        self.watchdog = ManualWatchdog()

    def run(self, stop: StopFlag, given: Given = None) -> bool:
        self.now_ns += self.needed_ns.pop(0)
        for alarm in self.watchdog.alarms:
            if alarm.at_ns <= self.now_ns and alarm._callback is not None:
                alarm._callback()
        return not (self.listens and stop.raised)

    def rewind(self) -> None:
        self.rewound += 1


def measured(call: Timed, monkeypatch: pytest.MonkeyPatch) -> Estimate:
    monkeypatch.setattr(warmup, "now_ns", lambda: call.now_ns)
    estimate, workers = Estimate(), SimpleNamespace(watchdog=call.watchdog)
    warmup.measure(call, _as_workers(workers), estimate)
    return estimate


def _as_workers(workers: SimpleNamespace) -> Any:
    return workers


def test_the_second_run_is_the_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Timed(5_000_000, 1_000_000)
    estimate = measured(call, monkeypatch)
    assert (estimate.samples, estimate.best_ns) == (1, 1_000_000)
    assert call.rewound == 0
    assert not any(alarm._callback for alarm in call.watchdog.alarms)


@pytest.mark.parametrize("first_ns", [1_000_000, warmup.LONGEST_NS])
def test_a_run_that_is_aborted_measures_nothing(
    first_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Timed(first_ns, warmup.LONGEST_NS)
    assert measured(call, monkeypatch).samples == 0
    assert call.rewound == 1


def test_a_first_run_that_was_held_up_is_no_reason_to_give_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = Timed(2 * warmup.LONGEST_NS, 1_000_000, listens=False)
    assert measured(call, monkeypatch).best_ns == 1_000_000


def test_what_is_long_and_cannot_be_aborted_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Timed(2 * warmup.LONGEST_NS + 1, listens=False)
    assert measured(call, monkeypatch).samples == 0
    assert call.rewound == 0
