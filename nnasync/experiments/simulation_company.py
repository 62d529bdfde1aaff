"""Runs of real networks that share the cores of a simulation, and are slower for it.

How many times as long a run takes beside one of another stream was measured (`networks`). Whenever
a run begins or ends, what is left of the others is stretched or shrunk by what that changes; beside
several others the excesses add up. Runs without such figures are what a device stands for that
takes exactly as long, whatever else runs.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from nnasync.experiments.simulation_requests import Request


def changed(now: int, running: Collection[Any]) -> list[Request]:
    """Have what runs be as slow as it is beside the others; those that end at another time now."""
    found = []
    for request in running:
        beside = request.source.beside
        if not beside:
            continue
        slower = 1.0 + sum(
            beside.get(other.source.name, 1.0) - 1.0 for other in running if other is not request
        )
        if slower != request.slower:
            _stretch(max(now, request.began_ns), request, slower / request.slower)
            request.slower = slower
            found.append(request)
    return found


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


def keeps_busy(running: Collection[Any], cores: int) -> bool:
    """Whether what runs computes on all cores, so that whoever wakes has to wait for one."""
    threads: float = sum(request.source.threads for request in running)
    return threads > cores - 0.5
