"""Metrics as Prometheus reads them: text exposition format 0.0.4.

`render` makes one text of any frozen statistics (their numbers, by the names of their fields) and
of collectors, such as `Durations`, the instrument that counts answers and keeps histograms of how
long executions waited and ran. Times are seconds, as Prometheus has it.
"""

from __future__ import annotations

import functools
import threading
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from nnasync import errors
from nnasync.tracing.families import Collector, Family, Sample
from nnasync.tracing.histogram import Histogram, number
from nnasync.tracing.instruments import Instrument, Traced
from nnasync.tracing.statistic_kinds import COUNTER, LABEL

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_OTHERS = "(others)"
_ANSWERED = "NONE"


def render(statistics: msgspec.Struct | None, *collectors: Collector) -> str:
    """Returns all metrics as text: those of `statistics`, then those of the collectors.

    What several collectors have of one name is one family: a name may be there once.
    """
    families = [] if statistics is None else list(_families("nnasync", statistics))
    for collector in collectors:
        families += collector.collect()
    found: dict[str, Family] = {}
    for family in families:
        known = found.get(family.name)
        if known is not None:
            family = msgspec.structs.replace(known, samples=known.samples + family.samples)
        found[family.name] = family
    return "".join(map(_text, found.values()))


class Durations(Instrument):
    """Histograms of times in the queue and of runs, counts of answers and of fallbacks.

    The first `networks` of them are counted separately, the rest as "(others)".
    """

    def __init__(self, networks: int = 200) -> None:
        if networks < 0:
            raise errors.InvalidArgument(f"networks must be 0 or more, got {networks}")
        self._limit = networks
        self._lock = threading.Lock()
        self._ran: dict[tuple[str, str], Histogram] = {}
        self._queued: dict[tuple[str, str], Histogram] = {}
        self._answers: dict[tuple[str, str, str], int] = {}
        self._fallbacks: dict[tuple[str, str], int] = {}
        self._names: set[str] = set()

    def task_started(self, task: Traced, begun_ns: int) -> None:
        """Count the time in the queue up to the first start."""
        if task.active_ns == 0:
            with self._lock:
                key = (self._name(task.name), task.priority.name.lower())
                _histogram(self._queued, key).observe((begun_ns - task.ready_ns) * 1e-9)

    def task_ran(self, task: Traced, begun_ns: int, ended_ns: int, finished: bool) -> None:
        """Count a finished run, without the time for which it was preempted."""
        if finished:
            with self._lock:
                key = (self._name(task.name), "worker")
                _histogram(self._ran, key).observe(task.active_ns * 1e-9)

    def task_answered(self, task: Traced, error: Exception | None) -> None:
        """Count an answer by its status."""
        status = _ANSWERED if error is None else _status(error)
        with self._lock:
            key = (self._name(task.name), task.priority.name.lower(), status)
            self._answers[key] = self._answers.get(key, 0) + 1

    def inline_run(self, name: str, begun_ns: int, ended_ns: int) -> None:
        """Count an inline run."""
        with self._lock:
            known = self._name(name)
            _histogram(self._ran, (known, "inline")).observe((ended_ns - begun_ns) * 1e-9)

    def fell_back(self, network: str, device: str, kind: str, error: Exception) -> None:
        """Count what the reference did for a device."""
        with self._lock:
            key = (device, kind)
            self._fallbacks[key] = self._fallbacks.get(key, 0) + 1

    def collect(self) -> Iterable[Family]:
        """Two histograms and two counters."""
        with self._lock:
            ran = tuple(_histogram_samples(self._ran, "lane"))
            queued = tuple(_histogram_samples(self._queued, "priority"))
            answers = tuple(
                Sample("", (*_network(name), ("priority", priority), ("status", status)), count)
                for (name, priority, status), count in self._answers.items()
            )
            fallbacks = tuple(
                Sample("", (("device", device), ("kind", kind)), count)
                for (device, kind), count in self._fallbacks.items()
            )
        yield Family(
            "nnasync_execution_seconds", "histogram", "Executions that ran to their end.", ran
        )
        yield Family(
            "nnasync_queue_seconds", "histogram", "Time from being ready to the start.", queued
        )
        yield Family(
            "nnasync_answers_total", "counter", "Answers to executions on workers.", answers
        )
        yield Family(
            "nnasync_fallbacks_total",
            "counter",
            "Work that the reference did for devices.",
            fallbacks,
        )

    def _name(self, name: str) -> str:
        if name in self._names:
            return name
        if len(self._names) >= self._limit:
            return _OTHERS
        self._names.add(name)
        return name


