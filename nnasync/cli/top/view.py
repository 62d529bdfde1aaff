"""What happened between two looks at a runtime: rates of calls, times of runs, who is there.

Counters are those of metrics; a counter that went down is one of a process that began anew, and
counts from zero. Times are read off histograms: a quantile is the upper bound of its bucket.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from nnasync.cli.top.reading import Labels, Samples
from nnasync.hal import Struct

_OUTCOMES = ("completed", "missed", "refused", "failed", "cancelled")


class Look(Struct, frozen=True):
    """The metrics of one process, and when they were read, in seconds of any steady clock."""

    at_s: float
    samples: Samples


class NetworkRow(Struct, frozen=True):
    """A network on a device at a priority: per second what became of calls; in flight, now.

    Durations are seconds, None where nothing ran meanwhile. None too, and an empty priority, is
    what a trace does not tell.
    """

    network: str
    device: str
    priority: str
    calls: float
    in_flight: float | None
    completed: float | None
    missed: float | None
    refused: float | None
    failed: float | None
    cancelled: float | None
    run_median_s: float | None
    run_p99_s: float | None
    queue_p99_s: float | None


class DeviceRow(Struct, frozen=True):
    """A device in a process of its own, which is 0 while there is none."""

    device: str
    pid: int


class ClientRow(Struct, frozen=True):
    """A process or an address that a device is served to, with so many connections.

    `busy` is how many cores its work kept busy, `runs` its executions per second, `queued` those
    that wait now; `refused` and `missed` are those per second that were not begun.
    """

    client: str
    connections: int
    busy: float
    runs: float
    queued: float
    refused: float
    missed: float


class Picture(Struct, frozen=True):
    """A runtime between two looks, or in a trace.

    `busy` is how many cores its executions kept busy, on the loop and on workers; `queued` are
    executions that wait now, by priority. None is what a trace does not tell.
    """

    networks: tuple[NetworkRow, ...]
    devices: tuple[DeviceRow, ...]
    queued: dict[str, float] | None
    running: float | None
    busy: float
    preemptions: float
    pool_bytes: float | None
    clients: tuple[ClientRow, ...] = ()


def picture(before: Look, after: Look) -> Picture:
    """Returns what happened between two looks at one process."""
    elapsed_s = max(after.at_s - before.at_s, 1e-9)
    new = _Difference(before.samples, after.samples)
    keys = sorted({labels for name, labels in after.samples if name == "nnasync_calls_total"})
    seconds = ("nnasync_workers_inline_seconds_total", "nnasync_workers_worker_seconds_total")
    return Picture(
        networks=tuple(_network(new, dict(labels), elapsed_s) for labels in keys),
        devices=tuple(
            DeviceRow(dict(labels)["device"], int(value))
            for (name, labels), value in sorted(after.samples.items())
            if name == "nnasync_device_pid" and "device" in dict(labels)
        ),
        queued={
            dict(labels).get("priority", ""): value
            for (name, labels), value in after.samples.items()
            if name == "nnasync_workers_scheduler_queued"
        },
        running=after.samples.get(("nnasync_workers_running", ()), 0.0),
        busy=sum(new.of(name, {}) for name in seconds) / elapsed_s,
        preemptions=new.of("nnasync_workers_preemptions_total", {}) / elapsed_s,
        pool_bytes=after.samples.get(("nnasync_memory_allocated_bytes", ()), 0.0),
        clients=tuple(_clients(new, after.samples, elapsed_s)),
    )


class _Difference:
    """Increases of counters, summed over all samples whose labels include the given ones."""

    def __init__(self, before: Samples, after: Samples) -> None:
        self._after = after
        self._grown = {
            key: value - before.get(key, 0.0) if value >= before.get(key, 0.0) else value
            for key, value in after.items()
        }

    def of(self, name: str, labels: dict[str, str]) -> float:
        """Returns how much a counter has grown."""
        return sum(grown for _, grown in self._matching(name, labels))

    def now(self, name: str, labels: dict[str, str]) -> float:
        """The value of a gauge."""
        return sum(self._after[name, found] for found, _ in self._matching(name, labels))

    def quantile(self, name: str, labels: dict[str, str], share: float) -> float | None:
        """The upper bound of the bucket in which that share of new values lies."""
        buckets: dict[float, float] = {}
        for found, grown in self._matching(f"{name}_bucket", labels):
            bound = _bound(dict(found).get("le", ""))
            buckets[bound] = buckets.get(bound, 0.0) + grown
        count = buckets.get(math.inf, 0.0)
        finite = sorted(bound for bound in buckets if math.isfinite(bound))
        if not count:
            return None
        reached = (bound for bound in finite if buckets[bound] >= share * count)
        return next(reached, finite[-1] if finite else None)

    def _matching(self, name: str, labels: dict[str, str]) -> Iterator[tuple[Labels, float]]:
        for (found, given), grown in self._grown.items():
            if found == name and labels.items() <= dict(given).items():
                yield given, grown


def _bound(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _network(new: _Difference, labels: dict[str, str], elapsed_s: float) -> NetworkRow:
    where = {name: value for name, value in labels.items() if name != "priority"}
    queue = where | {"priority": labels.get("priority", "")}
    rates = {
        outcome: new.of("nnasync_call_outcomes_total", labels | {"outcome": outcome}) / elapsed_s
        for outcome in _OUTCOMES
    }
    return NetworkRow(
        network=labels.get("network", ""),
        device=labels.get("device", ""),
        priority=labels.get("priority", ""),
        calls=new.of("nnasync_calls_total", labels) / elapsed_s,
        in_flight=new.now("nnasync_calls_in_flight", labels),
        run_median_s=new.quantile("nnasync_execution_seconds", where, 0.5),
        run_p99_s=new.quantile("nnasync_execution_seconds", where, 0.99),
        queue_p99_s=new.quantile("nnasync_queue_seconds", queue, 0.99),
        **rates,
    )


def _clients(new: _Difference, after: Samples, elapsed_s: float) -> Iterator[ClientRow]:
    """The clients that are there, each with all of its connections."""
    connections = Counter(
        dict(labels).get("client", "") for name, labels in after if name == "nnasync_client_queued"
    )
    for client, count in sorted(connections.items()):
        labels = {"client": client}
        yield ClientRow(
            client=client,
            connections=count,
            busy=new.of("nnasync_client_used_seconds_total", labels) / elapsed_s,
            runs=new.of("nnasync_client_runs_total", labels) / elapsed_s,
            queued=new.now("nnasync_client_queued", labels),
            refused=new.of("nnasync_client_refused_total", labels) / elapsed_s,
            missed=new.of("nnasync_client_missed_total", labels) / elapsed_s,
        )
