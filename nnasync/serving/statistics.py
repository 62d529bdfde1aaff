"""Counts and times of one served model, as clients of Triton read them."""

from __future__ import annotations

import time
from typing import Any

from nnasync.tracing.histogram import Histogram


class _Total:
    """How often something happened, and how long it took in all."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = self.ns = 0

    def add(self, ns: int) -> None:
        self.count += 1
        self.ns += ns

    def told(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


class _Sums:
    """Counts inferences of one batch size, and adds up how long their parts took."""

    __slots__ = ("count", "infer_ns", "input_ns", "output_ns", "queue_ns")

    def __init__(self) -> None:
        self.count = self.queue_ns = self.input_ns = self.infer_ns = self.output_ns = 0

    def told(self) -> dict[str, dict[str, int]]:
        return {
            "compute_input": {"count": self.count, "ns": self.input_ns},
            "compute_infer": {"count": self.count, "ns": self.infer_ns},
            "compute_output": {"count": self.count, "ns": self.output_ns},
        }


_SMOOTHING = 0.1
_LATE_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Upper bounds of buckets for errors that come after the deadline."""


class ModelStatistics:
    """Counts and times of one version of a model; to be used on the loop."""

    def __init__(self) -> None:
        self.usual_ns = 0.0
        """About what an execution takes, once there was one."""
        self.late = Histogram(_LATE_S)
        """How long after their deadlines requests had the error for them."""
        self._last_ns = 0
        self._failures = _Total()
        self._by_size: dict[int, _Sums] = {}

    def succeeded(
        self, batch_size: int, queue_ns: int, input_ns: int, infer_ns: int, output_ns: int
    ) -> None:
        """Counts an answer, and adds up how long its parts took."""
        sums = self._by_size.get(batch_size)
        if sums is None:
            sums = self._by_size[batch_size] = _Sums()
        sums.count += 1
        sums.queue_ns += queue_ns
        sums.input_ns += input_ns
        sums.infer_ns += infer_ns
        sums.output_ns += output_ns
        self._last_ns = time.time_ns()
        usual = self.usual_ns
        self.usual_ns = usual + (infer_ns - usual) * _SMOOTHING if usual else infer_ns

    def failed(self, took_ns: int) -> None:
        """Counts a request that was answered with an error, and how long it took."""
        self._failures.add(took_ns)

    @property
    def last_inference_ms(self) -> int:
        """Returns when the last answer was given, in milliseconds since the epoch.

        It is 0 before the first one.
        """
        return self._last_ns // 1_000_000

    @property
    def inferences(self) -> int:
        """Returns how many inferences were answered; a request may be a batch of them."""
        return sum(size * each.count for size, each in self._by_size.items())

    @property
    def executions(self) -> int:
        """Returns how many requests were answered."""
        return sum(each.count for each in self._by_size.values())

    @property
    def totals(self) -> dict[str, dict[str, int]]:
        """Returns how often each part of an inference happened, and how long it took in all."""
        every, count = list(self._by_size.values()), self.executions
        ns = {
            "queue": sum(each.queue_ns for each in every),
            "compute_input": sum(each.input_ns for each in every),
            "compute_infer": sum(each.infer_ns for each in every),
            "compute_output": sum(each.output_ns for each in every),
        }
        nothing = {"count": 0, "ns": 0}
        return {
            "success": {"count": count, "ns": sum(ns.values())},
            "fail": self._failures.told(),
            **{part: {"count": count, "ns": total} for part, total in ns.items()},
            "cache_hit": nothing,
            "cache_miss": nothing,
        }

    def told(self, name: str, version: str, executions: int) -> dict[str, Any]:
        """Returns the statistics as JSON has them, with all keys.

        Load generators stop at a missing one.
        """
        return {
            "name": name,
            "version": version,
            "last_inference": self.last_inference_ms,
            "inference_count": self.inferences,
            "execution_count": executions,
            "inference_stats": self.totals,
            "response_stats": {},
            "batch_stats": [
                {"batch_size": size, **sums.told()} for size, sums in sorted(self._by_size.items())
            ],
            "memory_usage": [],
        }
