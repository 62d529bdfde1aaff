"""A stage: a network, or anything awaitable, behind a bounded queue that accounts for every item.

Items come from a source task (`feed`) or by `put`; workers take them in order, give each the
deadline captured + budget, and await the network. What a full queue does is the policy:

    NEWEST   the oldest queued item is dropped: live video, where only the present counts
    OLDEST   the newcomer is dropped: what has waited longest is answered first
    BLOCK    `put` waits: recordings, where nothing may be lost

Each item ends in exactly one bucket of the stage's account. Answers that come after the deadline
are missed, as are items whose deadline passes in the queue. Leaving the `async with` block closes
the stage: what is queued or running is cancelled, so that nothing stays pending.

Iterating gives a `Result` for every item that left the queue, in order. Results that nobody takes
hold the workers up once there are `backlog` of them; then the policy decides. With `backlog=0` they
are not kept, for a user who needs only `on_settled` (called for every item, dropped ones too; what
it raises is treated by the rule of `callbacks`: an Exception is logged, and the stage goes on).
"""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable
from types import TracebackType
from typing import Any, Protocol, Self

import anyio
import anyio.abc
import anyio.lowlevel

from nnasync._core.arguments import check_function, check_whole, or_none
from nnasync._core.clock import Deadline, now_ns
from nnasync.errors import BadState, Cancelled, InvalidArgument, MissedDeadline
from nnasync.hal import Priority, Struct
from nnasync.streaming.account import Account, Entry, Ledger, Outcome, StreamStatistics
from nnasync.streaming.arguments import check_budget, check_call, check_priority, check_source
from nnasync.streaming.item import Item
from nnasync.streaming.leaving import leave

logger = logging.getLogger(__name__)


class Policy(enum.Enum):
    """The policy of a stage for a new item while `capacity` items are already waiting.

    * `NEWEST`: the new item takes the place of the one that has waited longest, which is dropped.
      For live video, where only the present counts.
    * `OLDEST`: the new item is dropped; those that wait keep their places and are answered first.
      For live sound, where a gap is better than delay that is never made up.
    * `BLOCK`: `put` waits until there is room, and a source that is fed waits with it; nothing is
      dropped. For recordings that are played with pace "fast".

    Items that are dropped are counted in the account, and `on_settled` hears of them; they are not
    among the results. Items that wait are answered in the order they came, with every policy.
    """

    NEWEST = "newest"
    OLDEST = "oldest"
    BLOCK = "block"


class StageCall(Protocol):
    """The callable of a stage: a burst, a network or a coroutine function."""

    def __call__(self, data: Any, /, *, deadline: Deadline | None = None) -> Awaitable[Any]:
        """The answer for one item; raises MissedDeadline where it cannot come in time."""


class Result(Struct):
    """What became of one item: its value if it was completed, the error otherwise.

    `started_ns` is when a worker took it (0 if none did), `finished_ns` when it was settled.
    """

    item: Item
    outcome: Outcome
    value: Any = None
    error: BaseException | None = None
    started_ns: int = 0
    finished_ns: int = 0

    @property
    def latency_ns(self) -> int:
        """Time from capture to the end."""
        return self.finished_ns - self.item.captured_ns


class _Work:
    """An item on its way through the stage."""

    __slots__ = ("entry", "item", "result", "started_ns")

    def __init__(self, item: Item, entry: Entry) -> None:
        self.item = item
        self.entry = entry
        self.result: Result | None = None
        self.started_ns = 0


def check_policy(name: str, policy: object) -> None:
    """Raises InvalidArgument for a policy that is no `Policy`."""
    if not isinstance(policy, Policy):
        known = ", ".join(f"Policy.{each.name}" for each in Policy)
        raise InvalidArgument(f"{name}: policy is {policy!r}, it must be one of {known}")


