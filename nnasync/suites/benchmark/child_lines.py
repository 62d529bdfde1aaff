"""What a child process of the benchmark is told, and what it answers."""

from __future__ import annotations

import msgspec

from nnasync.suites.benchmark.measuring import DeviceMeasurement, MeasureJob
from nnasync.suites.benchmark.targets import BenchTarget

OUTPUTS, MOVED, TIMES = "outputs.npz", "moved.npz", "times.npz"


class ChildHello(msgspec.Struct, frozen=True):
    """Which target, and where its runtime keeps what it measures."""

    target: BenchTarget
    state_dir: str


class MeasureOrder(msgspec.Struct, frozen=True, tag=True):
    """What is to be measured, on inputs in a file; outputs and times are wanted in a folder."""

    job: MeasureJob
    inputs: str
    folder: str


class StepLine(msgspec.Struct, frozen=True, tag=True):
    """What is being done."""

    text: str


class MeasuredLine(msgspec.Struct, frozen=True, tag=True):
    """An order was carried out; the outputs are in the files."""

    measurement: DeviceMeasurement


class FailedLine(msgspec.Struct, frozen=True, tag=True):
    """An order was not; `is_unsupported` if the device does not take the network at all."""

    text: str
    is_unsupported: bool = False


AnswerLine = StepLine | MeasuredLine | FailedLine
