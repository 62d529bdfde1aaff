"""What follows from the costs of a machine, where the application's options leave it open."""

from __future__ import annotations

from nnasync.hal import Struct
from nnasync.machine.costs import Costs

USUAL_INLINE_BUDGET_NS = 500_000
"""Until the machine is measured."""
_WORTH_A_HOP = 8


class Decisions(Struct, frozen=True):
    """What `Options` decide that leave it to the machine.

    inline_budget_ns: an execution that takes at most this long runs on the thread of the loop.
    """

    inline_budget_ns: int


def decide(costs: Costs | None, stall_budget_ns: int) -> Decisions:
    """What follows from costs, or from none as long as they are not known.

    An execution goes to a worker where the hop costs an eighth of its time or less. Whatever hops
    cost, the loop is held up by no more than the stall budget.
    """
    wanted = USUAL_INLINE_BUDGET_NS if costs is None else _WORTH_A_HOP * costs.cold_hop.low_ns
    return Decisions(min(wanted, stall_budget_ns))
