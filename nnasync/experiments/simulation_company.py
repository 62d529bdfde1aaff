"""Runs of real networks that share the cores of a simulation, and are slower for it.

How long runs take alone, beside one of another stream, and in their form with more threads was
measured (`networks`). A request has a place in these distributions: one that is among the slowest
tenth alone is so beside others. Whenever a run begins or ends, what is left of the others is
stretched or shrunk by what that changes; beside several others the excesses add up. Where a run was
measured to be quicker beside another one than alone, it is not quicker still beside several.

A network with a wide form takes it by the runtime's rule: where nothing else runs or waits, and
that is usual (`workers.admission.Company`). Runs without such figures are what a device stands for
that takes exactly as long, whatever else runs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from typing import Any

from nnasync._core.workers.admission import Company
from nnasync.experiments.costs import Network, RunTimes
from nnasync.experiments.simulation_requests import Request
from nnasync.experiments.workload import Stream


class SharedCores:
    """What the networks of a simulation do to each other."""

    def __init__(self, streams: tuple[Stream, ...]) -> None:
        costs = {each.name: each.cost for each in streams if isinstance(each.cost, Network)}
        self._slowness = {name: _Slowness(cost) for name, cost in costs.items()}
        self._company = Company()

    def begin(self, request: Request, others: int, waiting: int) -> None:
        """A request begins beside so many others; it keeps the form that it takes now."""
        slowness = self._slowness.get(request.source.name)
        if slowness is None or not slowness.has_forms or request.active_ns:
            return
        self._company.note(has_others=bool(others or waiting))
        request.is_wide = not (others or waiting or self._company.is_usual)

    def changed(self, now: int, running: Collection[Any]) -> list[Request]:
        """Have what runs be as slow as it is beside the others; those that end at another time."""
        found = []
        for request in running:
            slowness = self._slowness.get(request.source.name)
            if slowness is None:
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
    """How many times as long as usual the runs of a network take."""

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

    def times(self, request: Request, others: Collection[str]) -> float:
        """The factor of a request beside requests of these streams."""
        if request.rank < 0:
            last = len(self._usual_ns) - 1
            request.rank = min(bisect_left(self._usual_ns, request.cost_ns), last)
        rank = request.rank
        slower = least = self._wide[rank] if request.is_wide else 1.0
        for name in others:
            if name in self._beside:
                beside = self._beside[name][rank]
                slower += beside - 1.0
                least = min(least, beside)
        return max(slower, least)


def stopped(request: Request) -> None:
    """A run has stopped: what is left of it is as long as alone."""
    left_ns = request.cost_ns - request.active_ns
    request.cost_ns = request.active_ns + round(left_ns / request.slower)
    request.slower = 1.0


def _stretch(at_ns: int, request: Request, times: float) -> None:
    """All that is left of a run, to its end and to the border where it stops, takes so long."""
    left_ns = request.cost_ns - request.active_ns - (at_ns - request.began_ns)
    request.cost_ns += round(left_ns * times) - left_ns
    request.ends_ns = at_ns + round((request.ends_ns - at_ns) * times)
