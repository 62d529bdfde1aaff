"""From any thread into a running loop (asyncio, uvloop or trio), with coalesced wake-ups.

A loop is woken through a system call, and each wake-up costs it a turn. So there is one `Wakeup`
per loop: threads append callbacks to its queue, and only the first one to find it unscheduled wakes
the loop, which then empties the queue in one turn. A loop is referenced weakly and found again by
the thread it runs in; nothing here keeps a finished loop alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from nnasync import errors, hal
from nnasync._core.clock import Watchdog, now_ns
from nnasync._core.deferred import deferred
from nnasync._core.due_turn import DueTurn
from nnasync._core.endings import joined_at_exit, renewed_in_child
from nnasync._core.lag import Lag
from nnasync._core.sole_wait import SoleWait
from nnasync.tracing import Tracer

if TYPE_CHECKING:
    import anyio
    from anyio import lowlevel
else:
    anyio = deferred("anyio")
    lowlevel = deferred("anyio.lowlevel")

logger = logging.getLogger(__name__)

T = TypeVar("T")

_BACKEND = "anyio._backends._asyncio"

_modules = sys.modules
_ref = weakref.ref
_get_ident = threading.get_ident
_running_loop = asyncio._get_running_loop
_current_task: Callable[[], asyncio.Task[Any] | None] = asyncio.current_task
_task_of: Callable[[Any], asyncio.Task[Any] | None] = asyncio.current_task
if sys.version_info < (3, 12) and hasattr(asyncio.tasks, "_current_tasks"):
    # What `current_task` looks up, which is no C there, at a third of its cost.
    _tasks: dict[Any, asyncio.Task[Any]] = asyncio.tasks._current_tasks

    def _current_task() -> asyncio.Task[Any] | None:
        return _tasks.get(_running_loop())

    _task_of = _tasks.get


INHERITED = (
    "this belongs to the process that this one was forked from: open a runtime here, and compile "
    "the model again"
)


class Statistics(hal.Struct, frozen=True):
    """Counters of one loop: callbacks posted to it, and turns it was woken for."""

    posted: int
    wakeups: int


class _Cache(threading.local):
    wakeup: Wakeup | None = None


_cache = _Cache()
_registry: weakref.WeakKeyDictionary[Any, Wakeup] = weakref.WeakKeyDictionary()
_registry_lock = renewed_in_child(threading.Lock())


class Wakeup:
    """The way into one running loop, which several runtimes may use."""

    __slots__ = (
        "__weakref__",
        "_gate",
        "_home",
        "_queue",
        "_served",
        "_task",
        "due_turn",
        "is_between_tasks",
        "is_trio",
        "lag",
        "posted",
        "thread_id",
        "wakeups",
    )

    def __init__(self, home: Any, *, is_trio: bool) -> None:
        self._home: Callable[[], Any] = weakref.ref(home)
        self._queue: deque[Callable[[], object]] = deque()
        self._gate = threading.Lock()
        self.due_turn = DueTurn()
        self._task: Callable[[], Any] = _nowhere
        self.lag = Lag()
        self.is_between_tasks = False
        """Whether the loop calls what was posted, in a callback of asyncio of its own."""
        self.is_trio = is_trio
        self.thread_id = _get_ident()
        self._served: tuple[tuple[Tracer, Watchdog], ...] = ()
        self.posted = 0
        self.wakeups = 0

    @staticmethod
    def current() -> Wakeup:
        """The one of the loop that runs in this thread; raises BadState where none runs."""
        home = _running_loop()
        if home is None or "trio" in sys.modules:
            home = _trio_token() or home
        if home is None:
            raise errors.BadState(
                "no event loop runs in this thread; call this from async code (in IPython from a"
                " cell that awaits something)"
            )
        wakeup = _cache.wakeup
        if wakeup is not None and wakeup._home() is home and wakeup.thread_id == _get_ident():
            return wakeup
        return _find(home)

    @staticmethod
    def here() -> Wakeup | None:
        """The one of the loop that runs in this thread, if one does."""
        try:
            return Wakeup.current()
        except errors.BadState:
            return None

    def is_current(self) -> bool:
        """Returns whether it is that of the loop that runs in this thread.

        Raises BadState in a child of the process whose loop it is.
        """
        home = _running_loop()
        if (
            home is not None
            and home is self._home()
            and self.thread_id == _get_ident()
            and "trio" not in sys.modules
        ):
            return True
        self.check_process()
        return Wakeup.current() is self

    def is_undisturbed(self) -> bool:
        """Returns whether this loop runs here what nothing cancels, as far as few looks tell.

        That is a callback, or a task. Never on trio; `is_current` and `cancellation_pending` tell
        it exactly.
        """
        home = _running_loop()
        if home is None or home is not self._home():
            return False
        task = _task_of(home)
        if task is None:  # As where trio is a guest of the loop: it runs in callbacks of that.
            return _trio_token() is None
        if task.cancelling():
            return False
        backend = _modules.get(_BACKEND)
        if backend is None:
            return True
        try:
            # As a rule the task that asked last: a reference to it is made once.
            known = self._task
            if known() is not task:
                known = self._task = _ref(task)
            state = backend._task_states.data.get(known)
            return state is None or state.cancel_scope is None or not _scope_cancelled(task)
        except AttributeError:
            return False

    def check_process(self) -> None:
        """Raise BadState in a child of the process whose loop it is."""
        if self.is_inherited:
            raise errors.BadState(INHERITED)

    @property
    def is_inherited(self) -> bool:
        """Returns whether its loop is that of the process that this one was forked from."""
        return self._home is _nowhere

    def leave_to_parent(self) -> None:
        """Have nothing reach the loop any more: this is a child of its process."""
        # The thread that forked has the same number in the child, and perhaps the same loop.
        self._home = _nowhere
        self.thread_id = 0
        self._queue = deque()
        self._gate = threading.Lock()
        self.due_turn.begin()

    def serve(self, tracer: Tracer, watchdog: Watchdog) -> None:
        """Have this tracer hear of wake-ups, and this watchdog's deadlines told in `catch_up`.

        Others, which were given before, go on.
        """
        self._served += ((tracer, watchdog),)

    def serve_no_more(self, tracer: Tracer) -> None:
        """Undo `serve` with this tracer."""
        self._served = tuple(each for each in self._served if each[0] is not tracer)

    def post(self, callback: Callable[[], object]) -> bool:
        """Have `callback` called on the loop soon, from any thread; False if the loop is closed."""
        self._queue.append(callback)
        self.posted += 1
        if self._gate.acquire(False):
            return self._schedule()
        home = self._home()
        if home is None or not (self.is_trio or not home.is_closed()):
            self._queue.clear()
            return False
        return True

    def hold(self) -> bool:
        """Have posts wait for `let_go`, which this thread will call soon; False if some do already.

        For the loop's own thread, while it is busy and would not hear of them in any case.
        """
        return self._gate.acquire(False)

    def let_go(self) -> None:
        """Call what was posted since `hold`, on the loop's own thread."""
        queue = self._queue
        try:
            self._call_posted()
        finally:
            # Also where a callback ends the loop: it may run again, or go on all the same.
            self._gate.release()
            if queue and self._gate.acquire(False):
                self._schedule()

    def catch_up(self) -> None:
        """Call what was posted and is still to come in this turn of the loop.

        For callbacks of the loop that are many in one turn: between these the program hears of what
        other threads do, and of deadlines that have passed. Nothing that a task may want must be
        held. Does nothing within a task.
        """
        if self.is_trio or self.is_between_tasks or _current_task() is not None:
            return
        self.is_between_tasks = True
        try:
            for _, watchdog in self._served:
                watchdog.ring_due()
            if self._queue:
                self._call_posted()
        finally:
            self.is_between_tasks = False

    def _call_posted(self) -> None:
        queue = self._queue
        for _ in range(len(queue)):
            try:
                queue.popleft()()
            except Exception:
                logger.exception("a callback posted to the loop raised")

    def check_heard(self, deadline_ns: int) -> None:
        """Raise MissedDeadlinePersistent where the loop lags so much that it hears of nothing then.

        For work that ends on other threads; what is late already is left to them. The lag is
        measured again.
        """
        now = now_ns()
        lag_ns = self.lag.estimate_ns(now)
        if now < deadline_ns < now + lag_ns:
            self.measure_lag()
            text = (
                f"the deadline is {(deadline_ns - now) / 1e6:.3f} ms away and the event loop hears "
                f"of what other threads do after {lag_ns / 1e6:.3f} ms at the earliest"
            )
            raise errors.because("admission", errors.MissedDeadlinePersistent(text))

    def measure_lag(self) -> None:
        """Wake the loop for nothing but to see how long that takes."""
        self.post(_nothing)

    def statistics(self) -> Statistics:
        """Counters since the loop was first used; approximate while threads are posting."""
        return Statistics(posted=self.posted, wakeups=self.wakeups)

    def _schedule(self) -> bool:
        home = self._home()
        self.due_turn.ask(now_ns())
        try:
            if home is None:
                raise RuntimeError("the loop is gone")
            if self.is_trio:
                home.run_sync_soon(self._drain)
            else:
                home.call_soon_threadsafe(self._drain)
        except RuntimeError:
            self.due_turn.begin()
            self._queue.clear()
            self._gate.release()
            return False
        return True

    def _drain(self) -> None:
        self.wakeups += 1
        now = now_ns()
        self.lag.observe(now - self.due_turn.begin(), now)
        try:
            for tracer, _ in self._served:
                for hook in tracer.loop_woken:
                    hook(now, len(self._queue))
        finally:
            self.is_between_tasks = not self.is_trio
            try:
                self.let_go()
            finally:
                self.is_between_tasks = False
                self.due_turn.end()


