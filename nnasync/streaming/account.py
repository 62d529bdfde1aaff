"""The account of a stream: where every submitted item went, and how long the answers took.

    submitted = completed + missed + dropped + cancelled + failed + pending
              + passed + filtered + merged

holds after every step, because an item is entered once and its entry is settled once:
`Ledger.submit` makes an `Entry`, `Entry.settle` moves it from pending into exactly one bucket and
refuses a second time. After `Ledger.close` nothing is pending. Nothing here reads a clock or waits;
a ledger belongs to one event loop and is not thread-safe.

Latencies go into a histogram of bounded size: 64 buckets to each power of two, so a percentile is
at most 1.6 % above the true value, and the largest value is exact.
"""

from __future__ import annotations

import enum
import math
from array import array
from collections.abc import Callable, Sequence

from nnasync._core.arguments import check_number
from nnasync._core.notebook import html_table
from nnasync.errors import BadState
from nnasync.hal import Struct


class Outcome(enum.Enum):
    """The bucket in which an item ends.

    The last three are of graphs: it went on to the next stages, it was sorted out as was asked for,
    or it went on as a part of another item, such as a batch.
    """

    COMPLETED = "completed"
    MISSED = "missed"
    DROPPED = "dropped"
    CANCELLED = "cancelled"
    FAILED = "failed"
    PASSED = "passed"
    FILTERED = "filtered"
    MERGED = "merged"


class Account(Struct, repr_omit_defaults=True):
    """How many items of a stream are where; as a string it is the sum that has to be right.

    `str(Account(submitted=3, completed=2, dropped=1))` is "submitted 3 = completed 2 + dropped 1",
    with `pending` where it is not 0.
    """

    submitted: int = 0
    completed: int = 0
    missed: int = 0
    dropped: int = 0
    cancelled: int = 0
    failed: int = 0
    passed: int = 0
    filtered: int = 0
    merged: int = 0
    pending: int = 0

    def __str__(self) -> str:
        """Say where the items went, without what is 0."""
        ends = " + ".join(f"{name} {count}" for name, count in self._ends())
        return f"submitted {self.submitted} = {ends or 0}"

    def _repr_html_(self) -> str:
        """Return a table for notebooks of where the items went."""
        return html_table(("submitted", self.submitted), self._ends())

    def _ends(self) -> list[tuple[str, int]]:
        counts = ((name, getattr(self, name)) for name in self.__struct_fields__[1:])
        return [(name, count) for name, count in counts if count]


class Latency(Struct):
    """Percentiles of the time from capture to answer in nanoseconds; all 0 before the first one."""

    count: int = 0
    p50_ns: int = 0
    p90_ns: int = 0
    p99_ns: int = 0
    max_ns: int = 0

    def __str__(self) -> str:
        """Say them in milliseconds."""
        told = (("p50", self.p50_ns), ("p90", self.p90_ns), ("p99", self.p99_ns))
        times = ", ".join(f"{name} {ns / 1e6:.2f}" for name, ns in (*told, ("max", self.max_ns)))
        return f"{times} ms of {self.count}"


class StreamStatistics(Struct):
    """Account of a stream, latency of its completed items, and how many deadlines they met.

    `deadlines` counts the items with a deadline that were completed, missed or failed, `hits` those
    of them that were completed.
    """

    account: Account = Account()
    latency: Latency = Latency()
    deadlines: int = 0
    hits: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the deadlines that were met; 1.0 where there was none."""
        return self.hits / self.deadlines if self.deadlines else 1.0

    def __str__(self) -> str:
        """Say all of it in one line."""
        met = f"; {self.hits} of {self.deadlines} deadlines met" if self.deadlines else ""
        return f"{self.account}; latency {self.latency}{met}"

    def _repr_html_(self) -> str:
        """Return the account as a table for notebooks, and the latencies."""
        rows = [("latency", str(self.latency)), ("deadlines met", f"{100 * self.hit_rate:.2f}%")]
        return self.account._repr_html_() + html_table(("", ""), rows)


_OF_ONE_STAGE = ("submitted", "passed")


def of_chain(parts: Sequence[StreamStatistics]) -> StreamStatistics:
    """Returns the statistics of consecutive stages as of a single stage.

    What goes on from one to the next is pending or has ended there, so each item is counted once.
    """
    counts = {
        field: sum(getattr(part.account, field) for part in parts)
        for field in Account.__struct_fields__
        if field not in _OF_ONE_STAGE
    }
    first, last = parts[0].account, parts[-1].account
    return StreamStatistics(
        Account(submitted=first.submitted, passed=last.passed, **counts),
        parts[-1].latency,
        sum(part.deadlines for part in parts),
        sum(part.hits for part in parts),
    )


_SUB_BITS = 6


class Histogram:
    """Counts of non-negative integers with a relative error of at most 2**-6.

    It has a count for each bucket between the smallest and the largest value, so how much memory it
    takes depends on these two alone: 512 bytes for each doubling.
    """

    __slots__ = ("_counts", "_first", "count", "largest")

    def __init__(self) -> None:
        self._counts = array("Q")
        self._first = 0
        self.count = 0
        self.largest = 0

    def add(self, value: int) -> None:
        """Count one value; a negative one counts as 0."""
        value = max(value, 0)
        shift = max(value.bit_length() - _SUB_BITS - 1, 0)
        bucket = (shift << _SUB_BITS) + (value >> shift)
        if not 0 <= bucket - self._first < len(self._counts):
            self._make_room(bucket)
        self._counts[bucket - self._first] += 1
        self.count += 1
        self.largest = max(self.largest, value)

    def percentile(self, percent: float) -> int:
        """The value that `percent` of the counted ones do not exceed; 0 when nothing was counted.

        Raises InvalidArgument unless 0 <= percent <= 100.
        """
        check_number("percent", percent, 0, 100)
        rank = max(math.ceil(self.count * percent / 100), 1)
        for bucket, count in enumerate(self._counts, self._first):
            rank -= count
            if rank <= 0:
                return min(_upper_edge(bucket), self.largest)
        return self.largest

    def _make_room(self, bucket: int) -> None:
        """Extends the counts so that they cover this bucket's doubling, and all below it."""
        begin = bucket >> _SUB_BITS << _SUB_BITS
        end = begin + (1 << _SUB_BITS)
        first = min(begin, self._first) if self._counts else begin
        before = self._first - first if self._counts else 0
        after = end - first - before - len(self._counts)
        self._counts = _zeros(before) + self._counts + _zeros(after)
        self._first = first


