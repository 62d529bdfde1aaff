"""Runs of real networks that share the cores of a simulation, and are slower for it.

How long runs take alone, beside one of another stream, and in their form with more threads was
measured (`networks`), or is said. A request has a place in these distributions: one that is among
the slowest tenth alone is so beside others. Beside several others the excesses add up. Where a run
was measured to be quicker beside another one than alone, it is not quicker still beside several.

*Where joins were seen* a run is as long as others that began beside the same. While it goes on a
worker may be woken for another one. Then both are as slow as two such runs were seen to be: how
late the second one begins, how long it takes, and by how much the first one is longer, is drawn
together. A run is longer for the first one that joins it only, as it was measured so.

*Elsewhere*, whenever a run begins or ends, what is left of the others is stretched or shrunk by
what that changes.

A network with a wide form takes it by the runtime's rule: where nothing else runs or waits, and
that is usual (`workers.admission.Company`). Runs without such figures are what a device stands for
that takes exactly as long, whatever else runs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple, TypeAlias

from nnasync._core.workers.admission import Company
from nnasync.experiments.checks import MOST_CORES
from nnasync.experiments.costs import Network, RunTimes
from nnasync.experiments.delays import draws
from nnasync.experiments.simulation_requests import Request
from nnasync.experiments.workload import Stream

_JOINS = MOST_CORES + 1
"""Draws of joins have seeds of their own: those of delays have the number of workers here."""

_Effects: TypeAlias = Iterator[tuple[float, float, float]]


class Join(NamedTuple):
    """A run that another one joined, with how late that one begins and how long it takes."""

    joined: Request
    late_ns: int
    length_ns: float


class SharedCores:
    """Slows the networks of a simulation down as they share cores."""

    def __init__(self, streams: tuple[Stream, ...], seed: int) -> None:
        costs = {each.name: each.cost for each in streams if isinstance(each.cost, Network)}
        self._slowness = {name: _Slowness(cost) for name, cost in costs.items()}
        self._company = Company()
        joined = [
            (name, other, joins)
            for name, cost in costs.items()
            if cost.times is not None
            for other, joins in sorted(cost.times.joined_ms.items())
        ]
        self._effects: dict[tuple[str, str], _Effects] = {
            (name, other): draws(joins, seed, _JOINS, number)
            for number, (name, other, joins) in enumerate(joined)
        }

    def join(self, now: int, request: Request, running: Collection[Any]) -> Join | None:
        """Draws what happens as a worker is woken beside a run; None for pairs never seen together.

        The run that is joined becomes longer.
        """
        for each in running:
            effects = self._effects.get((each.source.name, request.source.name))
            if effects is not None:
                late_ms, length_ms, longer_ms = next(effects)
                if not each.is_joined:
                    each.is_joined = True
                    _lengthen(now, each, round(longer_ms * 1e6))
                return Join(each, round(late_ms * 1e6), length_ms * 1e6)
        return None

    def begin(
        self, request: Request, running: Collection[Any], waiting: int, join: Join | None
    ) -> None:
        """Begins a request beside others, and chooses its form.

        It may join one of the others.
        """
        slowness = self._slowness.get(request.source.name)
        if slowness is None:
            return
        slowness.place(request)
        if slowness.has_forms and not request.active_ns:
            self._company.note(has_others=bool(running or waiting))
            request.is_wide = not (running or waiting or self._company.is_usual)
        if not slowness.has_joins:
            return
        left_ns = request.cost_ns - request.active_ns
        if join is None or request.active_ns:
            request.slower = slowness.times(request, [each.source.name for each in running])
        else:
            request.slower = join.length_ns / left_ns
        request.cost_ns = request.active_ns + max(1, round(left_ns * request.slower))

    def changed(self, now: int, running: Collection[Any]) -> list[Request]:
        """Adapts all runs to what runs beside them; returns those that now end at another time."""
        found = []
        for request in running:
            slowness = self._slowness.get(request.source.name)
            if slowness is None or slowness.has_joins:
                continue
            slower = slowness.times(
                request, [each.source.name for each in running if each is not request]
            )
            if slower != request.slower:
                _stretch(max(now, request.began_ns), request, slower / request.slower)
                request.slower = slower
                found.append(request)
        return found


class _Slowness:
    """Computes how many times as long as usual the runs of a network take."""

    def __init__(self, cost: Network) -> None:
        times = cost.times or RunTimes((cost.mean_ns / 1e6,))
        usual = [max(1.0, value * 1e6) for value in times.usual_ms]
        self._usual_ns = usual
        self._beside = {
            name: [value * 1e6 / base for value, base in zip(values, usual, strict=True)]
            for name, values in times.beside_ms.items()
        }
        if cost.times is None:
            self._beside = {name: [slower] for name, slower in cost.beside.items()}
        self._wide = [value * 1e6 / base for value, base in zip(times.wide_ms, usual, strict=False)]
        self.has_forms = bool(self._wide)
        self.has_joins = bool(times.joined_ms)

    def place(self, request: Request) -> None:
        """Looks up the rank of a request's cost among all runs of its network."""
        if request.rank < 0:
            last = len(self._usual_ns) - 1
            request.rank = min(bisect_left(self._usual_ns, request.cost_ns), last)

    def times(self, request: Request, others: Collection[str]) -> float:
        """Returns the factor of a request's length beside requests of these streams."""
        rank = request.rank
        slower = least = self._wide[rank] if request.is_wide else 1.0
        for name in others:
            if name in self._beside:
                beside = self._beside[name][rank]
                slower += beside - 1.0
                least = min(least, beside)
        return max(slower, least)


def stopped(request: Request) -> None:
    """Gives a run that has stopped the remaining length that it would have alone."""
    left_ns = request.cost_ns - request.active_ns
    request.cost_ns = request.active_ns + round(left_ns / request.slower)
    request.slower, request.is_joined = 1.0, False


def _stretch(at_ns: int, request: Request, times: float) -> None:
    """Scales what is left of a run, to its end and to the border where it stops."""
    left_ns = request.cost_ns - request.active_ns - (at_ns - request.began_ns)
    request.cost_ns += round(left_ns * times) - left_ns
    request.ends_ns = at_ns + round((request.ends_ns - at_ns) * times)


def _lengthen(now: int, request: Request, by_ns: int) -> None:
    """Makes a run longer by so much; it cannot have ended before now."""
    ends_ns = max(now, request.began_ns + 1, request.ends_ns + by_ns)
    request.cost_ns += ends_ns - request.ends_ns
    request.ends_ns = ends_ns
