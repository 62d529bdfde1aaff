"""What a compilation tells of itself: where the model runs, what was measured, what was refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from nnasync.deferred import deferred
from nnasync.device import Device, PreparedModel
from nnasync.hal import Model

if TYPE_CHECKING:
    from nnasync.compilation import telling
else:
    telling = deferred("nnasync.compilation.telling")

__all__ = ["Candidate", "Compilation", "Fallback", "Partition", "Rejection", "Report", "devices_of"]


class Partition(msgspec.Struct, frozen=True):
    """A part of the model and where it runs; `operations` are indices into the main subgraph.

    What the control-flow interpreter runs has `bodies`: then and else, or condition and body, each
    in parts whose `operations` are indices into that subgraph.
    """

    device: str
    operations: tuple[int, ...]
    reason: str
    bodies: tuple[tuple[Partition, ...], ...] = ()


class Candidate(msgspec.Struct, frozen=True):
    """A way to run the model that was considered.

    `median_us` of a run while nothing disturbs, and `cpu_us`, what all threads of the process used
    meanwhile, are None where nothing was measured. `cold_us` is a run that finds cold caches, as
    those of a stream do; measured where it might decide, else None. `agreement` says how far
    results are from the reference's.
    """

    device: str
    lowering: str
    median_us: float | None
    agreement: str
    verdict: str
    cpu_us: float | None = None
    cold_us: float | None = None


class Rejection(msgspec.Struct, frozen=True):
    """Why a device does not run an operation, or the whole model (operation -1)."""

    device: str
    operation: int
    reason: str

    def __str__(self) -> str:
        where = "" if self.operation < 0 else f"operation {self.operation}: "
        return f"{self.device}: {where}{self.reason}"


class Fallback(msgspec.Struct, frozen=True):
    """Work of a device that the reference did, since the device failed.

    `kind` is "prepare" where the device could not prepare the model, "partial" where the reference
    ran what the device is there for, "full" where it ran the whole model in place of all devices.
    `reason` is the first failure of its sort, `count` how often it happened.
    """

    device: str
    operations: tuple[int, ...]
    kind: str
    reason: str
    count: int


class Report(msgspec.Struct, frozen=True):
    """How a compilation came out, and what fell back since."""

    partitions: tuple[Partition, ...]
    candidates: tuple[Candidate, ...]
    rejections: tuple[Rejection, ...]
    cache_hit: bool
    cache_reason: str
    pin: str
    fallbacks: tuple[Fallback, ...] = ()

    def __str__(self) -> str:
        return telling.report_text(self)


def devices_of(report: Report) -> str:
    """The devices that run the model, in the order of its partitions, with + between them."""
    return "+".join(dict.fromkeys(partition.device for partition in report.partitions))


def _none() -> tuple[Fallback, ...]:
    return ()


class Compilation(msgspec.Struct, frozen=True):
    """A model that is prepared on a device.

    `later`, if there is one, brings the best plan in while the first is in use, and answers with
    the report of that. `fallbacks` tells what fell back so far. `run_ns` is how long a run took
    when the devices competed, None where they did not.
    """

    model: Model
    prepared: PreparedModel
    device: Device
    report: Report
    later: Callable[[], Awaitable[Report]] | None = None
    fallbacks: Callable[[], tuple[Fallback, ...]] = _none
    run_ns: float | None = None
