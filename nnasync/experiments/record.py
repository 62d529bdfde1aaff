"""What is written down of a run, simulated or real, and the record that comes of it.

Of every request only its outcome and its latency are counted, so that memory stays flat however
long a run is; a window of it may be kept request by request, for a timeline. Latencies count from
the planned arrival.
"""

from __future__ import annotations

import enum
import math
from typing import Literal

import msgspec
from msgspec.structs import replace

from nnasync.experiments.checks import at_least
from nnasync.experiments.latencies import Latencies, LatencyHistogram
from nnasync.experiments.workload import Stream, Workload
from nnasync.hal import NEVER_NS

_FULL = 16_384
_SAMPLES = 400
_FIRST_INTERVAL_NS = 1_000_000


class Outcome(enum.Enum):
    """What became of a request."""

    MET = "met"
    LATE = "late"
    EXPIRED = "expired"
    REFUSED = "refused"
    DISPLACED = "displaced"
    CANCELLED = "cancelled"
    PENDING = "pending"


_MET, _LATE = Outcome.MET, Outcome.LATE


class Recording(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run writes down.

    Requests planned before `warm_up_ms` run, and are not counted. The first `timeline_requests`
    after that are kept one by one.
    """

    warm_up_ms: float = 0.0
    timeline_requests: int = 0

    def __post_init__(self) -> None:
        at_least("warm_up_ms", self.warm_up_ms, 0)
        at_least("timeline_requests", self.timeline_requests, 0)


class StreamResult(msgspec.Struct, frozen=True):
    """What became of the requests of a stream; the outcomes add up to `submitted`.

    `deadline_ns` counts from the planned arrival; None if there is none, and every request that
    completes has met it. `expired` were given up when their deadline passed, `refused` were not
    taken at all, `displaced` lost their place to others, and `pending` had no answer when the run
    ended; the deadlines of `overdue` ones among those had passed by then.
    """

    name: str
    priority: str
    deadline_ns: int | None
    submitted: int
    met: int
    late: int
    expired: int
    refused: int
    displaced: int
    cancelled: int
    pending: int
    latency: Latencies
    overdue: int = 0

    @property
    def completed(self) -> int:
        """Returns how many requests ran to their end."""
        return self.met + self.late

    @property
    def missed(self) -> int:
        """Returns how many requests had their deadline pass, whether they were answered or not."""
        return self.late + self.expired + self.overdue

    @property
    def attainment(self) -> float:
        """Returns the share of requests that were answered in time.

        What its caller cancelled does not count, nor what was pending and could still have met its
        deadline. NaN where nothing is left.
        """
        asked = self.submitted - self.cancelled - self.pending + self.overdue
        return self.met / asked if asked else math.nan


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A piece of a request's run, on one core without a break; stream and request are numbers."""

    core: int
    stream: int
    request: int
    began_ns: int
    ended_ns: int


class RequestRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request of the window that is kept; `ended_ns` is when its outcome was known.

    `queued_ns` is when it was submitted to the queue of the workers, `told_ns` when the loop was
    told that it was due; -1 where it never was, or that is not known.
    """

    stream: int
    request: int
    arrived_ns: int
    ended_ns: int
    outcome: Outcome
    queued_ns: int = -1
    told_ns: int = -1


class RunResult(msgspec.Struct, frozen=True):
    """The record of one run of one workload with one seed.

    `busy_ns` is what the cores ran in all. `queue` are pairs of a moment and how many requests were
    queued then. `notes` tell what the reader should know, such as a policy that failed. `waited` is
    the share of the time in which the threads of a real run wanted a core that they waited for one;
    None where that is not known.
    """

    kind: Literal["simulated", "real"]
    seed: int
    cores: int
    policy: str
    duration_ns: int
    busy_ns: int
    preemptions: int
    streams: tuple[StreamResult, ...]
    spans: tuple[Span, ...] = ()
    requests: tuple[RequestRow, ...] = ()
    queue: tuple[tuple[int, int], ...] = ()
    notes: tuple[str, ...] = ()
    waited: float | None = None

    def __repr__(self) -> str:
        told = ", ".join(
            f"{stream.name} {stream.met} of {stream.submitted} met" for stream in self.streams
        )
        return f"<RunResult: {self.kind}, {self.policy}, seed {self.seed}: {told}>"

    @property
    def goodput_hz(self) -> float:
        """Returns how many requests were answered in time, per second."""
        met = sum(stream.met for stream in self.streams)
        return met * 1e9 / self.duration_ns if self.duration_ns else 0.0


class StreamAccount:
    """Counts the outcomes of one stream's requests; `latencies_ns` are put away now and then.

    Requests planned before `from_ns` do not count. What was planned before `due_before_ns` is due
    by the end of the run, as far as that is known; `due` counts those that have no outcome yet.
    """

    __slots__ = (
        "_counts",
        "_histogram",
        "_stream",
        "due",
        "due_before_ns",
        "from_ns",
        "latencies_ns",
        "met",
        "submitted",
    )

    def __init__(self, stream: Stream, from_ns: int = 0) -> None:
        self._stream = stream
        self.from_ns = from_ns
        self.due, self.due_before_ns = 0, -1
        self.submitted = self.met = 0
        self.latencies_ns: list[int] = []
        self._histogram = LatencyHistogram()
        self._counts = dict.fromkeys(Outcome, 0)

    def ended(self, planned_ns: int, ended_ns: int, outcome: Outcome) -> None:
        """Counts the outcome of a request, and its latency if it ran to its end."""
        if planned_ns < self.from_ns:
            return
        if planned_ns < self.due_before_ns:
            self.due -= 1
        if outcome is _MET:
            self.met += 1
        else:
            self._counts[outcome] += 1
            if outcome is not _LATE:
                return
        latencies_ns = self.latencies_ns
        latencies_ns.append(ended_ns - planned_ns)
        if len(latencies_ns) >= _FULL:
            self._histogram.add(latencies_ns)
            latencies_ns.clear()

    def result(self) -> StreamResult:
        """Returns the stream's result; requests that have no outcome by now are pending."""
        self._histogram.add(self.latencies_ns)
        self.latencies_ns.clear()
        stream, counts = self._stream, self._counts
        known = self.met + sum(counts.values()) - counts[Outcome.PENDING]
        return StreamResult(
            name=stream.name,
            priority=stream.priority,
            deadline_ns=None if stream.deadline_ns == NEVER_NS else stream.deadline_ns,
            submitted=self.submitted,
            met=self.met,
            late=counts[Outcome.LATE],
            expired=counts[Outcome.EXPIRED],
            refused=counts[Outcome.REFUSED],
            displaced=counts[Outcome.DISPLACED],
            cancelled=counts[Outcome.CANCELLED],
            pending=self.submitted - known,
            latency=self._histogram.latencies(),
            overdue=self.due,
        )

    def until(self, ends_ns: int) -> None:
        """Notes when the run ends: requests due before that and without outcome are overdue."""
        if self._stream.deadline_ns < NEVER_NS:
            self.due_before_ns = ends_ns - self._stream.deadline_ns


class QueueLengths:
    """Samples of the queue's length at even intervals: some hundreds, however long the run is."""

    def __init__(self) -> None:
        self._interval_ns = _FIRST_INTERVAL_NS
        self._samples: list[tuple[int, int]] = []
        self.next_ns = 0
        """When the next sample is wanted."""

    def sample(self, length: int) -> None:
        """Records the queue's length at `next_ns`."""
        self._samples.append((self.next_ns, length))
        if len(self._samples) > 2 * _SAMPLES:
            self._samples = self._samples[::2]
            self._interval_ns *= 2
        self.next_ns = self._samples[-1][0] + self._interval_ns

    def samples(self) -> tuple[tuple[int, int], ...]:
        """Returns all samples: half of the most that are kept, or more."""
        return tuple(self._samples)


class Recorder:
    """Records a run; `accounts` are those of the streams, in their order.

    A request has a number if it is one of the window that is kept (`number`), else it has -1.
    """

    def __init__(self, workload: Workload, recording: Recording) -> None:
        self.from_ns = round(recording.warm_up_ms * 1e6)
        self.accounts = [StreamAccount(stream, self.from_ns) for stream in workload.streams]
        self.queue = QueueLengths()
        self._window = recording.timeline_requests
        self._spans: list[Span] = []
        self._rows: list[RequestRow] = []
        self._queued_ns: dict[int, int] = {}
        self._told_ns: dict[int, int] = {}

    def until(self, ends_ns: int) -> None:
        """Notes when the run ends, before its first request, where that is known."""
        for account in self.accounts:
            account.until(ends_ns)

    def submitted(self, stream: int, planned_ns: int) -> int:
        """Records a request; returns its number if it is in the window that is kept, else -1."""
        if planned_ns < self.from_ns:
            return -1
        account = self.accounts[stream]
        account.submitted += 1
        if planned_ns < account.due_before_ns:
            account.due += 1
        if len(self._rows) >= self._window:
            return -1
        number = len(self._rows)
        self._rows.append(RequestRow(stream, number, planned_ns, NEVER_NS, Outcome.PENDING))
        return number

    def ended(
        self, stream: int, number: int, planned_ns: int, ended_ns: int, outcome: Outcome
    ) -> None:
        """Records the outcome of a request."""
        self.accounts[stream].ended(planned_ns, ended_ns, outcome)
        if number >= 0:
            self._rows[number] = RequestRow(stream, number, planned_ns, ended_ns, outcome)

    def told(self, number: int, at_ns: int) -> None:
        """Records when the loop was told that a request was due, if the window has it."""
        if number >= 0:
            self._told_ns[number] = at_ns

    def queued(self, number: int, at_ns: int) -> None:
        """Records when a request was submitted to the queue, if the window has it."""
        if number >= 0:
            self._queued_ns[number] = at_ns

    def ran(self, core: int, stream: int, number: int, began_ns: int, ended_ns: int) -> None:
        """Records a piece of a run, if the window has its request."""
        if number >= 0:
            self._spans.append(Span(core, stream, number, began_ns, ended_ns))

    def result(
        self,
        kind: Literal["simulated", "real"],
        *,
        seed: int,
        cores: int,
        policy: str,
        duration_ns: int,
        busy_ns: int,
        preemptions: int,
        notes: tuple[str, ...] = (),
        waited: float | None = None,
    ) -> RunResult:
        """Returns the record of the run; requests without an outcome count as pending."""
        rows = (
            replace(
                row,
                ended_ns=duration_ns if row.outcome is Outcome.PENDING else row.ended_ns,
                queued_ns=self._queued_ns.get(row.request, -1),
                told_ns=self._told_ns.get(row.request, -1),
            )
            for row in self._rows
        )
        return RunResult(
            kind=kind,
            seed=seed,
            cores=cores,
            policy=policy,
            duration_ns=duration_ns,
            busy_ns=busy_ns,
            preemptions=preemptions,
            streams=tuple(account.result() for account in self.accounts),
            spans=tuple(self._spans),
            requests=tuple(rows),
            queue=self.queue.samples(),
            notes=notes,
            waited=waited,
        )
