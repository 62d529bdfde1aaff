"""The message queue (FMQ): packets from one process to another, through a ring in shared memory.

One side writes, the other reads; a packet is any number of bytes that fits, and arrives whole or
not at all. A `QueueWriter` or `QueueReader` is made by `create`, which also gives the `Handover`
for the other process: two file descriptors, which `attach` there turns into the other end.

**Waiting.** A reader polls for a window, then parks on a pipe; a writer never waits, and is told
that the queue is full. Polling costs a core and holds the interpreter lock meanwhile, so it pays
where a core is free and the answer is near: a reader that misses window after window stops polling
but for a trial now and then. Parked, it uses nothing.

**No lost wake-up.** A reader that is about to park writes the position it waits for into the shared
header, looks again, and only then sleeps. The writer moves its counter, then reads that position,
and rings if it has just passed it. Either the sleeper sees the counter or the waker sees the
position, provided that neither processor lets its load overtake its store.

**Memory ordering.** Python has no atomics, so this is what holds instead. A counter is a word of
eight bytes at a multiple of eight, read and written through a memoryview of format "Q": CPython
copies eight bytes of constant size, which compilers make one move. On x86-64 stores become visible
in program order and loads are done in it (TSO), string moves included as far as later stores are
concerned: so the bytes of a packet are there when the counter that covers them is. The one thing
that TSO permits, a load before an earlier store, is what the parking above must not have: between
the two there is always a `threading.Lock` taken or released, a locked instruction, which drains the
store buffer. It does happen: of 400,000 rounds in which two processes each stored a word and then
loaded the other's, both missed the other's store some 300 times, and never with a lock in between.
The lock also lets several threads of a process share an end.

On other processors, arm64 first of all, loads and stores pass each other freely. There each of
these places has a lock released and taken again, a release and then an acquire, which nothing
passes in either direction; packets always ring, and nobody polls, so that whoever reads has gone
through the kernel's lock of the pipe after the writer did. That is untested.

**A hostile peer** can write anything into the ring at any time. Each side keeps its own counter to
itself, reads a word of the peer once, and checks it before use; a packet is copied out before
anybody looks into it. What does not fit together breaks the queue for good: GeneralFailure, now
and later. A pipe is opened anew on arrival, so that its non-blocking mode is our own: with
an eventfd, which cannot be opened anew, the peer could turn that off and have our wake-up block.

**A dead writer** closes its pipe, and a reader that is parked learns it at once from the kernel;
`close` on either side does the same. What was written before is still read, then DeviceDied is
raised. Who only calls `try_read` or `try_write` learns of a close, but not of a kill: whoever knows
better, a supervisor, closes its own end, which also wakes who is parked there. A process that was
forked without exec keeps the peer's pipe open and hides its death: do not fork beside a queue.
"""

from nnasync._core.message_queue.handover import Handover
from nnasync._core.message_queue.reader import QueueReader
from nnasync._core.message_queue.writer import QueueWriter

__all__ = ["Handover", "QueueReader", "QueueWriter"]
