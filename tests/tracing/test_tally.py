"""Each call has one outcome, whatever its error is, and the sums are right."""

from __future__ import annotations

import asyncio
import copy
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnasync.errors import (
    REASONS,
    BadState,
    Cancelled,
    DeviceDied,
    DeviceUnavailable,
    GeneralFailure,
    InvalidArgument,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    ResourceExhaustedTransient,
    because,
)
from nnasync.fences import Fence
from nnasync.hal import Priority
from nnasync.tracing.families import Sample
from nnasync.tracing.metrics import render
from nnasync.tracing.tally import Tallies, Tally, outcome_of

FAR_NS = 3600 * 10**9


def in_flight(tally: Tally) -> int:
    return tally.calls - sum(tally.outcomes().values())


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Cancelled("x"), ("cancelled", "")),
        (asyncio.CancelledError(), ("cancelled", "")),
        (KeyboardInterrupt(), ("cancelled", "")),
        (MissedDeadlineTransient("x"), ("missed", "running")),
        (MissedDeadlinePersistent("x"), ("missed", "queue")),
        (because("admission", MissedDeadlinePersistent("x")), ("missed", "admission")),
        (ResourceExhaustedTransient("x"), ("refused", "memory")),
        (because("displaced", ResourceExhaustedTransient("x")), ("refused", "displaced")),
        (because("closing", DeviceUnavailable("x")), ("refused", "closing")),
        (DeviceUnavailable("x"), ("failed", "DEVICE_UNAVAILABLE")),
        (DeviceDied("x"), ("failed", "DEVICE_UNAVAILABLE")),
        (GeneralFailure("x"), ("failed", "GENERAL_FAILURE")),
        (because("dependency", GeneralFailure("x")), ("failed", "dependency")),
        (InvalidArgument("x"), ("failed", "INVALID_ARGUMENT")),
        (BadState("x"), ("failed", "INVALID_ARGUMENT")),
        (ValueError("x"), ("failed", "GENERAL_FAILURE")),
    ],
    ids=str,
)
def test_an_error_is_one_outcome(error: BaseException, outcome: tuple[str, str]) -> None:
    assert outcome_of(error, time.monotonic_ns()) == outcome
    assert outcome_of(copy.copy(error), 1) == outcome


def test_a_deadline_that_is_still_to_come_was_missed_at_admission() -> None:
    error = MissedDeadlinePersistent("of a device that does not say when")
    assert outcome_of(error, time.monotonic_ns() + FAR_NS) == ("missed", "admission")


@given(st.lists(st.sampled_from(["ok", "cancel", "fail", "late", "launch", "fail launch"])))
def test_calls_are_outcomes_and_what_is_in_flight(events: list[str]) -> None:
    tally, expected = Tally(), Counter[str]()
    fences: list[tuple[Fence, str]] = []
    for event in events:
        tally.calls += 1
        if event == "ok":
            tally.completed += 1
            expected["completed"] += 1
        elif event.endswith("launch"):
            fences.append((Fence(), event))
            tally.follow(fences[-1][0])
        else:
            known = {
                "cancel": (Cancelled("x"), "cancelled"),
                "fail": (GeneralFailure("x"), "failed"),
                "late": (MissedDeadlineTransient("x"), "missed"),
            }
            error, outcome = known[event]
            tally.ended(error)
            expected[outcome] += 1
        assert in_flight(tally) == len(fences)
    while fences:
        fence, event = fences.pop()
        if event == "launch":
            fence.signal()
        else:
            fence.fail(GeneralFailure("x"))
        expected["completed" if event == "launch" else "failed"] += 1
        assert in_flight(tally) == len(fences)
    found = Counter[str]()
    for (outcome, _), count in tally.outcomes().items():
        found[outcome] += count
    assert +found == expected


def test_networks_priorities_and_devices_are_told_apart() -> None:
    tallies = Tallies()
    gold, free = (tallies.of("net", each, "cpu") for each in (Priority.HIGH, Priority.LOW))
    assert tallies.of("net", Priority.HIGH, "cpu") is gold
    gold.calls, gold.completed, free.calls = 5, 3, 1
    gold.ended(because("queue_full", ResourceExhaustedTransient("x")))
    lines = render(None, tallies).splitlines()
    high, low = ('{network="net",device="cpu",priority="' + each for each in ("high", "low"))
    for line in (
        f'nnasync_calls_total{high}"}} 5',
        f'nnasync_calls_total{low}"}} 1',
        f'nnasync_calls_in_flight{high}"}} 1',
        f'nnasync_calls_in_flight{low}"}} 1',
        f'nnasync_call_outcomes_total{high}",outcome="completed",reason=""}} 3',
        f'nnasync_call_outcomes_total{high}",outcome="refused",reason="queue_full"}} 1',
    ):
        assert line in lines


def test_networks_without_end_do_not_fill_the_memory() -> None:
    tallies = Tallies(networks=2)
    for number in range(50):
        tallies.of(f"net {number}", Priority.LOW, "cpu").calls += 1
    [calls] = [family for family in tallies.collect() if family.name == "nnasync_calls_total"]
    assert sorted(_value(each) for each in calls.samples) == [1, 1, 48]


def _value(sample: Sample) -> float:
    return sample.value


def test_the_documentation_has_every_reason() -> None:
    text = (Path(__file__).parents[2] / "docs" / "tracing.md").read_text()
    assert [reason for reason in sorted(REASONS) if f"`{reason}`" not in text] == []
