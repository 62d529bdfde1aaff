"""What `threading` and `time` offer, in a simulated world, and the event loop of its first thread.

`inside(world)` puts these in the place of the real ones in all modules of the package. Locks that
were made when a module was imported stay real: nothing in here is called while one is held.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import importlib
import math
import pkgutil
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import anyio.to_thread

import nnasync._core
from nnasync._core.heap import HEAP, Heap
from nnasync._core.wakeup import in_thread
from tests.simulation.world import Abandoned, World

_OUTSIDE = ("litert", "onnxruntime", "openvino", "__main__")
_PATIENCE_S = 10.0
_MOST_TURNS = 1000


class Lock:
    """A lock whose taking and freeing are places at which another thread may go on."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it, as `threading.Lock` does."""
        # The real one reckons its end before anybody can interrupt it, too.
        until_ns = None if timeout < 0 else self._world.now_ns + math.ceil(timeout * 1e9)
        self._world.pause()
        if self._held:
            if not blocking:
                return False
            if not self._world.wait(lambda: not self._held, until_ns):
                return False
        self._held = True
        return True

    def release(self) -> None:
        """Free it, as `threading.Lock` does."""
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False
        self._world.pause()

    def locked(self) -> bool:
        """Whether somebody has it."""
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()


class RLock(Lock):
    """A lock that its owner may take again."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._owner: object = None
        self._times = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it, as `threading.RLock` does."""
        me = threading.get_ident()
        if self._owner != me and not super().acquire(blocking, timeout):
            return False
        self._owner = me
        self._times += 1
        return True

    def release(self) -> None:
        """Free it, as `threading.RLock` does."""
        if self._owner != threading.get_ident():
            raise RuntimeError("cannot release un-acquired lock")
        self._times -= 1
        if not self._times:
            self._owner = None
            super().release()


class Condition:
    """A condition with a lock of its own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lock = RLock(world)
        self._waiting: list[list[bool]] = []

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, kind: object, *exception: object) -> None:
        # Who is abandoned in a wait has no lock to free.
        if kind is not Abandoned:
            self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait to be notified; whether that was so in time."""
        notified = [False]
        self._waiting.append(notified)
        self._lock.release()
        until_ns = None if timeout is None else self._world.now_ns + math.ceil(timeout * 1e9)
        if not notified[0]:
            self._world.wait(lambda: notified[0], until_ns)
        self._lock.acquire()
        if not notified[0]:
            self._waiting.remove(notified)
        return notified[0]

    def notify(self, n: int = 1) -> None:
        """Let the first ones go on."""
        for notified in self._waiting[:n]:
            notified[0] = True
        del self._waiting[:n]

    def notify_all(self) -> None:
        """Let all of them go on."""
        self.notify(len(self._waiting))


class Event:
    """A flag to wait for."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it."""
        self._is_set = True
        self._world.pause()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; whether it is."""
        until_ns = None if timeout is None else self._world.now_ns + math.ceil(timeout * 1e9)
        return self._is_set or self._world.wait(self.is_set, until_ns)


class Thread(threading.Thread):
    """A thread of a world, unless the seed refuses it."""

    def __init__(self, world: World, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._world = world

    def start(self) -> None:
        """Start it; it runs when it gets its turn."""
        world = self._world
        if world.over or world.chance(world.faults.refuses_threads):
            raise RuntimeError("can't start new thread")
        self.actor = world.begin(self.name)
        super().start()
        world.pause()

    def run(self) -> None:
        """Do the work, turn by turn."""
        try:
            self._world.enter(self.actor)
            super().run()
        except Abandoned:
            pass
        finally:
            self._world.leave(self.actor)

    def is_alive(self) -> bool:
        """Whether it has begun and not ended."""
        actor = getattr(self, "actor", None)
        return actor is not None and not actor.over

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        if not self.is_alive():
            return
        world, actor = self._world, self.actor
        until_ns = None if timeout is None else world.now_ns + math.ceil(timeout * 1e9)
        world.wait(lambda: actor.over, until_ns)

    def really_join(self) -> bool:
        """Wait for the end of the thread of the system; whether it came."""
        super().join(_PATIENCE_S)
        return not super().is_alive()


class Loop(asyncio.BaseEventLoop):
    """The event loop of the first thread of a world; it waits for no files."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._roused = False
        self._selector: Any = self

    def time(self) -> float:
        """Seconds of the world's clock."""
        return self._world.clock_ns() * 1e-9

    def select(self, timeout: float | None) -> list[object]:
        """Wait until roused; the turn of the loop may be late."""
        world = self._world
        if timeout is None:
            world.wait(lambda: self._roused)
        elif timeout > 0:
            world.wait(lambda: self._roused, world.now_ns + math.ceil(timeout * 1e9) + 1)
        world.pause()
        self._roused = False
        return []

    def end_tasks(self) -> None:
        """Cancel what a scenario that was broken off has left, and turn until it has ended.

        Else the collector would find it later, and name it in whichever test it runs.
        """
        for _ in range(_MOST_TURNS):
            left = asyncio.all_tasks(self)
            for task in left:
                task.add_done_callback(_hear)
                task.cancel()
            self.call_soon(self.stop)
            self.run_forever()
            # The last of them may have had generators that are closed by tasks of their own.
            if not left and not asyncio.all_tasks(self):
                return
        raise AssertionError(f"these tasks do not end: {left}")

    def _process_events(self, event_list: list[object]) -> None:
        pass

    def _write_to_self(self) -> None:
        self._roused = True
        self._world.pause()


