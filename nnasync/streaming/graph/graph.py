"""Graphs of streams: sources, stages and ends, with an account of every item.

A graph is declared first and then run. Each stage is made from the stream before it:

    graph = Graph()
    frames = graph.source(camera(), budget_ns=60_000_000)
    frames.map(detector).filter(lambda boxes: len(boxes) > 0).sink(show)
    await graph.run()
    print(graph.account())

Deadlines and priorities belong to the items: a source gives them, and each stage gets what is left.
Work on an item that cannot be in time any more is not begun. Where a stage cannot keep up, its
policy says what is lost, and the account of the graph says where.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

import anyio
import anyio.abc
import anyio.lowlevel

from nnasync._core.arguments import check_function, check_kind, or_none
from nnasync._core.clock import now_ns
from nnasync._core.notebook import html_table
from nnasync.errors import BadState, InvalidArgument
from nnasync.hal import Priority, Struct
from nnasync.streaming.account import Account, StreamStatistics, of_chain
from nnasync.streaming.arguments import check_predicate, is_awaited
from nnasync.streaming.graph.closing import Closing
from nnasync.streaming.graph.gathering import (
    BatchNode,
    JoinMode,
    JoinNode,
    RateNode,
    UnbatchNode,
    WindowNode,
)
from nnasync.streaming.graph.node import ErrorPolicy, Node, OnSettled, named
from nnasync.streaming.graph.stages import (
    CallNode,
    FilterNode,
    FunctionNode,
    OutputNode,
    SourceNode,
    SplitNode,
)
from nnasync.streaming.item import Item
from nnasync.streaming.leaving import leave
from nnasync.streaming.stage import Policy, check_policy


class GraphAccount(Struct, frozen=True):
    """Where the items of a graph are, by the names of its stages; `str` of it is a table."""

    stages: dict[str, Account]

    @property
    def pending(self) -> int:
        """Items that are still on their way."""
        return sum(account.pending for account in self.stages.values())

    @property
    def completed(self) -> int:
        """Items that reached an end of the graph in time."""
        return sum(account.completed for account in self.stages.values())

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
        return html_table(*self._table())

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        fields = Account.__struct_fields__
        return ("stage", *fields), [
            (name, *(str(getattr(account, field)) for field in fields))
            for name, account in self.stages.items()
        ]

    def __str__(self) -> str:
        heads, lines = self._table()
        rows = [heads, *lines]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if column else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        )


class CallOptions(TypedDict, total=False):
    """How a stage runs what is awaited; of a plain function only `name` and `on_error` count.

    * `name`: in the account; by default that of what is called.
    * `policy`, `capacity`: of its queue, by default the stream's policy and room for 1 item.
    * `concurrency`: how many calls run at a time, by default 1.
    * `budget_ns`: its deadline, so long after the capture; or that of the item, if it is earlier.
    * `priority`: of its calls, instead of that of the item.
    * `on_error`: what an error ends, by default the "item".
    """

    name: str
    policy: Policy | None
    capacity: int
    concurrency: int
    budget_ns: int | None
    priority: Priority | None
    on_error: ErrorPolicy


class Stream:
    """The items that leave a stage; each method makes the next stage from them.

    A stream that several stages are made from goes to each of them.
    """

    def __init__(self, graph: Graph, node: Node, policy: Policy) -> None:
        self._graph = graph
        self._node = node
        self._policy = policy

    @property
    def name(self) -> str:
        """The name of the stage, as in the account."""
        return self._node.name

    def map(self, call: Callable[..., Any], **options: Unpack[CallOptions]) -> Stream:
        """Returns the stream of `call(data)` for each item's data.

        A plain function runs at once. What is to be awaited (a network, a burst, a coroutine
        function) has a queue and runs as `options` say, see `CallOptions`; results keep their
        order. It gets `deadline=` and `priority=` if it takes them: those of the item, or the
        stage's own.
        """
        return self._called(call, False, options)

    def flat_map(self, call: Callable[..., Any], **options: Unpack[CallOptions]) -> Stream:
        """Returns the stream of all that `call(data)` gives, such as the crops of a frame.

        See `map`. An item of which none comes is filtered.
        """
        return self._called(call, True, options)

    def filter(
        self, predicate: Callable[[Any], bool], *, name: str = "", on_error: ErrorPolicy = "item"
    ) -> Stream:
        """Only items of which `predicate(data)` is true go on."""
        own = self._graph._name(name or named(predicate, "filter"))
        check_predicate(own, predicate)
        node = FilterNode(self._graph, own, lambda item: predicate(item.data), on_error)
        return self._then(node)

    def split(
        self, predicate: Callable[[Any], bool], *, name: str = "", on_error: ErrorPolicy = "item"
    ) -> tuple[Stream, Stream]:
        """Two streams: of the items of which `predicate(data)` is true, and of the others."""
        own = self._graph._name(name or named(predicate, "split"))
        check_predicate(own, predicate)
        node = SplitNode(self._graph, own, predicate, on_error)
        self._then(node)
        for way in node.ways:
            self._graph._add(way)
        first, second = node.ways
        return Stream(self._graph, first, self._policy), Stream(self._graph, second, self._policy)

    def batch(
        self,
        size: int,
        *,
        wait_ns: int | None = None,
        name: str = "",
        policy: Policy | None = None,
        capacity: int = 1,
    ) -> Stream:
        """Up to `size` items become one whose data is the list of theirs.

        A batch goes before it is full when the first of it has waited for `wait_ns`, when the
        stream ends, or when the earliest deadline leaves only twice the time that the next stage
        took lately, and at least 2 ms. Items whose deadline has passed are missed, not batched.
        """
        node = BatchNode(
            self._graph,
            self._graph._name(name or "batch"),
            size,
            wait_ns=wait_ns,
            policy=policy or self._policy,
            capacity=capacity,
        )
        return self._then(node)

    def unbatch(self, *, name: str = "") -> Stream:
        """Returns the stream of each batch's items, with their parts of the data and own times."""
        return self._then(UnbatchNode(self._graph, self._graph._name(name or "unbatch")))

    def window(self, size: int, *, hop: int = 1, name: str = "") -> Stream:
        """Windows of `size` items, one every `hop` items; the data is the list of theirs."""
        return self._then(WindowNode(self._graph, self._graph._name(name or "window"), size, hop))

    def rate(self, rate_hz: float, *, name: str = "") -> Stream:
        """At most `rate_hz` items a second, by the times of their capture; others are filtered.

        Directly behind a stream of the network, pictures that are not wanted are sorted out before
        they are decoded, where the codec permits, and filtered in the account of the source.
        """
        return self._then(RateNode(self._graph, self._graph._name(name or "rate"), rate_hz))

    def sink(
        self,
        call: Callable[..., Any],
        *,
        name: str = "",
        policy: Policy | None = None,
        capacity: int = 1,
        on_error: ErrorPolicy = "item",
    ) -> None:
        """An end of the graph: `call(item)` with each item, awaited if it is to be.

        One that is awaited and has `aclose` is closed with the graph, or with the last of the
        streams that it is the end of.
        """
        own = self._graph._name(name or named(call, "sink"))
        if is_awaited(call):
            self._then(
                CallNode(
                    self._graph,
                    own,
                    call,
                    policy=policy or self._policy,
                    capacity=capacity,
                    closing=self._graph._closing(call),
                    on_error=on_error,
                )
            )
        else:
            self._then(FunctionNode(self._graph, own, call, whole=True, on_error=on_error))

    def output(
        self, *, name: str = "", policy: Policy | None = None, capacity: int = 64
    ) -> OutputNode:
        """An end of the graph that the program iterates over, while the graph runs.

        Items that nobody takes wait, up to `capacity`; then the policy decides.
        """
        node = OutputNode(
            self._graph,
            self._graph._name(name or "output"),
            policy=policy or self._policy,
            capacity=capacity,
        )
        self._then(node)
        return node

    def _called(self, call: Callable[..., Any], flat: bool, options: CallOptions) -> Stream:
        unknown = sorted(set(options) - CallOptions.__annotations__.keys())
        if unknown:
            raise TypeError(_without_option(unknown))
        wanted = options.get("name") or named(call, "flat_map" if flat else "map")
        own = self._graph._name(wanted)
        on_error = options.get("on_error", "item")
        if not is_awaited(call):
            return self._then(FunctionNode(self._graph, own, call, flat=flat, on_error=on_error))
        return self._then(
            CallNode(
                self._graph,
                own,
                call,
                policy=options.get("policy") or self._policy,
                capacity=options.get("capacity", 1),
                concurrency=options.get("concurrency", 1),
                budget_ns=options.get("budget_ns"),
                priority=options.get("priority"),
                flat=flat,
                on_error=on_error,
            )
        )

    def _then(self, node: Node) -> Stream:
        self._graph._add(node)
        self._node.children.append(node.inlet())
        return Stream(self._graph, node, self._policy)


