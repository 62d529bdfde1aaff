"""Calls of a network that are joined while they wait, each with its own answer.

    async with Batcher(net, max_rows=16, window_us=500) as batcher:
        y = await batcher(x, deadline=within(ms=20))

A call goes at once while fewer runs are under way than there are cores and nobody waits; so an
idle network answers as it does without batching. Calls that come meanwhile wait, and those that do
so go together as the `rule` says. Calls of different priority are never joined: the urgent one
would wait for the other's arithmetic.

Each call keeps what it was promised. At its own deadline it is answered whether it waits or runs,
and the others with it go on. A run that fails is repeated call by call, so an error belongs to who
caused it. A run that nobody waits for any more is cancelled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self

import anyio
import anyio.abc

from nnasync import errors
from nnasync._core.arguments import check_choice, check_kind, check_number, check_whole
from nnasync._core.clock import Deadline, now_ns
from nnasync._core.execution.network import Network, check_network
from nnasync.batching.joining import check_is_open, fitting, joined, taken_apart
from nnasync.batching.members import Member, Queue, Run, closed
from nnasync.batching.rule import Costs, Together, earliest_end_ns, next_step
from nnasync.batching.trial import BatchingReport, find_out
from nnasync.errors import BadState, because
from nnasync.hal import Array, Priority, Shape
from nnasync.machine.facts import cores_allowed
from nnasync.tracing.families import Family, Sample
from nnasync.tracing.tally import Tallies, Tally

When = Literal["pays", "always"]

_SHARED = (errors.ResourceExhausted, errors.DeviceDied, errors.DeviceUnavailable)
"""Errors that have nothing to do with what was asked: no repetition would change them."""


class Batcher:
    """A network whose waiting calls are joined; an async context manager.

    It is called as the network is, with arrays that have the same number of rows, usually 1, and
    answers and fails as that does. `report` says what entering it found out.
    """

    def __init__(
        self,
        net: Network,
        *,
        max_rows: int = 8,
        window_us: float = 0,
        when: When = "pays",
        concurrency: int | None = None,
        max_waiting: int = 1024,
        sample: Sequence[Any] | None = None,
        name: str = "",
    ) -> None:
        """At most `max_rows` rows go together, and wait for one another for `window_us`.

        With when="pays" it is measured on entering whether, and how many, calls are joined, with a
        `sample` of one row for each input, which has to be given where more than the rows is open.
        `concurrency` runs at once, by default as many as there are cores; `max_waiting` calls of a
        priority may wait. `name` is that in metrics. Raises InvalidArgument for a network whose
        inputs do not leave their first dimension open, and numbers out of range.
        """
        check_network("net", net)
        check_is_open(net)
        lanes = cores_allowed() if concurrency is None else concurrency
        check_whole("max_rows", max_rows, 1)
        check_whole("concurrency", lanes, 1)
        check_whole("max_waiting", max_waiting, 1)
        check_number("window_us", window_us, 0, 1_000_000_000)
        check_choice("when", when, ("pays", "always"))
        check_kind("name", name, str, "a str")
        self.net = net
        self.report = BatchingReport(max_rows, "asked for")
        self._when = when
        self._window_ns = int(window_us * 1000)
        self._lanes = lanes
        self._max_waiting = max_waiting
        self._sample = sample
        self._name = name or str(getattr(getattr(net, "model", None), "name", ""))
        self._usual: Priority = getattr(net, "priority", Priority.MEDIUM)
        self._costs = Costs()
        self._queues: dict[tuple[Priority | None, tuple[Shape, ...]], Queue] = {}
        self._calls = Tallies(prefix="nnasync_batched")
        self._runs = self._rows = 0
        self._is_closed = False
        self._tasks: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        if self._tasks is not None:
            raise BadState("a batcher can be entered once; make another one")
        tasks = anyio.create_task_group()
        self._tasks = await tasks.__aenter__()
        try:
            if self._when == "pays" and self.report.most_rows > 1:
                self.report = await find_out(
                    self.net, self._sample, self.report.most_rows, self._costs
                )
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        tasks = self._tasks
        if tasks is None:
            return
        self._is_closed = True
        for queue in self._queues.values():
            queue.close()
        tasks.cancel_scope.cancel()
        # The error of the body goes on by itself, not inside an exception group.
        await tasks.__aexit__(None, None, None)

    @property
    def inputs(self) -> Any:
        """Returns the inputs of the network."""
        return self.net.inputs

    @property
    def outputs(self) -> Any:
        """Returns the outputs of the network."""
        return self.net.outputs

    async def __call__(
        self, *arrays: Any, deadline: Deadline | None = None, priority: Priority | None = None
    ) -> Any:
        """Runs once, perhaps together with other calls.

        Takes, gives and raises what the network does. Raises ResourceExhaustedTransient where too
        many wait, MissedDeadlinePersistent at once where those that wait cannot be through by the
        deadline.
        """
        tally = self._tally(priority)
        tally.calls += 1
        try:
            value = await self._answer(arrays, deadline, priority)
        except BaseException as error:
            tally.ended(error, deadline)
            raise
        tally.completed += 1
        return value

    def collect(self) -> Iterable[Family]:
        """Yields the metrics: calls and their outcomes by priority, and how many runs they took."""
        yield from self._calls.collect()
        labels = (("network", self._name),)
        for name, text, count in (
            ("runs", "Runs of networks for calls that may be joined.", self._runs),
            ("rows", "Rows of these runs.", self._rows),
        ):
            sample = Sample("", labels, count)
            yield Family(f"nnasync_batched_{name}_total", "counter", text, (sample,))

    def _tally(self, priority: Priority | None) -> Tally:
        known = priority if isinstance(priority, Priority) else self._usual
        return self._calls.of(self._name, known, "")

    # -- one call

    async def _answer(
        self, arrays: Sequence[Any], deadline: Deadline | None, priority: Priority | None
    ) -> Any:
        if self._tasks is None:
            raise BadState("the batcher is not open: use it inside `async with`")
        if self._is_closed:
            raise closed()
        if self.report.most_rows == 1:
            return await self.net(*arrays, deadline=deadline, priority=priority)
        given, rows = fitting(self.net.inputs, arrays)
        queue = self._queue(priority, given)
        if not self._window_ns and queue.running < self._lanes and not queue.members:
            return await self._alone(queue, given, rows, deadline)
        member = Member(given, rows, now_ns(), deadline)
        self._admit(queue, member)
        queue.members.append(member)
        self._look(queue)
        try:
            return await member.answer()
        finally:
            queue.leave(member)

    def _admit(self, queue: Queue, member: Member) -> None:
        """Refuses a call that has no place, or cannot be through by its deadline."""
        if len(queue.members) >= self._max_waiting:
            text = f"{self._max_waiting} calls wait to be joined already; retry when some are done"
            raise because("queue_full", errors.ResourceExhaustedTransient(text))
        due_ns = member.due.deadline_ns
        if due_ns == math.inf:
            return
        ahead = sum(each.due.rows for each in queue.members if each.due.deadline_ns <= due_ns)
        end_ns = earliest_end_ns(
            member.due.rows,
            member.due.arrived_ns,
            ahead,
            self._costs,
            self.report.most_rows,
            self._lanes,
        )
        if end_ns > due_ns:
            text = f"{ahead} rows wait ahead: done {(end_ns - due_ns) / 1e6:.1f} ms too late"
            raise because("admission", errors.MissedDeadlinePersistent(text))

    async def _alone(
        self, queue: Queue, arrays: Sequence[Array], rows: int, deadline: Deadline | None
    ) -> Any:
        """Runs a call by itself, on its own task."""
        queue.running += 1
        try:
            return await self._run(arrays, rows, deadline, queue.priority)
        finally:
            queue.running -= 1
            self._look(queue)

    async def _run(
        self,
        arrays: Sequence[Array],
        rows: int,
        deadline: Deadline | None,
        priority: Priority | None,
    ) -> Any:
        began_ns = now_ns()
        value = await self.net(*arrays, deadline=deadline, priority=priority)
        self._costs.observe(rows, now_ns() - began_ns)
        self._runs += 1
        self._rows += rows
        return value

    # -- several calls

    def _look(self, queue: Queue) -> None:
        """Starts the runs that are due now, and plans when to look again."""
        while queue.members and queue.running < self._lanes and not self._is_closed:
            now = now_ns()
            waiting = [member.due for member in queue.members]
            rows = self.report.most_rows
            step = next_step(waiting, now, self._costs, self._window_ns, rows)
            if not isinstance(step, Together):
                self._look_at(queue, step.at_ns)
                return
            members = [queue.members[place] for place in step.members]
            for member in members:
                queue.members.remove(member)
            queue.running += 1
            self._start(self._together, queue, members)

    def _start(self, work: Any, *arguments: Any) -> None:
        if self._tasks is not None:
            self._tasks.start_soon(work, *arguments)

    def _look_at(self, queue: Queue, at_ns: float) -> None:
        if at_ns < queue.looks_at_ns:
            queue.looks_at_ns = at_ns
            self._start(self._look_later, queue, at_ns)

    async def _look_later(self, queue: Queue, at_ns: float) -> None:
        await anyio.sleep(max(0.0, (at_ns - now_ns()) / 1e9))
        if queue.looks_at_ns == at_ns:
            queue.looks_at_ns = math.inf
        self._look(queue)

    async def _together(self, queue: Queue, members: Sequence[Member]) -> None:
        """Runs calls as one; each gets its answer, or is repeated by itself."""
        members = [member for member in members if not member.is_gone]
        try:
            if members:
                with Run(members).scope:
                    await self._joined(queue, members)
        finally:
            queue.running -= 1
            for member in members:
                if not member.is_answered and not member.is_repeated:
                    member.fail(closed())
            self._look(queue)

    async def _joined(self, queue: Queue, members: Sequence[Member]) -> None:
        rows = [member.due.rows for member in members]
        last = max(member.due.deadline_ns for member in members)
        deadline = None if last == math.inf else Deadline(int(last))
        try:
            arrays = joined([member.arrays for member in members])
            value = await self._run(arrays, sum(rows), deadline, queue.priority)
            parts = taken_apart(value, rows)
        except Exception as error:
            if len(members) == 1 or isinstance(error, _SHARED):
                for member in members:
                    member.fail(error)
                return
            parts = None
        else:
            if parts is None:
                self.report = BatchingReport(1, "an answer has other rows than the inputs")
        for place, member in enumerate(members):
            if parts is not None:
                member.succeed(parts[place])
            elif not member.is_gone:
                member.is_repeated = True
                self._start(self._repeated, queue, member)

    async def _repeated(self, queue: Queue, member: Member) -> None:
        try:
            with Run([member]).scope:
                member.succeed(
                    await self._alone(queue, member.arrays, member.due.rows, member.deadline)
                )
        except Exception as error:
            member.fail(error)
        finally:
            if not member.is_answered:
                member.fail(closed())

    def _queue(self, priority: Priority | None, arrays: Sequence[Array]) -> Queue:
        """Returns the queue of calls of this priority that are alike but for the number of rows."""
        # The usual priority is left unsaid: such calls of a network are the quickest.
        priority = None if priority == self._usual else priority
        key = priority, tuple(array.shape[1:] for array in arrays)
        queue = self._queues.get(key)
        if queue is None:
            self._queues = {at: each for at, each in self._queues.items() if each.is_used}
            queue = self._queues[key] = Queue(priority)
        return queue