def _nothing() -> None:
    pass


def _trio_token() -> Any:
    """Token of the trio run whose task is running in this thread, or None."""
    trio = sys.modules.get("trio")
    if trio is None or not trio.lowlevel.in_trio_task():
        return None
    return trio.lowlevel.current_trio_token()


def _find(home: Any) -> Wakeup:
    with _registry_lock:
        wakeup = _registry.get(home)
        if wakeup is None:
            is_trio = not isinstance(home, asyncio.AbstractEventLoop)
            wakeup = _registry[home] = Wakeup(home, is_trio=is_trio)
    wakeup.thread_id = _get_ident()
    _cache.wakeup = wakeup
    return wakeup


def _nowhere() -> None:
    """The loop of a way in that was inherited by a fork."""


def _leave_all_to_parent() -> None:
    global _registry
    for wakeup in list(_registry.values()):
        wakeup.leave_to_parent()
    _registry = weakref.WeakKeyDictionary()
    _cache.wakeup = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all_to_parent)


class Waiter:
    """A one-shot event made on a loop: any thread wakes it, one task awaits it."""

    __slots__ = ("_abandoned", "_parked", "_wakeup", "woken")

    def __init__(self) -> None:
        self._wakeup = Wakeup.current()
        self._parked: Any = None
        self._abandoned = False
        self.woken = False

    def wake(self, _source: object = None) -> None:
        """Let the awaiting task go on; from any thread, at most the first call counts.

        `_source` is ignored: it lets the bound method serve as callback of what passes itself.
        """
        if self.woken or self._abandoned:
            return
        wakeup = self._wakeup
        if wakeup.thread_id == _get_ident() and not wakeup.is_between_tasks:
            self._complete()
        else:
            wakeup.post(self._complete_posted)

    async def wait(self) -> None:
        """Wait for `wake`; does not suspend if it came already. Cancelling only ends the wait."""
        await self

    def __await__(self) -> Generator[Any, Any, None]:
        if self.woken:
            return
        try:
            if self._wakeup.is_trio:
                yield from self._park_in_trio().__await__()
            else:
                self._parked = wait = SoleWait(loop=asyncio.get_running_loop())
                yield from wait
        except BaseException:
            self._abandoned = True
            raise
        finally:
            self._parked = None

    async def _park_in_trio(self) -> None:
        trio: Any = sys.modules["trio"]

        def abort(_raise_cancel: object) -> Any:
            self._parked = None
            return trio.lowlevel.Abort.SUCCEEDED

        self._parked = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)

    def _complete_posted(self) -> None:
        self._complete(at_once=self._wakeup.is_between_tasks)

    def _complete(self, *, at_once: bool = False) -> None:
        if self.woken:
            return
        self.woken = True
        parked = self._parked
        if parked is None:
            return
        if not self._wakeup.is_trio:
            parked.end(at_once=at_once)
            return
        trio = sys.modules["trio"]
        if trio.lowlevel.in_trio_task():
            self._parked = None
            trio.lowlevel.reschedule(parked)
        else:
            self.woken = False
            self._wakeup.post(self._complete)


