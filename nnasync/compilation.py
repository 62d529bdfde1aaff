"""A model, devices and preferences made into something that runs, and the report of why there.

Devices are tried in order: the first that supports every operation of the model and prepares it
gets it. The reference is the fallback where it is among the candidates. What was refused, and why,
stands in the report.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import anyio
import msgspec

from nnasync.clock import Deadline, now_ns
from nnasync.device import Device, PreparedModel
from nnasync.errors import (
    DeviceError,
    GeneralFailure,
    InvalidArgument,
    MissedDeadline,
    MissedDeadlinePersistent,
    MissedDeadlineTransient,
    NNError,
    Refused,
)
from nnasync.hal import ExecutionPreference, Model, Priority, operation_name

__all__ = ["Candidate", "Compilation", "Partition", "Rejection", "Report", "compile_model"]

T = TypeVar("T")


class Partition(msgspec.Struct, frozen=True):
    """A part of the model and where it runs; `operations` are indices into the main subgraph."""

    device: str
    operations: tuple[int, ...]
    reason: str


class Candidate(msgspec.Struct, frozen=True):
    """A device that was considered; `median_us` and `agreement` where it was measured."""

    device: str
    lowering: str
    median_us: float | None
    agreement: str
    verdict: str


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


async def compile_model(
    model: Model,
    devices: Sequence[Device],
    *,
    preference: ExecutionPreference,
    priority: Priority,
    deadline: Deadline | None,
    fingerprint: bytes,
) -> Compilation:
    """Prepare a model on the first device that takes it whole.

    Raises InvalidArgument if the model is not legal, MissedDeadline, and otherwise the error of
    the last device, or GeneralFailure if no device supports every operation.
    """
    rejections: list[Rejection] = []
    candidates: list[Candidate] = []
    failure: NNError | None = None
    for device in devices:
        unsupported = await _by_deadline(device, _unsupported(device, model), deadline)
        if unsupported:
            rejections += unsupported
            candidates.append(_candidate(device, "does not support every operation"))
            continue
        try:
            prepared = await device.prepare_model(model, preference, priority, deadline)
        except MissedDeadline:
            raise
        except (DeviceError, Refused) as error:
            failure = error
            rejections.append(Rejection(device.name, -1, f"prepare failed: {error}"))
            candidates.append(_candidate(device, "prepare failed"))
            continue
        candidates.append(_candidate(device, "chosen"))
        reason = "first device that takes the whole model" if not rejections else "fallback"
        operations = tuple(range(len(model.main.operations)))
        report = Report(
            partitions=(Partition(device.name, operations, reason),),
            candidates=tuple(candidates),
            rejections=tuple(rejections),
            cache_hit=False,
            cache_reason="no cache: no device used here has cache files",
            pin=_pin(device, fingerprint),
        )
        return Compilation(model, prepared, device, report)
    raise failure or GeneralFailure(_nobody(model, devices, rejections))


async def _by_deadline(device: Device, answer: Awaitable[T], deadline: Deadline | None) -> T:
    """The answer of a device to a question that has no deadline of its own."""
    remaining_s = None if deadline is None else max(0, deadline.remaining_ns(now_ns())) / 1e9
    try:
        with anyio.fail_after(remaining_s):
            return await answer
    except TimeoutError as error:
        kind = MissedDeadlineTransient if remaining_s else MissedDeadlinePersistent
        raise kind(f"{device.name} was not ready by the deadline") from error


async def _unsupported(device: Device, model: Model) -> list[Rejection]:
    try:
        answers = await device.get_supported_operations(model)
    except InvalidArgument:
        raise
    except NNError as error:
        return [Rejection(device.name, -1, f"cannot say what it supports: {error}")]
    operations = model.main.operations
    return [
        Rejection(device.name, index, f"{operation_name(operation.type)} is not supported")
        for index, (operation, supported) in enumerate(zip(operations, answers, strict=True))
        if not supported
    ]


def _candidate(device: Device, verdict: str) -> Candidate:
    return Candidate(device.name, "whole model", None, "not measured", verdict)


def _pin(device: Device, fingerprint: bytes) -> str:
    digest = hashlib.sha256(fingerprint + device.version.encode()).hexdigest()[:16]
    return f"{device.name}:{device.version}:{digest}"


def _nobody(model: Model, devices: Sequence[Device], rejections: Sequence[Rejection]) -> str:
    names = ", ".join(device.name for device in devices) or "none"
    reasons = "; ".join(
        f"{rejection.device}: operation {rejection.operation}: {rejection.reason}"
        for rejection in rejections[:8]
    )
    return f"no device takes the whole model {model.name!r} (devices: {names}): {reasons}"
