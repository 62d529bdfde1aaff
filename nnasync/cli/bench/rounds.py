"""Rounds: contestants take turns, so that whatever disturbs the machine disturbs them alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio

from nnasync.cli.bench.contestant import Contestant
from nnasync.errors import NNError

ROUNDS = 5
LATENCY_SHARE = 0.6
SETTLE_S = 0.02
"""Pause between two turns, in which threads of the last contestant's engine stop spinning."""


async def run_rounds(
    contestants: Sequence[Contestant],
    *,
    duration_ns: int,
    in_flight: int,
    progress: Callable[[int, int, str], None],
) -> None:
    """Give each contestant about `duration_ns` in all, spread over up to five rounds.

    Three fifths of it are runs one at a time, the rest `in_flight` at a time; a slow model has
    fewer rounds. The order turns by one place each round. `progress` is told (turn, turns, name)
    before each turn. A contestant that fails has `failure` set and no further turn.
    """
    rounds = _rounds(contestants, duration_ns, in_flight)
    slice_ns = duration_ns // rounds
    turns = rounds * len(contestants)
    for turn in range(turns):
        round_number, place = divmod(turn, len(contestants))
        contestant = contestants[(place + round_number) % len(contestants)]
        progress(turn, turns, contestant.name)
        if contestant.failure is None:
            await anyio.sleep(SETTLE_S)
            await _turn(contestant, slice_ns, in_flight)


async def _turn(contestant: Contestant, slice_ns: int, in_flight: int) -> None:
    latency_ns = int(slice_ns * LATENCY_SHARE)
    try:
        await contestant.run()
        await contestant.run_one_by_one(latency_ns)
        await contestant.run_in_flight(in_flight, slice_ns - latency_ns)
    except* NNError as group:
        contestant.failure = _first(group)


def _rounds(contestants: Sequence[Contestant], duration_ns: int, in_flight: int) -> int:
    """Returns how many rounds fit into the time, each with the least number of runs."""
    slowest_ns = max((one.first_ns for one in contestants), default=0)
    least_ns = max(1, slowest_ns * (2 + in_flight))
    return max(1, min(ROUNDS, duration_ns // least_ns))


def _first(group: BaseExceptionGroup[NNError]) -> NNError:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