@types.coroutine
def one_turn() -> Generator[None, None, None]:
    """Let a loop of asyncio run one turn; a cancellation is delivered here."""
    yield


async def yield_now() -> None:
    """Let the loop run one turn; a cancellation is delivered here."""
    if _running_loop() is None or _trio_token() is not None:
        await lowlevel.checkpoint()
    else:
        await one_turn()


def current_task() -> object:
    """Returns the running asyncio task; None on other loops and outside of tasks."""
    try:
        return _current_task()
    except RuntimeError:
        return None


def cancellation_pending() -> bool:
    """Returns whether this task may have to stop at its next checkpoint, on any loop.

    True for `asyncio.Task.cancel()`, for a cancelled scope of anyio and for one of trio. It may
    stay true after an asyncio task was cancelled and went on all the same.
    """
    try:
        task = _current_task()
    except RuntimeError:
        task = None
    if task is None:
        return anyio.current_effective_deadline() == -math.inf
    return task.cancelling() > 0 or _scope_cancelled(task)


async def checkpoint_if_cancelled() -> None:
    """Raise the loop's cancellation if one is pending for this task; otherwise go on at once."""
    if cancellation_pending():
        await yield_now()
        await lowlevel.checkpoint_if_cancelled()


def shield() -> contextlib.AbstractContextManager[object]:
    """A scope inside of which the task does not hear of scopes that are cancelled around it."""
    if _running_loop() is not None and _trio_token() is None and _backend() is None:
        return contextlib.nullcontext()
    return anyio.CancelScope(shield=True)