class Processes:
    """Which devices live in processes of their own, and whether these are there."""

    def __init__(self, source: object) -> None:
        """`source` may have `devices`, some of which may have a `pid`, 0 while they have none."""
        self._source = source

    def collect(self) -> Iterable[Family]:
        """Two gauges, where there are such devices."""
        pids = [
            ((("device", str(device.name)),), int(device.pid))
            for device in getattr(self._source, "devices", ())
            if hasattr(device, "pid")
        ]
        if pids:
            up = tuple(Sample("", labels, pid > 0) for labels, pid in pids)
            yield Family("nnasync_device_up", "gauge", "Whether its process is there.", up)
            numbers = tuple(Sample("", labels, pid) for labels, pid in pids)
            yield Family("nnasync_device_pid", "gauge", "Its process; 0 for none.", numbers)


class Clients:
    """What the clients of a service use: one connection each, from when it comes until it goes."""

    def __init__(self, source: object) -> None:
        """`source` may have statistics whose workers serve clients."""
        self._source = source

    def collect(self) -> Iterable[Family]:
        """Four counters and a gauge, where there are clients."""
        found: Any = self._source
        found = found.statistics() if hasattr(found, "statistics") else None
        for field in ("workers", "scheduler", "clients"):
            found = getattr(found, field, None)
        for name, kind, text, value in _OF_CLIENTS:
            samples = tuple(Sample("", _client(each), value(each)) for each in found or ())
            if samples:
                yield Family(f"nnasync_client_{name}", kind, text, samples)


_OF_CLIENTS: tuple[tuple[str, str, str, Callable[[Any], float]], ...] = (
    ("used_seconds_total", "counter", "Charged for its work.", lambda each: each.used_ns * 1e-9),
    ("runs_total", "counter", "Executions that ran.", lambda each: each.runs),
    ("refused_total", "counter", "Found no place, or lost it.", lambda each: each.refused),
    ("missed_total", "counter", "Too late before they began.", lambda each: each.missed),
    ("queued", "gauge", "Executions that wait.", lambda each: each.queued),
)


def _client(each: Any) -> tuple[tuple[str, str], ...]:
    return (("client", each.name), ("connection", str(each.client)))


def _histogram(histograms: dict[tuple[str, str], Histogram], key: tuple[str, str]) -> Histogram:
    found = histograms.get(key)
    if found is None:
        found = histograms[key] = Histogram()
    return found


def _histogram_samples(
    histograms: Mapping[tuple[str, str], Histogram], label: str
) -> Iterator[Sample]:
    for (name, value), histogram in histograms.items():
        yield from histogram.samples((*_network(name), (label, value)))


def _network(name: str) -> tuple[tuple[str, str], ...]:
    network, _, device = name.rpartition(" on ") if " on " in name else (name, "", "")
    return (("network", network), ("device", device))


def _status(error: Exception) -> str:
    if isinstance(error, errors.Cancelled):
        return "CANCELLED"
    return error.status.name if isinstance(error, errors.NNError) else "GENERAL_FAILURE"


# -- statistics


def _families(prefix: str, statistics: msgspec.Struct) -> Iterator[Family]:
    for field, extra in _fields(type(statistics)).items():
        value = getattr(statistics, field)
        name = f"{prefix}_{field}"
        if isinstance(value, msgspec.Struct):
            yield from _families(name, value)
        elif LABEL in extra:
            label, values = extra[LABEL]
            samples = [
                Sample("", ((label, each),), number)
                for each, number in zip(values, value, strict=True)
            ]
            yield _family(name, tuple(samples), extra)
        elif isinstance(value, int | float):
            yield _family(name, (Sample("", (), value),), extra)


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, dict[str, Any]]:
    """The fields of a struct, with what their annotations say for metrics."""
    hints = typing.get_type_hints(kind, include_extras=True)
    found: dict[str, dict[str, Any]] = {}
    for name in kind.__struct_fields__:
        metas = getattr(hints[name], "__metadata__", ())
        extras = [meta.extra for meta in metas if isinstance(meta, msgspec.Meta) and meta.extra]
        found[name] = functools.reduce(lambda a, b: a | b, extras, {})
    return found


def _family(name: str, samples: tuple[Sample, ...], extra: Mapping[str, Any]) -> Family:
    if name.endswith("_ns"):
        name = f"{name[:-3]}_seconds"
        samples = tuple(Sample(s.suffix, s.labels, s.value * 1e-9) for s in samples)
    if extra.get(COUNTER):
        return Family(f"{name}_total", "counter", "Since the start.", samples)
    return Family(name, "gauge", "Now.", samples)


# -- text


def _text(family: Family) -> str:
    lines = [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
    for sample in family.samples:
        labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels)
        name = f"{family.name}{sample.suffix}"
        lines.append(
            f"{name}{{{labels}}} {number(sample.value)}"
            if labels
            else f"{name} {number(sample.value)}"
        )
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
