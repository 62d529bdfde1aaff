"""The figures of a contestant: medians, percentiles and rates from its samples."""

from __future__ import annotations

import numpy as np

from nnasync import Fate, Report
from nnasync.cli.bench.contestant import Contestant
from nnasync.hal import Struct


class Figures(Struct, frozen=True):
    """What a contestant takes; durations in nanoseconds.

    cpu_ns: CPU time of the process per run, one at a time. per_second and busy_cores: with several
    runs in flight. partitions: device and number of operations of each part of the model.
    """

    name: str
    devices: str
    lowering: str
    partitions: tuple[tuple[str, int], ...]
    pin: str
    compile_ns: int
    first_ns: int
    runs: int
    median_ns: float
    p90_ns: float
    p99_ns: float
    cpu_ns: float
    in_flight: int
    per_second: float
    busy_cores: float


def figures_of(contestant: Contestant, in_flight: int) -> Figures:
    """The figures of a contestant that has run, alone and with so many in flight."""
    samples = contestant.latencies_ns
    median, p90, p99 = (float(value) for value in np.percentile(samples, [50, 90, 99]))
    report = contestant.net.report()
    devices, lowering = where(report)
    flight_ns = max(contestant.flight_ns, 1)
    return Figures(
        name=contestant.name,
        devices=devices,
        lowering=lowering,
        partitions=tuple((part.device, len(part.operations)) for part in report.partitions),
        pin=report.pin,
        compile_ns=contestant.compile_ns,
        first_ns=contestant.first_ns,
        runs=len(samples),
        median_ns=median,
        p90_ns=p90,
        p99_ns=p99,
        cpu_ns=contestant.busy_ns / len(samples),
        in_flight=in_flight,
        per_second=contestant.flight_runs / flight_ns * 1e9,
        busy_cores=contestant.flight_busy_ns / flight_ns,
    )


def where(report: Report) -> tuple[str, str]:
    """Devices of a compiled model, joined by "+", and the lowering that was chosen."""
    devices = "+".join(dict.fromkeys(partition.device for partition in report.partitions))
    chosen = [one.lowering for one in report.candidates if one.fate is Fate.CHOSEN]
    return devices, chosen[0] if chosen else ""
