"""Which execution runs next: by a policy, or by shares, priority, earliest deadline and arrival.

Pure: there is no clock, thread or lock inside; `now_ns` is an argument, and the caller serializes
the calls. So tests drive the very object that serves the runtime, in a time of their own.

*Policies.* What follows is the default rule. Another `Policy` may take its place (`policies` has
some): it decides who goes next, who is refused and who gives way, and is watched in that. Places
and expiry are the same under all of them.

*Order.* One heap per priority, ordered by (deadline, arrival). A preempted job goes back with its
old arrival number, so it is the next of its kind.

*Shares.* Each client has a lane: such heaps of its own. The application itself is client 0; where
nobody else is there, nothing but the lane's order counts. Between lanes it is start-time fair
queueing: a lane's tag grows by what its jobs take, and the lane with the lowest tag is served, so
that all have equal shares. A job is charged its estimate when it is handed out, and the difference
to what it took when it has run. A lane that gets work again begins at the lowest tag of those that
are served, so that nobody saves up while idle and nobody is billed for what he had while alone. Of
two lanes that always have work neither gets more than one execution (for each server) ahead of the
other, whatever their priorities: those count inside a lane only. Work that runs past the queue is
charged by `spent`.

*Estimates.* Every prepared model has an `Estimate`, fed with measured durations. `ns` follows the
durations with steps that are larger downwards than upwards, so it settles at a low expectile: what
the work costs here and now. `best_ns` is a slowly forgotten minimum: what it costs when nothing
disturbs it. `floor_ns` is the same, less what refusals have taken off it. `high_ns` is what
one run in ten exceeds: it rises by a quarter with a longer run and falls by a thirtieth with a
shorter one, so one long run, which may be the operating system's doing, hardly moves it. Runs on
workers count for it and for `best_ns` as if they were as much shorter as runs on the thread of the
loop usually are, where both are known.
`worker_ns` is what runs on workers take, where caches are cold and cores are shared; it grows old
while no worker is tried.

*Admission.* A job is refused when even the optimistic sum cannot meet its deadline: the floors of
all queued jobs of higher priorities of its client, shared by the servers, plus its own floor. A
refusal lowers the floor by a twentieth, so a model whose only measurement was unlucky is tried
again after a few refusals. To the sum comes what the event loop needs to hear of the end
(`heard_after_ns`, see `lag`); where that alone makes it too long, the floor stays. And a job is
refused when all places are taken, in all or by its client, and nobody gives it one (see `room`):
work of lower priority does, and a client that has more than its share.

*Expiry.* A queued job whose deadline passes is not handed out; `take_expired` returns it once.

*Aging.* Priorities below HIGH are not starved for ever. The job of a priority that has waited
longest in its lane is due when it has waited for `aging_ns`, and as long has passed since the
priority last gave up its longest-waiting job. What is due is handed out next, before all others
that are asked for, in the order of the lanes' tags, and is not to be preempted for a twentieth of
that time (`shielded_until_ns`). So a job is handed out at the latest `(1 + n) * aging_ns` after
its submission, and two dispatches for each of these bounds and each client, if n jobs of its
priority and client wait longer, whatever is queued above it; and what is above it is put off once
in each `aging_ns`. A preempted job keeps its age, and counts again among the n.
"""

from typing import TYPE_CHECKING

from nnasync._core.deferred import names
from nnasync.hal import NEVER_NS as NEVER_NS
from nnasync.scheduler.job import Estimate as Estimate
from nnasync.scheduler.job import Job as Job
from nnasync.scheduler.job import at_ns as at_ns
from nnasync.scheduler.policy import Ordered as Ordered
from nnasync.scheduler.policy import Policy as Policy
from nnasync.scheduler.policy import PolicyError as PolicyError
from nnasync.scheduler.policy import remaining_ns as remaining_ns
from nnasync.scheduler.queue import AGING_NS as AGING_NS
from nnasync.scheduler.queue import Scheduler as Scheduler
from nnasync.scheduler.room import displaced as displaced
from nnasync.scheduler.statistics import ClientStatistics as ClientStatistics
from nnasync.scheduler.statistics import SchedulerStatistics as SchedulerStatistics

if TYPE_CHECKING:
    from nnasync.scheduler.policies import policy_names as policy_names
    from nnasync.scheduler.policies import resolve_policy as resolve_policy

__all__ = [
    "AGING_NS",
    "ClientStatistics",
    "NEVER_NS",
    "Estimate",
    "Job",
    "Ordered",
    "Policy",
    "PolicyError",
    "Scheduler",
    "SchedulerStatistics",
    "at_ns",
    "displaced",
    "policy_names",
    "remaining_ns",
    "resolve_policy",
]

__getattr__ = names(__name__, {"policy_names": "policies", "resolve_policy": "policies"})
