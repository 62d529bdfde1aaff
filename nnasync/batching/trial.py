"""Whether joining calls pays, found out by trying: calls side by side, joined and not, in turns.

Both ways are taken as an application takes them, from the call to the answer, with all that joining
costs: the copies, the tasks, the waiting for one another. So what is compared includes that calls
which are not joined use all cores.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio

from nnasync import hal
from nnasync._core.clock import now_ns
from nnasync._core.execution.network import Network
from nnasync.batching.joining import agree, fitting, joined, sample_of, taken_apart
from nnasync.batching.members import Member
from nnasync.batching.rule import Costs
from nnasync.errors import InvalidArgument
from nnasync.hal import Array

PAYS_FROM = 0.8
"""Joined calls must take this share of the time of others, at most."""

_ROUNDS = 5

Call = Callable[..., Awaitable[Any]]


async def find_out(
    net: Network, sample: Sequence[Any] | None, most_rows: int, costs: Costs
) -> BatchingReport:
    """Measures joined and separate calls, and returns what was found; `costs` learns from it.

    Raises InvalidArgument where a sample is needed, and what the network raises.
    """
    given = sample_of(net.inputs) if sample is None else sample
    if given is None:
        raise InvalidArgument(
            "more than the number of rows is open: give a `sample` of one row for each input"
        )
    arrays, rows = fitting(net.inputs, given)
    parts = taken_apart(await net(*joined([arrays, arrays])), [rows, rows])
    if parts is None:
        return BatchingReport(1, "its answer has not a row for each row of the inputs")
    if not agree(await net(*arrays), parts[1]):
        return BatchingReport(1, "rows that are joined have other answers than rows alone")
    trials = [await tried(net, _JoinedCalls(net, size), arrays, size) for size in sizes(most_rows)]
    for each in trials:
        costs.observe(each.rows, each.joined_ns)
    return verdict(trials)


class Trial(hal.Struct, frozen=True):
    """So many calls of one row at once: the nanoseconds of separate and of joined calls."""

    rows: int
    alone_ns: float
    joined_ns: float

    @property
    def ratio(self) -> float:
        """Returns the joined time as a multiple of the separate one."""
        return self.joined_ns / max(1.0, self.alone_ns)


class BatchingReport(hal.Struct, frozen=True):
    """The result of measuring: how many rows are joined (1 for none), and why."""

    most_rows: int
    reason: str
    trials: tuple[Trial, ...] = ()

    def __str__(self) -> str:
        lines = [f"joins up to {self.most_rows} rows: {self.reason}"]
        lines += [
            f"  {trial.rows} rows: {trial.alone_ns / 1e6:.3f} ms alone, "
            f"{trial.joined_ns / 1e6:.3f} ms joined, ratio {trial.ratio:.2f}"
            for trial in self.trials
        ]
        return "\n".join(lines)


def verdict(trials: Sequence[Trial]) -> BatchingReport:
    """Returns the number of rows that saves most for each row, if it saves enough."""
    best = min(trials, key=lambda trial: trial.joined_ns / trial.rows)
    if best.ratio > PAYS_FROM:
        text = f"calls that are joined take {best.ratio:.2f} of the time of others"
        return BatchingReport(1, f"does not pay, {text}", tuple(trials))
    text = f"{best.rows} calls take {best.ratio:.2f} of the time when they are joined"
    return BatchingReport(best.rows, f"pays, {text}", tuple(trials))


def sizes(most_rows: int) -> list[int]:
    """Returns the numbers of rows that are tried: powers of two, and the largest number itself."""
    found = [1 << power for power in range(1, most_rows.bit_length()) if 1 << power <= most_rows]
    return found if found and found[-1] == most_rows else [*found, most_rows]


async def tried(alone: Call, joining: Call, arrays: Sequence[Any], rows: int) -> Trial:
    """Measures so many calls at once, in turns separate and joined; returns the medians.

    Raises what a call raises.
    """
    durations: tuple[list[float], list[float]] = ([], [])
    failures: list[Exception] = []
    for number in range(_ROUNDS + 1):
        for call, found in zip((alone, joining), durations, strict=True):
            began_ns = now_ns()
            async with anyio.create_task_group() as tasks:
                for _ in range(rows):
                    tasks.start_soon(_called, call, arrays, failures)
            if failures:
                raise failures[0]
            if number:  # The first round is the one in which everything is made.
                found.append(now_ns() - began_ns)
    return Trial(rows, statistics.median(durations[0]), statistics.median(durations[1]))


async def _called(call: Call, arrays: Sequence[Any], failures: list[Exception]) -> None:
    try:
        await call(*arrays)
    except Exception as error:
        failures.append(error)


class _JoinedCalls:
    """Calls for a trial: each waits until there are so many, and the last runs them all."""

    def __init__(self, net: Network, size: int) -> None:
        self._net = net
        self._size = size
        self._members: list[Member] = []

    async def __call__(self, *arrays: Array) -> Any:
        member = Member(arrays, len(arrays[0]), now_ns(), None)
        self._members.append(member)
        if len(self._members) == self._size:
            members, self._members = self._members, []
            await self._run(members)
        return await member.answer()

    async def _run(self, members: Sequence[Member]) -> None:
        rows = [member.due.rows for member in members]
        try:
            value = await self._net(*joined([member.arrays for member in members]))
            parts = taken_apart(value, rows) or [None] * len(rows)
        except Exception as error:
            for member in members:
                member.fail(error)
            return
        for member, part in zip(members, parts, strict=True):
            member.succeed(part)
