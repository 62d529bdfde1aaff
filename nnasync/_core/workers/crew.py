"""The threads of the workers: which there are, which wait for work, and which are on their way.

There are two sets, one for MEDIUM and HIGH and one for LOW. Each has as many threads as there are
cores at most; those that a device does not return, and those that leave, do not count. A thread
starts with the OS priority that it should have then (`demotion`, `neighbors`). Where it should have
another one later, it leaves when it has nothing to do, and another one takes its place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from nnasync._core.workers.demotion import Demotion
from nnasync._core.workers.neighbors import Niceness
from nnasync._core.workers.refusals import no_thread
from nnasync._core.workers.running import LOW, REGULAR
from nnasync._core.workers.worker_thread import Worker
from nnasync.hal import Priority

Priorities = tuple[Priority, ...]


class Crew:
    """The threads of the workers of one runtime; its users hold the lock."""

    def __init__(
        self, cores: int, demotion: Demotion, niceness: Niceness, work: Callable[[Worker], object]
    ) -> None:
        """`work` is what each thread does."""
        self.workers: list[Worker] = []
        self._idle: dict[Priorities, list[Worker]] = {REGULAR: [], LOW: []}
        self._by_thread: dict[int, Worker] = {}
        self._cores = cores
        self._demotion, self._niceness = demotion, niceness
        self._work = work
        self._closed = False

    @property
    def here(self) -> Worker | None:
        """The worker whose thread calls; also to be read without the lock."""
        return self._by_thread.get(threading.get_ident())

    @property
    def idle_count(self) -> int:
        """How many threads wait for work."""
        return sum(map(len, self._idle.values()))

    def has_idle(self, priorities: Priorities) -> bool:
        """Returns whether a thread of this set waits for work."""
        return bool(self._idle[priorities])

    def coming(self, priorities: Priorities = REGULAR) -> int:
        """Returns how many threads of a set are about to ask for work."""
        coming = 0
        for each in self.workers:
            coming += each.coming and each.priorities is priorities
        return coming

    def is_full(self, priorities: Priorities) -> bool:
        """Returns whether a set has all the threads that it may have."""
        serving = 0
        for each in self.workers:
            serving += each.priorities is priorities and not (each.lost or each.leaving)
        return serving >= self._cores

    def is_outdated(self, worker: Worker) -> bool:
        """Returns whether a thread has the wrong OS priority for what it is to do now."""
        return worker.nicer is not self._niceness.is_greater or (
            worker.priorities is LOW and self._demotion.is_outdated(worker)
        )

    def idle_worker(self, priorities: Priorities) -> Worker | None:
        """Returns a thread that waits for work, which is to be woken.

        Where none does, one is started if there may be more, and None is returned. Raises
        ResourceExhaustedTransient where no thread can be started.
        """
        idle = self._idle[priorities]
        while idle:
            worker = idle.pop()
            if not self.is_outdated(worker):
                worker.coming = True
                return worker
            worker.leaving = True
            worker.wake()
        if not self.is_full(priorities):
            self.start(priorities)
        return None

    def start(self, priorities: Priorities) -> None:
        """Start a thread; raises ResourceExhaustedTransient where none can be had."""
        demoted = priorities is LOW and self._demotion.demotes_threads
        worker = Worker(priorities, demoted=demoted, nicer=self._niceness.is_greater)
        name = f"nnasync-{'low' if priorities is LOW else 'worker'}-{len(self.workers)}"
        try:
            if self._closed:
                raise RuntimeError("the runtime is closed")
            # A thread inherits the OS priority of the one that starts it.
            worker.begin(name, self._work, self._demotion.starter if self.here else None)
        except RuntimeError as error:
            raise no_thread(f"no thread for executions: {error}") from error
        self.workers.append(worker)

    def joins(self, worker: Worker) -> None:
        """Note that the calling thread is that of a worker; without the lock."""
        self._by_thread[threading.get_ident()] = worker

    def rests(self, worker: Worker) -> None:
        """Note that a thread waits for work."""
        self._idle[worker.priorities].append(worker)

    def leaves(self, worker: Worker) -> None:
        """Note that the calling thread, that of a worker, ends."""
        self.workers.remove(worker)
        del self._by_thread[threading.get_ident()]

    def close(self) -> list[Worker]:
        """Start no more threads; returns those that wait for work, which are to be woken."""
        self._closed = True
        idle = self._idle[REGULAR] + self._idle[LOW]
        self._idle = {REGULAR: [], LOW: []}
        return idle