def _zeros(count: int) -> array[int]:
    return array("Q", bytes(8 * max(count, 0)))


def _upper_edge(bucket: int) -> int:
    """Largest value that falls into a bucket."""
    shift = max((bucket >> _SUB_BITS) - 1, 0)
    mantissa = bucket - (shift << _SUB_BITS)
    return ((mantissa + 1) << shift) - 1


class Entry:
    """One item in a ledger, pending until it is settled."""

    __slots__ = ("_ledger", "has_deadline", "item", "outcome")

    def __init__(self, ledger: Ledger, has_deadline: bool, item: object) -> None:
        self._ledger = ledger
        self.item = item
        self.has_deadline = has_deadline
        self.outcome: Outcome | None = None

    def settle(self, outcome: Outcome, *, latency_ns: int | None = None) -> None:
        """Move the item into its bucket; `latency_ns` counts for completed items only.

        Raises BadState when it was settled before.
        """
        if self.outcome is not None:
            raise BadState(
                f"the item is settled as {self.outcome.value} and cannot be settled again"
            )
        self.outcome = outcome
        self._ledger._settle(self, outcome, latency_ns)


class Ledger:
    """Keeps the account of one stream; `on_settled` hears of each entry when it is settled."""

    def __init__(self, on_settled: Callable[[Entry], object] | None = None) -> None:
        self._on_settled = on_settled
        self._submitted = 0
        self._buckets = dict.fromkeys(Outcome, 0)
        self._latency = Histogram()
        self._deadlines = 0
        self._hits = 0
        self._pending: set[Entry] = set()
        self._closed = False

    def submit(self, *, has_deadline: bool = False, item: object = None) -> Entry:
        """Enter an item as pending; raises BadState after close."""
        if self._closed:
            raise BadState("the account of this stream is closed and takes no more items")
        entry = Entry(self, has_deadline, item)
        self._submitted += 1
        self._pending.add(entry)
        return entry

    def lost(self, outcome: Outcome, count: int) -> None:
        """Enter items that were lost before anybody could submit them, such as by a source."""
        self._submitted += count
        self._buckets[outcome] += count

    def close(self) -> None:
        """Settle all pending items as cancelled and accept no more."""
        self._closed = True
        for entry in tuple(self._pending):
            entry.settle(Outcome.CANCELLED)

    @property
    def account(self) -> Account:
        """Returns how many items are in each bucket now."""
        return Account(
            submitted=self._submitted,
            pending=len(self._pending),
            **{outcome.value: count for outcome, count in self._buckets.items()},
        )

    def statistics(self) -> StreamStatistics:
        """Account, latency and deadline hits so far."""
        histogram = self._latency
        latency = Latency(
            count=histogram.count,
            p50_ns=histogram.percentile(50),
            p90_ns=histogram.percentile(90),
            p99_ns=histogram.percentile(99),
            max_ns=histogram.largest,
        )
        return StreamStatistics(self.account, latency, self._deadlines, self._hits)

    def _settle(self, entry: Entry, outcome: Outcome, latency_ns: int | None) -> None:
        self._pending.remove(entry)
        self._buckets[outcome] += 1
        completed = outcome is Outcome.COMPLETED
        if completed and latency_ns is not None:
            self._latency.add(latency_ns)
        if entry.has_deadline and outcome in (Outcome.COMPLETED, Outcome.MISSED, Outcome.FAILED):
            self._deadlines += 1
            self._hits += completed
        if self._on_settled is not None:
            self._on_settled(entry)
