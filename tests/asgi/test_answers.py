"""Errors of calls over HTTP and as ends of websockets."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from starlette.requests import Request
from starlette.websockets import WebSocket

from nnasync import errors
from nnasync.asgi.answers import Answers, status_of

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_loop("what is answered does not depend on the loop"),
]

STATUSES = {
    errors.NNError: 500,
    errors.CallerError: 400,
    errors.InvalidArgument: 400,
    errors.ModelError: 400,
    errors.OutputInsufficientSize: 400,
    errors.BadState: 503,
    errors.Cancelled: 503,
    errors.DeviceError: 500,
    errors.DeviceUnavailable: 503,
    errors.GeneralFailure: 500,
    errors.DeviceDied: 503,
    errors.Refused: 503,
    errors.MissedDeadline: 504,
    errors.MissedDeadlineTransient: 504,
    errors.MissedDeadlinePersistent: 504,
    errors.ResourceExhausted: 503,
    errors.ResourceExhaustedTransient: 503,
    errors.ResourceExhaustedPersistent: 413,
}


def test_each_error_has_its_status() -> None:
    assert {kind: int(status_of(kind("why"))) for kind in STATUSES} == STATUSES


def test_each_status_of_the_hal_has_one() -> None:
    assert set(errors.BY_STATUS.values()) <= set(STATUSES)


def request() -> Request:
    return Request({"type": "http", "path": "/x", "headers": [], "server": ("here", 80)})


async def answered(error: Exception, drain_s: float = 0) -> Any:
    return await Answers(lambda: drain_s)(request(), error)


async def test_the_text_says_what_was_wrong() -> None:
    error = errors.because("queue_full", errors.ResourceExhaustedTransient("4 are queued"))
    response = await answered(error, drain_s=2.1)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "3"
    assert (
        response.body == b'{"detail":"4 are queued","error":"ResourceExhaustedTransient",'
        b'"reason":"queue_full"}'
    )


async def test_retrying_at_once_is_never_advised() -> None:
    assert (await answered(errors.DeviceDied("x"))).headers["retry-after"] == "1"
    assert "retry-after" not in (await answered(errors.MissedDeadlineTransient("x"))).headers


async def test_the_inside_of_a_failure_is_logged_and_not_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        response = await answered(errors.GeneralFailure("/secret/path"))
    assert b"secret" not in response.body
    assert response.status_code == 500
    assert "/secret/path" in caplog.text


async def test_what_is_no_error_of_ours_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        await answered(ZeroDivisionError())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidArgument("é" * 100), 1007),
        (errors.MissedDeadlineTransient("late"), 1013),
        (errors.GeneralFailure("broken"), 1011),
    ],
)
async def test_websockets_end_with_a_code(error: errors.NNError, code: int) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    socket = WebSocket(
        {"type": "websocket", "path": "/x", "headers": [], "server": ("here", 80)}, receive, send
    )
    await socket.accept()
    assert await Answers(lambda: 0)(socket, error) is None
    assert sent[-1]["code"] == code
    assert len(sent[-1]["reason"].encode()) <= 123