class Stage:
    """Runs `call` on a stream of items.

    `capacity` items may wait, `concurrency` are awaited at a time. `budget_ns` makes each item's
    deadline; None sets none. With a `priority`, which networks and bursts take, all calls have it.
    `prepare` turns an item's data into what `call` takes; it runs on the
    thread of the event loop, so what takes long belongs into `call`, in a thread
    (`anyio.to_thread.run_sync`). Raises InvalidArgument for numbers out of range.
    """

    def __init__(
        self,
        call: StageCall,
        *,
        policy: Policy = Policy.NEWEST,
        capacity: int = 1,
        budget_ns: int | None = None,
        concurrency: int = 1,
        priority: Priority | None = None,
        prepare: Callable[[Any], Any] | None = None,
        backlog: int = 64,
        on_settled: Callable[[Result], object] | None = None,
        now: Callable[[], int] = now_ns,
    ) -> None:
        for name, value, least in (
            ("capacity", capacity, 1),
            ("concurrency", concurrency, 1),
            ("backlog", backlog, 0),
        ):
            check_whole(name, value, least)
        check_call("stage", call)
        check_policy("stage", policy)
        check_budget("stage", budget_ns)
        check_priority("stage", priority)
        check_function("now", now, "a function that returns nanoseconds")
        or_none(check_function, "prepare", prepare, "a function of an item's data")
        or_none(check_function, "on_settled", on_settled, "a function of a Result")
        self._call = call
        self._options: dict[str, Any] = {} if priority is None else {"priority": priority}
        self._policy = policy
        self._capacity = capacity
        self._budget_ns = budget_ns
        self._concurrency = concurrency
        self._prepare = prepare
        self._backlog = backlog
        self._on_settled = on_settled
        self._now = now
        self._ledger = Ledger()
        self._queue: deque[_Work] = deque()
        self._taken: deque[_Work] = deque()
        self._running = 0
        self._feeding = 0
        self._waiting = 0
        self._ended = False
        self._closed = False
        self._error: Exception | None = None
        self._changed = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        if self._tasks is not None:
            raise BadState("a stage is entered once")
        self._tasks = await anyio.create_task_group().__aenter__()
        for _ in range(self._concurrency):
            self._tasks.start_soon(self._work)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        tasks = self._entered()
        self._closed = self._ended = True
        self._wake()
        try:
            return await leave(tasks, kind, error, trace)
        finally:
            self._close_account()
            if error is None:
                self._raise_error()

    def feed(self, source: AsyncIterable[Item]) -> None:
        """Take the items of `source` in a task of the stage, close it, then end the stage.

        An error of the source ends the stage too and is raised by the iteration over the results,
        by `drain`, or at the end of the block. Raises BadState when the stage has ended, and
        InvalidArgument for another stage: what it gives are results, and what becomes of those that
        have no value is not for a stage to choose.
        """
        given: object = source
        if isinstance(given, Stage):
            raise InvalidArgument(
                "a stage gives results, not items: take them with `async for result in stage` and "
                "put what is to go on, next_stage.put(Item(result.item.index, "
                "result.item.captured_ns, result.value, result.item.media_ns))"
            )
        check_source("stage", source)
        self._check_open()
        tasks = self._entered()
        self._feeding += 1
        tasks.start_soon(self._feed, source)

    async def put(self, item: Item) -> None:
        """Submit one item; waits only with policy BLOCK.

        Raises BadState after the end, InvalidArgument for anything but an `Item`.
        """
        given: object = item
        if not isinstance(given, Item):
            raise InvalidArgument(
                f"a stage takes items, Item(index, captured_ns, data), not {type(given).__name__}"
            )
        self._check_open()
        deadline = self._budget_ns is not None
        work = _Work(item, self._ledger.submit(has_deadline=deadline))
        if self._policy is Policy.BLOCK:
            await self._wait_for_room(work)
        elif len(self._queue) >= self._capacity:
            dropped = work if self._policy is Policy.OLDEST else self._queue.popleft()
            self._settle(dropped, Outcome.DROPPED)
        if work.entry.outcome is None:
            self._queue.append(work)
            self._wake()
        await anyio.lowlevel.checkpoint()

    def end(self) -> None:
        """Take no more items, from sources neither; iterating ends behind those that are there."""
        self._ended = True
        self._wake()

    async def drain(self) -> None:
        """Wait until the sources are at their end and every item is settled.

        Somebody has to take the results meanwhile, unless the stage has `backlog=0`.
        """
        while self._feeding or self._waiting or self._queue or self._running:
            await self._changed.wait()
        self._raise_error()

    def __aiter__(self) -> Stage:
        return self

    async def __anext__(self) -> Result:
        """The result of the next item that left the queue; raises the error of a failed source."""
        await anyio.lowlevel.checkpoint()
        while True:
            result = self._taken[0].result if self._taken else None
            if result is not None:
                self._taken.popleft()
                self._wake()
                return result
            if self._finished:
                self._raise_error()
                raise StopAsyncIteration
            await self._changed.wait()

    @property
    def account(self) -> Account:
        """Returns where the items are now."""
        return self._ledger.account

    def statistics(self) -> StreamStatistics:
        """Account, latency from capture to answer, and deadline hits so far."""
        return self._ledger.statistics()

    @property
    def _finished(self) -> bool:
        busy = self._queue or self._taken or self._running or self._feeding or self._waiting
        return self._closed or (self._ended and not busy)

    def _entered(self) -> anyio.abc.TaskGroup:
        if self._tasks is None or self._closed:
            raise BadState("use a stage inside its `async with` block")
        return self._tasks

    def _check_open(self) -> None:
        self._entered()
        if self._ended:
            raise BadState("the stage has ended and takes no more items")

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _wait_for_room(self, work: _Work) -> None:
        self._waiting += 1
        try:
            while len(self._queue) >= self._capacity:
                await self._changed.wait()
                if self._closed:
                    raise BadState("the stage was closed before it had room for the item")
        except BaseException as error:
            if work.entry.outcome is None:
                self._settle(work, Outcome.CANCELLED, error=error)
            raise
        finally:
            self._waiting -= 1

    async def _feed(self, source: AsyncIterable[Item]) -> None:
        try:
            try:
                async for item in source:
                    if self._ended:
                        break
                    await self.put(item)
            finally:
                close = getattr(source, "aclose", None)
                if close is not None:
                    with anyio.CancelScope(shield=True):
                        await close()
        except Exception as error:
            self._error = self._error or error
        finally:
            self._feeding -= 1
            if not self._feeding:
                self.end()

    async def _work(self) -> None:
        while True:
            while not self._queue or (self._backlog and len(self._taken) >= self._backlog):
                if self._ended and not (self._queue or self._feeding or self._waiting):
                    return
                await self._changed.wait()
            work = self._queue.popleft()
            if self._backlog:
                self._taken.append(work)
            self._running += 1
            self._wake()
            try:
                await self._answer(work)
            finally:
                self._running -= 1
                self._wake()

    async def _answer(self, work: _Work) -> None:
        """Await the network and settle the item, whatever happens."""
        work.started_ns = self._now()
        deadline = None
        if self._budget_ns is not None:
            deadline = Deadline(work.item.captured_ns + self._budget_ns)
        try:
            value = await self._value(work, deadline)
        except MissedDeadline as error:
            self._settle(work, Outcome.MISSED, error=error)
        except Cancelled as error:
            self._settle(work, Outcome.CANCELLED, error=error)
        except Exception as error:
            self._settle(work, Outcome.FAILED, error=error)
        except BaseException as error:
            self._settle(work, Outcome.CANCELLED, error=error)
            if not isinstance(error, anyio.get_cancelled_exc_class()):
                raise
            await anyio.lowlevel.checkpoint_if_cancelled()
        else:
            self._settle(work, Outcome.COMPLETED, value=value, deadline=deadline)

    async def _value(self, work: _Work, deadline: Deadline | None) -> Any:
        if deadline is not None and deadline.passed_at(work.started_ns):
            await anyio.lowlevel.checkpoint()
            raise MissedDeadline(f"the deadline of item {work.item.index} passed in the queue")
        data = work.item.data if self._prepare is None else self._prepare(work.item.data)
        return await self._call(data, deadline=deadline, **self._options)

    def _settle(
        self,
        work: _Work,
        outcome: Outcome,
        *,
        value: Any = None,
        error: BaseException | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        finished_ns = self._now()
        if outcome is Outcome.COMPLETED and deadline is not None and finished_ns > deadline.at_ns:
            late_us = (finished_ns - deadline.at_ns) // 1000
            error = MissedDeadline(f"item {work.item.index} was answered {late_us} us too late")
            outcome, value = Outcome.MISSED, None
        latency_ns = finished_ns - work.item.captured_ns
        work.entry.settle(outcome, latency_ns=latency_ns)
        work.result = Result(work.item, outcome, value, error, work.started_ns, finished_ns)
        if self._on_settled is not None:
            try:
                self._on_settled(work.result)
            except Exception:
                logger.exception("on_settled raised for item %d", work.item.index)

    def _close_account(self) -> None:
        for work in self._queue:
            self._settle(work, Outcome.CANCELLED)
        self._queue.clear()
        self._ledger.close()
