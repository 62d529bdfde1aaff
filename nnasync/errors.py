"""The exception tree: one class per ErrorStatus, grouped by who can act.

    NNError                                  .status: ErrorStatus, .transient: bool
    ├── CallerError                          your call is wrong; do not retry it
    │   ├── InvalidArgument                  INVALID_ARGUMENT
    │   │   ├── ModelError                   a model, or a file that holds one, is not legal
    │   │   └── ExperimentError              an experiment, or a file that describes one, is not
    │   ├── OutputInsufficientSize           OUTPUT_INSUFFICIENT_SIZE
    │   └── BadState                         closed, not yet done, or of another event loop;
    │                                        a RuntimeError as well
    ├── Cancelled                            the caller cancelled the execution
    ├── DeviceError                          the device or its process failed
    │   ├── DeviceUnavailable                DEVICE_UNAVAILABLE
    │   ├── GeneralFailure                   GENERAL_FAILURE
    │   └── DeviceDied                       the driver's process went away
    └── Refused                              valid, but not now
        ├── MissedDeadline                   a TimeoutError as well
        │   ├── MissedDeadlineTransient      MISSED_DEADLINE_TRANSIENT
        │   └── MissedDeadlinePersistent     MISSED_DEADLINE_PERSISTENT
        └── ResourceExhausted
            ├── ResourceExhaustedTransient   RESOURCE_EXHAUSTED_TRANSIENT
            └── ResourceExhaustedPersistent  RESOURCE_EXHAUSTED_PERSISTENT

A class whose status another class owns travels as that status: BadState as INVALID_ARGUMENT,
Cancelled as GENERAL_FAILURE, DeviceDied as DEVICE_UNAVAILABLE.
"""

from __future__ import annotations

from typing import TypeVar

from nnasync.hal import ErrorStatus, OutputShape

E = TypeVar("E", bound="NNError")

REASONS = frozenset(
    (
        "admission",
        "burst_depth",
        "closing",
        "dependency",
        "displaced",
        "hanging",
        "memory",
        "queue",
        "queue_full",
        "running",
        "threads",
    )
)
"""The reasons that an error may have in addition to its status; see `tracing.tally`."""


class NNError(Exception):
    """Base of every error that nnasync raises on purpose."""

    status: ErrorStatus = ErrorStatus.GENERAL_FAILURE
    transient: bool = False
    reason: str = ""
    """One of REASONS, where the class alone is not specific enough for statistics."""


class CallerError(NNError):
    """The call is wrong; retrying it unchanged is pointless."""

    status = ErrorStatus.INVALID_ARGUMENT


class InvalidArgument(CallerError):
    """An argument, a model or a request is not legal."""


class ModelError(InvalidArgument):
    """A model, or the file that should hold one, is not legal; the message says where."""


class ExperimentError(InvalidArgument, ValueError):
    """An experiment, or a file that belongs to one, is not legal; the message says where.

    A ValueError too, for which msgspec adds where in a file the value stands.
    """


class OutputInsufficientSize(CallerError):
    """An output buffer is too small; `output_shapes` has the dimensions that are needed."""

    status = ErrorStatus.OUTPUT_INSUFFICIENT_SIZE

    def __init__(self, message: str, output_shapes: tuple[OutputShape, ...] = ()) -> None:
        super().__init__(message)
        self.output_shapes = output_shapes


class BadState(CallerError, RuntimeError):
    """The object cannot do this now: it is closed, not finished, or belongs to another loop.

    A RuntimeError too, which is what event loops raise of such things.
    """


class Cancelled(NNError):
    """The caller cancelled the execution; raised to others that wait for its fence."""


class DeviceError(NNError):
    """The device failed; another device may succeed."""


class DeviceUnavailable(DeviceError):
    """The device takes no work: it is closed, or was closed while the work was in flight."""

    status = ErrorStatus.DEVICE_UNAVAILABLE


class GeneralFailure(DeviceError):
    """The device tried and failed; the cause, where there is one, is chained."""


class DeviceDied(DeviceError):
    """The process of the device ended."""

    status = ErrorStatus.DEVICE_UNAVAILABLE


class Refused(NNError):
    """A valid call that is not answered now."""

    status = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT


class MissedDeadline(Refused, TimeoutError):
    """The answer could not be given by the deadline."""

    status = ErrorStatus.MISSED_DEADLINE_TRANSIENT


class MissedDeadlineTransient(MissedDeadline):
    """The deadline passed during the work; a retry with the same time budget may succeed."""

    transient = True


class MissedDeadlinePersistent(MissedDeadline):
    """The deadline had passed, or was bound to, before the work started."""

    status = ErrorStatus.MISSED_DEADLINE_PERSISTENT


class ResourceExhausted(Refused):
    """A queue, a quota or a memory is full."""


class ResourceExhaustedTransient(ResourceExhausted):
    """Full now; a later retry may succeed."""

    transient = True


class ResourceExhaustedPersistent(ResourceExhausted):
    """Too large ever to fit."""

    status = ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT


BY_STATUS: dict[ErrorStatus, type[NNError]] = {
    ErrorStatus.DEVICE_UNAVAILABLE: DeviceUnavailable,
    ErrorStatus.GENERAL_FAILURE: GeneralFailure,
    ErrorStatus.OUTPUT_INSUFFICIENT_SIZE: OutputInsufficientSize,
    ErrorStatus.INVALID_ARGUMENT: InvalidArgument,
    ErrorStatus.MISSED_DEADLINE_TRANSIENT: MissedDeadlineTransient,
    ErrorStatus.MISSED_DEADLINE_PERSISTENT: MissedDeadlinePersistent,
    ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT: ResourceExhaustedTransient,
    ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT: ResourceExhaustedPersistent,
}
"""The class of each status but NONE."""


def because(reason: str, error: E) -> E:
    """The error with one of REASONS attached, for statistics."""
    error.reason = reason
    return error


def from_status(status: ErrorStatus, message: str) -> NNError:
    """The exception that stands for a HAL status; raises KeyError for NONE."""
    return BY_STATUS[status](message)
