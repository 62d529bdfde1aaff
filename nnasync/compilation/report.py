"""What a compilation tells of itself: where the model runs, what was measured, what was refused."""

from __future__ import annotations

import msgspec

from nnasync.device import Device, PreparedModel
from nnasync.hal import Model

__all__ = ["Candidate", "Compilation", "Partition", "Rejection", "Report"]


class Partition(msgspec.Struct, frozen=True):
    """A part of the model and where it runs; `operations` are indices into the main subgraph."""

    device: str
    operations: tuple[int, ...]
    reason: str


class Candidate(msgspec.Struct, frozen=True):
    """A way to run the model that was considered.

    `median_us` of a run and `cpu_us`, what all threads of the process used meanwhile, are None
    where nothing was measured. `agreement` says how far results are from the reference's.
    """

    device: str
    lowering: str
    median_us: float | None
    agreement: str
    verdict: str
    cpu_us: float | None = None


class Rejection(msgspec.Struct, frozen=True):
    """Why a device does not run an operation, or the whole model (operation -1)."""

    device: str
    operation: int
    reason: str


class Report(msgspec.Struct, frozen=True):
    """How a compilation came out."""

    partitions: tuple[Partition, ...]
    candidates: tuple[Candidate, ...]
    rejections: tuple[Rejection, ...]
    cache_hit: bool
    cache_reason: str
    pin: str


class Compilation(msgspec.Struct, frozen=True):
    """A model that is prepared on a device."""

    model: Model
    prepared: PreparedModel
    device: Device
    report: Report
