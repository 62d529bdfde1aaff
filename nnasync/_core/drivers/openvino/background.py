"""Runs that give way: on a thread of the engine, at the lowest OS priority.

Work of a higher priority should find a core at once, though executions of LOW keep all of them
busy. The system sees to that where their threads are of its idle class. A thread of ours must not
be: one that holds the interpreter lock, gets no core and cannot let go holds up the whole process.
A thread of the engine never has that lock. So a run that gives way is started there, and ours waits
for it.

A thread of the idle class gets next to nothing beside other people's busy threads, and cannot leave
the class again. So runs go there only while the cores are quiet: while runs take little longer than
the processor time that they need. Where they do not, they run on the calling thread, with a fair
share. One that is caught by that is taken back and repeated there.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from nnasync._core.drivers.openvino.exports import Export
from nnasync._core.drivers.openvino.infer_requests import InferRequest, run_interruptibly
from nnasync._core.endings import renewed_in_child
from nnasync._core.os_threads import demote, ran_ns, threads_of_others
from nnasync._core.timeslice import PROMPTNESS
from nnasync._core.workers import ABORT, StopFlag
from nnasync._core.workers.belief import Belief

_WORTHWHILE_NS = 1_000_000
"""Shorter runs are over before anybody could miss the core; the hop would cost them much."""
_CALM, _CROWDED = 1.35, 1.6
"""How many times its processor time a run takes at most while nobody else wants the cores, and at
least where others do."""
_PROOF, _MOST_PROOF = 4, 256
_DOUBTS = 3
_LOOKS_AT = 8
"""One run in so many is looked at: to ask for the time of a thread takes some microseconds, during
which nobody else can have the interpreter lock."""
_PATIENCE, _GRACE_NS = 3, 10_000_000
_SHARE_OF_RUN = 0.6
_SEARCHES = 5
_MOST_RETIRED = 4
_OWN_THREADS = 3
"""So many threads begin with a network at most: one runs it, one tells of it, and once a third."""


class Quiet:
    """Concludes from how long runs take whether they have the cores for themselves."""

    def __init__(self) -> None:
        self.usual_ns = 0.0
        self._belief = Belief(proof=_PROOF, most_proof=_MOST_PROOF, doubts=_DOUBTS)

    @property
    def is_quiet(self) -> bool:
        """The conclusion."""
        return self._belief.holds

    @property
    def patience_ns(self) -> float:
        """Returns how long to wait for a run that usually takes as long as this one."""
        return _PATIENCE * self.usual_ns + _GRACE_NS

    def note(self, took_ns: int, ran_ns: int) -> None:
        """Note how long a run took, and its processor time."""
        self.usual_ns = ran_ns if not self.usual_ns else 0.9 * self.usual_ns + 0.1 * ran_ns
        limit = _CROWDED if self.is_quiet else _CALM
        self._belief.note(speaks_for=took_ns <= limit * ran_ns)

    def disappoint(self) -> None:
        """Note that a run hardly got a core."""
        self._belief.disappoint()


class Network:
    """A compiled network, and the thread of the engine on which its runs can give way."""

    def __init__(
        self, compiled: Any, threads: frozenset[int] = frozenset(), export: Export | None = None
    ) -> None:
        """`export` gives its bytes, if it was not made of them.

        `threads` began while it was made; one of them may be the one that runs it.

        Those that began with another network, too, belong to nobody: nothing tells whose they are.
        The engine hands threads of a network that is gone to the next one. So a few with lowered
        threads are kept when they are dropped; where there were more, and their threads live, this
        network `may_be_demoted` without having been asked to.
        """
        self.compiled = compiled
        self.export = export
        self.threads = threads
        self.demoted = False
        self.may_be_demoted = _is_any_left_over()
        self.searches_left = _SEARCHES if threads else 0
        self._thread = 0
        with _NETWORKS_LOCK:
            for other in tuple(_NETWORKS) if threads else ():
                shared = self.threads & other.threads
                self.threads -= shared
                other.threads -= shared
            _NETWORKS.add(self)

    def ran_ns(self) -> int:
        """Processor time so far of all threads that may run it."""
        if self.demoted:
            return ran_ns(self._thread) or 0
        return sum(ran_ns(each) or 0 for each in self.threads)

    def lower_thread_that_runs(self, run: Callable[[], object]) -> None:
        """Find the one thread that does most of a run, and lower its OS priority.

        Those that had a little to do lose theirs too: the engine tells of a run's end on another
        thread, which nobody more urgent is to wait for either.
        """
        self.searches_left -= 1
        before_ns = {each: ran_ns(each) for each in self.threads & threads_of_others()}
        began_ns = time.perf_counter_ns()
        run()
        least_ns = _SHARE_OF_RUN * (time.perf_counter_ns() - began_ns)
        ran = {
            thread: (ran_ns(thread) or 0) - ns for thread, ns in before_ns.items() if ns is not None
        }
        busy = [thread for thread, ns in ran.items() if ns > least_ns]
        if len(busy) == 1 and demote(busy[0]):
            self._thread, self.demoted = busy[0], True
            self.may_be_demoted = True
            lowered = {busy[0]}
            for thread, ns in ran.items():
                if ns > 0 and len(ran) <= _OWN_THREADS and demote(thread):
                    lowered.add(thread)
            weakref.finalize(self, _retire, self.compiled, lowered).atexit = False


_NETWORKS: weakref.WeakSet[Network] = weakref.WeakSet()
_NETWORKS_LOCK = renewed_in_child(threading.Lock())
_RETIRED: deque[tuple[Any, set[int]]] = deque()
"""Networks that nobody has any more, and their lowered threads, which the engine keeps for them."""
_LEFT_OVER: set[int] = set()
"""Lowered threads of networks that are gone."""


def _retire(compiled: Any, threads: set[int]) -> None:
    """Keep a network whose threads were lowered, in place of the one that was kept for longest."""
    # Called by the collector, at any place: no lock, and one step after the other.
    _RETIRED.append((compiled, threads))
    if len(_RETIRED) > _MOST_RETIRED:
        _LEFT_OVER.update(_RETIRED.popleft()[1])


def _is_any_left_over() -> bool:
    """Returns whether a lowered thread survives its network.

    Another network may get that thread.
    """
    if _LEFT_OVER:
        _LEFT_OVER.intersection_update(threads_of_others())
    return bool(_LEFT_OVER)


def watched(make: Callable[[], tuple[Any, Export | None]]) -> Network:
    """A network from `make`, with the threads that begin meanwhile."""
    before = threads_of_others()
    compiled, export = make()
    return Network(compiled, threads_of_others() - before, export)


class Background:
    """The runs of one plan that give way."""

    def __init__(self) -> None:
        self.quiet = Quiet()
        self._runs = 0

    def wants(self) -> bool:
        """Returns whether the next run should go through `run`; other runs need not give way."""
        self._runs = (self._runs + 1) % _LOOKS_AT
        return self._is_worthwhile or not self._runs

    @property
    def _is_worthwhile(self) -> bool:
        return self.quiet.is_quiet and self.quiet.usual_ns >= _WORTHWHILE_NS

    def run(
        self, network: Network, request: InferRequest, stop: StopFlag, *, is_long: bool
    ) -> bool:
        """Run to the end, which is True, or until it is aborted; as the engine's errors otherwise.

        `is_long` is whether a run may be started on the engine's thread for its own sake.
        """
        if self._is_worthwhile:
            if network.demoted:
                return self._apart(network, request, stop)
            if network.searches_left:
                network.lower_thread_that_runs(lambda: run_interruptibly(request, stop))
                return True
        PROMPTNESS.ask(prompt=False)
        if is_long and not network.may_be_demoted:
            self._timed(network.ran_ns, lambda: run_interruptibly(request, stop))
        else:
            self._timed(time.thread_time_ns, request.infer)
        return True

    def _apart(self, network: Network, request: InferRequest, stop: StopFlag) -> bool:
        """Run on the engine's thread, unless it gets no core there."""
        PROMPTNESS.ask(prompt=True)
        run = partial(run_interruptibly, request, stop, self.quiet.patience_ns)
        if not self._timed(network.ran_ns, run):
            return True
        self.quiet.disappoint()
        PROMPTNESS.ask(prompt=False)
        if stop.raised == ABORT:
            return False
        request.infer()
        return True

    def _timed(self, ran_ns: Callable[[], int], run: Callable[[], object]) -> bool:
        """Run, and now and then look how that went by the thread's time; True if taken back."""
        if self._runs:
            return run() is True
        began_ns, began_at_ns = ran_ns(), time.perf_counter_ns()
        is_late = run() is True
        if not is_late:
            self.quiet.note(time.perf_counter_ns() - began_at_ns, ran_ns() - began_ns)
        return is_late
