"""A world in which one thread runs at a time, and the seed says which: threads, locks and a clock.

The threads are real ones, so that thread-locals, running loops and thread numbers are what they are
anywhere. But each holds the baton while it runs, and hands it on only in here: where it takes or
frees a lock, waits, sleeps or ends. Who gets it next is drawn from the seed, among those that can
go on. The clock stands still but for a tick per look at it; it moves to the next time that somebody
waits for when nobody can go on, and when the seed stalls a thread. So a seed is a schedule, and
gives the same one again.

Where nobody can go on and nobody waits for a time, the program has lost a wake-up: `Stuck`.

What happens between two such places is atomic here: a race between two plain assignments is not
found. The clock is monotonic, as CLOCK_MONOTONIC is; it jumps ahead as after a suspended machine.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable

import msgspec

EPOCH_NS = 1_000_000_000_000
TICK_NS = 40
HORIZON_NS = 600_000_000_000
"""A world that lasts longer has lost something too, however busy it is."""


class Stuck(BaseException):
    """Nobody can go on, or the world lasts for ever."""


class Abandoned(BaseException):
    """Ends a thread of a world that is over."""


class Faults(msgspec.Struct, frozen=True):
    """How often the seed does what to threads and the clock: probabilities, each at most 1."""

    preempts: float = 0.2
    stalls: float = 0.0
    jumps: float = 0.0
    refuses_threads: float = 0.0
    longest_stall_ns: int = 20_000_000
    longest_jump_ns: int = 2_000_000_000


class Actor:
    """One thread of a world: it can go on when `ready` says so, or at a time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.baton = threading.Lock()
        self.baton.acquire()
        self.ready: Callable[[], bool] | None = None
        self.until_ns: int | None = None
        self.over = False

    def can_go_on(self, now_ns: int) -> bool:
        """Whether what it waits for is there."""
        if self.until_ns is not None and self.until_ns <= now_ns:
            return True
        return self.ready is not None and self.ready()


class World:
    """The threads and the clock of one seed; the thread that makes it is its first."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.faults = Faults()
        self.now_ns = EPOCH_NS
        self._held_up: list[tuple[int, int]] = []
        self.over = False
        self.stuck = False
        self.after_step: Callable[[], object] = lambda: None
        self.finding: BaseException | None = None
        self.steps = 0
        self._digest = hashlib.blake2b(digest_size=8)
        self.main = Actor("loop")
        self._actors = [self.main]
        self.current = self.main
        self._here = threading.local()
        self._here.actor = self.main

    @property
    def trace(self) -> str:
        """A digest of who ran when, the same for the same seed."""
        return self._digest.hexdigest()

    def clock_ns(self) -> int:
        """The time, a tick after the look before."""
        self.now_ns += TICK_NS
        return self.now_ns

    def chance(self, probability: float) -> bool:
        """Whether the seed does it now."""
        return probability > 0 and self.random.random() < probability

    def is_inside(self) -> bool:
        """Whether the calling thread is one of this world, which is not over."""
        return not self.over and getattr(self._here, "actor", None) is self.current

    # -- what threads do

    def pause(self) -> None:
        """A place at which another thread may go on, or this one is held up."""
        if not self.is_inside():
            return
        if self.chance(self.faults.stalls):
            self.hold_up(self.random.randrange(self.faults.longest_stall_ns))
        elif self.chance(self.faults.preempts):
            self.wait(lambda: True)

    def hold_up(self, duration_ns: int) -> None:
        """Keep the calling thread from going on, though it could; the others may."""
        self._held_up.append((self.now_ns, self.now_ns + duration_ns))
        self.wait(None, self.now_ns + duration_ns)

    def work(self, duration_ns: int) -> None:
        """Have a device work for so long; that holds up the loop if it happens on its thread."""
        if self.current is self.main:
            self.hold_up(duration_ns)
        else:
            self.wait(None, self.now_ns + duration_ns)

    def free_ns(self, since_ns: int) -> int:
        """How much time has passed since then in which no thread was held up."""
        free_ns, at_ns = 0, since_ns
        for begin_ns, end_ns in sorted(self._held_up):
            if end_ns > at_ns:
                free_ns += max(0, begin_ns - at_ns)
                at_ns = end_ns
        return free_ns + max(0, self.now_ns - at_ns)

    def wait(self, ready: Callable[[], bool] | None, until_ns: int | None = None) -> bool:
        """Wait until it is ready, or until then; whether it is ready."""
        me = self.current
        if self.over:
            raise Abandoned
        me.ready, me.until_ns = ready, until_ns
        self._hand_on(me)
        if self.over:
            raise Abandoned
        is_ready = ready is not None and ready()
        me.ready = me.until_ns = None
        if me is self.main and self.stuck:
            raise Stuck(self.state())
        return is_ready

    def state(self) -> str:
        """Who waits."""
        names = ", ".join(each.name for each in self._actors if not each.over)
        return f"after {self.steps} steps and {(self.now_ns - EPOCH_NS) / 1e9:.3f} s: {names} wait"

    def begin(self, name: str) -> Actor:
        """Another thread, which can go on from now on."""
        actor = Actor(name)
        actor.ready = lambda: True
        self._actors.append(actor)
        return actor

    def enter(self, actor: Actor) -> None:
        """Be that thread; waits for its first turn."""
        self._here.actor = actor
        actor.baton.acquire()
        if self.over:
            raise Abandoned
        actor.ready = actor.until_ns = None

    def leave(self, actor: Actor) -> None:
        """End the calling thread."""
        actor.over = True
        actor.ready = actor.until_ns = None
        self._actors.remove(actor)
        if not self.over:
            self._hand_on(actor)

    def end(self) -> list[Actor]:
        """Be over; the threads that are left, each of which ends when it gets its baton."""
        self.over = True
        return [actor for actor in self._actors if actor is not self.main]

    # -- who goes on

    def _hand_on(self, me: Actor) -> None:
        following = self._next()
        self.current = following
        if following is me:
            return
        following.baton.release()
        if not me.over:
            me.baton.acquire()

    def _next(self) -> Actor:
        self.steps += 1
        self._check()
        if self.chance(self.faults.jumps):
            jump_ns = self.random.randrange(self.faults.longest_jump_ns)
            self._held_up.append((self.now_ns, self.now_ns + jump_ns))
            self.now_ns += jump_ns
        now = self.now_ns
        able = [actor for actor in self._actors if actor.can_go_on(now)]
        if not able:
            times = [each.until_ns for each in self._actors if each.until_ns is not None]
            if not times or min(times) > EPOCH_NS + HORIZON_NS or self.stuck:
                self.stuck = True
                return self.main
            self.now_ns = max(now, min(times))
            able = [actor for actor in self._actors if actor.can_go_on(self.now_ns)]
        chosen = able[0] if len(able) == 1 else self.random.choice(able)
        self._digest.update(b"%d %s;" % (self.now_ns, chosen.name.encode()))
        return chosen

    def _check(self) -> None:
        if self.finding is None and not self.over:
            try:
                self.after_step()
            except AssertionError as error:
                self.finding = error
