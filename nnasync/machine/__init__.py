"""The machine that we are on: what the system says of it, and what moving work costs there.

`read_facts()` reads what the system tells, `costs_here(folder)` measures what hops, switches and
cold caches cost, once, and keeps it. `decide(costs, stall_budget_ns)` is what a runtime takes
from that, and `find_obstacles(facts, costs)` is what stands in the way of quick and even answers.
`nnasync doctor` prints all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnasync._core.deferred import names

if TYPE_CHECKING:
    from nnasync.machine.costs import Costs as Costs
    from nnasync.machine.costs import Spread as Spread
    from nnasync.machine.decisions import Decisions as Decisions
    from nnasync.machine.decisions import decide as decide
    from nnasync.machine.facts import MachineFacts as MachineFacts
    from nnasync.machine.facts import cores_allowed as cores_allowed
    from nnasync.machine.facts import processor_flags as processor_flags
    from nnasync.machine.facts import read_facts as read_facts
    from nnasync.machine.kept import costs_here as costs_here
    from nnasync.machine.kept import kept_costs as kept_costs
    from nnasync.machine.obstacles import Obstacle as Obstacle
    from nnasync.machine.obstacles import find_obstacles as find_obstacles

__all__ = [
    "Costs",
    "Decisions",
    "MachineFacts",
    "Obstacle",
    "Spread",
    "cores_allowed",
    "costs_here",
    "decide",
    "find_obstacles",
    "kept_costs",
    "processor_flags",
    "read_facts",
]

__getattr__ = names(
    __name__,
    {
        "Costs": "costs",
        "Decisions": "decisions",
        "MachineFacts": "facts",
        "Obstacle": "obstacles",
        "Spread": "costs",
        "cores_allowed": "facts",
        "costs_here": "kept",
        "decide": "decisions",
        "find_obstacles": "obstacles",
        "kept_costs": "kept",
        "processor_flags": "facts",
        "read_facts": "facts",
    },
)