class Graph:
    """Streams that run together; see the top of this module.

    `now` is the clock that deadlines and latencies are of. `on_settled` is called with the name of
    a stage, an item and its `Outcome` whenever one is settled there; what it raises is logged.
    """

    def __init__(
        self, *, now: Callable[[], int] = now_ns, on_settled: OnSettled | None = None
    ) -> None:
        check_function("now", now, "a function that returns nanoseconds")
        or_none(check_function, "on_settled", on_settled, "a function of a name, Item and Outcome")
        self.now = now
        self.on_settled = on_settled
        self._nodes: dict[str, Node] = {}
        self._closings: dict[int, Closing] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._error: Exception | None = None
        self._running = 0
        self._idle = anyio.Event()

    def source(
        self,
        source: AsyncIterable[Item],
        *,
        name: str = "",
        budget_ns: int | None = None,
        priority: Priority | None = None,
        policy: Policy = Policy.NEWEST,
        on_error: ErrorPolicy = "graph",
    ) -> Stream:
        """The items of a source, such as `camera()`; it is closed with the graph.

        Each item has until `budget_ns` after its capture, and this priority. `policy` is that of
        the stages behind it which are not given one: BLOCK loses nothing and lets the source wait.
        """
        own = self._name(name or named(source, "source"))
        check_policy(own, policy)
        node = SourceNode(
            self,
            own,
            source,
            closing=self._closing(source),
            budget_ns=budget_ns,
            priority=priority,
            on_error=on_error,
        )
        return Stream(self, self._add(node), policy)

    def merge(self, *streams: Stream, name: str = "") -> Stream:
        """The items of several streams, in the order in which they come."""
        self._own(streams)
        node = self._add(Node(self, self._name(name or "merge")))
        for stream in streams:
            stream._node.children.append(node.inlet())
        return Stream(self, node, streams[0]._policy)

    def join(
        self,
        first: Stream,
        *others: Stream,
        mode: JoinMode = "nearest",
        tolerance_ns: int | None = None,
        capacity: int = 64,
        name: str = "",
    ) -> Stream:
        """Returns a stream that joins the first stream's items to items of the others by time.

        "nearest" takes the item that was captured closest to it, "latest" the last one that came
        and was captured before it, "interpolated" the value between the two around it; within
        `tolerance_ns`. The data is a tuple in the order of the streams. An item without a partner
        is dropped. Of each stream `capacity` items may wait for the others.
        """
        streams = self._own((first, *others))
        node = JoinNode(
            self,
            self._name(name or "join"),
            len(streams),
            mode=mode,
            tolerance_ns=tolerance_ns,
            capacity=capacity,
        )
        self._add(node)
        for stream, inlet in zip(streams, node.inlets(), strict=True):
            stream._node.children.append(inlet)
        return Stream(self, node, first._policy)

    def account(self) -> GraphAccount:
        """Returns where every item is, or what became of it, by stage."""
        return GraphAccount({name: node.account() for name, node in self._nodes.items()})

    def statistics(self, *stages: str) -> StreamStatistics:
        """Returns account, latencies and met deadlines of consecutive stages as of a single stage.

        `stages` are their names, from the one that items come into to the last; the latencies are
        the last one's, which has some if it is an end of the graph. Raises InvalidArgument for
        names of no stage.
        """
        unknown = [name for name in stages if name not in self._nodes]
        if unknown or not stages:
            known = ", ".join(self._nodes)
            raise InvalidArgument(f"{unknown or 'nothing'} is no stage of this graph: {known}")
        return of_chain([self._nodes[name].statistics() for name in stages])

    def errors(self) -> dict[str, Exception]:
        """The first error of each stage that had one."""
        return {name: node.error for name, node in self._nodes.items() if node.error is not None}

    async def run(self) -> None:
        """Run until the sources are at their end and every item is settled.

        Raises what ended the graph. To be cancelled, or stopped by a time limit, is harmless.
        """
        async with self:
            await self.drain()

    async def drain(self) -> None:
        """Wait until the sources are at their end and the stages have done their work."""
        while self._running:
            await self._idle.wait()

    async def __aenter__(self) -> Self:
        if self._tasks is not None:
            raise BadState("a graph runs once")
        self._tasks = await anyio.create_task_group().__aenter__()
        for node in self._nodes.values():
            self._running += 1
            self._tasks.start_soon(self._run, node)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if self._tasks is None:
            raise BadState("the graph was not entered")
        try:
            is_handled = await leave(self._tasks, kind, error, trace)
        finally:
            for node in self._nodes.values():
                node.close()
            failure, self._error = self._error, None
        if failure is not None and (error is None or is_handled):
            # A cancellation from outside comes before an error, which may be of closing for it.
            await anyio.lowlevel.checkpoint_if_cancelled()
            raise failure
        return is_handled

    def fail(self, error: Exception) -> None:
        """Ends the graph with this error, unless it has one already; stages call this."""
        self._error = self._error or error
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    async def _run(self, node: Node) -> None:
        try:
            await node.run()
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    def _add(self, node: Node) -> Node:
        if self._tasks is not None:
            raise BadState("a graph is declared before it runs")
        self._nodes[node.name] = node
        return node

    def _closing(self, used: object) -> Closing:
        """Returns the counter that closes a source or a sink, with one more user counted in."""
        closing = self._closings.setdefault(id(used), Closing(used))
        closing.enter()
        return closing

    def _name(self, wanted: str) -> str:
        """A name that no stage has yet."""
        check_kind("name", wanted, str, "a str")
        name, number = wanted, 1
        while name in self._nodes:
            number += 1
            name = f"{wanted}-{number}"
        return name

    def _own(self, streams: Sequence[Stream]) -> Sequence[Stream]:
        if not streams or any(getattr(stream, "_graph", None) is not self for stream in streams):
            raise InvalidArgument("streams of this graph are wanted, one at least")
        return streams


def _without_option(unknown: Sequence[str]) -> str:
    known = ", ".join(CallOptions.__annotations__)
    if "prepare" in unknown:
        return (
            "a stage of a graph has no option prepare, which is that of a Stage: what prepares is "
            "a stage of its own before it, stream.map(prepare).map(net)"
        )
    return f"a stage of a graph has no option {', '.join(unknown)}; it has {known}"
