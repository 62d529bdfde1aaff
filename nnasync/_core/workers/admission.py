"""Where an execution runs: on the thread of its loop, now or in a later turn, or on a worker.

The decision is by the expected end, as far as the loop allows. Three things may be done with a
call: run it here at once, which ends after its run and keeps everything else on this thread
waiting for so long; put it off to a later turn of the loop, which ends after those that wait here
already; or hand it to a worker, which ends after a hop, after what the workers have before it, and
after a run that may be slower there, since caches are cold and cores are shared.

*The loop first.* Work that cannot be stopped may hold the loop up for the stall budget at most, so
an execution that usually takes longer, or that does so once in ten times, goes to a worker whatever
else speaks against that. LOW, for which nobody is in a hurry, may hold it for half as long. What
has left the loop comes back only when it has become a fifth quicker than the limit, so that an
estimate that moves around the limit does not move the execution to and fro.

*Company.* A call that comes alone runs here: nothing ends it sooner. Where other calls usually come
while one is under way, the first of them goes to a worker and the next one runs here, and both end
sooner. Whether others usually come is a smoothed count with two limits, not the sight of a moment.
A call that runs here while workers are about to end theirs keeps the loop from hearing of that;
such delays count as if they were its own.

*Side by side, or one after the other.* A plan may take several cores for one execution, and then
calls in company may get done sooner one after the other; or they may be in each other's way, since
caches, memory and the interpreter lock are shared. So both are measured, and the better one is kept
until the other one is clearly better. What has not been done for long is taken to be a little
quicker with each call, and so tried again.

*Deadlines.* What ends on a worker, or comes in a later turn, has to wait until the loop turns, and
an application may keep it from that for long (`lag`). Where a call with a deadline would be late
for that, it runs here and now if there is room; else the way is taken that is in time.

*One core.* Where only one execution can run at once, a worker would take the core from the loop's
thread; nothing is spread there.

Everything here is pure: what the machine costs, what waits and what was learnt are arguments.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

from nnasync.hal import Priority
from nnasync.machine.decisions import Decisions

RETURN = 0.8
"""What has left the thread of the loop comes back below this share of the limits."""

CALL_NS = 8_000.0
"""What a call costs its loop besides the run: copies, checks and bookkeeping in Python.

