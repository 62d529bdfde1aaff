"""What happened between two looks at a runtime: rates of calls, times of runs, who is there.

Counters are those of metrics; a counter that went down is one of a process that began anew, and
counts from zero. Times are read off histograms: a quantile is the upper bound of its bucket.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from nnasync.cli.text import table
from nnasync.cli.top.reading import Labels, Samples
from nnasync.hal import Struct

_OUTCOMES = ("completed", "missed", "refused", "failed", "cancelled")


class Look(Struct, frozen=True):
    """The metrics of one process, and when they were read, in seconds of any steady clock."""

    at_s: float
    samples: Samples


class NetworkRow(Struct, frozen=True):
    """A network on a device at a priority: per second what became of calls; in flight, now.

    Durations are seconds, None where nothing ran meanwhile.
    """

    network: str
    device: str
    priority: str
    calls: float
    in_flight: float
    completed: float
    missed: float
    refused: float
    failed: float
    cancelled: float
    run_median_s: float | None
    run_p99_s: float | None
    queue_p99_s: float | None


class DeviceRow(Struct, frozen=True):
    """A device in a process of its own, which is 0 while there is none."""

    device: str
    pid: int


class Picture(Struct, frozen=True):
    """A runtime between two looks.

    `busy` is how many cores its executions kept busy, on the loop and on workers; `queued` are
    executions that wait now, by priority.
    """

    networks: tuple[NetworkRow, ...]
    devices: tuple[DeviceRow, ...]
    queued: dict[str, float]
    running: float
    busy: float
    preemptions: float
    pool_bytes: float


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
        """How much a counter has grown."""
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


# -- as text

_LOST = ("missed", "refused", "failed", "cancelled")
_COLUMNS: dict[str, Callable[[NetworkRow], str]] = {
    "network": lambda row: f"  {_cut(row.network)}",
    "priority": lambda row: _plain(row.priority),
    "calls/s": lambda row: _rate(row.calls),
    "now": lambda row: f"{row.in_flight:.0f}",
    "in time": lambda row: _share(row),
    "run p50": lambda row: _time(row.run_median_s),
    "p99": lambda row: _time(row.run_p99_s),
    "wait p99": lambda row: _time(row.queue_p99_s),
    "lost/s": lambda row: _lost(row),
}
_NAME = 20


def as_text(title: str, seen: Picture) -> str:
    """Returns a picture as lines of text, under a title: the networks of each device together.

    A priority at which nothing was called meanwhile has a row only where its network has no other.
    """
    waiting = ", ".join(
        f"{count:.0f} {_plain(name)}" for name, count in seen.queued.items() if count
    )
    facts = [
        f"{seen.busy:.2f} cores busy",
        f"{seen.running:.0f} running",
        f"waiting: {waiting or 'none'}",
        f"{_rate(seen.preemptions)} preemptions/s",
        f"pools {seen.pool_bytes / 1e6:.1f} MB",
    ]
    lines = [title, "  " + "; ".join(facts)]
    rows = _with_calls(seen.networks)
    head, under, *told = table(
        list(_COLUMNS), [[show(row) for show in _COLUMNS.values()] for row in rows]
    ).splitlines()
    if rows:
        lines += ["", f"  {head}".rstrip(), f"  {under}"]
    processes = {each.device: each.pid for each in seen.devices}
    for device in dict.fromkeys([*(row.device for row in rows), *processes]):
        lines.append(f"  {_plain(device)}{_process(processes.get(device))}")
        lines += [f"  {line}" for line, row in zip(told, rows, strict=True) if row.device == device]
    return "\n".join(lines)


def _with_calls(networks: tuple[NetworkRow, ...]) -> list[NetworkRow]:
    """The rows that say something: those with calls, and one of each network that has none."""
    called = [row for row in networks if row.calls or row.in_flight or _lost(row)]
    known = {(row.network, row.device) for row in called}
    for row in networks:
        if (row.network, row.device) not in known:
            known.add((row.network, row.device))
            called.append(row)
    return sorted(called, key=lambda row: (row.device, row.network, row.priority))


def _process(pid: int | None) -> str:
    if pid is None:
        return ""
    return f", process {pid}" if pid else ", no process now"


def _cut(name: str) -> str:
    told = _plain(name)
    return told if len(told) <= _NAME else f"{told[: _NAME - 3]}..."


def _plain(name: str) -> str:
    """A name of another process on one line, without what a terminal would obey."""
    return "".join(each if each.isprintable() else "?" for each in name)


def _lost(row: NetworkRow) -> str:
    counts = {name: getattr(row, name) for name in _LOST}
    return ", ".join(f"{_rate(count)} {name}" for name, count in counts.items() if count)


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 100 or value == 0 else f"{value:.1f}"


def _share(row: NetworkRow) -> str:
    ended = row.completed + row.missed + row.refused + row.failed
    return f"{row.completed / ended:.1%}" if ended else "-"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"
