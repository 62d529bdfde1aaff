"""What a trace says of the runtime that it is of, as a picture.

Its executions are spans of devices, or of the processes of devices: those on workers with their
task, their priority and whether they ended; those on the thread of the loop without. An answer with
an error is an event of its task. So of tasks it is known what became of them; of runs on the loop
only how many there were and how long they took. Rates are per second from the first beginning of an
execution or error to the last end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from nnasync.cli.top.view import DeviceRow, NetworkRow, Picture
from nnasync.cli.trace_file import Event, Microseconds, read
from nnasync.errors import InvalidArgument
from nnasync.hal import Struct

_RUN = "driver,execution"
_ANSWER = "runtime,unspecified"
_SERVICE = "service of "
_OUTCOMES = {"MissedDeadline": "missed", "ResourceExhausted": "refused", "Cancelled": "cancelled"}


class _Details(Struct):
    """What is read of the arguments of an event."""

    name: str = ""
    task: int | str | None = None
    priority: str = ""
    finished: bool = True
    us_since_ready: Microseconds = 0.0
    us_active: Microseconds = 1.0
    error: str | None = None


class _Call:
    """A call of a network: how long it ran and waited, and what became of it, if it ended."""

    __slots__ = ("active_us", "end_us", "outcome", "waited_us")

    def __init__(self, begun_us: float) -> None:
        self.end_us = begun_us
        self.active_us = 0.0
        self.waited_us: float | None = None
        self.outcome = ""


_Row = tuple[str, str]


def recorded(path: Path) -> Picture:
    """Returns what a file says; raises InvalidArgument if it is no trace, OSError as files do."""
    try:
        return _picture(read(path))
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidArgument(f"{path} is no trace of nnasync: {error}") from error


def _picture(events: Sequence[Event]) -> Picture:
    found = _Calls()
    devices = []
    for event in sorted(events, key=lambda event: event.ts):
        if event.ph == "M" and event.name == "process_name":
            name = _details(event).name
            if name.startswith(_SERVICE) and isinstance(event.pid, int):
                devices.append(DeviceRow(name.removeprefix(_SERVICE), event.pid))
        elif event.ph == "X" and event.cat == _RUN:
            found.ran(event, _details(event))
        elif event.ph == "i" and event.cat == _ANSWER:
            found.failed(event, _details(event))
    elapsed_s = max(found.last_us - found.first_us, 1e-3) * 1e-6 if found.rows else 1.0
    return Picture(
        networks=tuple(_network(*key, calls, elapsed_s) for key, calls in found.rows.items()),
        devices=tuple(devices),
        queued=None,
        running=None,
        busy=found.busy_us * 1e-6 / elapsed_s,
        preemptions=found.preemptions / elapsed_s,
        pool_bytes=None,
    )


class _Calls:
    """The calls of a trace by network and priority, taken in by the time at which events begin."""

    def __init__(self) -> None:
        self.rows: dict[_Row, list[_Call]] = {}
        self.first_us, self.last_us = math.inf, -math.inf
        self.busy_us = 0.0
        self.preemptions = 0
        self._latest: dict[tuple[object, object], _Call] = {}

    def ran(self, event: Event, details: _Details) -> None:
        """Take in a run of a call, or the part of it up to a preemption."""
        duration_us = max(event.dur, 0.0)
        self._saw(event.ts, event.ts + duration_us)
        self.busy_us += duration_us
        key = (event.pid, details.task)
        call = None if details.task is None else self._latest.get(key)
        if call is None or call.outcome:
            call = self._new(event, details)
            call.waited_us = details.us_since_ready if details.priority else None
        else:
            self.preemptions += 1
        call.active_us += duration_us
        call.end_us = event.ts + duration_us
        if details.finished:
            call.outcome = "completed"

    def failed(self, event: Event, details: _Details) -> None:
        """Take in an error: that of a call that runs or ran, or of one that never began."""
        if details.error is None or details.task is None:
            return
        self._saw(event.ts, event.ts)
        call = self._latest.get((event.pid, details.task))
        if call is None or not (_goes_on(call, event) or details.us_active):
            call = self._new(event, details)
        call.outcome = _outcome(event.name)

    def _new(self, event: Event, details: _Details) -> _Call:
        name = event.name if event.ph == "X" else event.name.rpartition(": ")[0]
        call = _Call(event.ts)
        self.rows.setdefault((name, details.priority.lower()), []).append(call)
        self._latest[event.pid, details.task] = call
        return call

    def _saw(self, begun_us: float, ended_us: float) -> None:
        self.first_us = min(self.first_us, begun_us)
        self.last_us = max(self.last_us, ended_us)


def _goes_on(call: _Call, event: Event) -> bool:
    return not call.outcome or event.ts <= call.end_us


def _outcome(name: str) -> str:
    kind = name.rpartition(": ")[2]
    return next((told for error, told in _OUTCOMES.items() if kind.startswith(error)), "failed")


def _details(event: Event) -> _Details:
    return msgspec.json.decode(event.args, type=_Details)


def _network(name: str, priority: str, calls: Sequence[_Call], elapsed_s: float) -> NetworkRow:
    network, _, device = name.rpartition(" on ") if " on " in name else (name, "", "")
    runs = [call.active_us for call in calls if call.outcome == "completed"]
    waits = [call.waited_us for call in calls if call.waited_us is not None]
    return NetworkRow(
        network=network,
        device=device,
        priority=priority,
        calls=len(calls) / elapsed_s,
        in_flight=None,
        run_median_s=_quantile(runs, 0.5),
        run_p99_s=_quantile(runs, 0.99),
        queue_p99_s=_quantile(waits, 0.99),
        **_rates(calls, elapsed_s, is_told=bool(priority)),
    )


def _rates(
    calls: Iterable[_Call], elapsed_s: float, *, is_told: bool
) -> Mapping[str, float | None]:
    """Returns the calls per second by outcome."""
    counts = dict.fromkeys(("completed", "missed", "refused", "failed", "cancelled"), 0)
    for call in calls:
        if call.outcome:
            counts[call.outcome] += 1
    return {name: count / elapsed_s if is_told else None for name, count in counts.items()}


def _quantile(durations_us: Sequence[float], share: float) -> float | None:
    """The least duration, in seconds, that this share of them does not exceed."""
    if not durations_us:
        return None
    return sorted(durations_us)[math.ceil(share * len(durations_us)) - 1] * 1e-6
