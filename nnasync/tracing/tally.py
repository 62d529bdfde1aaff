"""Outcomes of calls: each call of a network, launch or burst call has exactly one.

    completed               the result was given, or the fence signaled
    cancelled               whoever called gave it up
    missed    admission     it was refused at once: it could not be done by its deadline
              queue         its deadline passed before it began
              running       its deadline passed while it ran, or before the loop heard of the end
    refused   queue_full    all places to wait were taken (`scheduler.room`)
              displaced     it gave its place up to work of higher priority
              burst_depth   so many calls of the burst were in flight already
              hanging       so many executions of the network hang on the device already
              threads       no thread could be started
              memory        no memory or descriptors
              closing       the network, its burst or its runtime was closed
    failed    dependency    what it waited for failed
              STATUS        the device or the call itself failed, with this ErrorStatus

A `Tally` counts for all networks with the same labels. On the loop it is two additions of plain
integers for a call; calls = completed + other outcomes + in flight at every moment. What ends on
other threads is counted under a lock.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from nnasync import errors, hal
from nnasync.tracing.families import Family, Sample

_OTHERS = "(others)"


class Final(Protocol):
    """A fence, as far as a tally sees it."""

    error: Exception | None

    @property
    def done(self) -> bool:
        """Returns whether it is final."""

    def add_callback(self, callback: Callable[[Any], object]) -> None:
        """Call back, on whichever thread, once it is final."""


class Tally:
    """Calls and their outcomes; `calls` and `completed` are counted by the loop itself."""

    __slots__ = ("_elsewhere", "_lock", "calls", "completed")

    def __init__(self) -> None:
        self.calls = self.completed = 0
        self._elsewhere: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def ended(self, error: BaseException, deadline: object = None) -> None:
        """Count a call that ended with an error; from any thread."""
        self._count(outcome_of(error, getattr(deadline, "at_ns", None)))

    def follow(self, fence: Final, deadline: object = None) -> None:
        """Count a launch when its fence is final."""
        if not fence.done:
            fence.add_callback(functools.partial(self._settled, deadline))
        elif fence.error is None:
            self.completed += 1
        else:
            self.ended(fence.error, deadline)

    def outcomes(self) -> dict[tuple[str, str], int]:
        """Returns how often each outcome with its reason occurred so far."""
        with self._lock:
            found = dict(self._elsewhere)
        key = ("completed", "")
        found[key] = found.get(key, 0) + self.completed
        return found

    def _settled(self, deadline: object, fence: Final) -> None:
        if fence.error is None:
            self._count(("completed", ""))
        else:
            self.ended(fence.error, deadline)

    def _count(self, key: tuple[str, str]) -> None:
        with self._lock:
            self._elsewhere[key] = self._elsewhere.get(key, 0) + 1


class Tallies:
    """The tallies of a runtime, by network, device and priority; a collector of metrics.

    The first `networks` names are counted separately, the rest as "(others)".
    """

    def __init__(self, networks: int = 200, *, prefix: str = "nnasync") -> None:
        self._limit = networks
        self._prefix = prefix
        self._names: set[str] = set()
        self._tallies: dict[tuple[str, str, str], Tally] = {}

    def of(self, network: str, priority: hal.Priority, device: str) -> Tally:
        """The tally of what has these labels."""
        if network not in self._names and len(self._names) >= self._limit:
            network = _OTHERS
        self._names.add(network)
        key = (network, device, priority.name.lower())
        return self._tallies.setdefault(key, Tally())

    def collect(self) -> Iterable[Family]:
        """Two counters and a gauge."""
        calls, outcomes, in_flight = [], [], []
        for values, tally in list(self._tallies.items()):
            labels = tuple(zip(("network", "device", "priority"), values, strict=True))
            # In this order: what ends meanwhile is seen as in flight, never as ended before it was.
            found = tally.outcomes()
            called = tally.calls
            calls.append(Sample("", labels, called))
            in_flight.append(Sample("", labels, called - sum(found.values())))
            for (outcome, reason), count in found.items():
                named = (*labels, ("outcome", outcome), ("reason", reason))
                outcomes.append(Sample("", named, count))
        for name, kind, text, samples in (
            ("calls_total", "counter", "Calls, launches and calls of bursts.", calls),
            ("call_outcomes_total", "counter", "How calls ended, each once.", outcomes),
            ("calls_in_flight", "gauge", "Calls that have not ended.", in_flight),
        ):
            yield Family(f"{self._prefix}_{name}", kind, text, tuple(samples))


def outcome_of(error: BaseException, deadline_ns: int | None = None) -> tuple[str, str]:
    """Outcome and reason of a call that ended with an error just now."""
    if isinstance(error, errors.Cancelled) or not isinstance(error, Exception):
        return ("cancelled", "")
    if not isinstance(error, errors.NNError):
        return ("failed", hal.ErrorStatus.GENERAL_FAILURE.name)
    reason = error.reason
    if isinstance(error, errors.MissedDeadline):
        return ("missed", reason or _stage(error, deadline_ns))
    if isinstance(error, errors.ResourceExhausted):
        return ("refused", reason or "memory")
    if reason == "closing":
        return ("refused", reason)
    return ("failed", reason or error.status.name)


def _stage(error: errors.MissedDeadline, deadline_ns: int | None) -> str:
    """Returns where a deadline was missed, if the error does not say so itself."""
    if isinstance(error, errors.MissedDeadlineTransient):
        return "running"
    is_early = deadline_ns is not None and time.monotonic_ns() < deadline_ns
    return "admission" if is_early else "queue"
