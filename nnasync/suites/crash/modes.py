"""The modes of the crash suite and their parameters, as data.

They are those of the crash tests of Android's MLTS, with the same numbers of clients, processes and
kills. Times are a quarter of theirs: `--scale 4` has the originals'. Below a scale of 0.1, where a
run is to show that nothing falls over at once, each mode has only its hardest parameters.
"""

from __future__ import annotations

import enum

from nnasync.hal import Struct
from nnasync.suites.crash.orders import CrashActivity

SHORT_SCALE = 0.1
"""Below it, a mode has its last set of parameters only."""
LEAST_S = 1.0
"""No stress is shorter than this."""


class StressKind(enum.Enum):
    """Where the clients of a mode are, and what is done to them."""

    IN_PROCESS = "in process"
    """The driver is in the process of its clients."""
    SERVED = "served"
    """The driver is in a process of its own; each process of clients is another one."""
    TERMINATED = "terminated"
    """As SERVED, and the clients are killed while they work."""
    GRAPHS = "graphs"
    DEGRADATION = "degradation"


class StressSet(Struct, frozen=True):
    """One set of parameters; `seconds` at scale 1, `kill_percent` of the processes kill themselves.

    `size`, `count` are of random graphs.
    """

    text: str
    seconds: float
    clients: int = 1
    processes: int = 1
    kill_percent: int = 0
    size: str = "small"
    count: int = 600

    def lasts(self, scale: float, least_s: float = LEAST_S) -> float:
        """Its time at a scale, at least so long."""
        return max(least_s, self.seconds * scale)


class CrashMode(Struct, frozen=True):
    """A way to stress a device; the hardest of its `sets` is the last."""

    name: str
    about: str
    kind: StressKind
    sets: tuple[StressSet, ...]
    activity: CrashActivity = CrashActivity.INFER
    pause_s: tuple[float, float] = (0.0, 0.0)
    executes: bool = False

    def sets_at(self, scale: float) -> tuple[StressSet, ...]:
        """The sets of parameters of a run at this scale."""
        return self.sets if scale >= SHORT_SCALE else self.sets[-1:]


_PARALLEL = (
    StressSet("8 clients", 450, clients=8),
    StressSet("12 clients", 300, clients=12),
)
_GRAPHS = (
    StressSet("600 graphs of 40 operations", 225, size="large"),
    StressSet("600 graphs of 5 operations", 225, size="small"),
)

MODES: tuple[CrashMode, ...] = (
    CrashMode(
        "parallel-inference-stress",
        "clients that load and infer all networks, the driver in a process of its own",
        StressKind.SERVED,
        _PARALLEL,
    ),
    CrashMode(
        "parallel-inference-stress-in-process",
        "the same with the driver in the process of the clients",
        StressKind.IN_PROCESS,
        _PARALLEL,
    ),
    CrashMode(
        "client-early-termination-stress",
        "a client that is killed while it compiles",
        StressKind.TERMINATED,
        (StressSet("4 clients", 17.5, clients=4),),
        CrashActivity.COMPILE,
    ),
    CrashMode(
        "multi-process-inference-stress",
        "processes of clients that infer one network; some kill themselves",
        StressKind.SERVED,
        (
            StressSet("6 processes of 10", 450, clients=10, processes=6),
            StressSet(
                "6 processes of 10, 80 % killed", 300, clients=10, processes=6, kill_percent=80
            ),
        ),
    ),
    CrashMode(
        "multi-process-model-load-stress",
        "processes of clients that compile one network; some kill themselves",
        StressKind.SERVED,
        (
            StressSet("6 processes of 10", 300, clients=10, processes=6),
            StressSet(
                "6 processes of 10, 50 % killed", 300, clients=10, processes=6, kill_percent=50
            ),
            StressSet(
                "6 processes of 10, all killed", 150, clients=10, processes=6, kill_percent=100
            ),
        ),
        CrashActivity.COMPILE,
        pause_s=(0.3, 0.8),
    ),
    CrashMode(
        "memory-mapped-model-load-stress",
        "clients that compile networks from mapped files",
        StressKind.SERVED,
        (StressSet("4 clients", 17.5, clients=4),),
        CrashActivity.COMPILE_MAPPED,
    ),
    CrashMode(
        "model-loading-stress",
        "load, infer once, close, again and again: what the process holds must not grow",
        StressKind.IN_PROCESS,
        (StressSet("1 client", 300),),
        CrashActivity.LOAD,
    ),
    CrashMode(
        "inference-stress",
        "one client that infers one network after the other for long",
        StressKind.IN_PROCESS,
        (StressSet("1 client", 300),),
    ),
    CrashMode(
        "model-load-random-stress",
        "random graphs, loaded",
        StressKind.GRAPHS,
        _GRAPHS,
    ),
    CrashMode(
        "inference-random-stress",
        "random graphs, loaded and executed, their results compared with the reference",
        StressKind.GRAPHS,
        _GRAPHS,
        executes=True,
    ),
    CrashMode(
        "performance-degradation-stress",
        "the speed of inference while another thread compiles",
        StressKind.DEGRADATION,
        (StressSet("1 compiling client", 120),),
    ),
)