A float, since what it is added to for each call is one.
"""

_SOONER = 0.875
_SMOOTHING = 1 / 8
_COMES, _GOES = 0.4, 0.2
_CLEARLY = 0.93
_FEW = 1.5
_HOPS_OF_TWO = 4


class Admission(enum.Enum):
    """Where an execution runs."""

    RUN = "on this thread, now"
    NEXT_TURN = "on this thread, in a later turn of its loop"
    SPREAD = "on a worker, since it ends sooner there"
    WORKER = "on a worker, since this thread must not run it"


RUN, NEXT_TURN, SPREAD, WORKER = Admission


class Company:
    """A smoothed count that tells whether calls worth a hop usually come beside others.

    `others` is how many those were at most, lately: where all of them come back at once, each finds
    only those that were before it.
    """

    __slots__ = ("_share", "is_usual", "others")

    def __init__(self) -> None:
        self._share = self.others = 0.0
        self.is_usual = False

    def note(self, *, has_others: bool, others: int = 1) -> None:
        """Notes whether a call found others under way on its arrival, and how many."""
        self._share += (has_others - self._share) * _SMOOTHING
        more = others * has_others - self.others
        self.others += more if more > 0 else more * _SMOOTHING
        self.is_usual = self._share > (_GOES if self.is_usual else _COMES)


def loop_limit_ns(priority: Priority, budget_ns: float) -> float:
    """Returns how long an execution of a priority may usually take on the thread of the loop."""
    return budget_ns / 2 if priority is Priority.LOW else budget_ns


def may_hold_loop(
    low_ns: float, high_ns: float, limit_ns: float, far_ns: float, *, did: bool
) -> bool:
    """Returns whether an execution of this length may run on the thread of the loop at all.

    `low_ns` and `high_ns` are quantiles of its length; `far_ns` limits the high one, `limit_ns` the
    low one. `did` is whether it was allowed so far.
    """
    share = 1.0 if did else RETURN
    return low_ns <= limit_ns * share and high_ns <= far_ns * share


def delay_ns(run_ns: float, left_ns: Sequence[float]) -> float:
    """Returns how much later the loop hears of other executions if one runs on its thread.

    `left_ns` is the time that those on workers have left.
    """
    return sum(run_ns - each for each in left_ns if each < run_ns)


def pays_to_spread(
    machine: Decisions,
    *,
    alone_ns: float,
    beside_ns: float,
    worker_ns: float,
    servers: int,
    others: float,
    did: bool,
) -> bool:
    """Returns whether executions in company get done sooner side by side than one after the other.

    Side by side one takes `beside_ns` on this thread while as many as there are `others` take
    `worker_ns` on workers, and each that leaves costs both threads a hop; one after the other each
    takes `alone_ns` and what a call costs besides. With one of the `others` there are two in all:
    both are heard of when the longer one has ended, and none waits that a worker could go on with,
    so that what all leave and come back for is added to each pair. What is not known, 0, is taken
    for as quick as the others, so that it is tried. `did` is whether they were spread so far.
    """
    if servers < 1:
        return False
    known_ns = alone_ns or beside_ns or worker_ns
    if not known_ns or not alone_ns:
        return True
    here_ns = beside_ns or known_ns
    there_ns = worker_ns or here_ns
    if others < _FEW:
        ends = 2.0 / (max(here_ns, there_ns) + _HOPS_OF_TWO * machine.hop_ns)
    else:
        leave = min(servers, others) / (there_ns + machine.hop_ns)
        ends = leave + max(0.0, 1.0 - leave * machine.hop_ns) / here_ns
    gain = ends * (alone_ns + CALL_NS)
    return gain > (_CLEARLY if did else 1 / _CLEARLY)


def leaves_to_workers(
    run_ns: float, hop_ns: float, left_ns: Sequence[float], coming: int, queued: int
) -> bool:
    """Returns whether the loop's thread leaves what is queued to workers, which take it soon.

    `coming` of them are about to ask for work, those that run something are done in `left_ns`. A
    run here takes `run_ns`, and whoever waits for such a worker hears of its end after that only;
    left to the worker it ends later by what that has left, and both are heard of after a hop.
    """
    soon = coming + sum(2 * each < run_ns + hop_ns for each in left_ns)
    return queued <= soon


def quickest(
    machine: Decisions,
    *,
    run_ns: float,
    worker_run_ns: float,
    has_room: bool,
    waiting: int,
    ahead_ns: float,
    delays_ns: float,
    expects_company: bool,
    free_workers: int,
    backlog_ns: float,
    servers: int,
    others_end: bool = False,
    left_ns: float = math.inf,
    lag_ns: float = 0.0,
) -> Admission:
    """Returns where an execution that may hold the loop ends soonest: RUN, NEXT_TURN or SPREAD.

    `run_ns` is what it takes here, `worker_run_ns` on a worker. Here it has room in this turn, or
    comes after `waiting` others that take `ahead_ns`, and makes others `delays_ns` later in all.
    `servers` is how many workers may be busy beside this thread, `free_workers` how many of them
    are not; the others have `backlog_ns` to do before it. With `others_end` the loop should turn
    before it, so that others hear of their ends. The deadline is `left_ns` away, and the loop turns
    in `lag_ns` at the earliest.
    """
    stays = RUN if has_room and not others_end else NEXT_TURN
    turns_ns = (waiting + 1) * machine.turn_ns + ahead_ns
    if servers < 1:
        is_late = lag_ns + turns_ns + run_ns > left_ns >= run_ns
        return RUN if has_room and is_late else stays
    hop_ns = machine.cold_hop_ns if free_workers == servers else machine.hop_ns
    wait_ns = 0.0 if free_workers > 0 else backlog_ns / servers
    there_ns = hop_ns + wait_ns + worker_run_ns
    here_ns = run_ns + delays_ns
    if stays is NEXT_TURN:
        here_ns += turns_ns
    elif expects_company and free_workers == servers:
        here_ns += run_ns  # The next call is about to come, and would end after two runs.
    is_sooner = there_ns < _SOONER * here_ns
    if stays is RUN and not is_sooner:
        return RUN
    spread_meets = lag_ns + there_ns <= left_ns
    turn_meets = stays is NEXT_TURN and lag_ns + turns_ns + run_ns <= left_ns
    if spread_meets if is_sooner else turn_meets:
        return SPREAD if is_sooner else NEXT_TURN
    if has_room and run_ns <= left_ns:
        return RUN
    if spread_meets != turn_meets:
        return SPREAD if spread_meets else NEXT_TURN
    return SPREAD if is_sooner else stays
