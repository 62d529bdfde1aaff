"""The threads that run executions, and the core budget that they share; one per runtime.

*Sets.* Executions of MEDIUM and HIGH priority have a set of threads, one per core; LOW has a set
of its own. The budget is the number of cores: LOW work starts only while fewer executions run than
there are cores. Work of a higher priority never waits for LOW: it starts on its own thread at
once, and a running LOW execution is asked to stop at its next operation, so that the budget is
overdrawn by at most one operation. HIGH asks MEDIUM in the same way when the whole set is busy.

*OS priority.* LOW work may run on threads of the lowest OS priority (`demotion`).

*Clients.* In a service each client has its share of the cores, whatever its priorities (see
`scheduler`): a thread for MEDIUM and HIGH takes LOW work when it is the turn of a client that has
nothing else, and nobody who had more preempts that.

*Aging.* LOW work that is due for its age (`scheduler`) starts though no core is free, one run
at a time, beside the others, and is not asked to stop for a twentieth of the aging time; so HIGH
does not wait for it, but shares the cores with it for so long. MEDIUM that is due takes the next
thread of its set.

*Inline.* A coroutine whose execution is cheaper than the hop to a thread and back runs it on the
thread of its own loop: if its estimate is within the inline budget, nothing of higher priority
waits, and the inline work of this turn of the loop stays within the stall budget (`inline`,
`turns`).

*Company.* Executions that might as well run on the thread of their loop are queued where several
are in flight, and that thread takes one in each turn of its loop (`loop_share`); one worker fewer
than there are cores takes the others.

*One answer.* A task is settled once, by whoever is first: its end, its deadline, its cancelling,
the closing of the runtime. Its fence is that decision. `released` is another matter: the device
may hold on to the memory of a settled task until it looks at the stop flag, or for ever. Where it
takes too long, the thread is written off: another one takes its place, and the core is free again.

*Handing over.* A task that becomes ready while a worker settles another (a dependant in a chain,
the next call of a burst) wakes no other thread: the worker that settles takes it next.
"""

from nnasync._core.workers.helper_threads import HelperThreads as HelperThreads
from nnasync._core.workers.refusals import stopped as stopped
from nnasync._core.workers.task import ABORT as ABORT
from nnasync._core.workers.task import GO as GO
from nnasync._core.workers.task import YIELD as YIELD
from nnasync._core.workers.task import Call as Call
from nnasync._core.workers.task import Given as Given
from nnasync._core.workers.task import StopFlag as StopFlag
from nnasync._core.workers.task import Task as Task
from nnasync._core.workers.task import contained as contained
from nnasync._core.workers.threads import Workers as Workers
from nnasync._core.workers.worker_thread import Worker as Worker
from nnasync._core.workers.worker_thread import WorkersStatistics as WorkersStatistics
