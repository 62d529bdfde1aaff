"""What moving work costs on this machine, measured in some tens of milliseconds.

An execution that leaves the thread of its loop pays a hop: a worker is woken, and then the loop.
Where the worker slept for a while its core sleeps as well, and on a virtual machine the hypervisor
has to bring it back; that may cost ten times as much as a hop among threads that are awake. The
probes run on threads and a loop of their own, and stop nobody.

Each figure is two quantiles. The low one is what the machine can do; the high one is what to expect
where that matters.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from nnasync._core.clock import now_ns
from nnasync.hal import Struct

_TURNS, _HOPS, _SLEEPS, _SWITCHES, _CHILLS = 200, 60, 10, 60, 6
_SLEEP_S = 0.002
_WARM_WORDS, _COLD_WORDS = 1 << 16, 1 << 21
_LOW, _HIGH = 0.25, 0.9
_FIGURES, _TURNS_OF_ONE, _PASSES = 6, 5, 9
USUAL_NOISE = 0.03
"""What two figures of the same work differ by until that is measured."""
_PATIENCE_S = 5.0


class Spread(Struct, frozen=True):
    """A duration that varies, in nanoseconds: the lower quartile, and what one in ten exceeds."""

    low_ns: int
    high_ns: int

    @classmethod
    def of(cls, samples_ns: Sequence[int]) -> Spread:
        """Computes the spread of one or more samples."""
        ordered = sorted(samples_ns)
        last = len(ordered) - 1
        return cls(ordered[round(_LOW * last)], ordered[round(_HIGH * last)])


class Costs(Struct, frozen=True):
    """What moving work costs on this machine.

    turn: an empty turn of an event loop. hop: from a loop to a thread and back, while both are
    awake. cold_hop: the same after both slept for some milliseconds. switch: from one thread to
    another one on the same core. chill: how much longer a pass over 256 KB takes after other
    data went through the caches. noise: by which part two figures of the same work differ that were
    taken in turns, as a contest takes them: each the lower quartile of five.
    """

    turn: Spread
    hop: Spread
    cold_hop: Spread
    switch: Spread
    chill: float
    noise: float = USUAL_NOISE


def measured() -> Costs:
    """Measure the costs on this machine; blocks for some tens of milliseconds.

    Raises OSError or RuntimeError where no loop or no thread can be had.
    """
    turn, hop, cold_hop = _in_a_loop()
    return Costs(turn, hop, cold_hop, _switches(), _chill(), _noise())


def _in_a_loop() -> tuple[Spread, Spread, Spread]:
    """Turns and hops of a loop in a thread of its own, since this one may have a loop already."""
    found: list[tuple[Spread, Spread, Spread]] = []

    def probe() -> None:
        # Not asyncio.run, which would change the signal handlers of the process.
        loop = asyncio.SelectorEventLoop()
        try:
            found.append(loop.run_until_complete(_loop_costs()))
        finally:
            loop.close()

    _joined(probe)
    if not found:
        raise RuntimeError("no event loop could be measured")
    return found[0]


async def _loop_costs() -> tuple[Spread, Spread, Spread]:
    turns = []
    for _ in range(_TURNS):
        began = now_ns()
        await asyncio.sleep(0)
        turns.append(now_ns() - began)
    wanted: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()

    def work() -> None:
        while (answer := wanted.get()) is not None:
            answer()

    worker = threading.Thread(target=work, name="nnasync-probe", daemon=True)
    worker.start()
    try:
        hops = [await _hop(wanted) for _ in range(_HOPS)]
        cold = []
        for _ in range(_SLEEPS):
            await asyncio.sleep(_SLEEP_S)
            cold.append(await _hop(wanted))
    finally:
        wanted.put(None)
    return Spread.of(turns), Spread.of(hops), Spread.of(cold)


async def _hop(wanted: queue.SimpleQueue[Callable[[], object] | None]) -> int:
    """Have the worker answer, which wakes the loop; how long that took."""
    loop = asyncio.get_running_loop()
    answered = loop.create_future()
    began = now_ns()
    wanted.put(lambda: loop.call_soon_threadsafe(answered.set_result, None))
    await answered
    return now_ns() - began


def _switches() -> Spread:
    """Half of what two threads on one core need to hand a word to and fro."""
    samples: list[int] = []
    there, back = os.pipe(), os.pipe()

    def play() -> None:
        _stay_on_one_core()
        while os.read(there[0], 1) == b".":
            os.write(back[1], b".")

    def serve() -> None:
        _stay_on_one_core()
        partner = threading.Thread(target=play, name="nnasync-probe", daemon=True)
        partner.start()
        for _ in range(_SWITCHES):
            began = now_ns()
            os.write(there[1], b".")
            os.read(back[0], 1)
            samples.append((now_ns() - began) // 2)
        os.write(there[1], b"!")
        partner.join(_PATIENCE_S)

    try:
        _joined(serve)
    finally:
        for end in (*there, *back):
            os.close(end)
    return Spread.of(samples or [0])


def _stay_on_one_core() -> None:
    """Have the calling thread run on the first core that it may run on, where that can be asked."""
    if hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _chill() -> float:
    """A pass over data that other data has driven out of the caches, by one that finds it there."""
    warm, cold = np.ones(_WARM_WORDS, np.float32), np.zeros(_COLD_WORDS, np.float32)
    ratios = []
    for _ in range(_CHILLS):
        cold += 1
        first, second = _pass_ns(warm), _pass_ns(warm)
        ratios.append(first / max(1, second))
        time.sleep(0)
    return max(1.0, sorted(ratios)[len(ratios) // 2])


def _noise() -> float:
    """Returns the relative deviation from the median that most figures of equal work stay below."""
    data = np.ones(_WARM_WORDS, np.float32)
    turns = [
        sorted(_pass_ns(data) for _ in range(_PASSES))[_PASSES // 2]
        for _ in range(_FIGURES * _TURNS_OF_ONE)
    ]
    figures = sorted(
        sorted(turns[first::_FIGURES])[_TURNS_OF_ONE // 4] for first in range(_FIGURES)
    )
    middle = figures[_FIGURES // 2]
    return min(1.0, (figures[-2] - figures[0]) / max(1, middle))


def _pass_ns(data: np.ndarray[tuple[int], np.dtype[np.float32]]) -> int:
    began = now_ns()
    np.add.reduce(data)
    return now_ns() - began


def _joined(work: Callable[[], None]) -> None:
    """Do something in a thread of its own, and wait for its end."""
    thread = threading.Thread(target=work, name="nnasync-probe", daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
