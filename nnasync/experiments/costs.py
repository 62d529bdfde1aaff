"""What requests cost: how long each runs on a core when nothing disturbs it.

`draw(rng, count)` gives costs in nanoseconds, whole numbers of at least 1. `mean_ns` is their
expectation, from which loads are reckoned. Where a run may be interrupted is a matter of its steps:
`borders` are the shares of its length at which operations end.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from nnasync.errors import ExperimentError
from nnasync.experiments.checks import (
    MOST,
    Kind,
    a_number,
    at_least,
    positive,
    row,
    variation,
    whole_ns,
)

MOST_WINDOW_MS = 999_999
"""As long as requests may wait for each other."""

CostsNs: TypeAlias = NDArray[np.int64]


class Constant(Kind, frozen=True):
    """Each request costs `ms`."""

    ms: float

    def __post_init__(self) -> None:
        positive("ms", self.ms)

    @property
    def mean_ns(self) -> float:
        """Returns the expected cost in nanoseconds."""
        return self.ms * 1e6

    def draw(self, rng: np.random.Generator, count: int) -> CostsNs:
        """Draws `count` costs in nanoseconds."""
        return np.full(count, max(1, round(self.ms * 1e6)), np.int64)


class Exponential(Kind, frozen=True):
    """Costs have an exponential distribution, as the classical queues have."""

    mean_ms: float

    def __post_init__(self) -> None:
        positive("mean_ms", self.mean_ms)

    @property
    def mean_ns(self) -> float:
        """Returns the expected cost in nanoseconds."""
        return self.mean_ms * 1e6

    def draw(self, rng: np.random.Generator, count: int) -> CostsNs:
        """Draws `count` costs in nanoseconds."""
        return _whole(rng.exponential(self.mean_ms * 1e6, count))


class Lognormal(Kind, frozen=True):
    """Costs have a lognormal distribution with coefficient of variation `cv`."""

    mean_ms: float
    cv: float

    def __post_init__(self) -> None:
        positive("mean_ms", self.mean_ms)
        variation("cv", self.cv)

    @property
    def mean_ns(self) -> float:
        """Returns the expected cost in nanoseconds."""
        return self.mean_ms * 1e6

    def draw(self, rng: np.random.Generator, count: int) -> CostsNs:
        """Draws `count` costs in nanoseconds."""
        return _whole(self.mean_ms * 1e6 * _factors(rng, self.cv, count))


class Histogram(Kind, frozen=True):
    """Measured costs: `counts[i]` of them lie evenly between `edges_ms[i]` and the next edge."""

    edges_ms: tuple[float, ...]
    counts: tuple[float, ...]

    def __post_init__(self) -> None:
        edges, counts = self.edges_ms, self.counts
        row("edges_ms", edges)
        row("counts", counts)
        for number, edge in enumerate(edges):
            a_number(f"edges_ms[{number}]", edge)
        if len(edges) != len(counts) + 1 or not counts:
            raise ExperimentError(
                f"edges_ms has {len(edges)} values and counts {len(counts)}: there must be one "
                "edge more than counts, and one count at least"
            )
        at_least("edges_ms[0]", edges[0], 0)
        for number, (low, high) in enumerate(itertools.pairwise(edges)):
            if not low < high < math.inf:
                raise ExperimentError(
                    f"edges_ms[{number + 1}] is {high:g}, and must be greater than the one before, "
                    f"{low:g}"
                )
        at_least("the last of edges_ms", edges[-1], 0)
        for number, count in enumerate(counts):
            at_least(f"counts[{number}]", count, 0)
        positive("the sum of counts", sum(counts))

    @property
    def mean_ns(self) -> float:
        """Returns the expected cost in nanoseconds."""
        edges = np.array(self.edges_ms)
        return float(np.dot((edges[:-1] + edges[1:]) / 2, self.counts) / sum(self.counts) * 1e6)

    def draw(self, rng: np.random.Generator, count: int) -> CostsNs:
        """Draws `count` costs in nanoseconds."""
        shares = np.concatenate(([0.0], np.cumsum(self.counts) / sum(self.counts)))
        return _whole(np.interp(rng.random(count), shares, np.array(self.edges_ms) * 1e6))


class Steps(Kind, frozen=True):
    """Requests run in steps of `steps_ms`, and may be interrupted between them.

    With a `cv`, all steps of a request are longer or shorter by one factor, which is lognormal with
    that coefficient of variation.
    """

    steps_ms: tuple[float, ...]
    cv: float = 0.0

    def __post_init__(self) -> None:
        row("steps_ms", self.steps_ms)
        if not self.steps_ms:
            raise ExperimentError("steps_ms is empty, and must have one step at least")
        for number, step_ms in enumerate(self.steps_ms):
            positive(f"steps_ms[{number}]", step_ms)
        variation("cv", self.cv)

    @property
    def mean_ns(self) -> float:
        """Returns the expected cost in nanoseconds."""
        return sum(self.steps_ms) * 1e6

    @property
    def borders(self) -> tuple[float, ...]:
        """Returns the shares of a request's length at which its steps end; the last one is 1."""
        ends = np.cumsum(self.steps_ms)
        return tuple((ends / ends[-1]).tolist())

    def draw(self, rng: np.random.Generator, count: int) -> CostsNs:
        """Draws `count` costs in nanoseconds."""
        return _whole(self.mean_ns * _factors(rng, self.cv, count))


