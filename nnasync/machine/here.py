"""What was decided for this process, where no runtime is at hand that could be asked.

Waiting for another process is the same for all runtimes of a process, and in a service there may be
none. The first runtime that is opened says what its folder of state knows of the machine; before
that the usual costs count.
"""

from __future__ import annotations

from nnasync.machine.decisions import Decisions, decide
from nnasync.machine.facts import cores_allowed

_STALL_BUDGET_NS = 1_000_000


class Here:
    """The decisions of this process, and whether a thread may look for another one's answer."""

    def __init__(self) -> None:
        self.decisions: Decisions = decide(None, _STALL_BUDGET_NS)

    @property
    def may_poll(self) -> bool:
        """Returns whether who looks for an answer leaves a core to the one who makes it.

        Not on one core, nor where the quota of the container is one core or less: looking would use
        up the time in which the answer is to be made.
        """
        return cores_allowed() > 1


HERE = Here()
"""Of this process."""
