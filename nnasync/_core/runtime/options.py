"""The settings of a runtime."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Literal

import msgspec

from nnasync._core.cache import DEFAULT_LIMIT_BYTES
from nnasync._core.os_threads import MOST_NICE
from nnasync.errors import InvalidArgument
from nnasync.machine.facts import cores_allowed
from nnasync.scheduler import AGING_NS
from nnasync.scheduler.policy import DEFAULT


def _is_within(value: object, allowed: range) -> bool:
    """Returns whether a value is a whole number, and no bool, of a range."""
    return isinstance(value, int) and not isinstance(value, bool) and value in allowed


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a runtime; times in microseconds.

    cores: how many executions run at once, by default the cores that this process may use, by its
    affinity and by the quota of its container. inline_budget_us: an execution that takes at most
    this long may run on the thread of the loop (0: never); None takes twenty times what a hop to a
    worker costs on this machine, but no more than the stall budget. stall_budget_us: inline work
    per turn of the loop. An inline LOW execution takes half of the inline budget at most.
    queue_limit: executions that may wait, for a thread or for fences; where so many do, the newest
    of a lower priority gives its place up. low_os_priority: LOW worker threads get the lowest OS
    priority: always (True) or never (False); "alone", while nothing of higher priority is prepared;
    "quiet", while something of higher priority is prepared and others leave the cores alone; or
    "auto", the same where that is of HIGH (beside foreign busy processes such a thread may stall
    all others of its process, also the loop: up to two tenths of a second pass until it is seen).
    low_engine_priority: where the worker threads keep the usual OS priority while something of
    higher priority is prepared, LOW executions may run on threads of their engine that have the
    lowest (which stall nobody; beside foreign busy processes they do not). Neither needs
    privileges. switch_interval_us: how often the interpreter lock is offered while the runtime is
    open, in the whole process (0: as it is); None is 50, and 200 with real_time, where each look of
    a thread that waits for the lock takes the core from the one that has it.
    blas_threads: 1 has each call of BLAS in this process, the application's own with numpy as well,
    run on one thread, from the first network that is compiled for the reference on until the last
    runtime that wants it is closed: the workers are the parallelism. Processes that the runtime
    starts have no threads of OpenBLAS then, unless OPENBLAS_NUM_THREADS says otherwise. None leaves
    BLAS alone.
    time_slice_us: the slice that the loop's thread asks the system for (0: the system's own), so
    that it gets a core soon when it wakes, and keeps it for what a turn computes; workers ask for
    0.7 of that.
    worker_niceness: how much nicer workers are than the loop's thread, 0 to 19, while other
    programs leave the cores alone: the loop runs at once beside busy workers then, where it would
    wait for the system's next tick (there is no need for that with real_time). real_time: the
    loop's thread, and those that wait for deadlines, have a real-time priority of the system
    (SCHED_RR) while the runtime is open, so that they run ahead of all that have none, other
    programs included: for programs whose loop does little at a time, as a server's. Workers have
    a lower one, and the usual one while an engine computes for less than HIGH, or once they have
    used half of a core without; no thread has the lowest OS priority then. It takes CAP_SYS_NICE
    or a limit RLIMIT_RTPRIO of 3; without, opening the runtime raises InvalidArgument.
    competition_budget_ms: how long devices are measured against each other for a model (0: the
    first that takes it gets it). contest_process: measure them in a process that is started for it,
    so that the loop does not stall (devices that are given as objects, or isolated, are measured
    here). background_contest_ms: how much processor time such a measurement takes where nobody
    waits for it, as after the first answer; what is known by then decides. aging_ms: an execution
    that has waited for so long goes before those of higher priority, one at a time.
    cache_limit_bytes: of a cache directory; the least recently used entries go first.
    encrypt_cache: keep cache files encrypted. state_dir: where measurements and the digests of
    cache files are kept, by default $NNASYNC_STATE_DIR, else a folder of the user's. hang_after_s:
    an isolated device whose process gives no sign of life for so many seconds, while something is
    awaited of it, is killed (0: never). revive: networks whose isolated device died are compiled
    again, in the background. isolated_limit_bytes: memory that the process of an isolated device
    may have for itself alone (RLIMIT_DATA); what asks for more fails there, or ends that process.
    policy: the name of who decides which executions go first; isolated devices have it too.
    ageing_ms: what aging_ms was called before; it warns.
    """

    cores: int = msgspec.field(default_factory=cores_allowed)
    inline_budget_us: float | None = None
    stall_budget_us: float = 1000
    queue_limit: int = 1024
    low_os_priority: bool | Literal["auto", "alone", "quiet"] = "auto"
    low_engine_priority: bool = True
    switch_interval_us: float | None = None
    blas_threads: Literal[1] | None = 1
    time_slice_us: float = 1300
    worker_niceness: int = 5
    real_time: bool = False
    competition_budget_ms: float = 300
    contest_process: bool = True
    background_contest_ms: float = 1000
    aging_ms: float = AGING_NS / 1e6
    cache_limit_bytes: int = DEFAULT_LIMIT_BYTES
    encrypt_cache: bool = False
    state_dir: str | os.PathLike[str] | None = None
    hang_after_s: float = 10
    revive: bool = False
    isolated_limit_bytes: int | None = None
    policy: str = DEFAULT
    ageing_ms: float | None = None

    def __post_init__(self) -> None:
        if self.ageing_ms is not None:
            warnings.warn("ageing_ms is called aging_ms now", DeprecationWarning, stacklevel=2)
            msgspec.structs.force_setattr(self, "aging_ms", self.ageing_ms)
            msgspec.structs.force_setattr(self, "ageing_ms", None)
        counts: tuple[object, ...] = (self.cores, self.queue_limit)
        if not all(isinstance(count, int) and count >= 1 for count in counts):
            raise InvalidArgument(f"cores and queue_limit must be 1 or more: {counts}")
        times: tuple[object, ...] = (
            0 if self.inline_budget_us is None else self.inline_budget_us,
            self.stall_budget_us,
            0 if self.switch_interval_us is None else self.switch_interval_us,
            self.time_slice_us,
            self.competition_budget_ms,
            self.background_contest_ms,
            self.aging_ms,
            self.hang_after_s,
        )
        if not all(isinstance(time, (int, float)) and 0 <= time < float("inf") for time in times):
            raise InvalidArgument(f"budgets and intervals must be 0 or more: {times}")
        if self.low_os_priority not in (False, True, "auto", "alone", "quiet"):
            text = 'low_os_priority must be a bool, "auto", "alone" or "quiet"'
            raise InvalidArgument(f"{text}, got {self.low_os_priority!r}")
        if self.blas_threads not in (1, None):
            raise InvalidArgument(f"blas_threads must be 1 or None, got {self.blas_threads!r}")
        if not _is_within(self.worker_niceness, range(MOST_NICE + 1)):
            text = f"a number from 0 to {MOST_NICE}, got {self.worker_niceness!r}"
            raise InvalidArgument(f"worker_niceness must be {text}")
        limit = self.isolated_limit_bytes
        if not (limit is None or _is_within(limit, range(1, sys.maxsize + 1))):
            text = f"a number of bytes from 1 to {sys.maxsize}, or None"
            raise InvalidArgument(f"isolated_limit_bytes must be {text}, got {limit!r}")
        if self.aging_ms < 1:
            raise InvalidArgument(f"aging_ms must be 1 or more, got {self.aging_ms}")
        if not isinstance(self.policy, str):
            raise InvalidArgument(
                f"policy must be the name of one, got {self.policy!r}; an object goes to "
                "open_runtime(policy=...)"
            )
        if not isinstance(self.state_dir, (str, os.PathLike, type(None))):
            raise InvalidArgument(f"state_dir must be a path, got {self.state_dir!r}")
