"""Demotion: which threads that run LOW work have the lowest OS priority.

Threads of the usual OS priority have equal shares of the cores. A loop's thread that has just run
has had its share, so one that wakes it beside a LOW execution may wait for the end of a tick, up to
4 ms; beside a thread of the system's idle class it runs at once. But a thread of that class that
holds the interpreter lock and gets no core keeps the lock for as long, and it gets next to none
beside threads that keep all cores busy. So threads of ours have that class, as is asked for,

* always (True), or never (False);
* only as long as nothing of higher priority is prepared ("alone");
* beside prepared models of higher priority, while others leave the cores alone ("quiet");
* the same beside those of HIGH only ("auto"): who prepares one has said that it is in a hurry, and
  where nobody has, LOW work may as well have the usual share.

A thread cannot leave the class: with a change other threads take over. Threads of an engine never
hold the lock: where threads of ours keep the usual priority beside prepared models of higher
priority, LOW executions may run there.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from typing import Literal

from nnasync._core.workers.belief import Belief
from nnasync._core.workers.worker_thread import ThreadStarter, Worker
from nnasync.hal import Priority

LowOsPriority = bool | Literal["auto", "alone", "quiet"]

_CROWDED, _CALM = 0.5, 0.4
"""Shares of the cores: others crowd LOW out from the first one on, and leave the cores alone below
the other one. A process that never sleeps has half of two cores, and less than that beside threads
of the usual priority."""
_PROOF, _MOST_PROOF, _DOUBTS = 10, 320, 1
"""Looks. To be wrong about quiet costs the loop more than to be late to see it."""


class Demotion:
    """Decides which threads have the lowest OS priority; its users hold the lock.

    `starter` starts threads for those that may be lowered, once some may be.
    """

    def __init__(self, mode: LowOsPriority, *, engines: bool) -> None:
        """Takes the mode for threads of ours.

        `engines` allows threads of engines to be demoted, too.
        """
        self._mode = mode
        self._engines = engines and mode is not True
        self._higher_models: weakref.WeakSet[object] = weakref.WeakSet()
        self._urgent_models: weakref.WeakSet[object] = weakref.WeakSet()
        self._quiet = Belief(proof=_PROOF, most_proof=_MOST_PROOF, doubts=_DOUBTS)
        self.starter = ThreadStarter() if mode in (True, "alone") else None

    @property
    def asks_for_others(self) -> bool:
        """Returns whether the decision depends on how busy others keep the cores."""
        if sys.platform != "linux" or self._mode not in ("auto", "quiet"):
            return False
        models = self._urgent_models if self._mode == "auto" else self._higher_models
        return len(models) > 0

    @property
    def demotes_threads(self) -> bool:
        """Returns whether threads that run LOW work should have the lowest OS priority now."""
        if self._mode in ("auto", "quiet"):
            return self._quiet.holds and self.asks_for_others
        return self._mode is True or (self._mode == "alone" and not self._higher_models)

    def note_others(self, share: float) -> bool:
        """Notes which share of the cores others take.

        Returns whether other threads should take over.
        """
        did = self.demotes_threads
        self._quiet.note(speaks_for=share < (_CROWDED if self._quiet.holds else _CALM))
        if self.demotes_threads and not self.have_starter():
            self._quiet.disappoint()
        return self.demotes_threads is not did

    def have_starter(self) -> bool:
        """Makes a starter if there is none; returns whether there is one.

        To be called on a thread of the usual OS priority, before others have another one.
        """
        if self.starter is None:
            with contextlib.suppress(RuntimeError):  # No more threads can be had.
                self.starter = ThreadStarter()
        return self.starter is not None

    def look_no_more(self) -> None:
        """Forgets what was known of others, because nobody observes them any more."""
        self._quiet.forget()

    @property
    def demotes_engine_threads(self) -> bool:
        """Returns whether LOW executions may run on demoted threads of their engine."""
        return self._engines and not self.demotes_threads and len(self._higher_models) > 0

    def is_outdated(self, worker: Worker) -> bool:
        """Returns whether a thread that runs LOW work has the wrong OS priority for it now."""
        return Priority.LOW in worker.priorities and worker.demoted != self.demotes_threads

    def expect(self, priority: Priority, model: object) -> None:
        """Note a prepared model, weakly."""
        if priority is not Priority.LOW:
            self._higher_models.add(model)
        if priority is Priority.HIGH:
            self._urgent_models.add(model)

    def expect_no_more(self, model: object) -> None:
        """Notes that a prepared model was closed."""
        self._higher_models.discard(model)
        self._urgent_models.discard(model)

    def close(self) -> None:
        """Ends the starter, so that no more threads are started."""
        if self.starter is not None:
            self.starter.close()