async def in_thread(
    work: Callable[[], T],
    name: str,
    *,
    enters_engine: bool = False,
    start: Callable[[threading.Thread], Awaitable[object]] | None = None,
) -> T:
    """Returns what `work` returns or raises on a daemon thread of its own, which is named.

    The end of the interpreter waits for what enters an engine, and for nothing else. `start` starts
    the thread from another one; otherwise the loop stands still until the thread has its first
    turn, which takes long on a busy machine. Raises ResourceExhaustedTransient where no thread can
    be started, and what `start` raises.
    """
    waiter, outcome = Waiter(), _Outcome[T]()

    def run() -> None:
        try:
            outcome.value = work()
        except BaseException as error:
            outcome.error = error
        waiter.wake()

    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        if start is None:
            thread.start()
        else:
            await start(thread)
    except RuntimeError as error:
        raise errors.ResourceExhaustedTransient(f"no thread for {name}: {error}") from error
    if enters_engine:
        joined_at_exit(thread)
    await waiter
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


class _Outcome(Generic[T]):
    value: T
    error: BaseException | None = None


def _backend() -> Any:
    """Anyio's backend for asyncio; None where it is not imported, and so has no scopes."""
    return sys.modules.get(_BACKEND)


def _scope_cancelled(task: asyncio.Task[Any]) -> bool:
    """Returns whether a scope of anyio is cancelled around the task.

    Reads the backend's own table, at a fifth of the cost of the public query, which it falls back
    to should the table look different.
    """
    backend = sys.modules.get(_BACKEND)
    if backend is None:
        return False
    try:
        # The dictionary within the weak one, whose own `get` is no C.
        state = backend._task_states.data.get(_ref(task))
        if state is None:
            return False
        scope = state.cancel_scope
        while scope is not None:
            if scope._cancel_called:
                return True
            scope = None if scope._shield else scope._parent_scope
        return False
    except AttributeError:
        return anyio.current_effective_deadline() == -math.inf
