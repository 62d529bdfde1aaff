"""What follows from the costs of a machine, where the application's options leave it open."""

from __future__ import annotations

from nnasync.hal import Struct
from nnasync.machine.costs import USUAL_NOISE, Costs, Spread

USUAL_COSTS = Costs(
    turn=Spread(10_000, 30_000),
    hop=Spread(20_000, 40_000),
    cold_hop=Spread(60_000, 120_000),
    switch=Spread(3_000, 6_000),
    chill=2.0,
    noise=USUAL_NOISE,
)
"""What is taken for the costs until the machine is measured."""

_WORTH_A_HOP = 20
_SPREADING = 2
_LEAST_WINDOW_NS, _MOST_WINDOW_NS = 20_000, 1_000_000
_LONG_WAIT = 7
_LEAST_NOISE, _MOST_NOISE = 0.01, 0.05
_LEAST_SLICE_NS, _MOST_SLICE_NS, _SLICE = 1_000_000, 5_000_000, 50


class Margins(Struct, frozen=True):
    """How far apart two contenders for a model must be measured to count as different.

    All are ratios of costs. tie: the order of the contenders decides within it. near_enough: who
    takes no longer than that may win for what cold caches cost him. near: between them cold runs
    are made. rivals: they have more turns than others. far: beyond it there are none after a few.
    clearly: a product of costs that is worse than that loses.
    """

    tie: float
    near_enough: float
    near: float
    rivals: float
    far: float
    clearly: float


class Decisions(Struct, frozen=True):
    """What the costs of moving work decide; in nanoseconds.

    inline_budget_ns: an execution that takes at most this long may run on the thread of the loop.
    launch_budget_ns: the same for a launch, which waits for nothing. spread_from_ns: shorter
    executions stay on that thread however many wait. turn_ns, hop_ns, cold_hop_ns: what a turn of
    the loop, a hop to a worker and a hop after a pause are expected to take. window_ns: how long at
    least a caller looks for the answer of another process before it sleeps. longest_window_ns: and
    at most. slice_ns: how long each turn of a contender is when devices are compared. margins: how
    far apart they must be measured there.
    """

    inline_budget_ns: int
    launch_budget_ns: int
    spread_from_ns: int
    turn_ns: int
    hop_ns: int
    cold_hop_ns: int
    window_ns: int
    longest_window_ns: int
    slice_ns: int
    margins: Margins


def decide(costs: Costs | None, stall_budget_ns: int) -> Decisions:
    """Returns the decisions that follow from costs, or from usual ones where costs are unknown.

    An execution goes to a worker where the hop costs a twentieth of its time or less: holding the
    loop up for longer gains nothing that can be noticed. Whatever hops cost, the loop is held up by
    no more than the stall budget. A launch, whose caller goes on at once, runs on the thread of the
    loop if that takes no longer than to wake another thread. Two executions end sooner on two
    threads than one after the other only if each is longer than the hop; from twice that on they
    are spread. An answer of another process is looked for as long as it takes to be woken; where
    answers usually come later, up to seven times as long, but never beyond half the stall budget.
    A contender's turn is fifty times as long as waking its thread, which so counts for little.
    """
    known = costs or USUAL_COSTS
    cold_ns = known.cold_hop.low_ns
    window_ns = min(max(cold_ns, _LEAST_WINDOW_NS), _MOST_WINDOW_NS)
    return Decisions(
        inline_budget_ns=min(_WORTH_A_HOP * cold_ns, stall_budget_ns),
        launch_budget_ns=min(cold_ns, stall_budget_ns),
        spread_from_ns=_SPREADING * known.hop.low_ns,
        turn_ns=known.turn.low_ns,
        hop_ns=known.hop.low_ns,
        cold_hop_ns=cold_ns,
        window_ns=window_ns,
        longest_window_ns=max(window_ns, min(_LONG_WAIT * window_ns, stall_budget_ns // 2)),
        slice_ns=min(max(_SLICE * cold_ns, _LEAST_SLICE_NS), _MOST_SLICE_NS),
        margins=_margins(known.noise),
    )


def _margins(noise: float) -> Margins:
    """Multiples of the noise, as they proved right for networks on a machine where it was 3 %.

    What is within 5 percent is near enough however quiet the machine is, and no more is on a noisy
    one: that is how much longer a network may take than with the best engine called directly. Costs
    of cold caches, and those after few turns, scatter more than others.
    """
    noise = min(max(noise, _LEAST_NOISE), _MOST_NOISE)
    return Margins(
        tie=1 + noise,
        near_enough=1.05,
        near=round(1.05 + noise * 5 / 3, 6),
        rivals=round(1.05 + noise * 10 / 3, 6),
        far=round(1.15 + noise * 5, 6),
        clearly=round(1.1 + noise * 5, 6),
    )
