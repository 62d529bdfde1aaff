"""The simulator: discrete events in virtual time around the scheduler that serves the runtime.

`simulate` drives the very object that the workers of a runtime ask: the same queue, estimates,
refusals, shares and policy; only the clock, the cores and the requests are made up. One seed gives
one result, to the byte.

*Ideal cores.* Without overheads there are cores and nothing else: a request is handed out at the
instant at which a core is free, and stops at the very border at which it is asked to. That is the
system of queueing theory and of real-time analysis, and the tests hold it to both
(`simulation_cores`).

*The runtime's machine.* With overheads a request passes the loop and a hop on its way to a core,
and again on the way back (`simulation_loop`).
"""

from __future__ import annotations

from nnasync._core.arguments import check_kind, or_none
from nnasync.experiments.overheads import Overheads
from nnasync.experiments.record import Recorder, Recording, RunResult
from nnasync.experiments.simulation_cores import Settings, Simulation
from nnasync.experiments.simulation_loop import LoopSimulation
from nnasync.experiments.workload import Workload, checked
from nnasync.hal import NEVER_NS
from nnasync.scheduler import AGING_NS, Policy, resolve_policy


def simulate(
    workload: Workload,
    *,
    cores: int = 1,
    policy: str | Policy | None = None,
    seed: int = 0,
    duration_ns: int | None = None,
    requests: int | None = None,
    queue_limit: int = NEVER_NS,
    aging_ns: int = AGING_NS,
    overheads: Overheads | None = None,
    record: Recording | None = None,
) -> RunResult:
    """Runs a workload in virtual time, and returns the record of the run.

    The run ends after `duration_ns`, or when so many `requests` have come, or when all streams have
    ended and everything is answered; one of the three must be certain. `policy` is a name, an
    object, or None for the default rule. At most `queue_limit` requests of each client wait, and
    what is below HIGH is due for its age after `aging_ns`. Cores are ideal unless there are
    `overheads`: then all is as in the runtime, on a machine where its calls cost that.

    Raises ExperimentError where that cannot be simulated, or where a trace is not as it should be;
    InvalidArgument for an unknown policy; PolicyError for one that breaks its contract.
    """
    workload = checked(workload)
    or_none(check_kind, "overheads", overheads, Overheads, "Overheads")
    or_none(check_kind, "record", record, Recording, "a Recording")
    settings = Settings(cores, seed, queue_limit, aging_ns)
    recorder = Recorder(workload, record or Recording())
    streams, asked = workload.streams, resolve_policy(policy)
    simulation = (
        Simulation(streams, settings, asked, recorder)
        if overheads is None
        else LoopSimulation(streams, settings, asked, recorder, overheads)
    )
    return simulation.run(duration_ns, requests)
