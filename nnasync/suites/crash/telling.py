"""How a child tells the coordinator of itself, and hears that it is to end."""

from __future__ import annotations

import statistics
import threading
from array import array
from collections.abc import Callable, Sequence

from nnasync.suites.crash.orders import CallTimes, ChildAt, ChildBegun, ChildMessage

BUCKETS = 32
MOST_TIMES = 200_000
"""Of more calls, the latest so many are kept."""


def error_text(error: BaseException) -> str:
    """An error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


class Teller:
    """Sends messages, and knows whether the child was asked to end."""

    def __init__(self, send: Callable[[ChildMessage], None]) -> None:
        self._send = send
        self._asked = threading.Event()

    @property
    def must_end(self) -> bool:
        """Returns whether the coordinator asked it to end."""
        return self._asked.is_set()

    def end(self) -> None:
        """Have it end, from any thread."""
        self._asked.set()

    def wait(self) -> None:
        """Block until the coordinator asks it to end."""
        self._asked.wait()

    def begun(self) -> None:
        """Say that it is at work."""
        self._send(ChildBegun())

    def say(self, message: ChildMessage) -> None:
        """Say something else."""
        self._send(message)

    def at(self, text: str) -> None:
        """Say what it is about to do."""
        self._send(ChildAt(text))


class CallStopwatch:
    """How long calls took; of very many, the latest."""

    def __init__(self) -> None:
        self.count = 0
        self._times_ms = array("d")

    def add(self, ms: float) -> None:
        """Note one call."""
        if self.count < MOST_TIMES:
            self._times_ms.append(ms)
        else:
            self._times_ms[self.count % MOST_TIMES] = ms
        self.count += 1

    def times(self) -> CallTimes | None:
        """Quantiles and histogram; None without a call."""
        return call_times(self._times_ms, self.count) if self.count else None


def call_times(times_ms: Sequence[float], count: int | None = None) -> CallTimes:
    """The summary of durations, of which there must be one: buckets from the least to the most."""
    ordered = sorted(times_ms)
    step = (ordered[-1] - ordered[0]) / (BUCKETS - 1)
    buckets = [0] * BUCKETS
    for value in ordered:
        buckets[min(BUCKETS - 1, int((value - ordered[0]) / step)) if step else 0] += 1
    return CallTimes(
        len(ordered) if count is None else count,
        statistics.fmean(ordered),
        quantile(ordered, 0.5),
        quantile(ordered, 0.99),
        ordered[-1],
        ordered[0],
        step,
        tuple(buckets),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which this share of sorted values lies."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
