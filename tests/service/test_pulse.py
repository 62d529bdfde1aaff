"""Signs of life: when a service is pinged, and when it counts as hanging; no time passes."""

from __future__ import annotations

from typing import Any

import pytest

from nnasync._core.drivers.service import heartbeat as pulses
from nnasync._core.drivers.service.heartbeat import Heartbeat
from tests import rigs

HALF_NS = 5_000_000_000


class Bedside:
    """A heartbeat, and a clock and a service that a test steers."""

    def __init__(self, monkeypatch: Any) -> None:
        self.now_ns = 1_000
        self.watchdog = rigs.ManualWatchdog()
        self.awaited = False
        self.pings = self.alerts = 0
        self.heartbeat = Heartbeat(self.watchdog, lambda: self.awaited, self.ping, self.alert)
        monkeypatch.setattr(pulses, "now_ns", lambda: self.now_ns)

    def ping(self) -> None:
        self.pings += 1

    def alert(self) -> None:
        self.alerts += 1

    def expect(self) -> None:
        self.awaited = True
        self.heartbeat.expect()

    def hear(self) -> None:
        self.heartbeat.heard_ns = self.now_ns

    def armed(self) -> list[Any]:
        return [each for each in self.watchdog.alarms if each._callback is not None]

    def pass_time(self, ns: int) -> None:
        """Let the alarms go off that are due meanwhile, each at its time."""
        end_ns = self.now_ns + ns
        while due := [each for each in self.armed() if each.at_ns <= end_ns]:
            alarm = min(due, key=lambda each: each.at_ns)
            self.now_ns = max(self.now_ns, alarm.at_ns)
            callback = alarm._callback
            alarm.disarm()
            callback()
        self.now_ns = end_ns


@pytest.fixture
def bedside(monkeypatch: Any) -> Bedside:
    bedside = Bedside(monkeypatch)
    bedside.heartbeat.begin(2 * HALF_NS / 1e9)
    return bedside


def test_nothing_is_timed_while_nothing_is_awaited(bedside: Bedside) -> None:
    bedside.pass_time(100 * HALF_NS)
    assert (bedside.pings, bedside.watchdog.alarms) == (0, [])


def test_one_that_is_silent_is_pinged_and_then_given_up(bedside: Bedside) -> None:
    bedside.expect()
    bedside.pass_time(HALF_NS - 1)
    assert bedside.pings == 0
    bedside.pass_time(1)
    assert (bedside.pings, bedside.heartbeat.has_stopped()) == (1, False)
    bedside.pass_time(HALF_NS - 1)
    assert (bedside.alerts, bedside.heartbeat.has_stopped()) == (0, False)
    bedside.pass_time(1)
    assert (bedside.pings, bedside.alerts, bedside.heartbeat.has_stopped()) == (1, 1, True)
    assert bedside.heartbeat.patience_s == 2 * HALF_NS / 1e9


def test_one_that_answers_pings_may_work_as_long_as_it_likes(bedside: Bedside) -> None:
    bedside.expect()
    for _ in range(50):
        bedside.pass_time(HALF_NS)
        bedside.hear()
    assert bedside.pings > 20
    assert (bedside.alerts, bedside.heartbeat.has_stopped()) == (0, False)


def test_one_that_talks_is_not_pinged(bedside: Bedside) -> None:
    bedside.expect()
    for _ in range(50):
        bedside.pass_time(HALF_NS // 2)
        bedside.hear()
    assert (bedside.pings, len(bedside.armed())) == (0, 1)


def test_silence_before_something_is_awaited_does_not_count(bedside: Bedside) -> None:
    bedside.expect()
    bedside.awaited = False
    bedside.pass_time(20 * HALF_NS)
    assert bedside.armed() == []
    bedside.expect()
    bedside.pass_time(HALF_NS - 1)
    assert bedside.pings == 0


def test_a_late_answer_counts(bedside: Bedside) -> None:
    """As after our own process was stopped: what has arrived meanwhile is read first."""
    bedside.expect()
    bedside.pass_time(HALF_NS)
    bedside.now_ns += 100 * HALF_NS
    assert bedside.heartbeat.has_stopped()
    bedside.hear()
    assert not bedside.heartbeat.has_stopped()


def test_with_no_patience_nobody_listens(monkeypatch: Any) -> None:
    bedside = Bedside(monkeypatch)
    bedside.heartbeat.begin(0)
    bedside.expect()
    bedside.pass_time(100 * HALF_NS)
    assert (bedside.pings, bedside.watchdog.alarms) == (0, [])