def _hear(task: asyncio.Task[Any]) -> None:
    """Take notice of how a task has ended, which nobody else does."""
    if not task.cancelled():
        task.exception()


async def _run_sync(work: Callable[..., Any], *args: Any, **named: object) -> Any:
    """`anyio.to_thread.run_sync`, on a thread of the world."""
    return await in_thread(functools.partial(work, *args), "anyio")


def _facades(world: World) -> dict[int, object]:
    """What stands in for which object, by its identity."""
    threads = types.ModuleType("threading")
    threads.__dict__.update(vars(threading))
    for kind in (Lock, RLock, Condition, Event, Thread):
        setattr(threads, kind.__name__, functools.partial(kind, world))
    times = types.ModuleType("time")
    times.__dict__.update(vars(time))
    times.__dict__.update(
        monotonic_ns=world.clock_ns,
        perf_counter_ns=world.clock_ns,
        monotonic=lambda: world.clock_ns() * 1e-9,
        perf_counter=lambda: world.clock_ns() * 1e-9,
        sleep=lambda s: world.wait(None, world.now_ns + math.ceil(s * 1e9)),
    )
    return {
        id(threading): threads,
        id(time): times,
        id(time.monotonic_ns): world.clock_ns,
        id(threading.Lock): threads.Lock,
        id(HEAP): Heap(lambda pad: None, clock=world.clock_ns),
    }


@functools.cache
def _places() -> list[tuple[dict[str, Any], str, Any]]:
    """Where the package names one of these: the names of a module, a name, what it is."""
    for found in pkgutil.walk_packages(nnasync._core.__path__, "nnasync._core."):
        if not any(part in found.name for part in _OUTSIDE):
            importlib.import_module(found.name)
    known = {id(threading), id(time), id(time.monotonic_ns), id(threading.Lock), id(HEAP)}
    return [
        (vars(module), name, value)
        for module_name, module in sorted(sys.modules.items())
        if module_name.split(".")[0] == "nnasync"
        for name, value in list(vars(module).items())
        if id(value) in known
    ]


@contextlib.contextmanager
def inside(world: World) -> Iterator[Loop]:
    """Have the package live in a world, whose loop it gives; threads and tasks end with the block.

    Garbage in cycles is not collected meanwhile: when that happens is no matter of the seed.
    """
    places, facades = _places(), _facades(world)
    own_pool: Any = anyio.to_thread
    run_sync = own_pool.run_sync
    before = set(threading.enumerate())
    was_enabled = gc.isenabled()
    gc.disable()
    for names, name, value in places:
        names[name] = facades[id(value)]
    own_pool.run_sync = _run_sync
    loop = Loop(world)
    try:
        yield loop
    finally:
        for actor in world.end():
            actor.baton.release()
        for thread in set(threading.enumerate()) - before:
            if isinstance(thread, Thread):
                assert thread.really_join(), f"{thread.name} goes on though its world is over"
        loop.end_tasks()
        loop.close()
        for names, name, value in places:
            names[name] = value
        own_pool.run_sync = run_sync
        if was_enabled:
            gc.enable()
