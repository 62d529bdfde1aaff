"""Networks in web applications of FastAPI, Starlette, and whatever speaks ASGI.

`Networks` has a lifespan that opens a runtime and compiles, dependencies that give requests their
networks with deadline and priority, and paths for Prometheus and health checks; `HangUps` ends
requests whose clients are gone, and `RequestSpans` makes spans of OpenTelemetry of them. It needs
Starlette: pip install 'nnasync[asgi]'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnasync._core.deferred import names
from nnasync.asgi.limits import Limits as Limits
from nnasync.asgi.limits import wishes_of as wishes_of

if TYPE_CHECKING:
    from nnasync.asgi.answers import Answers as Answers
    from nnasync.asgi.answers import status_of as status_of
    from nnasync.asgi.hang_ups import HangUps as HangUps
    from nnasync.asgi.networks import Call as Call
    from nnasync.asgi.networks import Networks as Networks
    from nnasync.asgi.request_spans import RequestSpans as RequestSpans

__all__ = [
    "Answers",
    "Call",
    "HangUps",
    "Limits",
    "Networks",
    "RequestSpans",
    "status_of",
    "wishes_of",
]

__getattr__ = names(
    __name__,
    {
        "Answers": "answers",
        "Call": "networks",
        "HangUps": "hang_ups",
        "Networks": "networks",
        "RequestSpans": "request_spans",
        "status_of": "answers",
    },
    {"starlette": "asgi"},
)
