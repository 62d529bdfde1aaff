"""What the coordinator and its children say to each other, as lines of JSON.

A child gets one order on standard input. It says that it has begun once all that it needs is
there, what it is at before each thing that may kill it, and at last what came of it. A second line
on its standard input asks it to end; the end of that input has it exit at once, so that no child
outlives a coordinator that was killed.
"""

from __future__ import annotations

import enum

import msgspec

from nnasync.hal import Struct


class CrashActivity(enum.Enum):
    """What the clients in a child do until their time is over."""

    INFER = "infer"
    """Load a network, infer for a while, close it; then the next one."""
    COMPILE = "compile"
    """Prepare networks that are in memory, and close them."""
    COMPILE_MAPPED = "compile mapped"
    """Map the files of networks and prepare them from there."""
    LOAD = "load"
    """Load a network, infer once, close it; what the process holds is sampled each time."""


class StressedNetwork(Struct, frozen=True):
    """A file of a network, and a file with inputs and the answers that were given to them."""

    name: str
    path: str
    answers: str = ""


class QuietOrder(Struct, frozen=True, tag=True):
    """Find out which networks a device takes, and what it answers while nothing else runs."""

    device: str
    networks: tuple[StressedNetwork, ...]
    folder: str
    seed: int


class ServiceOrder(Struct, frozen=True, tag=True):
    """Serve a device at a socket until asked to end."""

    device: str
    address: str
    cores: int


class StressOrder(Struct, frozen=True, tag=True):
    """Stress a device with so many clients at once; with an `address`, the one served there.

    `dies_after_s` is when the process kills itself, None for never. Clients pause between two
    things for `pause_s`, drawn evenly between its two ends.
    """

    device: str
    activity: CrashActivity
    clients: int
    seconds: float
    networks: tuple[StressedNetwork, ...]
    seed: int
    address: str = ""
    dies_after_s: float | None = None
    pause_s: tuple[float, float] = (0.0, 0.0)
    visit_s: float = 1.0
    """For how long a client infers a network before it takes the next one."""


class GraphOrder(Struct, frozen=True, tag=True):
    """Load random graphs of consecutive seeds, and with `executes` compare what they give.

    `menu` is what the device takes, as JSON, empty where it is still to be asked.
    """

    device: str
    size: str
    first_seed: int
    count: int
    seconds: float
    executes: bool
    menu: str = ""


class DegradationOrder(Struct, frozen=True, tag=True):
    """Infer the first network while the others, and it too, are compiled all the time."""

    device: str
    networks: tuple[StressedNetwork, ...]
    seconds: float
    compilers: int = 1


class SoakOrder(Struct, frozen=True, tag=True):
    """Load a device with all that applications do; say how it goes every `sample_s`."""

    device: str
    networks: tuple[StressedNetwork, ...]
    seconds: float
    seed: int
    sample_s: float
    kill_every_s: float
    pause_s: float


CrashOrder = SoakOrder | QuietOrder | ServiceOrder | StressOrder | GraphOrder | DegradationOrder


class ChildBegun(Struct, frozen=True, tag=True):
    """The child is at work."""


class ChildAt(Struct, frozen=True, tag=True):
    """What the child is about to do."""

    text: str


class SoakWindow(Struct, frozen=True, tag=True):
    """The median of the calls since the last window, and all counts and faults so far."""

    latency_ms: float | None
    counts: dict[str, int]
    faults: tuple[str, ...]


class CallTimes(Struct, frozen=True):
    """How long calls took, in ms: quantiles, and a histogram of 32 buckets."""

    count: int
    mean_ms: float
    p50_ms: float
    p99_ms: float
    worst_ms: float
    start_ms: float
    step_ms: float
    buckets: tuple[int, ...]


class UseSample(Struct, frozen=True):
    """What a process had at a moment, in seconds from the first one."""

    at_s: float
    memory_bytes: int
    descriptors: int
    threads: int


class ChildReport(Struct, frozen=True, tag=True):
    """What came of an order; without `failures` it is a success.

    `networks` are those that the device takes, with their answers. `figures` are by name, in
    percent where that ends so.
    """

    failures: tuple[str, ...] = ()
    times: CallTimes | None = None
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    figures: dict[str, float] = msgspec.field(default_factory=dict)
    networks: tuple[StressedNetwork, ...] = ()
    declined: dict[str, str] = msgspec.field(default_factory=dict)
    samples: tuple[UseSample, ...] = ()
    findings: tuple[tuple[str, str], ...] = ()
    """Texts, and the arguments of `nnasync randomgraph` that repeat them."""
    menu: str = ""


ChildMessage = ChildBegun | ChildAt | SoakWindow | ChildReport
