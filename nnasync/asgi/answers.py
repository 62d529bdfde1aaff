"""Errors of calls as answers over HTTP and as ends of websockets.

    400   CallerError                          the request is wrong
    413   ResourceExhaustedPersistent          it is too large ever to fit
    503   other Refused, DeviceUnavailable,    not now; the header Retry-After says when
          DeviceDied, Cancelled, BadState
    504   MissedDeadline                       not by the deadline
    500   other NNErrors                       the device failed; the text is kept for the log

`Retry-After` is the time that the work takes which waits already, in whole seconds.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket

from nnasync import errors

logger = logging.getLogger(__name__)

_INVALID_DATA, _INTERNAL_ERROR, _TRY_AGAIN_LATER = 1007, 1011, 1013
_LONGEST_REASON = 120
"""Of a websocket's end, in bytes; the protocol has room for 123."""

_UNSAID = "the network could not be executed"
_BY_CLASS: tuple[tuple[type[errors.NNError], HTTPStatus], ...] = (
    (errors.MissedDeadline, HTTPStatus.GATEWAY_TIMEOUT),
    (errors.ResourceExhaustedPersistent, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (errors.Refused, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.BadState, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.CallerError, HTTPStatus.BAD_REQUEST),
    (errors.DeviceUnavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.DeviceDied, HTTPStatus.SERVICE_UNAVAILABLE),
    (errors.Cancelled, HTTPStatus.SERVICE_UNAVAILABLE),
)


def status_of(error: errors.NNError) -> HTTPStatus:
    """The HTTP status that an error is answered with."""
    for kind, status in _BY_CLASS:
        if isinstance(error, kind):
            return status
    return HTTPStatus.INTERNAL_SERVER_ERROR


def text_of(error: errors.NNError) -> str:
    """Returns the text of an error for clients, which does not reveal a device's insides."""
    is_ours = status_of(error) == HTTPStatus.INTERNAL_SERVER_ERROR
    return _UNSAID if is_ours else str(error)


class Answers:
    """The handler of NNErrors for Starlette and FastAPI."""

    def __init__(self, drain_s: Callable[[], float]) -> None:
        """`drain_s` tells how many seconds the work takes that waits now."""
        self._drain_s = drain_s

    async def __call__(self, connection: Any, error: Exception) -> Any:
        """Answer a request, or end a websocket; raises what is no NNError."""
        if not isinstance(error, errors.NNError):
            raise error
        status = status_of(error)
        if status == HTTPStatus.INTERNAL_SERVER_ERROR:
            logger.error("%s failed", connection.scope["path"], exc_info=error)
        if isinstance(connection, WebSocket):
            await connection.close(_close_code(status), _shortened(text_of(error)))
            return None
        return self._response(status, error)

    def _response(self, status: HTTPStatus, error: errors.NNError) -> Response:
        headers = {}
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            headers["retry-after"] = str(max(1, math.ceil(self._drain_s())))
        body = {"detail": text_of(error), "error": type(error).__name__, "reason": error.reason}
        return JSONResponse(body, status, headers)


def _close_code(status: HTTPStatus) -> int:
    if status in (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE):
        return _INVALID_DATA
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return _INTERNAL_ERROR
    return _TRY_AGAIN_LATER


def _shortened(text: str) -> str:
    return text.encode()[:_LONGEST_REASON].decode(errors="ignore")
