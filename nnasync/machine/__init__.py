"""The machine that we are on: what the system says of it, and what moving work costs there.

`read_facts()` reads what the system tells, `costs_here(folder)` measures what hops, switches and
cold caches cost, once, and keeps it. `decide(costs, stall_budget_ns)` is what a runtime takes
from that, and `find_obstacles(facts, costs)` is what stands in the way of quick and even answers.
`read_surroundings()` is what is around a program: interpreter, packages, folders, other processes,
cameras and listeners; `find_obstacles_around(surroundings)` what of that stands in the way. A
`CpuMeter` tells how busy the cores are, and how much of that is this process, and a `WaitMeter` how
long the threads of this process waited for a core.
`nnasync doctor` prints all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnasync._core.deferred import names

if TYPE_CHECKING:
    from nnasync.machine.busy import BusyProcess as BusyProcess
    from nnasync.machine.costs import Costs as Costs
    from nnasync.machine.costs import Spread as Spread
    from nnasync.machine.decisions import Decisions as Decisions
    from nnasync.machine.decisions import Margins as Margins
    from nnasync.machine.decisions import decide as decide
    from nnasync.machine.facts import MachineFacts as MachineFacts
    from nnasync.machine.facts import cores_allowed as cores_allowed
    from nnasync.machine.facts import processor_flags as processor_flags
    from nnasync.machine.facts import read_facts as read_facts
    from nnasync.machine.folders import FolderFacts as FolderFacts
    from nnasync.machine.installation import Installation as Installation
    from nnasync.machine.installation import PackageFacts as PackageFacts
    from nnasync.machine.kept import costs_here as costs_here
    from nnasync.machine.kept import kept_costs as kept_costs
    from nnasync.machine.listeners import Listener as Listener
    from nnasync.machine.meter import Busy as Busy
    from nnasync.machine.meter import CpuMeter as CpuMeter
    from nnasync.machine.obstacles import Obstacle as Obstacle
    from nnasync.machine.obstacles import find_obstacles as find_obstacles
    from nnasync.machine.obstacles_around import find_obstacles_around as find_obstacles_around
    from nnasync.machine.peripherals import Peripheral as Peripheral
    from nnasync.machine.surroundings import Surroundings as Surroundings
    from nnasync.machine.surroundings import read_surroundings as read_surroundings
    from nnasync.machine.waits import WaitMeter as WaitMeter

__all__ = [
    "Busy",
    "BusyProcess",
    "Costs",
    "CpuMeter",
    "Decisions",
    "FolderFacts",
    "Installation",
    "Listener",
    "MachineFacts",
    "Margins",
    "Obstacle",
    "PackageFacts",
    "Peripheral",
    "Spread",
    "Surroundings",
    "WaitMeter",
    "cores_allowed",
    "costs_here",
    "decide",
    "find_obstacles",
    "find_obstacles_around",
    "kept_costs",
    "processor_flags",
    "read_facts",
    "read_surroundings",
]

__getattr__ = names(
    __name__,
    {
        "Busy": "meter",
        "BusyProcess": "busy",
        "Costs": "costs",
        "CpuMeter": "meter",
        "Decisions": "decisions",
        "FolderFacts": "folders",
        "Installation": "installation",
        "Listener": "listeners",
        "MachineFacts": "facts",
        "Margins": "decisions",
        "Obstacle": "obstacles",
        "PackageFacts": "installation",
        "Peripheral": "peripherals",
        "Spread": "costs",
        "Surroundings": "surroundings",
        "WaitMeter": "waits",
        "cores_allowed": "facts",
        "costs_here": "kept",
        "decide": "decisions",
        "find_obstacles": "obstacles",
        "find_obstacles_around": "obstacles_around",
        "kept_costs": "kept",
        "processor_flags": "facts",
        "read_facts": "facts",
        "read_surroundings": "surroundings",
    },
)
