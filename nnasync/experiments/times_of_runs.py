"""How long runs of networks take, by what ran beside them when they began, and what joins them.

*Lengths.* Of a run that another one joined it is known only that alone it would have lasted beyond
that moment, and long runs are joined more often than short ones. To leave such runs out would make
the rest too short; so their lengths are censored there (the estimator of Kaplan and Meier).

*Joins.* When a worker is woken beside a run, it begins late, or takes longer, or that run does, if
the system puts both on one core. So all three are kept together as they were seen. How much longer
is what the run took in all, less what such runs that have lasted so long usually take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nnasync.experiments.costs import RunTimes
from nnasync.experiments.observed_runs import Ran, runs_of
from nnasync.experiments.record import RunResult

_ENOUGH, _VALUES, _JOINS = 20, 199, 400

_Numbers: TypeAlias = NDArray[np.float64]


class _Seen(NamedTuple):
    """The length of a run, and how long it had run when another one joined it, if one did."""

    length_ns: int
    age_ns: int
    is_joined: bool


class _Join(NamedTuple):
    """A run, the one that joined it and its stream, and how late that one began."""

    joined: _Seen
    joining: _Seen
    stream: int
    late_ns: int


def times_by_company(
    runs: Sequence[RunResult], number: int, is_wide_below_ns: float = 0.0
) -> RunTimes | None:
    """Returns how long runs of a stream take by what runs beside; None without runs alone.

    What took less than `is_wide_below_ns` alone had a form with more threads, and does not count.
    What runs beside is named by its number, and makes no difference if that was hardly ever seen.
    """
    alone: list[_Seen] = []
    beside: dict[int, list[_Seen]] = {}
    joins: dict[int, list[_Join]] = {}
    for ran in map(runs_of, runs):
        for each in ran:
            seen = _seen(each, ran)
            is_wide = not each.others and seen.length_ns <= is_wide_below_ns
            if each.row.stream != number or is_wide:
                continue
            if not each.others:
                alone.append(seen)
            elif len(each.others) == 1 and not each.is_woken:
                beside.setdefault(each.others[0], []).append(seen)
            if each.joined_by is not None:
                other = ran[each.joined_by]
                join = _Join(seen, _seen(other, ran), other.row.stream, other.late_ns)
                joins.setdefault(other.row.stream, []).append(join)
    if not _is_enough(alone):
        return None
    usual_ns = _lengths_ns(alone)
    return RunTimes(
        usual_ms=_in_ms(usual_ns),
        beside_ms={
            str(other): _in_ms(_lengths_ns(seen))
            for other, seen in beside.items()
            if _is_enough(seen)
        },
        joined_ms={
            str(other): _joined_ms(met, usual_ns)
            for other, met in joins.items()
            if _is_enough([each.joining for each in met])
        },
    )


def quantiles_ms(durations_ns: Sequence[int] | NDArray[np.int64]) -> tuple[float, ...]:
    """Returns evenly spaced quantiles of durations in milliseconds, shortest first."""
    found = np.quantile(np.maximum(durations_ns, 1), _shares(), method="nearest")
    return _in_ms(found)


def _seen(each: Ran, ran: Sequence[Ran]) -> _Seen:
    length_ns = max(1, each.length_ns)
    if each.joined_by is None:
        return _Seen(length_ns, length_ns, is_joined=False)
    age_ns = ran[each.joined_by].handed_ns - each.began_ns
    return _Seen(length_ns, min(max(0, age_ns), length_ns), is_joined=True)


def _is_enough(seen: Sequence[_Seen]) -> bool:
    return sum(not each.is_joined for each in seen) >= _ENOUGH


def _lengths_ns(seen: Sequence[_Seen]) -> _Numbers:
    """Returns quantiles of the lengths of runs without joins, estimated after Kaplan and Meier."""
    # Of equal ages those that end come first.
    ages = sorted((each.age_ns, each.is_joined) for each in seen)
    has_ended = np.array([not is_joined for _, is_joined in ages], np.float64)
    ended_by_then = 1 - np.cumprod(1 - has_ended / np.arange(len(ages), 0, -1))
    places = np.minimum(np.searchsorted(ended_by_then, _shares()), len(ages) - 1)
    return np.array([age_ns for age_ns, _ in ages], np.float64)[places]


def _usually_ns(seen: _Seen, usual_ns: _Numbers) -> float:
    """Returns how long a run would take unjoined: its length, or the usual one for its age."""
    if not seen.is_joined:
        return seen.length_ns
    longer = usual_ns[usual_ns > seen.age_ns]
    # Not the median: joins that change nothing are to change nothing on average.
    return float(np.mean(longer)) if longer.size else seen.age_ns


def _joined_ms(
    joins: Sequence[_Join], usual_ns: _Numbers
) -> tuple[tuple[float, float, float], ...]:
    """Returns joins as rows of `RunTimes.joined_ms`; of many, an even selection."""
    joining_ns = _lengths_ns([each.joining for each in joins])
    every = sorted(
        (
            (each.joined.length_ns - _usually_ns(each.joined, usual_ns)) / 1e6,
            each.late_ns / 1e6,
            _usually_ns(each.joining, joining_ns) / 1e6,
        )
        for each in joins
    )
    places = np.linspace(0, len(every) - 1, min(len(every), _JOINS)).round().astype(int)
    return tuple((late, length, longer) for longer, late, length in map(every.__getitem__, places))


def _shares() -> _Numbers:
    return (np.arange(_VALUES) + 0.5) / _VALUES


def _in_ms(values_ns: NDArray[np.int64] | _Numbers) -> tuple[float, ...]:
    return tuple((values_ns / 1e6).tolist())