class Recorded(Kind, frozen=True):
    """Costs are those of the trace; `mean_ms` is what they are taken for in reckoning a load."""

    mean_ms: float = 0.0

    def __post_init__(self) -> None:
        at_least("mean_ms", self.mean_ms, 0)

    @property
    def mean_ns(self) -> float:
        """Returns the expected cost in nanoseconds; raises ExperimentError without a `mean_ms`."""
        return self.mean_ms * 1e6


JoinMs: TypeAlias = tuple[float, float, float]


class RunTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long runs of a network take: evenly spaced quantiles in milliseconds, shortest first.

    usual_ms: while no other network runs. beside_ms: while one of the stream of that name does;
    streams that are not there make no difference. wide_ms: of a network that has a form with more
    threads for when it has all cores for itself, how long that takes; empty where it has not. All
    of these have as many values as usual_ms. joined_ms: what was seen when this network ran and a
    worker was woken for one of the stream of that name: how late that one began, how long it took,
    and by how much this run was longer for it, which may be negative. With it, the others are of
    whole runs, by what ran when they began.
    """

    usual_ms: tuple[float, ...]
    beside_ms: dict[str, tuple[float, ...]] = msgspec.field(default_factory=dict)
    wide_ms: tuple[float, ...] = ()
    joined_ms: dict[str, tuple[JoinMs, ...]] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        at_least("the number of values in usual_ms", len(self.usual_ms), 1)
        named = {f"beside_ms.{name}": values for name, values in self.beside_ms.items()}
        for name, values in {"usual_ms": self.usual_ms, "wide_ms": self.wide_ms, **named}.items():
            if len(values) != len(self.usual_ms) and (values or name != "wide_ms"):
                raise ExperimentError(
                    f"{name} has {len(values)} values, and must have as many as usual_ms, "
                    f"{len(self.usual_ms)}"
                )
            for number, value in enumerate(values):
                positive(f"{name}[{number}]", value)
                at_least(f"{name}[{number}]", value, values[number - 1] if number else 0)
        for name, joins in self.joined_ms.items():
            at_least(f"the number of joins in joined_ms.{name}", len(joins), 1)
            for number, (late_ms, length_ms, longer_ms) in enumerate(joins):
                at_least(f"joined_ms.{name}[{number}][0]", late_ms, 0)
                positive(f"joined_ms.{name}[{number}][1]", length_ms)
                at_least(f"joined_ms.{name}[{number}][2]", longer_ms, -MOST)


class Network(Kind, frozen=True):
    """A real network: a model file, and its steps as they were measured.

    A simulation needs the steps; a real run needs the file. Runs that share the cores are slower:
    `beside` says by the names of streams how many times as long a run takes while one of those runs
    too, 1 if that is no matter. `times` say it all more exactly, where they were measured: then the
    steps only tell where a run may be interrupted. `value_limit_bytes` is what a value of the file
    may take, as `nnasync.load` has it.
    """

    model: str
    steps_ms: tuple[float, ...] = ()
    cv: float = 0.0
    beside: dict[str, float] = msgspec.field(default_factory=dict)
    times: RunTimes | None = None
    value_limit_bytes: Annotated[int, msgspec.Meta(gt=0)] | None = None

    def __post_init__(self) -> None:
        if self.steps_ms:
            self.steps()
        for name, times in self.beside.items():
            at_least(f"beside.{name}", times, 1)

    def steps(self) -> Steps:
        """Returns the measured steps as a cost; raises ExperimentError where none were measured."""
        if not self.steps_ms:
            raise ExperimentError(
                f"the steps of {self.model} are not known: measure them, or run it for real"
            )
        return Steps(self.steps_ms, self.cv)

    @property
    def mean_ns(self) -> float:
        """Returns the expected cost in nanoseconds.

        Raises ExperimentError without measured steps.
        """
        mean_ns = self.steps().mean_ns
        return mean_ns if self.times is None else float(np.mean(self.times.usual_ms)) * 1e6

    def draw(self, rng: np.random.Generator, count: int) -> CostsNs:
        """Draws `count` costs in nanoseconds; raises ExperimentError without measured steps."""
        if self.times is None:
            return self.steps().draw(rng, count)
        return _whole(rng.choice(np.array(self.times.usual_ms) * 1e6, count))


Cost: TypeAlias = Constant | Exponential | Lognormal | Histogram | Steps | Recorded | Network


class Batching(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests of a stream that wait are run together (`nnasync.batching`): `max_rows` at most.

    They wait for more for `window_ms`. A run costs as much as the longest of its requests, and for
    each further one `each` of what that would cost alone: nothing with 0, all of it with 1.
    """

    max_rows: int = 8
    window_ms: float = 0.0
    each: float = 0.2

    def __post_init__(self) -> None:
        at_least("max_rows", self.max_rows, 1)
        at_least("window_ms", self.window_ms, 0, MOST_WINDOW_MS)
        at_least("each", self.each, 0, 1)

    def cost_ns(self, costs_ns: Sequence[float]) -> int:
        """Returns the cost of one run of requests that alone would cost so much."""
        longest_ns = max(costs_ns)
        return round(longest_ns + self.each * (sum(costs_ns) - longest_ns))


def _factors(rng: np.random.Generator, cv: float, count: int) -> NDArray[np.float64]:
    """Draws lognormal numbers with mean 1 and this coefficient of variation."""
    variance = math.log1p(cv * cv)
    return rng.lognormal(-variance / 2, math.sqrt(variance), count)


def _whole(costs_ns: NDArray[np.float64]) -> CostsNs:
    return whole_ns(costs_ns, 1)
