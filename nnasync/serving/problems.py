"""What a request is refused with: a status of HTTP, and the text that clients of Triton know.

Everything below raises the errors of the runtime; here they become what both fronts send. The gRPC
front has a code for each of these statuses.
"""

from __future__ import annotations

from http import HTTPStatus

from nnasync import errors
from nnasync.errors import NNError
from nnasync.hal import ErrorStatus

QUEUE_FULL = "Exceeds maximum queue size"
EXPIRED = "Request timeout expired"


class ServingError(NNError):
    """A request is refused, or failed: `code` is a status of HTTP, `text` what the client reads.

    `retry_after_s` is when it is worth asking again, 0 where nothing is known of that.
    """

    def __init__(self, code: HTTPStatus, text: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        if code < HTTPStatus.INTERNAL_SERVER_ERROR:
            self.status = ErrorStatus.INVALID_ARGUMENT
        self.code = code
        self.text = text
        self.retry_after_s = retry_after_s


def invalid(text: str) -> ServingError:
    """Returns the error for a request that is wrong, so that repeating it is pointless."""
    return ServingError(HTTPStatus.BAD_REQUEST, text)


def not_found(text: str) -> ServingError:
    """Returns the error for a request that names what is not there."""
    return ServingError(HTTPStatus.NOT_FOUND, text)


def too_large(text: str) -> ServingError:
    """Returns the error for a request that exceeds a limit of this server."""
    return ServingError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)


def as_serving_error(error: Exception, *, retry_after_s: float = 0.0) -> ServingError:
    """Returns the error to be sent for an error of the runtime.

    Unknown ones become internal errors.
    """
    if isinstance(error, ServingError):
        return error
    if isinstance(error, errors.MissedDeadline):
        return ServingError(HTTPStatus.SERVICE_UNAVAILABLE, EXPIRED)
    if isinstance(error, errors.ResourceExhausted):
        full = error.reason in ("queue_full", "displaced", "burst_depth")
        return ServingError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            QUEUE_FULL if full else str(error),
            retry_after_s=retry_after_s,
        )
    if isinstance(error, (errors.DeviceDied, errors.DeviceUnavailable)):
        return ServingError(HTTPStatus.SERVICE_UNAVAILABLE, str(error), retry_after_s=retry_after_s)
    if isinstance(error, errors.CallerError):
        return ServingError(HTTPStatus.BAD_REQUEST, str(error))
    text = str(error) if isinstance(error, NNError) else "internal error"
    return ServingError(HTTPStatus.INTERNAL_SERVER_ERROR, text)
