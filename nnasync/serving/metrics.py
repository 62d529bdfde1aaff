"""What a server counts, as Prometheus reads it: by our own names, and by those of Triton.

Dashboards that were made for Triton go on working with the second set, whose times are in
microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from nnasync.serving.server import ModelServer
from nnasync.tracing.families import Family, Sample
from nnasync.tracing.metrics import CONTENT_TYPE as CONTENT_TYPE
from nnasync.tracing.metrics import render

_FAILURES = {
    "REJECTED": ("missed", "refused"),
    "CANCELED": ("cancelled",),
    "BACKEND": ("failed",),
    "OTHER": (),
}
_CALLER = ("failed", "INVALID_ARGUMENT")
_TIMES = (
    ("request", "success", "Cumulative inference request duration"),
    ("queue", "queue", "Cumulative inference queuing duration"),
    ("compute_input", "compute_input", "Cumulative compute input duration"),
    ("compute_infer", "compute_infer", "Cumulative compute inference duration"),
    ("compute_output", "compute_output", "Cumulative inference compute output duration"),
)


def metrics_text(server: ModelServer) -> str:
    """Returns the metrics of a server and its runtime in the text format of Prometheus."""
    return render(
        server.runtime.statistics(),
        server.runtime.calls,
        server.accounts,
        Lateness(server),
        JoinedRequests(server),
        TritonNames(server),
    )


class Lateness:
    """Collects how long after their deadlines requests were told that they had missed them."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server

    def collect(self) -> Iterable[Family]:
        """Yields one family: a histogram for each version of a model."""
        samples: list[Sample] = []
        for model in self._server.models:
            labels = (("model", model.name), ("version", model.version))
            samples += model.statistics.late.samples(labels)
        text = "Errors of requests whose deadlines had passed: how long after those they were made."
        yield Family("nnasync_serving_late_seconds", "histogram", text, tuple(samples))


class JoinedRequests:
    """Collects the counters of the batchers of all models, merged into one family a name."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server

    def collect(self) -> Iterable[Family]:
        """Yields calls, their outcomes, runs and rows of the models whose requests are batched."""
        found: dict[str, Family] = {}
        for model in self._server.models:
            for family in model.joined():
                known = found.get(family.name)
                samples = family.samples if known is None else known.samples + family.samples
                found[family.name] = msgspec.structs.replace(family, samples=samples)
        yield from found.values()


class TritonNames:
    """Collects the counters of a server under the names that Triton has for them."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server

    def collect(self) -> Iterable[Family]:
        """Yields counts, times and the number of waiting requests of each version of a model."""
        success, failure, count, executions, pending = [], [], [], [], []
        times: dict[str, list[Sample]] = {name: [] for name, _, _ in _TIMES}
        for model in self._server.models:
            labels = (("model", model.name), ("version", model.version))
            statistics, totals = model.statistics, model.statistics.totals
            success.append(Sample("", labels, totals["success"]["count"]))
            count.append(Sample("", labels, statistics.inferences))
            executions.append(Sample("", labels, model.executions))
            pending.append(Sample("", labels, model.pending))
            outcomes = self._server.accounts.outcomes_of(model.name, model.version)
            for reason, number in _failures(outcomes).items():
                named = (labels[0], ("reason", reason), labels[1])
                failure.append(Sample("", named, number))
            for name, part, _ in _TIMES:
                times[name].append(Sample("", labels, totals[part]["ns"] // 1000))
        for name, kind, text, samples in (
            ("request_success", "counter", "Successful inference requests.", success),
            ("request_failure", "counter", "Failed inference requests.", failure),
            ("count", "counter", "Inferences performed.", count),
            ("exec_count", "counter", "Model executions performed.", executions),
            ("pending_request_count", "gauge", "Requests that await execution.", pending),
        ):
            yield Family(f"nv_inference_{name}", kind, text, tuple(samples))
        for name, _, text in _TIMES:
            yield Family(
                f"nv_inference_{name}_duration_us",
                "counter",
                f"{text} in microseconds.",
                tuple(times[name]),
            )


def _failures(outcomes: dict[tuple[str, str], int]) -> dict[str, int]:
    found = dict.fromkeys(_FAILURES, 0)
    for (outcome, reason), number in outcomes.items():
        if (outcome, reason) == _CALLER:
            found["OTHER"] += number
            continue
        for name, those in _FAILURES.items():
            if outcome in those:
                found[name] += number
    return found
